"""How often chance passes each p: false-positive rates on models in which nothing was learned.

    python scripts/calibrate.py --write            every p on every kind of model, into the guide
    python scripts/calibrate.py --only edges       one group of p's, as the table of the guide
    python scripts/calibrate.py --kind rotary --models 10 --json

Every model here has heads whose directions in the stream are drawn at random, so each p that the
library prints should be at most .05 in one head of twenty and at most .01 in one of a hundred. The
kinds differ in everything that a null must not depend on: the spectra of heads, their scale,
embeddings, norms, positions, shared keys and values.

With `--write` rates are stored in docs/calibration.json after each group and kind, with the number
of p's behind them, so that an interrupted run resumes; `--again` with `--only` and `--kind`
measures some of them again.
"""

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pathsum as ps
from pathsum.base import Path as HeadPath
from pathsum.base import Source
from pathsum.circuits import (
    align_heads,
    composition,
    composition_by,
    copying,
    virtual_weights,
)
from pathsum.circuits.neurons import LayerNeurons
from pathsum.circuits.virtual_weights import StreamEnd, read_end, write_end
from pathsum.figures import Figure, heat_map
from pathsum.heads.circuit_scores import through_previous
from pathsum.heads.kinds import ALL_SCORES
from pathsum.model import HeadId, Model
from pathsum.model.make import from_tensors
from pathsum.model.reference import Reference
from pathsum.model.weights import LAYER_NAMES
from pathsum.paths import find_target
from pathsum.paths.edges import is_written, random_order
from pathsum.paths.faithfulness import LEAST_RANGE, Options, measure_curve
from pathsum.paths.target import PredictionRun

LEVELS = (0.05, 0.01)
# Long enough for scores of a part of the context.
SHAPE = ps.Config(n_layers=2, n_heads=4, d_model=32, d_head=8, d_vocab=60, n_ctx=64)
# Random heads, alignments and circuits per p: 99 are the fewest that can show .01.
DRAWS = 99
# Neurons of the MLPs that are added to models, at least as many as components that one meets.
NEURONS = 48
# Added to the seed of a model, it is that of a second one to compare it with.
SECOND = 100_000
KEPT = Path(__file__).parents[1] / "docs" / "calibration.json"
PAGE = KEPT.with_suffix(".md")


def tensors(model: Model) -> dict[str, Tensor]:
    """A model's tensors as `from_tensors` takes them, stacked over layers."""
    flat = dict(model.weights.items())
    names = {name.rsplit(".", 1)[-1] for name in flat if name.startswith("layers.")}
    stacked = {
        name: torch.stack([flat[f"layers.{i}.{name}"] for i in range(model.config.n_layers)])
        for name in names & set(LAYER_NAMES)
    }
    return stacked | {name: each for name, each in flat.items() if not name.startswith("layers.")}


def changed(model: Model, **new: Tensor) -> Model:
    """The model with other tensors."""
    return replace(model, weights=from_tensors(model.config, tensors(model) | new).weights)


def frames(*shape: int, generator: torch.Generator) -> Tensor:
    """Orthonormal columns in random directions."""
    return torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))[0]


def with_spectrum(model: Model, values: Tensor, seed: int) -> Model:
    """Random heads whose OV and QK have these singular values, as large as the model's own."""
    generator = torch.Generator().manual_seed(seed)
    own = tensors(model)
    root = (values * len(values) ** 0.5 / values.norm()).sqrt()
    new: dict[str, Tensor] = {}
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        old = own[name].mT if name == "W_O" else own[name]
        drawn = frames(*old.shape, generator=generator) * root
        drawn = drawn * (old.norm() / drawn.norm())
        new[name] = (drawn.mT if name == "W_O" else drawn).to(old.dtype).contiguous()
    return changed(model, **new)


def rotated(model: Model, seed: int) -> Model:
    """A model's own heads, each read and write rotated at random in the stream."""
    generator = torch.Generator().manual_seed(seed)
    own = tensors(model)
    new: dict[str, Tensor] = {}
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        old = (own[name].mT if name == "W_O" else own[name]).double()
        d = old.shape[-2]
        turned = frames(*old.shape[:2], d, d, generator=generator) @ old
        new[name] = (turned.mT if name == "W_O" else turned).to(own[name].dtype).contiguous()
    return changed(model, **new)


