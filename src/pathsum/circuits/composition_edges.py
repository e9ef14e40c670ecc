"""Edges of composition: scores, the ranked list with its note, and the cost of cutting an edge."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from rich.console import RenderableType

from pathsum.algebra.nulls import ALPHA
from pathsum.base import Column, Record, Site, text_column
from pathsum.base.estimate import ProbabilityColumn
from pathsum.base.options import parse_choice
from pathsum.base.sentence import percent
from pathsum.circuits.reads_and_writes import KINDS, CompositionKind
from pathsum.model import HeadId, Model
from pathsum.model.losses import run_losses
from pathsum.model.sequences import TextOrTokens, token_batches

COSTLY = 0.01
"""An edge matters for a text if cutting it raises the loss by more nats per token than this."""
MEANING = (
    "p only tests whether the heads share more directions than random heads. Heads that use the "
    "same few axes do, so ablate the edge to see whether the model uses it (pathsum patch)."
)


@dataclass(frozen=True)
class ScoredEdge:
    """An edge with its composition score, z under random rotations, and p-values.

    `p_axes` is the p-value under permuted and signed axes, and `p` the larger of `p_axes` and the
    p-value under rotations. `cost` is the rise of a text's loss, in nats per token, when the edge
    is cut; see `Edges.cut`.
    """

    edge: Annotated[Site, text_column("edge")]
    score: Annotated[float, Column("score")]
    excess: Annotated[float, Column("excess", "+.3f")]
    z: Annotated[float, Column("z", "+.1f")]
    p: Annotated[float, ProbabilityColumn()]
    p_axes: Annotated[float | None, ProbabilityColumn("p (axes)")] = None
    cost: Annotated[float | None, Column("cost", "+.3f")] = None

    @property
    def writer(self) -> HeadId:
        """The writing head."""
        assert isinstance(self.edge.writer, HeadId)
        return self.edge.writer

    @property
    def reader(self) -> HeadId:
        """The reading head."""
        assert isinstance(self.edge.reader, HeadId)
        return self.edge.reader

    @property
    def kind(self) -> CompositionKind:
        """The kind of composition: `q`, `k` or `v`."""
        assert self.edge.side is not None
        return parse_choice(KINDS, self.edge.side.value, "kind")


@dataclass(frozen=True)
class Edges(Record, kind="composition-edges"):
    """Edges that pass a threshold, best first.

    `tested` counts all pairs and kinds, `found` those that pass, and `expected` is the number
    expected to pass if the stream were rotated at random between any two heads. `unlikely` counts
    tested edges with p < 0.01, one in a hundred under the null. `edges` holds the best k edges that
    pass, and `null` describes the null of p. After `cut`, `matter` counts the listed edges whose
    cut raises the loss by more than 0.01 nats per token.
    """

    model: str
    edges: tuple[ScoredEdge, ...]
    tested: int
    found: int
    expected: float
    unlikely: int
    null: tuple[str, ...]
    notes: tuple[str, ...]
    matter: int | None = None

    def cut(self, model: Model, text: TextOrTokens) -> "Edges":
        """The same edges, each with the rise of a text's loss when only that edge is cut.

        A cut edge carries the mean of the writer's output over the text, at every position, and
        all later computation is repeated.

        >>> import pathsum as ps
        >>> model = ps.construct.induction()
        >>> edges = ps.composition(model).edges(max_p=0.01).cut(model, "a b c d a b c d")
        >>> [(str(edge.edge), f"{edge.cost:.1f}") for edge in edges]
        [('L0H0→L1H0.k', '3.7')]
        """
        batches = token_batches(model, text)

        def mean_loss(model: Model) -> float:
            return float(torch.cat([run_losses(model, ids).flatten() for ids in batches]).mean())

        loss = mean_loss(model)
        edges = tuple(
            replace(edge, cost=mean_loss(model.edited({edge.edge: "mean"}, batches)) - loss)
            for edge in self.edges
        )
        return replace(self, edges=edges, matter=sum((e.cost or 0) > COSTLY for e in edges))

    def __iter__(self) -> Iterator[ScoredEdge]:
        return iter(self.edges)

    def __len__(self) -> int:
        return len(self.edges)

    def __getitem__(self, index: int) -> ScoredEdge:
        return self.edges[index]

    @property
    def table_title(self) -> str:
        """The model's name."""
        return f"composition, {self.model}"

    @property
    def table_note(self) -> str:
        """The number of edges that pass, the number expected under the null, and notes."""
        tested, rows, lines = self.tested, len(self.edges), list[str]()
        if self.expected < tested:
            shown = f", {rows} shown" if rows < self.found else ""
            expected = f"{_count(self.expected)} expected under the null"
            lines.append(f"{self.found} of {tested} edges pass{shown}; {expected}.")
        elif rows < self.found:
            lines.append(f"{rows} of {self.found} edges are shown.")
        if tested:
            lines.append(
                f"{self.unlikely} of {tested} ({percent(self.unlikely / tested)}) have "
                f"p < {ALPHA:g}; {_count(ALPHA * tested)} expected under the null. "
                + "\n".join((*self.null, MEANING))
            )
        if self.matter is not None and rows:
            lines.append(
                f"{self.matter} of the {rows} edges shown ({percent(self.matter / rows)}) "
                f"matter: when cut, each raises the loss on the text by more than {COSTLY:g} "
                "nats per token."
            )
        return "\n".join((*lines, *self.notes))

    def __rich__(self) -> RenderableType:
        if self.tested:
            return self.to_table()
        return "\n".join((f"composition, {self.model}: nothing to compose.", *self.notes))


def _count(expected: float) -> str:
    return f"{expected:.1f}" if expected >= 1 else f"{expected:.2g}"
