"""Attribution methods on models whose circuits are known: AUC, precision and recall.

    python -m benchmarks.bench_ground_truth [--programs FOLDER] [--method NAME …] [--circuit NAME …]
                                            [--inputs N]

Models are planted circuits (`pathsum.model.planted`), the programs of `programs` compiled to
transformers and, if a folder is given, the compiled programs in it: `NAME.npz` has the weights,
inputs `x` and outputs `y` of each, and `programs.json` has the configurations and the true edges.
The folder is the argument or the environment variable PATHSUM_PROGRAMS.

`circuit` is `trace.circuit(position)` as it is called without options: no other run, and edges are
scored by the effects of cutting them. `share` is the same without cutting: the share, or the drop
by removing the edge from its read alone if that is larger. All other methods compare an edge with
its value on another input; `gradient` (EAP) and `ig` (EAP-IG) score every edge of the model, the
others those of their own circuit. An edge between components scores the sum of |score| over its
positions, averaged over N inputs and all their positions. AUC is the probability that a true edge
scores above an unused one. An edge is found if it scores 2% of a prediction or more, the default
threshold of a circuit; precision and recall are those of the edges found in any prediction. Each
model is measured as it is and with noise on its weights (0.3% of a tensor's largest weight),
because exact zeros flatter every method. Means have 95% intervals over models.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.measurement import Measurement
from benchmarks.programs import all_programs
from pathsum.base.estimate import mean_estimate
from pathsum.base.site import Site
from pathsum.model import Config, HeadId, Model, Weights, from_tensors
from pathsum.model.planted import planted_circuits
from pathsum.model.store import MemoryStore
from pathsum.paths import causal_effects
from pathsum.paths.causal import edges_of
from pathsum.paths.component_edges import ComponentRuns
from pathsum.paths.graph import Method
from pathsum.paths.score import score
from pathsum.paths.target import Versus, find_target

VARIABLE = "PATHSUM_PROGRAMS"
INPUTS = 16
NOISE = 0.003
THRESHOLD = 0.02
# A noisy model with a smaller share of right outputs has lost its circuit, and is left out.
SURVIVES = 0.9
# The default circuit.
CIRCUIT = "circuit"
# What it has to reach: mean AUC as built and with noise, and mean recall.
BAR = (0.97, 0.95, 0.9)


@dataclass(frozen=True, eq=False)
class KnownCircuit:
    """A model, its true and its unused edges, and inputs with the positions that have an output.

    `right` is the share of outputs that a model with these edges computes correctly.
    """

    name: str
    model: Model
    true: tuple[str, ...]
    unused: tuple[str, ...]
    tokens: Tensor
    measured: Tensor
    versus: Versus
    right: Callable[[Model], float]

    def with_noise(self) -> "KnownCircuit":
        """The same circuit with noise on all weights."""
        return replace(self, model=add_noise(self.model), name=f"{self.name}, noise")


# ---- models


def planted() -> Iterator[KnownCircuit]:
    """The planted circuits; edges that carry a constant are left out."""
    for one in planted_circuits(INPUTS):
        true = tuple(map(str, one.edges))
        outside = {*true, *map(str, one.constants)}
        unused = tuple(edge for edge in map(str, edges_of(one.model)) if edge not in outside)
        known = one.outputs >= 0
        right = partial(_share_right, tokens=one.tokens, outputs=one.outputs)
        model = one.model.to(torch.float64)
        yield KnownCircuit(one.name, model, true, unused, one.tokens, known, "mean", right)


def _share_right(model: Model, tokens: Tensor, outputs: Tensor) -> float:
    known = outputs >= 0
    return float((model(tokens).argmax(-1) == outputs)[known].double().mean())


def compiled(folder: Path) -> Iterator[KnownCircuit]:
    """The compiled programs of a folder, checked against their own outputs."""
    for name, about in json.loads((folder / "programs.json").read_text()).items():
        stored = np.load(folder / f"{name}.npz")
        tensors = {key: torch.from_numpy(stored[key]) for key in stored}
        x, y = tensors.pop("x"), tensors.pop("y")
        config = Config(**{key: about[key] for key in about if key in Config.__annotations__})
        weights = {key: value.double() for key, value in tensors.items()}
        model = from_tensors(config, weights, name=name)
        right = partial(_share_equal, x=x, y=y)
        if right(model) < 1:
            raise ValueError(f"{name}: only {right(model):.1%} of its outputs are the program's")
        true, unused = (
            tuple("→".join(edge) for edge in about[key]) for key in ("edges", "non_edges")
        )
        tokens = x[:INPUTS]
        measured = torch.ones_like(tokens, dtype=torch.bool)
        measured[:, 0] = False
        # A single output has no mean over outputs to be compared with.
        versus = "mean" if config.d_vocab_out > 1 else None
        yield KnownCircuit(name, model, true, unused, tokens, measured, versus, right)


def generated() -> Iterator[KnownCircuit]:
    """The programs of `programs`, measured where they have an output."""
    generator = torch.Generator().manual_seed(0)
    for program in all_programs():
        words, places = program.tokens.size, program.indices.size
        x = torch.randint(1, 1 + words, (60, 1 + places), generator=generator)
        x[:, 0] = 0
        y = torch.stack([program.run(row[1:]) for row in x.tolist()])
        y = torch.nn.functional.pad(y, (0, 0, 1, 0))
        right = partial(_share_equal, x=x, y=y)
        if right(program.model) < 1:
            raise ValueError(f"{program.name}: the model does not compute the program's outputs")
        measured = y[:INPUTS].abs().amax(-1) > 0.1
        versus = "mean" if program.output.size > 1 else None
        yield KnownCircuit(
            *(program.name, program.model, *program.edges),
            *(x[:INPUTS], measured, versus, right),
        )


def _share_equal(model: Model, x: Tensor, y: Tensor) -> float:
    """The share of positions with the program's output: its largest one, or the same number."""
    found, wanted = model(x)[:, 1:], y[:, 1:]
    if wanted.shape[-1] == 1:
        return float(((found - wanted).abs() < 0.1).double().mean())
    first, second = wanted.topk(2, -1).values.unbind(-1)
    # Where two outputs tie, neither is the answer.
    clear = first - second > 0.1
    return float((found.argmax(-1) == wanted.argmax(-1))[clear].double().mean())


