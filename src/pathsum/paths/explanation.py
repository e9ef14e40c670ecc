"""PathExplanation: one prediction explained, with its totals, strongest paths and their routes.

A route is the sequence of positions of a path: a path names heads, and its value is a sum over the
position of its source and all positions in between. With g the target's gradient at the stream
below the path's first step, the share of source position j is x[j] · g[j]. All factors of the
pattern product are positive, so the strongest route from j to the target's position is the route
with the largest product, found from the bottom up. An MLP stays at its position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.base import Progress, Record, Table, silent, stacked
from pathsum.base.errors import InputError
from pathsum.base.path import Step
from pathsum.model import HeadId, Path, Trace
from pathsum.paths.attribution import SHOWN, LogitAttribution
from pathsum.paths.flows import gradient_at_top
from pathsum.paths.frozen import Frozen
from pathsum.paths.path_sum import Mlps, PathSum, expand_logits
from pathsum.paths.search import TopPaths
from pathsum.paths.target import PositionName, Target, TokenName, Versus

# Positions below this share of the strongest position's contribution are not listed.
LEAST_SHARE = 1e-4


@dataclass(frozen=True, eq=False)
class Routes:
    """The strongest source positions of a path, their contributions, and their strongest routes.

    The `values` of all positions add up to the path's value; the largest magnitudes are listed.
    `ways[i]` is the route from `positions[i]` to the target. It has one more position than the path
    has steps.
    """

    positions: tuple[int, ...]
    values: tuple[float, ...]
    ways: tuple[tuple[int, ...], ...]


def routes(
    paths: PathSum, target: Target, selection: Sequence[Path], k: int = 5
) -> tuple[Routes, ...]:
    """The routes of paths toward a target, in the first sequence of a run.

    Paths with the same upper heads share the work.
    """
    # The bias of the logits has no source position.
    streams = [path for path in selection if path.source.kind != "unembed_bias"]
    if not streams:
        return (Routes((), (), ()),) * len(selection)
    length = int(target.positions[0]) + 1
    frozen = Frozen(paths.trace, slice(1), length, paths.gates)
    values = source_values(frozen, target, streams)
    result: dict[Path, Routes] = {}
    maps: dict[Step, Float[Tensor, "dest src"]] = {}
    for path, row in zip(streams, values, strict=True):
        for step in path.steps:
            if step not in maps and isinstance(step, HeadId):
                layer = frozen.head(step)
                maps[step] = layer.pattern[0, 0] * layer.scale[0]  # A[h] diag(s)
            elif step not in maps:
                maps[step] = torch.eye(length).to(values)
        sizes, order = row.abs().topk(min(k, length))
        sources = order[sizes > LEAST_SHARE * sizes[0]].tolist()
        result[path] = Routes(
            positions=tuple(sources),
            values=tuple(row[sources].tolist()),
            ways=_strongest_ways([maps[step] for step in path.steps], sources, length - 1),
        )
    return tuple(result.get(path, Routes((), (), ())) for path in selection)


def source_values(
    frozen: Frozen, target: Target, selection: Sequence[Path]
) -> Float[Tensor, "path pos"]:
    """The contribution of each source position along each path; they sum to the path's value."""
    top = gradient_at_top(frozen, target.rows(slice(1)))
    below: dict[tuple[Step, ...], Float[Tensor, "1 pos d"]] = {(): top}
    rows: list[Tensor] = []
    for path in selection:
        for number in reversed(range(path.order)):
            upper = path.steps[number:]
            if upper not in below:
                below[upper] = frozen.through_adjoint(upper[:1], below[upper[1:]])
        rows.append((frozen.source(path.source) * below[path.steps])[0].sum(-1))
    return torch.stack(rows)


def _strongest_ways(
    steps: Sequence[Float[Tensor, "dest src"]], sources: list[int], position: int
) -> tuple[tuple[int, ...], ...]:
    """The positions of the largest product of steps from each source to a position."""
    if not steps or not sources:
        return ((position,),) * len(sources)
    best = steps[0][:, sources]
    tables: list[list[list[int]]] = []
    for step in steps[1:]:
        # One source at a time, so that only one table of products is in memory.
        products = [(step * column).max(1) for column in best.T]
        best = torch.stack([product.values for product in products], 1)
        tables.append([product.indices.tolist() for product in products])
    ways: list[tuple[int, ...]] = []
    for number, source in enumerate(sources):
        way = [position]
        for table in reversed(tables):
            way.append(table[number][way[-1]])
        ways.append((source, *reversed(way)))
    return tuple(ways)


@dataclass(frozen=True, eq=False)
class PathExplanation(Record, kind="paths"):
    """A prediction attributed to paths: the totals, and the strongest single paths.

    `probability` is the model's probability of the token, `rank` its rank among all tokens (1 =
    most probable). `counts` has the number of paths of each order, `routes` the routes of the first
    paths of `top`.
    """

    model: str
    probability: float
    rank: int
    counts: tuple[int, ...]
    toward: LogitAttribution
    top: TopPaths
    routes: tuple[Routes, ...]

    def to_table(self) -> Table:
        """The split by order."""
        return self.toward.to_table()

    def __rich__(self) -> RenderableType:
        token = self.toward.target_texts[0]
        text = f"{self.model}: {token} has probability {self.probability:.4f}, rank {self.rank}"
        tables = (self.top, self.toward.head_table(), self.toward.source_table())
        return stacked(text, self.to_table(), *tables)


def explain_prediction(
    trace: Trace,
    position: PositionName = -1,
    token: TokenName | None = None,
    versus: Versus = "mean",
    k: int = SHOWN,
    budget: int = 50_000,
    progress: Progress = silent,
    *,
    mlps: Mlps | str = Mlps.HELD,
    n_routes: int = 0,
) -> PathExplanation:
    """Explain one prediction of a run of one sequence.

    Args:
        trace: The run.
        position: The position of the prediction, from 0, or from the end if negative.
        token: The explained token, by default the model's prediction.
        versus: The comparison, as in `PathSum.toward`.
        k: The number of strongest paths.
        budget: The largest number of paths that the search evaluates.
        progress: Called during the search.
        mlps: The role of MLPs, as in `trace.paths`.
        n_routes: The number of paths whose routes are computed.

    Returns:
        Totals, strongest paths and routes.

    Example:
        >>> from pathsum.model import construct
        >>> explanation = explain_prediction(construct.induction().trace("a b c a"), token="b", k=1)
        >>> str(explanation.top[0].path), explanation.rank
        ('embed→L1H0', 1)
    """
    paths = expand_logits(trace, mlps)
    if len(trace.tokens) > 1:
        raise InputError(
            f"the trace has {len(trace.tokens)} sequences, and one prediction is explained; trace "
            "one sequence, or average over all of them with trace.paths().toward(...)"
        )
    toward = paths.toward(position, token, versus)
    top = toward.top(k, budget, progress)
    logits = trace.logits_at(int(toward.target_positions[0]))[0]
    token_id = toward.target_tokens[0]
    return PathExplanation(
        model=trace.model.name,
        probability=float(logits.softmax(-1)[token_id]),
        rank=int((logits > logits[token_id]).sum()) + 1,
        counts=tuple(paths.counts),
        toward=toward,
        top=top,
        routes=routes(paths, toward.target, [each.path for each in top.paths[:n_routes]]),
    )