def power(exponent: float) -> Callable[[int], Model]:
    """Heads whose singular values fall as k^−exponent."""

    def make(seed: int) -> Model:
        values = torch.arange(1, SHAPE.d_head + 1, dtype=torch.float64) ** -exponent
        return with_spectrum(ps.random_model(SHAPE, seed), values, seed + 10_000)

    return make


def low_rank(seed: int) -> Model:
    """Heads of rank two."""
    values = torch.tensor([1.0, 0.7] + [0.0] * (SHAPE.d_head - 2), dtype=torch.float64)
    return with_spectrum(ps.random_model(SHAPE, seed), values, seed + 10_000)


def one_sharp_head(seed: int) -> Model:
    """In each layer one head has queries 60 times as large."""
    model = ps.random_model(SHAPE, seed)
    W_Q = tensors(model)["W_Q"].clone()
    W_Q[:, 0] *= 60
    return changed(model, W_Q=W_Q)


def steep_embeddings(seed: int) -> Model:
    """Embeddings of spectrum 1/k that share a mean direction with the unembedding."""
    model = ps.random_model(SHAPE, seed)
    own = tensors(model)
    falls = 1 / torch.arange(1, SHAPE.d_model + 1)
    mean = own["W_E"][:1]
    return changed(
        model,
        W_E=own["W_E"] * falls * SHAPE.d_model**0.5 + mean,
        W_U=(own["W_U"].T * falls * SHAPE.d_model**0.5 + mean * SHAPE.d_model**-0.5).T.contiguous(),
    )


def of_config(gains: bool = False, **changes: object) -> Callable[[int], Model]:
    """Gaussian heads in another architecture."""
    config = SHAPE.replace(**changes)
    return lambda seed: ps.random_model(config, seed, gains=gains, biases=gains)


def trained(name: str, other: str) -> Callable[[int], Model]:
    """The heads of a trained model, rotated; of another one where it is the second of two."""
    return lambda seed: rotated(ps.load(name if seed < SECOND else other), seed)


LLAMA = {"positions": "rotary", "norm": "rms", "n_kv_heads": 2}
KINDS: dict[str, tuple[Callable[[int], Model], int]] = {
    "Gaussian heads": (of_config(), 80),
    "spectra k^-1": (power(1), 80),
    "spectra k^-2": (power(2), 80),
    "spectra k^-4": (power(4), 80),
    "one sharp head": (one_sharp_head, 80),
    "rank two": (low_rank, 80),
    "steep embeddings": (steep_embeddings, 80),
    "tied embeddings": (of_config(tied=True), 80),
    "LayerNorm, gains, biases": (of_config(norm="layer", gains=True), 80),
    "rotary": (of_config(positions="rotary"), 80),
    "grouped K/V, rotary, RMSNorm": (of_config(gains=True, **LLAMA), 80),
    "two-layer, rotated": (trained("two-layer", "two-layer-seed-1"), 24),
}


PART, PART_ON_TEXT = "best part of the context", "best part of the context, text"
DELETING, COMPOSITION, DIRECTION = "bandwidth: deleting", "composition", "best direction"
AXES = "composition, permuted axes"
KERNEL, VIRTUAL = "projection kernel", "virtual weights"
COPYING, CIRCUIT = "copying of virtual heads", "faithfulness"
ALIGNED, ALIGNED_SAME = "aligned heads", "aligned heads, same embeddings"
NEURON, NEURON_COSINE = "neuron and component", "neuron: cosine of write and read"

