"""Which composition score finds the edges that matter: AUC against what cutting each edge costs.

    python scripts/composition_auc.py            the table of docs/composition.md
    python scripts/composition_auc.py --json

Every edge between two heads is taken, alone, from a run on other sequences in another order, and
everything after it is recomputed. The edge is causal if that changes predictions, on repeated
random tokens or on held-out text, by at least LEAST nats of KL divergence per position. A score's
AUC is the probability that a causal edge scores higher than one that is not: 1 ranks all of them
first, 0.5 is chance.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import pathsum as ps
from pathsum.base import Site
from pathsum.base.shapes import Tokens
from pathsum.base.site import HEAD_SIDES
from pathsum.circuits import composition, composition_by
from pathsum.heads.probe import repeats_probe
from pathsum.model import Model
from pathsum.training.network import Network
from pathsum.training.recipe import Start

LEAST = 0.01
SEQUENCES, LENGTH = 12, 96
TOY = ps.Config(n_layers=2, n_heads=4, d_model=48, d_head=12, d_vocab=40, n_ctx=32, start_token=0)


def toy(seed: int, steps: int = 1500) -> Model:
    """A small model trained on repeated random tokens, which only induction predicts."""
    network = Network(TOY, Start(), seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 100) * min(1.0, 2 * (1 - step / steps))
        block = torch.randint(1, TOY.d_vocab, (48, 15), generator=generator)
        tokens = torch.cat((torch.zeros(48, 1, dtype=torch.long), block, block), 1)
        loss = network(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.to_model(name=f"toy induction, seed {seed}")


MODELS: dict[str, Callable[[], Model]] = {
    "hand-built-induction": lambda: ps.load("hand-built-induction"),
    "hand-built-induction-by-q": lambda: ps.load("hand-built-induction-by-q"),
    "hand-built-virtual-head": lambda: ps.load("hand-built-virtual-head"),
    "toy 0": lambda: toy(0),
    "toy 1": lambda: toy(1),
    "two-layer": lambda: ps.load("two-layer"),
    "two-layer-seed-1": lambda: ps.load("two-layer-seed-1"),
    "two-layer-full-positions": lambda: ps.load("two-layer-full-positions"),
}


@dataclass(frozen=True)
class Found:
    """One model: its edges, how many are causal, and each score's AUC (None without a contrast)."""

    model: str
    edges: int
    causal: int
    auc: dict[str, float | None]


def texts(model: Model) -> list[Tokens]:
    """What edges are cut on: repeated random tokens, and held-out text where there is some."""
    found = [repeats_probe(model, SEQUENCES).tokens]
    if model.held_out is not None:
        found.append(model.held_out[:SEQUENCES, : min(LENGTH, model.config.n_ctx)])
    return found


def elsewhere(tokens: Tokens) -> Tokens:
    """Other sequences in another order: neither tokens nor distances are those of the run."""
    generator = torch.Generator().manual_seed(0)
    order = 1 + torch.randperm(tokens.shape[1] - 1, generator=generator)
    return tokens.roll(1, 0)[:, torch.cat((torch.zeros(1, dtype=torch.long), order))]


@torch.no_grad()
def causal_edges(model: Model) -> dict[tuple[str, str, str], bool]:
    """Whether cutting each edge between two heads changes what the model predicts."""
    found: dict[tuple[str, str, str], bool] = {}
    for tokens in texts(model):
        trace, other = model.trace(tokens), model.trace(elsewhere(tokens))
        before = trace.logits.log_softmax(-1)
        for writer in model.heads:
            for reader in model.heads:
                if reader.id.layer <= writer.id.layer:
                    continue
                for side in HEAD_SIDES:
                    edge = Site(writer.id, reader.id, side)
                    cut = trace.patch({edge: other})
                    after = cut.logits.log_softmax(-1)
                    changed = float((before.exp() * (before - after)).sum(-1).mean())
                    name = (str(writer.id), str(reader.id), side.value)
                    found[name] = found.get(name, False) or changed >= LEAST
    return found


def scores(model: Model) -> dict[str, dict[tuple[str, str, str], float]]:
    """Every score of every edge; a larger score suggests composition more."""
    composed = composition(model)
    others = [composition_by(model, measure) for measure in ("kernel", "direction", "permuted")]
    found: dict[str, dict[tuple[str, str, str], float]] = {}
    for kind in ("q", "k", "v"):
        c, s, direction, permuted = (x.scores(kind) for x in (composed, *others))
        each: dict[str, Tensor] = {
            "score": c.score,
            "z (rotations)": c.z,
            "p (permuted)": -permuted.p,
            "best direction": direction.score,
            "p of best direction": -direction.p,
            "projection kernel": s.score,
            "z of the kernel": s.z,
        }
        for name, values in each.items():
            for i, writer in enumerate(composed.heads):
                for j, reader in enumerate(composed.heads):
                    if writer.layer < reader.layer:
                        value = float(values[i, j])
                        key = (str(writer), str(reader), kind)
                        found.setdefault(name, {})[key] = value
    return found


def auc(values: Tensor, causal: Tensor) -> float | None:
    """The probability that a causal edge scores higher than another; ties count half."""
    values = values.nan_to_num(nan=-torch.inf)
    yes, no = values[causal], values[~causal]
    if len(yes) == 0 or len(no) == 0:
        return None
    above = (yes[:, None] > no).double().mean() + 0.5 * (yes[:, None] == no).double().mean()
    return float(above)


def measure(name: str) -> Found:
    """One row of the table."""
    model = MODELS[name]()
    causal = causal_edges(model)
    labels = torch.tensor(list(causal.values()))
    found = {
        score: auc(torch.tensor([values[edge] for edge in causal]), labels)
        for score, values in scores(model).items()
    }
    return Found(name, len(labels), int(labels.sum()), found)


def table(rows: list[Found]) -> str:
    """Markdown: a row per score, a column per model."""
    head = "| AUC of | " + " | ".join(f"{r.model} ({r.causal} of {r.edges})" for r in rows) + " |"
    lines = [head, "|---" * (1 + len(rows)) + "|"]
    for score in rows[0].auc:
        cells = ("–" if r.auc[score] is None else f"{r.auc[score]:.2f}" for r in rows)
        lines.append(f"| {score} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or its rows as JSON."""
    parser = argparse.ArgumentParser(description="AUC of composition scores against cut edges")
    parser.add_argument("--model", action="append", choices=[*MODELS], help="only these models")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(name) for name in options.model or MODELS]
    print(json.dumps([vars(row) for row in rows], indent=1) if options.json else table(rows))


if __name__ == "__main__":
    main()
