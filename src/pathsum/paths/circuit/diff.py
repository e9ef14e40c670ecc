"""The difference of two circuits, edge by edge: of prompts, seeds or training steps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from pathsum.base import Column, Estimate, Record, Table, text_column
from pathsum.base.estimate import mean_estimate

Shares = Mapping[str, Estimate]


@dataclass(frozen=True)
class EdgeDiff:
    """An edge of either circuit: its shares, and the first minus the second.

    A share is None in the circuit that does not keep the edge, and counts as 0 in the difference.
    """

    edge: str
    here: Estimate | None
    there: Estimate | None
    difference: Estimate

    @property
    def only_in(self) -> Literal["this", "other"] | None:
        """The only circuit that keeps it, if just one does."""
        if self.here is None:
            return "other"
        return "this" if self.there is None else None


@dataclass(frozen=True, eq=False)
class CircuitDiff(Record, kind="circuit-diff"):
    """Two circuits compared over the edges of either, the largest difference first."""

    this: str
    other: str
    edges: tuple[EdgeDiff, ...]

    def __getitem__(self, name: str) -> EdgeDiff:
        for found in self.edges:
            if found.edge == name:
                return found
        raise KeyError(name)

    @property
    def only_in_this(self) -> tuple[str, ...]:
        """Edges that the other circuit does not keep."""
        return tuple(found.edge for found in self.edges if found.only_in == "this")

    @property
    def only_in_other(self) -> tuple[str, ...]:
        """Edges that this circuit does not keep."""
        return tuple(found.edge for found in self.edges if found.only_in == "other")

    def to_table(self, rows: int = 30) -> Table:
        """One edge per row."""
        cells = tuple(
            (
                *(found.edge, found.here and found.here.value, found.there and found.there.value),
                *found.difference.with_interval,
                f"{found.only_in} only" if found.only_in else "both",
            )
            for found in self.edges[:rows]
        )
        columns = (
            *(text_column("edge"), Column("this", "+.3f"), Column("other", "+.3f")),
            *(Column("difference", "+.3f"), Column("low", "+.3f"), Column("high", "+.3f")),
            text_column("kept by"),
        )
        note = (
            f"shares in logits; {len(self.only_in_this)} edges in this circuit only, "
            f"{len(self.only_in_other)} in the other only, of {len(self.edges)}; –: below the "
            "threshold there"
        )
        return Table(columns, cells, f"{self.this} minus {self.other}", note)


def diff_edges(
    here: tuple[str, Shares],
    there: tuple[str, Shares],
    paired: tuple[Mapping[str, list[float]], Mapping[str, list[float]]] | None = None,
) -> CircuitDiff:
    """The difference of two named sets of shares; `paired` has those of each prompt, in order."""
    found: list[EdgeDiff] = []
    for edge in dict.fromkeys([*here[1], *there[1]]):
        mine, theirs = here[1].get(edge), there[1].get(edge)
        if paired is None:
            difference = _independent(mine, theirs)
        else:
            count = len(next(iter((*paired[0].values(), *paired[1].values()))))
            one, two = (
                torch.tensor(shares.get(edge, [0.0] * count), dtype=torch.float64)
                for shares in paired
            )
            difference = mean_estimate(one - two)
        found.append(EdgeDiff(edge, mine, theirs, difference))
    found.sort(key=lambda edge: -abs(edge.difference.value))
    return CircuitDiff(here[0], there[0], tuple(found))


def _independent(mine: Estimate | None, theirs: Estimate | None) -> Estimate:
    """The difference of two means of different prompts."""
    known = [one for one in (mine, theirs) if one is not None]
    value = (0.0 if mine is None else mine.value) - (0.0 if theirs is None else theirs.value)
    errors = [one.stderr for one in known if one.stderr is not None]
    if len(errors) < len(known):
        return Estimate(value)
    return Estimate.around(value, math.hypot(*errors))