PRINTED: dict[str, tuple[str, ...]] = {
    "Estimate.p": (*(score.name for score in ALL_SCORES), PART, PART_ON_TEXT, CIRCUIT),
    "HeadCopying.p": ("copying_weights", COPYING),
    "HeadDeletion.p": (DELETING,),
    "HeadMatch.p": (ALIGNED, ALIGNED_SAME),
    "ScoredEdge.p": (COMPOSITION, VIRTUAL),
    "ScoredEdge.p_axes": (AXES,),
    "PairScores.p": (COMPOSITION, DIRECTION, KERNEL),
    "PairScores.p_axes": (AXES,),
    "PartnerEdge.p": (COMPOSITION,),
    "VirtualWeights.p": (VIRTUAL,),
    "NeuronEdge.p": (NEURON,),
    "NeuronSummary.embed_p": (NEURON,),
    "NeuronSummary.logits_p": (NEURON,),
    "NeuronSummary.cosine_p": (NEURON_COSINE,),
    "Neuron.cosine_p": (NEURON_COSINE,),
}
"""Every field of the library that is a p, and the rows of the table in which it is tested."""


def with_text(model: Model, seed: int) -> Model:
    """A model that comes with text, random tokens if it has none."""
    if model.held_out is not None:
        return model
    generator = torch.Generator().manual_seed(seed)
    shape = (8, model.config.n_ctx)
    text = torch.randint(model.config.d_vocab, shape, generator=generator)
    return replace(model, held_out=text)


def of_heads(model: Model, _: Model, seed: int) -> dict[str, list[float]]:
    """Every p of the atlas and of `bandwidth`."""
    found: dict[str, list[float]] = defaultdict(list)
    for entry in ps.atlas(with_text(model, seed), seed=seed).heads:
        for name, score in entry.scores.items():
            found[name].append(math.nan if score.p is None else score.p)
            if score.part is not None and score.part.p is not None:
                found[PART_ON_TEXT if name.endswith("_text") else PART].append(score.part.p)
    first = model.heads[seed % model.config.n_heads].id
    through = through_previous(model, {HeadId(0, first.head): 0.9}, seed=seed)
    found["matching_through_previous"] = [score.p or math.nan for score in through.scores.values()]
    found[DELETING] = [head.p for head in ps.bandwidth(model).deleting]
    return found


def of_edges(model: Model, _: Model, seed: int) -> dict[str, list[float]]:
    """Those of edges between heads, and of virtual heads."""
    found: dict[str, list[float]] = defaultdict(list)
    composed, direction = composition(model), composition_by(model, "direction")
    kernel = composition_by(model, "kernel")
    lower, upper = ([h.id for h in model.heads if h.id.layer == layer] for layer in (0, 1))
    for kind in ("q", "k", "v"):
        scores = composed.scores(kind)
        assert scores.p_axes is not None
        found[COMPOSITION] += scores.p.flatten().tolist()
        found[AXES] += scores.p_axes.flatten().tolist()
        found[DIRECTION] += direction.scores(kind).p.flatten().tolist()
        found[KERNEL] += kernel.scores(kind).p.flatten().tolist()
    for head in model.heads:
        found[VIRTUAL].append(virtual_weights(model, head.id, "logits").p)
        found[VIRTUAL].append(virtual_weights(model, "embed", f"{head.id}.v").p)
    chains = [HeadPath.parse(f"embed→{one}→{other}") for one, other in product(lower, upper)]
    copies = copying(model, *chains, measures="eigenvalues", seed=seed)
    found[COPYING] = [each.p for each in copies.heads]
    return found


def of_models(model: Model, other: Model, seed: int) -> dict[str, list[float]]:
    """Those of heads aligned with other random heads, and of a circuit of random edges.

    With those of a second model, and with the model's own heads rotated, which read and write the
    same embeddings.
    """
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[float]] = {}
    for name, second in ((ALIGNED, other), (ALIGNED_SAME, rotated(model, seed + 1))):
        aligned = align_heads(model, second, draws=DRAWS, seed=seed)
        found[name] = [match.p for match in aligned.matches]
    trace = model.trace(torch.randint(1, model.config.d_vocab, (1, 8), generator=generator))
    of = PredictionRun(trace, find_target(trace), 0)
    edges = random_order(model.config, 7, 8, 10, generator)
    groups = [[edge] for edge in edges if is_written(edge.start)]
    options = Options("zero", [10], DRAWS, seed + 1, 1, ["random"], None)
    curve = measure_curve(of, groups, [10], options, Reference.ZERO)
    full, empty = float(curve["full"]), float(curve["empty"])
    if abs(full - empty) <= LEAST_RANGE * max(abs(full), abs(empty)):
        return found  # a model that predicts about the same without its heads: a circuit has no p
    sign, kept = (1 if full > empty else -1), curve["kept"]
    above = sum(sign * float(curve[f"random {draw}"] - kept) >= 0 for draw in range(DRAWS))
    return {**found, CIRCUIT: [(1 + above) / (1 + DRAWS)]}


