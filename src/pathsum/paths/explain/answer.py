"""PathsAnswer: one prediction explained, with its totals, strongest paths and their routes."""

from dataclasses import dataclass

from rich.console import RenderableType

from pathsum.errors import InputError
from pathsum.model import Trace
from pathsum.paths.explain.routes import Routes, routes
from pathsum.paths.explain.search import TopPaths
from pathsum.paths.explain.toward import Toward
from pathsum.paths.path_sum import expand_logits
from pathsum.paths.target import PositionName, TokenName, Versus
from pathsum.result import Progress, Record, Table, silent, stacked

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