def add_noise(model: Model, seed: int = 0) -> Model:
    """A model whose weights have Gaussian noise of `NOISE` times each tensor's largest weight."""
    generator, store = torch.Generator().manual_seed(seed), model.weights.store
    tensors: dict[str, Tensor] = {}
    for name in sorted(store.shapes):
        tensor = store.get(name)
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
        tensors[name] = tensor + NOISE * tensor.abs().max() * noise
    weights = Weights(model.config, MemoryStore(tensors))
    return Model(weights, name=model.name, tokenizer=model.tokenizer)


# ---- methods


@dataclass(frozen=True)
class Scores:
    """Scores of edges between components: the mean over predictions, and the largest share."""

    mean: dict[str, float]
    largest: dict[str, float]


def by_graph(of: KnownCircuit, method: Method | None) -> Scores:
    """`score` of every prediction at the default threshold; None is for the default circuit."""
    trace, other = of.model.trace(of.tokens), of.model.trace(of.tokens.roll(1, 0))
    each: list[dict[str, float]] = []
    totals: list[float] = []
    for row, at in of.measured.nonzero().tolist():
        if method is None:
            graph = trace.circuit(at, versus=of.versus, sequence=row)
        else:
            target = find_target(trace, at, None, of.versus)
            graph = score(trace, target, None, method, reference=other, sequence=row)
        each.append({})
        for edge in graph.edges:
            name = between_components(edge.edge)
            each[-1][name] = each[-1].get(name, 0.0) + edge.strength
        totals.append(abs(graph.total))
    return _summary(each, totals)


def by_gradients(of: KnownCircuit, steps: int | None) -> Scores:
    """EAP, or EAP-IG with steps, of every edge between components."""
    each: list[dict[str, float]] = []
    totals: list[float] = []
    for row, at in of.measured.nonzero().tolist():
        runs = [
            of.model.trace(tokens[row : row + 1]) for tokens in (of.tokens, of.tokens.roll(1, 0))
        ]
        found = ComponentRuns(runs[0], runs[1], find_target(runs[0], at, None, of.versus))
        scores, graph = found.eap(steps).abs(), found.graph
        edges = graph.exists.nonzero().tolist()
        each.append({between_components(graph.edge(*edge)): float(scores[*edge]) for edge in edges})
        totals.append(abs(found.value(None)))
    return _summary(each, totals)


def by_patching(of: KnownCircuit) -> Scores:
    """`causal_effects` of edges between components, at all positions at once."""
    trace, other = of.model.trace(of.tokens), of.model.trace(of.tokens.roll(1, 0))
    clean, batch = trace.logits, torch.arange(len(of.tokens))[:, None]
    best = clean.argmax(-1)

    def prediction(logits: Tensor) -> Tensor:
        value = logits[batch, torch.arange(logits.shape[1]), best]
        return value if of.versus is None else value - logits.mean(-1)

    own = prediction(clean)

    def change(logits: Tensor) -> Tensor:
        """Minus the sum of |changes|, so that an effect is that sum."""
        return -((prediction(logits) - own).abs() * of.measured).sum(-1)

    effects = causal_effects(trace, other, metric=change).effects
    count = float(of.measured.sum()) / len(of.tokens)
    size = float(own[of.measured].abs().mean())
    mean = {between_components(one.edge): one.effect.value / count for one in effects}
    return Scores(mean, {edge: value / size for edge, value in mean.items()})


def between_components(edge: Site) -> str:
    """An edge without positions; the two sides of an MLP are one."""
    whole = edge.without_positions
    return str(whole if isinstance(whole.reader, HeadId) else Site(whole.writer, whole.reader))


