"""The strongest single paths toward a target, by best-first search with a proof.

A search node is the upper end of a path: some heads below the logits, with the target's gradient
at the stream below the lowest of them, which is exact. Expanding a node evaluates, for every head
below it, all paths that enter there straight from a source, and bounds those that come through
further heads. The bound, for head h and position j (s = scales):

    u_h[j] = max( max over sources ‖x[j] s_j W_V^h‖,
                  max over heads h' below: s_j ‖W_O^h' W_V^h‖₂ Σ_i A^h'[j, i] u_h'[i] )

is the largest norm of a value of h that comes by a single path; with the gradient g at those values
no path contributes more than Σ_j ‖g[j]‖ u_h[j]. Nodes are expanded in order of their bounds, and
those that cannot reach the k-th best found are dropped.
"""

import heapq
import math
from collections.abc import Iterator
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
from pathsum.base.table import Cell
from pathsum.model import Weights
from pathsum.paths.breakdown import half_width
from pathsum.paths.flows import gradient_at_top
from pathsum.paths.frozen import Frozen, FrozenLayer
from pathsum.paths.path_sum import PathSum
from pathsum.paths.target import Target

# Nodes of one layer that are expanded together: enough to fill a matrix product.
TOGETHER = 8
# Bounds are products of rounded numbers; this much more keeps them above the exact ones.
ROUNDING = 1 + 1e-4


