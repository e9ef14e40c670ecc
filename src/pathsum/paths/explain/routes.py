"""Where a single path's value came from, and by which way it traveled.

A path names its heads, not its positions: its value is a sum over the position where its source
stands, and over every position in between. With g the target's direction pulled down through the
path's OV circuits, the share of source position j is

    value[j]  =  (s_final A[h_n] s … A[h_1] s)[position, j] · (x[j] · g)

All factors of the pattern product are positive, so the strongest of the ways from j to the target's
position is the one with the largest product, found from the bottom up.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import HeadId, Path
from pathsum.model.reads import fold_read
from pathsum.paths.explain.target import Target
from pathsum.paths.path_sum import PathSum

# What gave less than this share of what the strongest position gave is not listed.
LEAST_SHARE = 1e-4


@dataclass(frozen=True, eq=False)
class Routes:
    """The strongest source positions of a path, what each gave, and the strongest way of each.

    `values` of all positions add up to the path's value; those listed are the largest magnitudes.
    `ways[i]` has the positions from source to target, one more than the path has heads.
    """

    positions: tuple[int, ...]
    values: tuple[float, ...]
    ways: tuple[tuple[int, ...], ...]


def routes(paths: PathSum, target: Target, path: Path, k: int = 5) -> Routes:
    """Where a path's value toward a target came from, for the first sequence of a run."""
    if path.source.kind == "unembed_bias":
        return Routes((), (), ())  # added to the logits themselves: it comes from nowhere
    values = source_values(paths, target, path)
    best = values.abs().topk(min(k, len(values)))
    kept = [
        int(j)
        for j, size in zip(best.indices, best.values, strict=True)
        if size > LEAST_SHARE * best.values[0]
    ]
    steps = [_step(paths, head, int(target.positions[0]) + 1) for head in path.heads]
    return Routes(
        positions=tuple(kept),
        values=tuple(float(values[j]) for j in kept),
        ways=tuple(_strongest_way(steps, j, int(target.positions[0])) for j in kept),
    )


def source_values(paths: PathSum, target: Target, path: Path) -> Float[Tensor, " pos"]:
    """What each position's source gave to the target along one path; adds up to its value."""
    position = int(target.positions[0])
    direction, _ = target.direction(paths.trace.model.weights)
    row = torch.zeros(position + 1, dtype=direction.dtype, device=direction.device)
    row[position] = paths.frozen.final_scale[0, position]
    pulled = direction[0]
    for head in reversed(path.heads):
        row = row @ _step(paths, head, position + 1)
        pulled = _read(paths, head) @ (
            paths.trace.model.weights.layers[head.layer].W_O[head.head] @ pulled
        )
    stream = paths.frozen.source(path.source)[0, : position + 1]
    return row * (stream @ pulled)


def _read(paths: PathSum, head: HeadId) -> Float[Tensor, "d k"]:
    weights = paths.trace.model.weights
    raw = weights.layers[head.layer]
    W_V = raw.W_V[head.head // weights.config.heads_per_kv]
    return fold_read(weights.config.norm, W_V, raw.ln1_w)


def _step(paths: PathSum, head: HeadId, length: int) -> Float[Tensor, "dest src"]:
    """A[h] diag(s) of the first sequence."""
    trace = paths.trace
    scale = trace.scales.attention[head.layer][0, :length]
    return trace.patterns[head.layer][0, head.head, :length, :length] * scale


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
