"""The strongest single paths toward a target, by best-first search with a proof.

A search node is the upper end of a path: some steps below the logits, with the target's gradient
at the stream below the lowest step, which is exact. Expanding a node evaluates all paths that enter
it from a source through one step below it, and bounds the paths through further steps
(`path_bounds`). Nodes are expanded in order of their bounds, and nodes that cannot reach the k-th
best path so far are dropped.
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Estimate, HeadId, Path, Progress, Record, Source, Table
from pathsum.base.options import parse_count
from pathsum.base.path import Step
from pathsum.paths.breakdown import mean_and_error, share_table
from pathsum.paths.flows import gradient_at_top
from pathsum.paths.frozen import Frozen
from pathsum.paths.path_bounds import Reach
from pathsum.paths.path_sum import PathSum
from pathsum.paths.target import Target

# Nodes of one layer that are expanded together: enough to fill a matrix product.
TOGETHER = 8
# Bounds are products of rounded numbers; this factor keeps them above the exact values.
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

    If `proven`, no other path is stronger than the last one listed. `bound` is the largest |value|
    that a path that was not evaluated could have (0 if all were). `rest` is the exact sum of all
    other paths. `evaluated` is the number of evaluated paths.
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

    def __getitem__(self, index: int) -> RankedPath:
        return self.paths[index]

    def to_table(self) -> Table:
        """One row per path."""
        rows = [
            ((str(each.path),), Estimate.around(each.value, each.stderr, self.sequences))
            for each in self.paths
        ]
        if self.proven:
            proof = "proven: no other path is stronger"
        else:
            proof = f"not proven: a path of up to {self.bound:.3g} could be hidden"
        title = f"strongest paths, {len(self.paths)} of {self.count:,}"
        note = f"{proof} ({self.evaluated:,} evaluated); sum of all others {self.rest:+.3f}"
        return share_table(("path",), rows, title, note)


def strongest_paths(
    paths: PathSum, target: Target, total: float, k: int, budget: int, progress: Progress
) -> TopPaths:
    """The k paths of largest |mean over sequences| toward the target."""
    parse_count(k, "paths")
    parse_count(budget, "paths", "budget")
    search = _Search(paths, target, k, budget)
    search.run(budget, progress)
    best = [_ranked(path, values) for _, _, path, values in search.best]
    best.sort(key=lambda each: (-abs(each.value), each.path.order, str(each.path)))
    return TopPaths(
        paths=tuple(best),
        total=total,
        rest=total - sum(each.value for each in best),
        proven=search.bound <= search.threshold,
        bound=max(search.bound, search.dropped, 0.0),
        evaluated=search.evaluated,
        count=paths.count,
        sequences=len(target.tokens),
    )


class _Search:
    def __init__(self, paths: PathSum, target: Target, k: int, budget: int) -> None:
        self.k = min(k, paths.count)
        # If all paths are listed, bounds are not needed.
        self.bounded = paths.count > min(k, budget)
        length = target.visible_length(paths.trace)
        self.frozen = Frozen(paths.trace, length=length, gates=paths.gates)
        self.reach = Reach(self.frozen, self.bounded)
        self.top = gradient_at_top(self.frozen, target)
        # (|value|, tie-break, path, value in each sequence); the smallest is the k-th best.
        self.best: list[tuple[float, int, Path, Tensor]] = []
        # (−bound, tie-break, steps) of nodes, by the level (`level_of`) below which they read.
        # Heads and MLPs have no order; among equal bounds, the first node comes first.
        levels = range(2 * self.frozen.n_layers + 1)
        self.nodes: list[list[tuple[float, int, tuple[Step, ...]]]] = [[] for _ in levels]
        self.number = itertools.count()
        self.dropped = 0.0
        self.evaluated = 0
        bias = target.direction(paths.trace.model.weights)[1]
        for source in paths.sources:
            has_stream = source.kind != "unembed_bias"
            values = (self.frozen.source(source) * self.top).sum((-2, -1)) if has_stream else bias
            self.evaluated += 1
            self._add_path(abs(float(values.mean())), Path(source), values)

    @property
    def threshold(self) -> float:
        """The |value| that a path must exceed to be listed."""
        return self.best[0][0] if len(self.best) == self.k else -1.0

    @property
    def bound(self) -> float:
        """The largest value that a path through an unexpanded node could have."""
        return max((-nodes[0][0] for nodes in self.nodes if nodes), default=-math.inf)

    def run(self, budget: int, progress: Progress) -> None:
        """Expand nodes, best first, until no stronger path can remain or the budget is spent."""
        self._expand(2 * self.frozen.n_layers, [()], self.top[None])
        while self.evaluated < budget and self.bound > self.threshold:
            progress(min(self.evaluated, budget), budget, "searching paths")
            below = max(
                (level for level, nodes in enumerate(self.nodes) if nodes),
                key=lambda level: -self.nodes[level][0][0],
            )
            waiting, chains = self.nodes[below], list[tuple[Step, ...]]()
            while waiting and len(chains) < TOGETHER and -waiting[0][0] > self.threshold:
                chains.append(heapq.heappop(waiting)[2])
            gradients = [self.frozen.through_adjoint(steps, self.top) for steps in chains]
            self._expand(below, chains, torch.stack(gradients))

    def _expand(
        self,
        below: int,
        chains: list[tuple[Step, ...]],
        gradients: Float[Tensor, "many batch pos d"],
    ) -> None:
        """Evaluate all paths that enter nodes from a source through one step below them."""
        reach = self.reach
        for index, layer in enumerate(reach.layers):
            if 2 * index < below:
                at_values = layer.mix_adjoint(layer.write_adjoint(gradients))
                grouped = at_values.unflatten(2, (len(layer.W_V), -1))
                values = torch.einsum("sbvpk,mbvgpk->msvgb", reach.values[index], grouped)
                heads = [HeadId(index, head) for head in range(at_values.shape[2])]
                self._add_paths(2 * index, heads, chains, values.flatten(2, 3))
                if index:
                    limits = layer.per_head(reach.through_heads[index][..., None])[..., 0]
                    self._add_nodes(2 * index, heads, chains, at_values, limits)
        for index, mlp in enumerate(reach.mlps):
            if 2 * index + 1 < below:
                at_read = mlp.adjoint(gradients)
                source = Source("mlp", index)
                level = self.frozen.reads_below(source)
                values = torch.einsum("sbpd,mbpd->msb", reach.readable_streams(level), at_read)
                self._add_paths(level, [source], chains, values[:, :, None])
                if level:
                    limits = reach.through_mlps[index][:, None]
                    self._add_nodes(level, [source], chains, at_read[:, :, None], limits)

    def _add_paths(
        self,
        level: int,
        steps: Sequence[Step],
        chains: list[tuple[Step, ...]],
        values: Float[Tensor, "many source step batch"],
    ) -> None:
        """Add the paths that enter nodes from a source through these steps."""
        sources = self.reach.readable(level)
        flat = values.flatten(0, 2)
        self.evaluated += len(flat)
        best = flat.mean(-1).abs().topk(min(self.k, len(flat)))
        for size, at in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if size <= self.threshold:
                break
            chain, rest = divmod(at, len(sources) * len(steps))
            source, step = divmod(rest, len(steps))
            self._add_path(size, Path(sources[source], (steps[step], *chains[chain])), flat[at])

    def _add_path(self, size: float, path: Path, values: Float[Tensor, " batch"]) -> None:
        item = (size, -next(self.number), path, values)
        if len(self.best) < self.k:
            heapq.heappush(self.best, item)
        elif size > self.best[0][0]:
            heapq.heapreplace(self.best, item)

    def _add_nodes(
        self,
        level: int,
        steps: Sequence[Step],
        chains: list[tuple[Step, ...]],
        gradients: Float[Tensor, "many batch step pos k"],
        limits: Float[Tensor, "batch step pos"],
    ) -> None:
        """Add the nodes one step below others, with a bound on the paths through further steps.

        `limits` bound the norms of what these steps read.
        """
        sizes = torch.linalg.vector_norm(gradients, dim=-1)
        bounds = ((sizes * limits).sum(-1).mean(1) * ROUNDING).tolist()
        for chain, row in zip(chains, bounds, strict=True):
            for step, bound in zip(steps, row, strict=True):
                bound = bound if self.bounded else math.inf
                if bound > self.threshold:
                    item = (-bound, next(self.number), (step, *chain))
                    heapq.heappush(self.nodes[level], item)
                else:
                    self.dropped = max(self.dropped, bound)


def _ranked(path: Path, values: Float[Tensor, " batch"]) -> RankedPath:
    """A path with its mean and standard error, from its contribution in each sequence."""
    mean, stderr = mean_and_error(values)
    return RankedPath(path, float(mean), None if stderr is None else float(stderr))
