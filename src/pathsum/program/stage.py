"""Stage: the rules of the direct path or of one head, as tensors that add to logits.

A stage moves what its tables write from sources to destinations by a pattern (the direct path has
none: it writes where it reads), so with W the table and A the pattern

    logits[i] += Σ_j A[i, j] (W[x_j] + W[class of x_j] + W[any] + copy · onehot(x_j))

Columns of W are tokens, then classes of tokens; what a class receives is added to all its tokens.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.shapes import HeadPattern, Tokens
from pathsum.program.lexicon import Lexicon
from pathsum.program.look import Look


@dataclass(frozen=True, eq=False)
class Table:
    """Where the entries of a sparse table are: source numbers and columns."""

    lexicon: Lexicon
    sources: Int[Tensor, " entry"]
    columns: Int[Tensor, " entry"]

    @cached_property
    def used_rows(self) -> Int[Tensor, " row"]:
        """The distinct sources, sorted."""
        return self.sources.unique()

    @cached_property
    def used_columns(self) -> Int[Tensor, " col"]:
        """The distinct columns, sorted."""
        return self.columns.unique()

    @cached_property
    def _row_of(self) -> Int[Tensor, " number"]:
        """The row of every source number; one past the last for those without entries."""
        rows = torch.full((self.lexicon.any + 1,), len(self.used_rows))
        rows[self.used_rows] = torch.arange(len(self.used_rows))
        return rows

    @cached_property
    def _at(self) -> tuple[Tensor, Tensor]:
        return self._row_of[self.sources], torch.searchsorted(self.used_columns, self.columns)

    def active_rows(self, tokens: Int[Tensor, "..."]) -> tuple[Int[Tensor, "..."], ...]:
        """The rows that each token reads; one past the last for none."""
        return tuple(self._row_of[numbers] for numbers in self.lexicon.sources(tokens))

    def dense(self, values: Float[Tensor, " entry"]) -> Float[Tensor, "row col"]:
        """The table of its used rows and columns, with a row of zeros below."""
        made = values.new_zeros(len(self.used_rows) + 1, len(self.used_columns))
        made[self._at] = values
        return made

    def spread(
        self, dense: Float[Tensor, "row col"], tokens: Tokens, pattern: HeadPattern | None
    ) -> Float[Tensor, "batch pos col"]:
        """What the table writes at every position, over its used columns."""
        # A few sequences have few distinct tokens: what each writes is added up once.
        distinct, at = tokens.unique(return_inverse=True)
        each = sum((dense[rows] for rows in self.active_rows(distinct)), dense.new_zeros(()))
        return each[at] if pattern is None else pattern @ each[at]

    def gather(
        self, given: Float[Tensor, "batch pos col"], tokens: Tokens, pattern: HeadPattern | None
    ) -> Float[Tensor, "row col"]:
        """The transpose of `spread`: sums over positions for every row."""
        moved = (given if pattern is None else pattern.transpose(1, 2) @ given).flatten(0, 1)
        distinct, at = tokens.unique(return_inverse=True)
        each = moved.new_zeros(len(distinct), moved.shape[1]).index_add_(0, at.flatten(), moved)
        found = given.new_zeros(len(self.used_rows) + 1, given.shape[-1])
        for rows in self.active_rows(distinct):
            found.index_add_(0, rows, each)
        return found

    def at_entries(self, dense: Float[Tensor, "row col"]) -> Float[Tensor, " entry"]:
        """The numbers of a dense table at the entries."""
        return dense[self._at]


@dataclass(frozen=True, eq=False)
class Stage:
    """The rules of the direct path (no look) or of a head."""

    lexicon: Lexicon
    head: str
    look: Look | None
    copy: float
    sources: Int[Tensor, " entry"]
    outs: Int[Tensor, " entry"]
    values: Float[Tensor, " entry"]

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        look = 0 if self.look is None else self.look.size
        return look + (self.copy != 0) + len(self.values)

    @property
    def in_use(self) -> bool:
        """Whether it writes anything."""
        return self.copy != 0 or len(self.values) > 0

    @cached_property
    def table(self) -> Table:
        """Its entries; columns are tokens, then classes."""
        return Table(self.lexicon, self.sources, self.outs)

    @cached_property
    def dense(self) -> Float[Tensor, "row col"]:
        """Its values as a table of used rows and columns."""
        return self.table.dense(self.values)

    def pattern(self, tokens: Tokens) -> HeadPattern | None:
        """Where it looks."""
        return None if self.look is None else self.look.pattern(tokens, self.lexicon.size)

    def columns(self, tokens: Tokens) -> Float[Tensor, "batch pos out"]:
        """What it adds to every token and to every class."""
        size = self.lexicon.any
        added = torch.zeros(*tokens.shape, size)
        pattern = self.pattern(tokens)
        if len(self.values):
            written = self.table.spread(self.dense, tokens, pattern)
            added.index_add_(2, self.table.used_columns, written)
        if self.copy and pattern is not None:
            to = tokens[:, None, :].expand(-1, tokens.shape[1], -1)
            added.scatter_add_(2, to, self.copy * pattern)
        return added


def stage_logits(
    lexicon: Lexicon, columns: Float[Tensor, "batch pos out"]
) -> Float[Tensor, "batch pos vocab"]:
    """Logits of tokens: what they receive themselves and what their classes receive."""
    by_class = columns[..., lexicon.size :]
    return columns[..., : lexicon.size] + by_class[..., lexicon.class_of]


def program_logits(stages: tuple[Stage, ...], lexicon: Lexicon, tokens: Tokens) -> Tensor:
    """The logits of a program, [batch, pos, vocab]."""
    total = torch.zeros(*tokens.shape, lexicon.any)
    for stage in stages:
        if stage.in_use:
            total += stage.columns(tokens)
    return stage_logits(lexicon, total)