@dataclass(frozen=True, eq=False)
class RankedPath(Record, kind="ranked-path"):
    """A path and what it adds to the target: a mean over sequences, with its standard error.

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
        self.frozen = Frozen(paths.trace, length=int(target.positions.max()) + 1)
        self.layers = [self.frozen.layer(index) for index in range(self.frozen.n_layers)]
        self.reach: Reach = reach(self.frozen, self.layers, self.bounded)
        self.bias_U = target.direction(paths.trace.model.weights)[1]
        self.top = gradient_at_top(self.frozen, target)
        # (|value|, tie-break, path, value in each sequence); the smallest is the k-th best.
        self.heap: list[tuple[float, int, Path, Tensor]] = []
        self.waiting: list[list[tuple[float, tuple[HeadId, ...]]]] = [[] for _ in self.layers]
        self.dropped = 0.0
        self.evaluated = self.kept = 0
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
        return max((-layer[0][0] for layer in self.waiting if layer), default=-math.inf)

    def run(self, budget: int, progress: Progress) -> None:
        """Expand nodes, best first, until nothing can be hidden or the budget is spent."""
        self._expand(len(self.layers), [()], self.top[None])
        while self.evaluated < budget and self.bound > self.threshold:
            progress(min(self.evaluated, budget), budget, "searching paths")
            index = max(
                (place for place, layer in enumerate(self.waiting) if layer),
                key=lambda place: -self.waiting[place][0][0],
            )
            nodes: list[tuple[HeadId, ...]] = []
            while self.waiting[index] and len(nodes) < TOGETHER:
                if -self.waiting[index][0][0] <= self.threshold:
                    break
                nodes.append(heapq.heappop(self.waiting[index])[1])
            below = [self.frozen.through_adjoint(heads, self.top) for heads in nodes]
            gradients = torch.stack(below)
            self._expand(index, nodes, gradients)

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
        nodes: list[tuple[HeadId, ...]],
        gradients: Float[Tensor, "many batch pos d"],
    ) -> None:
        """Evaluate all paths that enter a node from a source through one head below it."""
        for index in range(below):
            layer = self.layers[index]
            at_values = layer.mix_adjoint(layer.write_adjoint(gradients))
            values = self._enter(index, layer, at_values)
            self._evaluate_all(index, nodes, values)
            if index == 0:
                continue
            for node, row in zip(nodes, self._bounds(index, layer, at_values), strict=True):
                for head, bound in enumerate(row):
                    self._wait(index, bound, (HeadId(index, head), *node))

    def _bounds(
        self, index: int, layer: FrozenLayer, at_values: Float[Tensor, "many batch head pos k"]
    ) -> list[list[float]]:
        """Upper bounds on paths through further heads, for each node and head."""
        if not self.bounded:
            return [[math.inf] * at_values.shape[2]] * len(at_values)
        further = layer.per_head(self.reach.through_heads[index][..., None])[..., 0]
        sizes = torch.linalg.vector_norm(at_values, dim=-1)
        return ((sizes * further).sum(-1).mean(1) * ROUNDING).tolist()

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
        index: int,
        nodes: list[tuple[HeadId, ...]],
        values: Float[Tensor, "many source head batch"],
    ) -> None:
        sources, heads = self.reach.sources[index], values.shape[2]
        each = values.flatten(0, 2)
        self.evaluated += len(each)
        best = each.mean(-1).abs().topk(min(self.k, len(each)))
        per_node = len(sources) * heads
        for size, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if size <= self.threshold:
                break
            node, rest = divmod(place, per_node)
            source, head = divmod(rest, heads)
            path = Path(sources[source], (HeadId(index, head), *nodes[node]))
            self._keep(size, path, each[place])

    def _keep(self, size: float, path: Path, values: Float[Tensor, " batch"]) -> None:
        self.kept += 1
        item = (size, -self.kept, path, values)
        if len(self.heap) < self.k:
            heapq.heappush(self.heap, item)
        elif size > self.heap[0][0]:
            heapq.heapreplace(self.heap, item)

    def _wait(self, index: int, bound: float, heads: tuple[HeadId, ...]) -> None:
        if bound > self.threshold:
            heapq.heappush(self.waiting[index], (-bound, heads))
        else:
            self.dropped = max(self.dropped, bound)


def _ranked(path: Path, values: Float[Tensor, " batch"]) -> RankedPath:
    """A path with its mean and standard error, from its contribution in each sequence."""
    several = len(values) > 1
    stderr = float(values.std()) / len(values) ** 0.5 if several else None
    return RankedPath(path, float(values.mean()), stderr)


@dataclass(frozen=True, eq=False)
class Reach:
    """Contributions of single paths to the values of each layer.

    `values[l]` are the exact values of the sources that layer l can read;
    `through_heads[l]` bounds the norm of any value that came through at least one head below; it
    is 0 where bounds were not asked for.
    """

    sources: tuple[tuple[Source, ...], ...]
    values: tuple[Float[Tensor, "_ batch kv pos k"], ...]
    through_heads: tuple[Float[Tensor, "batch kv pos"], ...]


def reach(frozen: Frozen, layers: list[FrozenLayer], bounded: bool) -> Reach:
    """Values for every layer and, with `bounded`, bounds, from the bottom up."""
    sources: list[tuple[Source, ...]] = []
    values: list[Tensor] = []
    through: list[Tensor] = []
    # For each head below: the largest norm of z that a single path gives, by destination.
    largest_z: list[Float[Tensor, "batch head pos"]] = []
    gains = _all_gains(frozen.run.weights, layers)
    for index, layer in enumerate(layers):
        readable = tuple(source for source in frozen.sources if source.layer < index)
        streams = torch.stack([frozen.source(source) for source in readable])
        read = layer.read(streams)
        sources.append(readable)
        values.append(read)
        straight = torch.linalg.vector_norm(read, dim=-1).amax(0)
        further = torch.zeros_like(straight)
        through.append(further)
        if not bounded:
            continue
        for lower, norms in enumerate(largest_z):
            carried = (norms[:, :, None] * gains[lower, index][:, :, None]).amax(1)
            further = torch.maximum(further, carried * layer.scale[:, None].abs())
        largest = torch.maximum(straight, further)
        largest_z.append((layer.pattern @ layer.per_head(largest[..., None]))[..., 0])
        through[-1] = further
    return Reach(tuple(sources), tuple(values), tuple(through))


# Gains of pairs of layers follow from the weights alone, so all searches in a model share them.
_GAINS: WeakKeyDictionary[Weights, dict[tuple[int, int], Float[Tensor, "head kv"]]] = (
    WeakKeyDictionary()
)


def _all_gains(
    weights: Weights, layers: list[FrozenLayer]
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
