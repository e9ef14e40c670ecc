"""PathsAnswer: one prediction explained, with its totals, strongest paths and their routes.

Routes are the positions that a single path's value came from and traveled through. A path names its
heads, not its positions: its value is a sum over the position of its source and over every position
in between. With g the target's gradient at the stream below the path's first head, the share of
source position j is x[j] · g[j]. All factors of the pattern product are positive, so the strongest
route from j to the target's position is the one with the largest product, found from the bottom up.
"""

from dataclasses import dataclass

from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model import Path, Trace
from pathsum.paths.explain.flows import gradient_at_top
from pathsum.paths.explain.search import TopPaths
from pathsum.paths.explain.toward import Toward
from pathsum.paths.frozen import Frozen
from pathsum.paths.path_sum import PathSum, expand_logits
from pathsum.paths.target import PositionName, Target, TokenName, Versus
from pathsum.result import Progress, Record, Table, silent, stacked

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


SHOWN = 10


@dataclass(frozen=True, eq=False)
class PathsAnswer(Record, kind="paths"):
    """Which paths made a prediction: the totals, and the strongest single paths.

    `probability` is the model's probability of the token there, `rank` its place among all tokens
    (1 = most probable). `counts` has the number of paths of each order, `routes` the routes of the
    first paths of `top`.
    """

    model: str
    probability: float
    rank: int
    counts: tuple[int, ...]
    toward: Toward
    top: TopPaths
    routes: tuple[Routes, ...]

    def to_table(self) -> Table:
        """The split by order."""
        return self.toward.to_table()

    def __rich__(self) -> RenderableType:
        token = self.toward.target_texts[0]
        head = f"{self.model}: {token} has probability {self.probability:.4f}, rank {self.rank}"
        toward = self.toward
        parts = (self.to_table(), self.top, toward.head_table(), toward.source_table())
        return stacked(head, *parts)


def answer(
    trace: Trace,
    position: PositionName = -1,
    token: TokenName | None = None,
    versus: Versus = "mean",
    k: int = SHOWN,
    budget: int = 50_000,
    progress: Progress = silent,
    *,
    n_routes: int = 0,
) -> PathsAnswer:
    """Explain one prediction of a run of one sequence.

    Lists the `k` strongest paths, found by evaluating up to `budget`, and the routes of the first
    `n_routes` of them.
    """
    if len(trace.tokens) > 1:
        raise InputError(
            f"the trace has {len(trace.tokens)} sequences, and one prediction is explained; trace "
            "one sequence, or average over all of them with trace.paths().toward(...)"
        )
    paths = expand_logits(trace)
    toward = paths.toward(position, token, versus)
    top = toward.top(k, budget, progress)
    logits = trace.logits[0, toward.target_positions[0]]
    own = logits[toward.target_tokens[0]]
    return PathsAnswer(
        model=trace.model.name,
        probability=float(logits.softmax(-1)[toward.target_tokens[0]]),
        rank=int((logits > own).sum()) + 1,
        counts=tuple(paths.counts),
        toward=toward,
        top=top,
        routes=tuple(routes(paths, toward.target, one.path) for one in top.paths[:n_routes]),
    )
