"""How often chance passes each p: false-positive rates on models in which nothing was learned.

    python scripts/calibrate.py                    every kind of model, as the table of the guide
    python scripts/calibrate.py --models 10        a sample
    python scripts/calibrate.py --kind rotary --json

Every model here has heads whose directions in the stream are drawn at random, so each p that the
library prints should be at most .05 in one head of twenty and at most .01 in one of a hundred. What
differs between the kinds is everything that a null must not depend on: the spectra of heads, their
scale, embeddings, norms, positions, shared keys and values.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import pathsum as ps
from pathsum.circuits import empirical_composition, projection_kernel
from pathsum.heads.kinds.matching_through_previous import through_previous
from pathsum.model import HeadId, Model
from pathsum.model.make import from_tensors
from pathsum.model.weights import LAYER_NAMES

LEVELS = (0.05, 0.01)
SHAPE = ps.Config(n_layers=2, n_heads=4, d_model=32, d_head=8, d_vocab=60, n_ctx=26)


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


def trained(name: str) -> Callable[[int], Model]:
    """The heads of a trained model, rotated."""
    return lambda seed: rotated(ps.load(name), seed)


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
    "two-layer, rotated": (trained("two-layer"), 12),
}


def p_values(model: Model, seed: int) -> dict[str, list[float]]:
    """Every p that the library gives for a model, by what it is the p of."""
    found: dict[str, list[float]] = defaultdict(list)
    seed += 1_000_000  # the null must not be drawn from the numbers that the model was
    for entry in ps.atlas(model, seed=seed):
        for name, score in entry.scores.items():
            found[name].append(math.nan if score.p is None else score.p)
            if score.part is not None and score.part.p is not None:
                found["best part of the context"].append(score.part.p)
    first = model.heads[seed % model.config.n_heads].id
    through = through_previous(model, {HeadId(0, first.head): 0.9}, seed=seed)
    found["matching_through_previous"] = [score.p or math.nan for score in through.scores.values()]
    found["bandwidth: deleting"] = [head.p for head in ps.bandwidth(model).deleting]
    return found | composition_p_values(model)


def composition_p_values(model: Model) -> dict[str, list[float]]:
    """Those of edges between heads."""
    found: dict[str, list[float]] = defaultdict(list)
    against, kernel = empirical_composition(model, twins=1), projection_kernel(model)
    for kind in ("q", "k", "v"):
        found["composition"] += against.scores(kind).p.flatten().tolist()
        found["composition: best direction"] += against.scores(kind).p_direction.flatten().tolist()
        found["projection kernel"] += kernel.scores(kind).p.flatten().tolist()
    return found


@dataclass(frozen=True)
class Rate:
    """How many of `heads` p-values are at most each level."""

    kind: str
    p_of: str
    heads: int
    at: dict[float, float]

    def exceeds(self, level: float, deviations: float = 3.0) -> bool:
        """Whether there are more false positives than binomial error around the level allows."""
        error = math.sqrt(level * (1 - level) / self.heads)
        return self.at[level] > level + deviations * error


def rates(kind: str, models: int | None = None) -> list[Rate]:
    """False-positive rates of every p on models of one kind."""
    make, usual = KINDS[kind]
    every: dict[str, list[float]] = defaultdict(list)
    for seed in range(usual if models is None else models):
        for name, values in p_values(make(seed), seed).items():
            every[name] += [value for value in values if not math.isnan(value)]
    return [
        Rate(kind, name, len(p), {a: sum(each <= a for each in p) / len(p) for a in LEVELS})
        for name, p in every.items()
        if p
    ]


def table(found: Iterable[Rate]) -> str:
    """Markdown: a row for each p, a column for each kind of model, rates in percent."""
    by_p: dict[str, dict[str, Rate]] = defaultdict(dict)
    for rate in found:
        by_p[rate.p_of][rate.kind] = rate
    kinds = list(dict.fromkeys(rate.kind for each in by_p.values() for rate in each.values()))
    lines = ["| p of | " + " | ".join(kinds) + " |", "|---" * (1 + len(kinds)) + "|"]
    for name, each in by_p.items():
        cells = [
            " / ".join(f"{100 * each[kind].at[a]:.1f}" for a in LEVELS) if kind in each else "–"
            for kind in kinds
        ]
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or the rates as JSON."""
    parser = argparse.ArgumentParser(description="False-positive rates of every p")
    parser.add_argument("--kind", action="append", choices=[*KINDS], help="only these kinds")
    parser.add_argument("--models", type=int, help="models of each kind")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [rate for kind in options.kind or KINDS for rate in rates(kind, options.models)]
    if options.json:
        print(json.dumps([vars(rate) for rate in found], indent=1))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
