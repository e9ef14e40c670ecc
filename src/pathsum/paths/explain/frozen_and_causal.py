"""Frozen and causal side by side: what an edge carried, and what would have happened without it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pathsum.errors import InputError
from pathsum.model import Trace
from pathsum.names import Edge, EdgeName, HeadName, HeadRead, LogitsRead, Side
from pathsum.paths.explain.breakdown import Grid
from pathsum.paths.explain.target import Target
from pathsum.paths.intervene.causal import causal_effects
from pathsum.paths.path_sum import PathSum
from pathsum.result import Column, Progress, Record, Table, silent, text_column
from pathsum.result.estimate import Estimate


@dataclass(frozen=True)
class EdgeCredit:
    """One edge's credit by both accounts.

    `frozen` sums all paths that use the edge, patterns held fixed; an edge into a query, a key or
    an MLP is in no path and has None. `causal` is how far the number falls when the edge carries
    the other run's message and everything after it is recomputed.
    """

    edge: Edge
    frozen: float | None
    causal: Estimate


@dataclass(frozen=True, eq=False)
class FrozenAndCausal(Record, kind="frozen-and-causal"):
    """Every edge's frozen share of a number beside its causal effect on it."""

    edges: tuple[EdgeCredit, ...]
    value: float
    value_other: float

    def __getitem__(self, edge: EdgeName) -> EdgeCredit:
        """The credit of an edge, such as `L0H0→L1H0.k`."""
        wanted = Edge.parse(edge)
        for credit in self.edges:
            if credit.edge == wanted:
                return credit
        raise InputError(f"the edge {wanted} is not among those measured here")

    def ranked(self) -> list[EdgeCredit]:
        """The largest of either credit first."""
        return sorted(
            self.edges, key=lambda credit: -max(abs(credit.frozen or 0), abs(credit.causal.value))
        )

    def to_table(self, rows: int = 20) -> Table:
        """The strongest edges by either account."""
        shown = tuple(
            (str(credit.edge), credit.frozen, credit.causal.value)
            for credit in self.ranked()[:rows]
        )
        return Table(
            (text_column("edge"), Column("frozen", "+.3f"), Column("causal", "+.3f")),
            shown,
            title=f"{len(shown)} of {len(self.edges)} edges: frozen share and causal effect",
            note=f"{self.value:+.3f} in this run, {self.value_other:+.3f} in the other; frozen: "
            "paths that use the edge, patterns fixed (– for queries and keys, which no path "
            "enters); causal: how far it falls when the edge is taken from the other run",
        )


def beside(
    paths: PathSum,
    target: Target,
    by_edge: Grid,
    other: Trace,
    into: Sequence[HeadName] | None = None,
    progress: Progress = silent,
) -> FrozenAndCausal:
    """Causal effects of every edge (or of those into some heads) beside their frozen shares."""
    effects = causal_effects(
        paths.trace,
        other,
        target.positions,
        target.tokens,
        target.versus,
        into=into,
        progress=progress,
    )
    measured = tuple(
        EdgeCredit(found.edge, _frozen_share(by_edge, found.edge), found.effect)
        for found in effects.effects
    )
    return FrozenAndCausal(measured, effects.value.value, effects.value_other.value)


def _frozen_share(by_edge: Grid, edge: Edge) -> float | None:
    if isinstance(edge.reader, LogitsRead):
        return by_edge[edge.writer, "logits"]
    if isinstance(edge.reader, HeadRead) and edge.reader.side is Side.V:
        return by_edge[edge.writer, edge.reader.head]
    return None
