"""The strongest single paths toward a target, by best-first search with a proof.

A search node is the upper end of a path: some steps below the logits, with the target's gradient
at the stream below the lowest of them, which is exact. Expanding a node evaluates, for every head
below it, all paths that enter there straight from a source, and bounds those that come through
further heads. The bound, for head h and position j (s = scales):

    u_h[j] = max( max over sources ‖x[j] s_j W_V^h‖,
                  max over heads h' below: s_j ‖W_O^h' W_V^h‖₂ Σ_i A^h'[j, i] u_h'[i] )

is the largest norm of a value of h that comes by a single path; with the gradient g at those values
no path contributes more than Σ_j ‖g[j]‖ u_h[j]. Nodes are expanded in order of their bounds, and
those that cannot reach the k-th best found are dropped.

An MLP with held gates at position j is the matrix J = W_in diag(gate) W_out. Its norm is bounded
by the smaller of Σ_i |gate_i| ‖w_in,i‖ ‖w_out,i‖ and max_i of these terms times the spectral norms
of W_in and W_out with their rows of neurons normalized. The largest norm that a single path writes
through the MLP is that of sources, which is exact, or ‖J‖ times the largest that a step below
writes.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import (
    Column,
    Estimate,
    HeadId,
    Path,
    Progress,
    Record,
    Source,
    Table,
    text_column,
)
from pathsum.base.options import parse_count
from pathsum.base.path import Step, level_of
from pathsum.base.table import Cell
from pathsum.model import Weights
from pathsum.paths.breakdown import half_width
from pathsum.paths.flows import gradient_at_top
from pathsum.paths.frozen import Frozen, FrozenLayer, FrozenMlp
from pathsum.paths.path_sum import PathSum
from pathsum.paths.target import Target

# Nodes of one layer that are expanded together: enough to fill a matrix product.
TOGETHER = 8
# Bounds are products of rounded numbers; this much more keeps them above the exact ones.
ROUNDING = 1 + 1e-4


@dataclass(frozen=True, eq=False)
class RankedPath(Record, kind="ranked-path"):
    """A path and its contribution to the target: a mean over sequences, with its standard error.

    `stderr` is None for one sequence.
    """

    path: Path
    value: float
    stderr: float | None


@dataclass(frozen=True, eq=False)
class TopPaths(Record, kind="top-paths"):
    """The strongest single paths found, largest |value| first.

    `proven` says that no other path is stronger than the last one listed. `bound` is the largest
    |value| that a path which was not evaluated could have (0 if all were). `rest` is the exact sum
    of all paths not listed. `evaluated` counts the paths that were evaluated.
    """

    paths: tuple[RankedPath, ...]
    total: float
    rest: float
    proven: bool
    bound: float
    evaluated: int
    count: int
    sequences: int

    def __iter__(self) -> Iterator[RankedPath]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> RankedPath:
        return self.paths[place]

    def to_table(self) -> Table:
        """One row per path."""
        several = self.sequences > 1
        rows: list[tuple[Cell, ...]] = []
        for ranked in self.paths:
            estimate = Estimate.around(ranked.value, ranked.stderr, self.sequences)
            spread = (half_width(estimate),) if several else ()
            rows.append((str(ranked.path), ranked.value, *spread))
        spread = (Column("± 95%"),) if several else ()
        if self.proven:
            proof = "proven: no other path is stronger"
        else:
            proof = f"not proven: a path of up to {self.bound:.3g} could be hidden"
        return Table(
            (text_column("path"), Column("logit", "+.3f"), *spread),
            tuple(rows),
            title=f"strongest paths, {len(self.paths)} of {self.count:,}",
            note=f"{proof} ({self.evaluated:,} evaluated); all others together {self.rest:+.3f}",
        )


def strongest_paths(
    paths: PathSum, target: Target, total: float, k: int, budget: int, progress: Progress
) -> TopPaths:
    """The k paths of largest |mean over sequences| toward the target."""
    parse_count(k, "paths")
    parse_count(budget, "paths", "budget")
    search = _Search(paths, target, k, budget)
    search.run(budget, progress)
    best = sorted(search.found, key=lambda item: (-item[0], item[1].order, str(item[1])))
    ranked = tuple(_ranked(path, values) for _, path, values in best)
    return TopPaths(
        paths=ranked,
        total=total,
        rest=total - sum(one.value for one in ranked),
        proven=search.bound <= search.threshold,
        bound=max(search.bound, search.dropped, 0.0),
        evaluated=search.evaluated,
        count=paths.count,
        sequences=len(target.tokens),
    )


class _Search:
    def __init__(self, paths: PathSum, target: Target, k: int, budget: int) -> None:
        self.target = target
        self.k = min(k, paths.count)
        # If all paths are listed, none is left out by its bound.
        self.bounded = paths.count > min(k, budget)
        length = target.visible_length(paths.trace)
        self.frozen = Frozen(paths.trace, length=length, gates=paths.gates)
        self.reach: Reach = reach(self.frozen, self.bounded)
        self.bias_U = target.direction(paths.trace.model.weights)[1]
        self.top = gradient_at_top(self.frozen, target)
        # (|value|, tie-break, path, value in each sequence); the smallest is the k-th best.
        self.heap: list[tuple[float, int, Path, Tensor]] = []
        # Nodes by the level (`level_of`) below which they read.
        levels = range(2 * self.frozen.n_layers + 1)
        self.waiting: list[list[tuple[float, int, tuple[Step, ...]]]] = [[] for _ in levels]
        self.dropped = 0.0
        self.evaluated = self.kept = self.noted = 0
        for source in paths.sources:
            self._evaluate(Path(source))

    @property
    def found(self) -> list[tuple[float, Path, Float[Tensor, " batch"]]]:
        return [(size, path, values) for size, _, path, values in self.heap]

    @property
    def threshold(self) -> float:
        """The |value| that a path must exceed to be listed."""
        return self.heap[0][0] if len(self.heap) == self.k else -1.0

    @property
    def bound(self) -> float:
        """The largest value that a path through an unexpanded node could have."""
        return max((-level[0][0] for level in self.waiting if level), default=-math.inf)

    def run(self, budget: int, progress: Progress) -> None:
        """Expand nodes, best first, until no stronger path can remain or the budget is spent."""
        self._expand(2 * self.frozen.n_layers, [()], self.top[None])
        while self.evaluated < budget and self.bound > self.threshold:
            progress(min(self.evaluated, budget), budget, "searching paths")
            below = max(
                (place for place, level in enumerate(self.waiting) if level),
                key=lambda place: -self.waiting[place][0][0],
            )
            nodes: list[tuple[Step, ...]] = []
            while self.waiting[below] and len(nodes) < TOGETHER:
                if -self.waiting[below][0][0] <= self.threshold:
                    break
                nodes.append(heapq.heappop(self.waiting[below])[2])
            gradients = [self.frozen.through_adjoint(steps, self.top) for steps in nodes]
            self._expand(below, nodes, torch.stack(gradients))

    def _evaluate(self, path: Path) -> None:
        """Evaluate a path that goes straight from its source to the logits."""
        if path.source.kind == "unembed_bias":
            values = self.bias_U
        else:
            values = (self.frozen.source(path.source) * self.top).sum((-2, -1))
        self.evaluated += 1
        self._keep(abs(float(values.mean())), path, values)

    def _expand(
        self,
        below: int,
        nodes: list[tuple[Step, ...]],
        gradients: Float[Tensor, "many batch pos d"],
    ) -> None:
        """Evaluate all paths that enter a node from a source through one step below it."""
        for index, layer in enumerate(self.reach.layers):
            if 2 * index < below:
                at_values = layer.mix_adjoint(layer.write_adjoint(gradients))
                values = self._enter(index, layer, at_values)
                heads = [HeadId(index, head) for head in range(values.shape[2])]
                bounds = self._bounds(index, layer, at_values) if index else None
                self._entered(2 * index, heads, nodes, values, bounds)
        for index, mlp in enumerate(self.reach.mlps):
            if 2 * index + 1 < below:
                at_read = mlp.adjoint(gradients)
                reads_below = self.frozen.reads_below(Source("mlp", index))
                streams = self.reach.streams[: len(self.reach.readable(reads_below))]
                values = torch.einsum("sbpd,mbpd->msb", streams, at_read)[:, :, None]
                bounds = self._mlp_bounds(index, at_read) if reads_below else None
                self._entered(reads_below, [Source("mlp", index)], nodes, values, bounds)

    def _entered(
        self,
        reads_below: int,
        steps: Sequence[Step],
        nodes: list[tuple[Step, ...]],
        values: Float[Tensor, "many source step batch"],
        bounds: list[list[float]] | None,
    ) -> None:
        """Note all paths that enter nodes through these steps, and those that come from below."""
        self._evaluate_all(reads_below, steps, nodes, values)
        for node, row in zip(nodes, bounds or (), strict=bounds is not None):
            for step, bound in zip(steps, row, strict=True):
                self._wait(reads_below, bound, (step, *node))

    def _bounds(
        self, index: int, layer: FrozenLayer, at_values: Float[Tensor, "many batch head pos k"]
    ) -> list[list[float]]:
        """Upper bounds on paths through further steps, for each node and head."""
        if not self.bounded:
            return [[math.inf] * at_values.shape[2]] * len(at_values)
        further = layer.per_head(self.reach.through_heads[index][..., None])[..., 0]
        sizes = torch.linalg.vector_norm(at_values, dim=-1)
        return ((sizes * further).sum(-1).mean(1) * ROUNDING).tolist()

    def _mlp_bounds(
        self, index: int, at_read: Float[Tensor, "many batch pos d"]
    ) -> list[list[float]]:
        """Upper bounds on paths through further steps into an MLP, for each node."""
        if not self.bounded:
            return [[math.inf]] * len(at_read)
        sizes = torch.linalg.vector_norm(at_read, dim=-1)
        bounds = (sizes * self.reach.through_mlps[index]).sum(-1).mean(-1) * ROUNDING
        return bounds[:, None].tolist()

    def _enter(
        self, index: int, layer: FrozenLayer, at_values: Float[Tensor, "many batch head pos k"]
    ) -> Float[Tensor, "many source head batch"]:
        """Exact values of the paths source → head → node in each sequence."""
        many, batch, heads, pos, k = at_values.shape
        kv = layer.W_V.shape[0]
        grouped = at_values.reshape(many, batch, kv, heads // kv, pos, k)
        values = torch.einsum("sbvpk,mbvgpk->msvgb", self.reach.values[index], grouped)
        return values.flatten(2, 3)

    def _evaluate_all(
        self,
        reads_below: int,
        steps: Sequence[Step],
        nodes: list[tuple[Step, ...]],
        values: Float[Tensor, "many source step batch"],
    ) -> None:
        sources = self.reach.readable(reads_below)
        each = values.flatten(0, 2)
        self.evaluated += len(each)
        best = each.mean(-1).abs().topk(min(self.k, len(each)))
        per_node = len(sources) * len(steps)
        for size, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if size <= self.threshold:
                break
            node, rest = divmod(place, per_node)
            source, step = divmod(rest, len(steps))
            path = Path(sources[source], (steps[step], *nodes[node]))
            self._keep(size, path, each[place])

    def _keep(self, size: float, path: Path, values: Float[Tensor, " batch"]) -> None:
        self.kept += 1
        item = (size, -self.kept, path, values)
        if len(self.heap) < self.k:
            heapq.heappush(self.heap, item)
        elif size > self.heap[0][0]:
            heapq.heapreplace(self.heap, item)

    def _wait(self, reads_below: int, bound: float, steps: tuple[Step, ...]) -> None:
        if bound > self.threshold:
            # Heads and MLPs have no order; among equal bounds, the first one found comes first.
            self.noted += 1
            heapq.heappush(self.waiting[reads_below], (-bound, self.noted, steps))
        else:
            self.dropped = max(self.dropped, bound)


def _ranked(path: Path, values: Float[Tensor, " batch"]) -> RankedPath:
    """A path with its mean and standard error, from its contribution in each sequence."""
    several = len(values) > 1
    stderr = float(values.std()) / len(values) ** 0.5 if several else None
    return RankedPath(path, float(values.mean()), stderr)


@dataclass(frozen=True, eq=False)
class Reach:
    """Contributions of single paths to the reads of each layer.

    `streams` are the sources, from the bottom up; `values[l]` are the exact values of those that
    the heads of layer l can read. `through_heads[l]` bounds the norm of any of their values that
    came through at least one step below, `through_mlps[l]` the norm of any stream that reaches the
    MLP so; they are 0 where bounds were not asked for.
    """

    sources: tuple[Source, ...]
    streams: Float[Tensor, "source batch pos d"]
    layers: tuple[FrozenLayer, ...]
    mlps: tuple[FrozenMlp, ...]
    values: tuple[Float[Tensor, "_ batch kv pos k"], ...]
    through_heads: tuple[Float[Tensor, "batch kv pos"], ...]
    through_mlps: tuple[Float[Tensor, "batch pos"], ...]

    def readable(self, reads_below: int) -> tuple[Source, ...]:
        """The sources written below a level."""
        return tuple(source for source in self.sources if level_of(source) < reads_below)


def reach(frozen: Frozen, bounded: bool) -> Reach:
    """Values for every layer and, with `bounded`, bounds, from the bottom up."""
    layers = tuple(frozen.layer(index) for index in range(frozen.n_layers))
    mlps = tuple(mlp for mlp in map(frozen.mlp, range(frozen.n_layers)) if mlp is not None)
    streams = torch.stack([frozen.source(source) for source in frozen.sources])
    levels = torch.tensor([level_of(source) for source in frozen.sources])
    readable = [streams[: int((levels < 2 * index).sum())] for index in range(len(layers))]
    values = tuple(layer.read(read) for layer, read in zip(layers, readable, strict=True))
    none = torch.zeros_like(streams[0, :, :, 0])
    through_heads = tuple(none[:, None].expand(-1, len(layer.W_V), -1) for layer in layers)
    through_mlps = (none,) * len(mlps)
    if bounded:
        norms = _Norms(frozen, layers, mlps)
        for index, read in enumerate(values):
            norms.heads(index, torch.linalg.vector_norm(read, dim=-1).amax(0))
            if mlps:
                below = frozen.reads_below(Source("mlp", index))
                norms.mlp(index, streams[: int((levels < below).sum())])
        through_heads, through_mlps = tuple(norms.through_heads), tuple(norms.through_mlps)
    return Reach(frozen.sources, streams, layers, mlps, values, through_heads, through_mlps)


class _Norms:
    """Bounds on the norms of single paths at the reads and outputs of heads and MLPs."""

    def __init__(
        self, frozen: Frozen, layers: Sequence[FrozenLayer], mlps: Sequence[FrozenMlp]
    ) -> None:
        self.frozen, self.layers, self.all_mlps = frozen, layers, mlps
        self.gains = _all_gains(frozen.run.weights, layers)
        # The norm of z by destination, for each head below; the largest norm of a head's output,
        # for each layer; the norm of the output, for each MLP below.
        self.z: list[Float[Tensor, "batch head pos"]] = []
        self.written: list[Float[Tensor, "batch pos"]] = []
        self.mlps: list[Float[Tensor, "batch pos"]] = []
        self.through_heads: list[Float[Tensor, "batch kv pos"]] = []
        self.through_mlps: list[Float[Tensor, "batch pos"]] = []

    def heads(self, index: int, straight: Float[Tensor, "batch kv pos"]) -> None:
        """Add the heads of a layer, given the norms of values that come straight from sources."""
        layer, further = self.layers[index], torch.zeros_like(straight)
        scale = layer.scale[:, None].abs()
        for lower, norms in enumerate(self.z):
            carried = (norms[:, :, None] * self.gains[lower, index][:, :, None]).amax(1)
            further = torch.maximum(further, carried * scale)
        if self.mlps:
            reads = spectral_norm_bound(layer.W_V)[:, None]
            largest_write = torch.stack(self.mlps).amax(0)
            further = torch.maximum(further, largest_write[:, None] * reads * scale)
        largest = torch.maximum(straight, further)
        z = (layer.pattern @ layer.per_head(largest[..., None]))[..., 0]
        self.z.append(z)
        if self.all_mlps:
            self.written.append((z * spectral_norm_bound(layer.W_O.mT)[:, None]).amax(1))
        self.through_heads.append(further)

    def mlp(self, index: int, streams: Float[Tensor, "source batch pos d"]) -> None:
        """Add the MLP of a layer, given the sources that it reads."""
        mlp = self.all_mlps[index]
        straight = torch.linalg.vector_norm(mlp.apply(streams), dim=-1).amax(0)
        below = self.written[: index if self.frozen.parallel else index + 1]
        further = torch.stack([torch.zeros_like(straight), *below, *self.mlps]).amax(0)
        spread = _spread(self.frozen.run.weights, index, mlp)
        self.mlps.append(torch.maximum(straight, further * mlp_norm_bound(mlp, spread)))
        self.through_mlps.append(further)


def mlp_norm_bound(mlp: FrozenMlp, spread: float) -> Float[Tensor, "batch pos"]:
    """At least the spectral norm of W_in diag(gate) W_out at each position; see `mlp_spread`."""
    terms = mlp.gate.abs() * mlp.W_in.norm(dim=0) * mlp.W_out.norm(dim=1)
    return torch.minimum(terms.sum(-1), terms.amax(-1) * spread)


def mlp_spread(mlp: FrozenMlp) -> float:
    """The product of the spectral norms of W_in and W_out, with each neuron's rows normalized."""
    directions = (torch.nn.functional.normalize(W, dim=1) for W in (mlp.W_in.T, mlp.W_out))
    reads, writes = (float(spectral_norm_bound(one)) for one in directions)
    return reads * writes