def _summary(each: Sequence[dict[str, float]], totals: Sequence[float]) -> Scores:
    names = {name for found in each for name in found}
    typical = sum(totals) / len(totals)
    sizes = [max(total, typical) for total in totals]
    mean = {name: sum(found.get(name, 0.0) for found in each) / len(each) for name in names}
    largest = {
        name: max(found.get(name, 0.0) / size for found, size in zip(each, sizes, strict=True))
        for name in names
    }
    return Scores(mean, largest)


METHODS: dict[str, Callable[[KnownCircuit], Scores]] = {
    CIRCUIT: partial(by_graph, method=None),
    **{method.value: partial(by_graph, method=method) for method in Method},
    Method.GRADIENT.value: partial(by_gradients, steps=None),
    Method.IG.value: partial(by_gradients, steps=5),
    "causal_effects": by_patching,
}


# ---- results


@dataclass(frozen=True)
class Result:
    """One method on one model."""

    auc: float
    precision: float
    recall: float
    missed: tuple[str, ...]
    above: tuple[str, ...]


def judge(of: KnownCircuit, scores: Scores) -> Result:
    """How well scores tell true edges from unused ones."""
    true = [scores.mean.get(edge, 0.0) for edge in of.true]
    unused = [scores.mean.get(edge, 0.0) for edge in of.unused]
    pairs = [(one > other) + 0.5 * (one == other) for one in true for other in unused]
    found = {edge for edge, share in scores.largest.items() if share >= THRESHOLD}
    hits, false = len(found.intersection(of.true)), len(found.intersection(of.unused))
    return Result(
        auc=sum(pairs) / len(pairs),
        precision=hits / (hits + false) if hits + false else 0.0,
        recall=hits / len(of.true),
        missed=tuple(edge for edge in of.true if edge not in found),
        above=tuple(
            f"{edge} {scores.mean[edge]:.3g}"
            for edge in of.unused
            if scores.mean.get(edge, 0.0) >= min(true) and scores.mean.get(edge, 0.0) > 0
        ),
    )


def all_circuits(folder: Path | None, names: Sequence[str], inputs: int) -> list[KnownCircuit]:
    """Every known circuit, as built and with noise, on some inputs."""
    found = [*planted(), *generated(), *([] if folder is None else compiled(folder))]
    found = [replace(x, tokens=x.tokens[:inputs], measured=x.measured[:inputs]) for x in found]
    plain = [one for one in found if not names or one.name in names]
    noisy = [one.with_noise() for one in plain]
    survivors = [one for one in noisy if one.right(one.model) >= SURVIVES]
    lost = [one.name for one in noisy if one not in survivors]
    if lost:
        print(f"left out, because less than {SURVIVES:.0%} of its outputs are right:", *lost)
    return [*plain, *survivors]


def run(
    folder: Path | None,
    methods: Sequence[str] = (),
    names: Sequence[str] = (),
    inputs: int = INPUTS,
) -> list[Measurement]:
    """Print a table of all results; 1 − AUC and 1 − recall as measurements."""
    circuits = all_circuits(folder, names, inputs)
    costs: list[Measurement] = []
    for method in methods or METHODS:
        results = {one.name: judge(one, METHODS[method](one)) for one in circuits}
        print(f"\n{method:<28} {'AUC':>6} {'precision':>10} {'recall':>7}")
        for name, one in results.items():
            print(f"  {name:<26} {one.auc:6.3f} {one.precision:10.2f} {one.recall:7.2f}", end="")
            print("  missed:" if one.missed else "", *one.missed, end="")
            print("  above:" if one.above else "", *one.above)
        costs += _means(method, results)
    return costs


def _means(method: str, results: dict[str, Result]) -> Iterator[Measurement]:
    for kind in ("as built", "noise"):
        some = [one for name, one in results.items() if name.endswith("noise") == (kind == "noise")]
        if not some:
            continue
        rows = [(one.auc, one.precision, one.recall) for one in some]
        means = [mean_estimate(column) for column in torch.tensor(rows, dtype=torch.float64).T]
        print(f"  mean, {kind}", *(one.format(".3f") for one in means), sep="   ")
        bars = [1 - BAR[kind == "noise"], None, 1 - BAR[2]]
        for what, mean, bar in zip(("AUC", "precision", "recall"), means, bars, strict=True):
            name = f"{method}, {kind}: 1 − mean {what} of {len(some)} circuits"
            reached = bar if method == CIRCUIT else None
            yield Measurement(name, 1 - mean.value, "", None if reached is None else "bar", reached)


def main() -> list[Measurement]:
    """All methods on all circuits."""
    folder = os.environ.get(VARIABLE)
    return run(None if folder is None else Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--programs",
        type=Path,
        default=os.environ.get(VARIABLE),
        help=f"folder of compiled programs (default: the environment variable {VARIABLE})",
    )
    parser.add_argument("--method", action="append", choices=list(METHODS), default=[])
    parser.add_argument("--circuit", action="append", default=[], help="measure these alone")
    parser.add_argument("--inputs", type=int, default=INPUTS, metavar="N", help="at most 16")
    options = parser.parse_args()
    run(options.programs, options.method, options.circuit, options.inputs)