def of_neurons(model: Model, _: Model, seed: int) -> dict[str, list[float]]:
    """Those of neurons with random directions in both layers: every component that they meet.

    One neuron per layer and side, because the p-values of one vector with several components are
    not independent.
    """
    generator = torch.Generator().manual_seed(seed)
    own, old = tensors(model), model.config
    d, layers = old.d_model, old.n_layers
    config = old.replace(mlp="silu_gated", d_mlp=NEURONS)
    shapes = {"W_in": (layers, d, NEURONS), "W_gate": (layers, d, NEURONS)}
    shapes["W_out"] = (layers, NEURONS, d)
    added = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    added = {name: each.to(own["W_E"].dtype) for name, each in added.items()}
    if config.norm == "layer" or "ln1_w" in own:
        added |= {
            name.replace("ln1", "ln2"): own[name] for name in ("ln1_w", "ln1_b") if name in own
        }
    with_mlps = from_tensors(config, own | added)
    found: dict[str, list[float]] = defaultdict(list)
    for layer in range(layers):
        each = LayerNeurons(with_mlps, Source("mlp", layer))
        found[NEURON_COSINE] += each.cosines().p.tolist()
        at = 0
        for writer in each.writers():
            end = write_end(with_mlps, writer, each.centered)
            for rows in each.reads.values():
                found[NEURON] += [float(p) for p in _p(each, end, rows[at % NEURONS])]
            at += 1
        for read in each.readers():
            end = read_end(with_mlps, read, each.centered)
            found[NEURON] += [float(p) for p in _p(each, end, each.writes[at % NEURONS])]
            at += 1
    return found


def _p(layer: LayerNeurons, end: StreamEnd, vector: Tensor) -> list[float]:
    scores = layer.scores(end, vector[None])
    return [] if scores is None else scores.p.tolist()


GROUPS: dict[str, Callable[[Model, Model, int], dict[str, list[float]]]] = {
    "heads": of_heads,
    "edges": of_edges,
    "models": of_models,
    "neurons": of_neurons,
}


@dataclass(frozen=True)
class Rate:
    """How many of `heads` p-values are at most each level, in `models` random models."""

    group: str
    kind: str
    p_of: str
    models: int
    heads: int
    at: dict[float, float]

    def exceeds(self, level: float, least: float = 1e-5) -> bool:
        """Whether so many false positives have a binomial probability below `least`.

        Which is small because the table has a thousand cells, and heads of one model share draws.
        """
        passed = round(self.at[level] * self.heads)
        return _binomial_tail(passed, self.heads, level) < least