# Gains of pairs of layers follow from the weights alone, so all searches in a model share them.
_GAINS: WeakKeyDictionary[Weights, dict[tuple[int, int], Float[Tensor, "head kv"]]] = (
    WeakKeyDictionary()
)


def _all_gains(
    weights: Weights, layers: Sequence[FrozenLayer]
) -> dict[tuple[int, int], Float[Tensor, "head kv"]]:
    """The gains of every (lower, upper) pair of layers."""
    known = _GAINS.get(weights)
    if known is None:
        known = {
            (lower, upper): _gains(layers[lower], layers[upper])
            for upper in range(len(layers))
            for lower in range(upper)
        }
        _GAINS[weights] = known
    return known


# The same of single MLPs.
_SPREADS: WeakKeyDictionary[Weights, dict[int, float]] = WeakKeyDictionary()


def _spread(weights: Weights, layer: int, mlp: FrozenMlp) -> float:
    known = _SPREADS.setdefault(weights, {})
    if layer not in known:
        known[layer] = mlp_spread(mlp)
    return known[layer]


def _gains(lower: FrozenLayer, upper: FrozenLayer) -> Float[Tensor, "head kv"]:
    """‖W_O W_V‖₂, or a little more, for each head of a layer and each value read of another."""
    products = torch.einsum("hkd,vdj->hvkj", lower.W_O, upper.W_V)
    return spectral_norm_bound(products)


def spectral_norm_bound(
    matrices: Float[Tensor, "*batch m n"], squarings: int = 5
) -> Float[Tensor, "*batch"]:
    """At least the spectral norm, and at most n^(1/64) times it, by matrix products alone.

    (tr (MᵀM)^p)^(1/2p) is the 2p-norm of the singular values, which is never below the largest.

    >>> float(spectral_norm_bound(torch.diag(torch.tensor([3.0, 4.0]))))
    4.0...
    """
    gram = matrices.mT @ matrices
    tiny = torch.finfo(gram.dtype).tiny
    log_size = torch.zeros_like(gram[..., 0, 0])
    weight = 1.0
    for _ in range(squarings):
        size = gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(tiny)
        log_size = log_size + weight * size.log()
        gram = gram / size[..., None, None]
        gram = gram @ gram
        weight /= 2
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(tiny)
    bound = (0.5 * (log_size + weight * trace.log())).exp()
    zero = matrices.abs().amax((-2, -1)) == 0
    return torch.where(zero, torch.zeros_like(bound), bound * (1 + 1e-5))
