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
from pathsum.result import (
    Column,
    Progress,
    Record,
    Table,
    silent,
    stacked,
    text_column,
    token_column,
)

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

    def last_table(self) -> Table:
        """Direct attribution: the components that wrote most straight into the logit."""
        ranked = self.toward.by_last.ranked()[:SHOWN]
        through = dict(self.toward.by_head.items())
        rows = tuple((str(name), value, through.get(name)) for name, value in ranked)
        columns = (
            text_column("component"),
            Column("direct", "+.3f"),
            Column("through", "+.3f"),
        )
        note = (
            "direct: written straight into the logit; through: all paths through it; patterns are "
            "held fixed, so moving another head's attention is not credited"
        )
        return Table(columns, rows, title="by component", note=note)

    def source_table(self) -> Table:
        """The tokens that the logit came from."""
        context = self.toward.context
        rows: list[tuple[str, int, str, float]] = []
        for source, position, value in self.toward.by_source.ranked(SHOWN):
            assert isinstance(position, int)
            rows.append((str(source), position, context[position], value))
        columns = (
            text_column("source"),
            Column("position"),
            token_column("token"),
            Column("logit", "+.3f"),
        )
        return Table(columns, tuple(rows), title="by source and token")

    def __rich__(self) -> RenderableType:
        token = self.toward.target_texts[0]
        head = f"{self.model}: {token} has probability {self.probability:.4f}, rank {self.rank}"
        parts = (self.to_table(), self.top, self.last_table(), self.source_table())
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