def _binomial_tail(passed: int, heads: int, level: float) -> float:
    """How often at least so many of so many independent heads pass."""
    sizes = torch.arange(passed, heads + 1, dtype=torch.float64)
    n = torch.tensor(float(heads), dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(sizes + 1) - torch.lgamma(n - sizes + 1)
    logs = ways + sizes * math.log(level) + (n - sizes) * math.log(1 - level)
    return float(logs.exp().sum())


def rates(group: str, kind: str, models: int | None = None) -> list[Rate]:
    """False-positive rates of a group of p's on models of one kind."""
    make, usual = KINDS[kind]
    number = usual if models is None else models
    every: dict[str, list[float]] = defaultdict(list)
    for seed in range(number):
        # Neither the null nor the second model is drawn from the numbers that the model was.
        other = make(seed + SECOND)
        for name, values in GROUPS[group](make(seed), other, seed + 1_000_000).items():
            every[name] += [value for value in values if not math.isnan(value)]
    return [
        Rate(
            group, kind, name, number, len(p), {a: sum(x <= a for x in p) / len(p) for a in LEVELS}
        )
        for name, p in every.items()
        if p
    ]


def read_kept(file: Path = KEPT) -> list[Rate]:
    """Rates of an earlier run."""
    if not file.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    for row in rows:
        row["at"] = {float(level): rate for level, rate in row["at"].items()}
    return [Rate(**row) for row in rows]


def keep(found: Iterable[Rate], file: Path = KEPT) -> None:
    """Write rates, one per line."""
    lines = ",\n".join(json.dumps(vars(rate), ensure_ascii=False) for rate in found)
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def table(found: Iterable[Rate]) -> str:
    """Markdown: a row for each p, in percent over all kinds, and the highest."""
    by_p: dict[str, list[Rate]] = defaultdict(list)
    for rate in found:
        by_p[rate.p_of].append(rate)
    order = [name for names in PRINTED.values() for name in names]
    levels = " | ".join(f"p ≤ {level}" for level in LEVELS)
    lines = [
        f"| p-value of | {levels} | highest at {LEVELS[0]} |",
        "|---" + "|---:" * len(LEVELS) + "|---|",
    ]
    for name in sorted(by_p, key=order.index):
        cells = [f"{100 * pooled(by_p[name]).at[level]:.1f}" for level in LEVELS]
        highest = max(by_p[name], key=lambda rate: rate.at[LEVELS[0]])
        cells.append(f"{100 * highest.at[LEVELS[0]]:.1f}, {highest.kind}")
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pooled(cells: Sequence[Rate]) -> Rate:
    """The rates of one p over several kinds of models."""
    heads = sum(rate.heads for rate in cells)
    at = {level: sum(rate.at[level] * rate.heads for rate in cells) / heads for level in LEVELS}
    return replace(cells[0], heads=heads, at=at)


def figure(found: Iterable[Rate]) -> Figure:
    """A heat map of the rates at the first level, by p and kind of model."""
    by_cell = {(rate.p_of, rate.kind): 100 * rate.at[LEVELS[0]] for rate in found}
    every = dict.fromkeys(name for names in PRINTED.values() for name in names)
    names = [name for name in every if (name, "rotary") in by_cell]
    values = [[by_cell[name, kind] for kind in KINDS] for name in names]
    return heat_map(
        values,
        rows=[name.replace("_", " ") for name in names],
        columns=list(KINDS),
        texts=[[f"{value:.0f}" for value in row] for row in values],
        value_label=f"% with p ≤ {LEVELS[0]}",
        extent=10.0,
        width=6.5,
    )


def write_page(found: Iterable[Rate], page: Path = PAGE) -> None:
    """Replace the table of the guide."""
    text = page.read_text(encoding="utf-8")
    start = text.index("| p-value of | p ≤")
    end = text.index("\n\n", start)
    page.write_text(text[:start] + table(found) + text[end:], encoding="utf-8")


def main() -> None:
    """Print the table, or the rates as JSON, or write both into the guide."""
    parser = argparse.ArgumentParser(description="False-positive rates of every p")
    parser.add_argument("--only", action="append", choices=[*GROUPS], help="only these groups")
    parser.add_argument("--kind", action="append", choices=[*KINDS], help="only these kinds")
    parser.add_argument("--models", type=int, help="models of each kind")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="keep rates, and write the guide")
    parser.add_argument("--again", action="store_true", help="also what is kept already")
    options = parser.parse_args()
    found = read_kept() if options.write else []
    for group, kind in product(options.only or GROUPS, options.kind or KINDS):
        wanted = KINDS[kind][1] if options.models is None else options.models
        done = [rate for rate in found if (rate.group, rate.kind) == (group, kind)]
        if done and done[0].models >= wanted and not options.again:
            continue
        began = time.monotonic()
        found = [rate for rate in found if rate not in done] + rates(group, kind, wanted)
        if options.write:
            keep(found)
            print(f"{group}, {kind}: {time.monotonic() - began:.0f} s", flush=True)
    if options.write:
        write_page(found)
    elif options.json:
        print(json.dumps([vars(rate) for rate in found], indent=1))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
