"""Attention patterns of a run: heat maps in a terminal, a table, JSON and a figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from pathsum.base import Column, HeadId, HeadName, Record, Table, text_column
from pathsum.base.errors import InputError
from pathsum.base.options import checked
from pathsum.base.record import computed_field
from pathsum.base.sentence import printable, shade
from pathsum.base.table import rows_table, stacked, token_column
from pathsum.model import Trace

# Columns of a heat map that fit into 100 characters.
MAX_COLUMNS = 40


@dataclass(frozen=True)
class TopSources:
    """The two sources with most of a destination's attention."""

    position: Annotated[int, Column("position")]
    token: Annotated[str, token_column("destination")]
    source: Annotated[str, token_column("attends to")]
    source_position: Annotated[int, Column("at")]
    weight: Annotated[float, Column("attention", ".0%")]
    second: Annotated[str | None, token_column("then")]
    second_weight: Annotated[float | None, Column("attention", ".0%")]


@dataclass(frozen=True)
class MeanAttention:
    """A head's mean attention over destinations after the first; NaN if there are none."""

    head: Annotated[HeadId, text_column("head")]
    current: Annotated[float, Column("current", ".0%")]
    previous: Annotated[float, Column("previous", ".0%")]
    first: Annotated[float, Column("first", ".0%")]
    others: Annotated[float, Column("others", ".0%")]


@dataclass(frozen=True, eq=False)
class Attention(Record, kind="attention"):
    """The attention patterns of heads on one text: `patterns[head, destination, source]`."""

    model: str
    tokens: tuple[str, ...]
    heads: tuple[HeadId, ...]
    patterns: Float[Tensor, "head dest src"]

    @computed_field
    def summary(self) -> tuple[MeanAttention, ...]:
        """The mean attention of each head to the current, the previous and the first token."""
        return tuple(map(_mean_attention, self.heads, self.patterns))

    def to_table(self) -> Table:
        """For one head its strongest sources by destination; for several, their means."""
        if len(self.heads) == 1:
            rows = [self._top_sources(at) for at in range(len(self.tokens))]
            return rows_table(rows, f"attention of {self.heads[0]} in {self.model}")
        return rows_table(
            self.summary,
            f"attention in {self.model}",
            "means over destinations after the first; 'first' and 'previous' count a source once, "
            "in this order: current, previous, first",
        )

    def _top_sources(self, at: int) -> TopSources:
        weights = self.patterns[0, at]
        # Sources without weight are omitted, such as later positions in a causal model.
        top = weights.topk(max(1, min(2, int(weights.count_nonzero()))))
        (source, *others), values = top.indices.tolist(), top.values.tolist()
        second = (self.tokens[others[0]], values[1]) if others else (None, None)
        return TopSources(at, self.tokens[at], self.tokens[source], source, values[0], *second)

    def __rich__(self) -> RenderableType:
        if len(self.heads) > 1:
            return self.to_table()
        return stacked(Group(*self._heat_map()), self.to_table())

    def _heat_map(self) -> list[Text]:
        """The last positions of the pattern, two characters per cell."""
        start = max(0, len(self.tokens) - MAX_COLUMNS)
        names = [printable(token)[:10] for token in self.tokens]
        wide = max(map(len, names))
        numbers = "".join(f"{at:<4}" if at % 2 == 0 else "" for at in range(start, len(names)))
        lines = [Text(f"{self.heads[0]!s:>{wide}}     {numbers}", style="bold")]
        for at in range(start, len(names)):
            row = "".join(shade(x) for x in self.patterns[0, at, start:].tolist())
            line = Text(f"{names[at]:>{wide}} {at:>3} ")
            lines.append(line.append(row.rstrip(), style="magenta"))
        return lines


def _mean_attention(head: HeadId, pattern: Float[Tensor, "dest src"]) -> MeanAttention:
    rows = torch.arange(len(pattern) - 1)
    unassigned, means = pattern[1:].clone(), list[float]()
    for sources in (rows + 1, rows, torch.zeros_like(rows)):
        means.append(float(unassigned[rows, sources].mean()))
        unassigned[rows, sources] = 0
    current, previous, first = means
    return MeanAttention(head, current, previous, first, float(unassigned.sum(-1).mean()))


@checked
def attention(trace: Trace, heads: Sequence[HeadName] | HeadName | None = None) -> Attention:
    """The attention patterns of a run, ready to print, draw and save.

    Args:
        trace: A run on one text, from `model.trace(text)`.
        heads: A head or several, as labels or pairs; default: all heads.

    Returns:
        The patterns with the text's tokens; `.figure()` draws them.

    Example:
        >>> import pathsum as ps
        >>> trace = ps.construct.induction().trace("a b c a")
        >>> attention(trace, "L1H0").patterns[0, 4].argmax()
        tensor(2)
    """
    if len(trace.tokens) != 1:
        raise InputError(
            f"attention is shown on one text, and this run has {len(trace.tokens)}; "
            "trace one of them"
        )
    model = trace.model
    is_pair = isinstance(heads, tuple) and len(heads) == 2 and all(type(x) is int for x in heads)
    if isinstance(heads, str) or is_pair:
        heads = (cast("HeadName", heads),)
    requested = cast("Sequence[HeadName] | None", heads)
    heads_of = model.heads if requested is None else map(model.head, requested)
    labels = tuple(head.id for head in heads_of)
    if not labels:
        raise InputError(f"{model.name} has no heads, so it has no attention patterns")
    patterns = torch.stack([trace.pattern(name)[0] for name in labels])
    return Attention(model.name, trace.token_texts[0], labels, patterns)
