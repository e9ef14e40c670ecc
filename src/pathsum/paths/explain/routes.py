"""Routes: the positions that a single path's value came from and traveled through.

A path names its heads, not its positions: its value is a sum over the position of its source and
over every position in between. With g the target's gradient at the stream below the path's first
head, the share of source position j is x[j] · g[j]. All factors of the pattern product are
positive, so the strongest route from j to the target's position is the one with the largest
product, found from the bottom up.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from pathsum.model import Path
from pathsum.paths.explain.flows import gradient_at_top
from pathsum.paths.frozen import Frozen
from pathsum.paths.path_sum import PathSum
from pathsum.paths.target import Target

# Positions that gave less than this share of what the strongest gave are not listed.
LEAST_SHARE = 1e-4


@dataclass(frozen=True, eq=False)
class Routes:
    """The strongest source positions of a path, what each contributed, and its strongest route.

    The `values` of all positions add up to the path's value; the largest magnitudes are listed.
    `ways[i]` is the route from `positions[i]` to the target, one more position than the path has
    heads.
    """

    positions: tuple[int, ...]
    values: tuple[float, ...]
    ways: tuple[tuple[int, ...], ...]


def routes(paths: PathSum, target: Target, path: Path, k: int = 5) -> Routes:
    """The routes of a path toward a target, in the first sequence of a run."""
    if path.source.kind == "unembed_bias":
        return Routes((), (), ())  # added to the logits themselves: it has no source position
    values = source_values(paths, target, path)
    best = values.abs().topk(min(k, len(values)))
    kept = [
        int(j)
        for j, size in zip(best.indices, best.values, strict=True)
        if size > LEAST_SHARE * best.values[0]
    ]
    layers = map(_first_sequence(paths, target).head, path.heads)
    steps = [layer.pattern[0, 0] * layer.scale[0] for layer in layers]  # A[h] diag(s)
    return Routes(
        positions=tuple(kept),
        values=tuple(float(values[j]) for j in kept),
        ways=tuple(_strongest_way(steps, j, int(target.positions[0])) for j in kept),
    )


def source_values(paths: PathSum, target: Target, path: Path) -> Float[Tensor, " pos"]:
    """What each source position contributes to the target along one path; sums to its value."""
    frozen = _first_sequence(paths, target)
    gradient = frozen.through_adjoint(path.heads, gradient_at_top(frozen, target.rows(slice(1))))
    return (frozen.source(path.source) * gradient)[0].sum(-1)


def _first_sequence(paths: PathSum, target: Target) -> Frozen:
    return Frozen(paths.trace, rows=slice(1), length=int(target.positions[0]) + 1)


def _strongest_way(
    steps: list[Float[Tensor, "dest src"]], source: int, position: int
) -> tuple[int, ...]:
    """The positions of the largest product from a source to a position."""
    if not steps:
        return (position,)
    best = steps[0][:, source]
    came_from: list[Tensor] = []
    for step in steps[1:]:
        ways = step * best
        best, before = ways.max(1)
        came_from.append(before)
    way = [position]
    for before in reversed(came_from):
        way.append(int(before[way[-1]]))
    return (source, *reversed(way))
