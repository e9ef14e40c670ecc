"""Rule and Stage: the lines of a program, and the same rules as tensors that add to logits.

A program has two kinds of rules. A *table row* lists the logits that a source adds: on the direct
path ("after `·def`: `·__` +3.1"), or through a head ("L0H3, attending to `(`: `)` +1.2"). An
*attention rule* describes where a head attends, and whether it copies the attended tokens; each
head in use has an attention rule.

A stage has the rules of the direct path or of one head. It moves table entries from sources to
destinations by a pattern, which is the identity for the direct path: with W the table and A the
pattern,

    logits[i] += Σ_j A[i, j] (W[x_j] + W[class of x_j] + W[any] + copy · onehot(x_j))

Columns of W are tokens, then classes of tokens; the value of a class is added to all its tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Estimate, Record
from pathsum.base.shapes import HeadPattern, Tokens
from pathsum.circuits.token_basis import Scored, Token
from pathsum.program.attention_rule import AttentionRule
from pathsum.program.lexicon import Lexicon

N_WRITES = 4
"""Entries printed for a row."""


@dataclass(frozen=True, eq=False)
class Rule(Record, kind="program-rule"):
    """One rule: a row of a table (`source` and `writes`) or a head's `attention` (and `copy`).

    `head` is empty for the direct path. Sources and outputs are tokens, classes of tokens (⟨word⟩)
    or any token. `size` counts the values of the rule, without ids. `gain` is the rise of the KL
    from the model on held-out text if the rule is removed (for an attention rule, its whole head),
    in nats per prediction.
    """

    head: str
    source: Token | None
    writes: tuple[Scored, ...]
    attention: AttentionRule | None
    copy: float
    size: int
    gain: Estimate | None

    def __str__(self) -> str:
        if self.attention is not None:
            copies = f" and copies it, {self.copy:+.1f}" if self.copy else ""
            return f"{self.head} attends to {self.attention}{copies}"
        assert self.source is not None
        name = str(self.source) if self.source.text.startswith("any") else f"`{self.source}`"
        start = f"after {name}" if not self.head else f"{self.head}, attending to {name}"
        ranked = sorted(self.writes, key=lambda write: (-abs(write.value), write.token.id))
        writes = [f"`{write.token}` {write.value:+.1f}" for write in ranked[:N_WRITES]]
        more = [f"and {len(ranked) - N_WRITES} more"] if len(ranked) > N_WRITES else []
        return f"{start}: {', '.join([*writes, *more])}"


@dataclass(frozen=True, eq=False)
class SparseTable:
    """The cells of a sparse table: source numbers and columns."""

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
        """The row of every source number; one past the last for sources without entries."""
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
        """The dense table of the used rows and columns, with a row of zeros below."""
        table = values.new_zeros(len(self.used_rows) + 1, len(self.used_columns))
        table[self._at] = values
        return table

    def spread(
        self, dense: Float[Tensor, "row col"], tokens: Tokens, pattern: HeadPattern | None
    ) -> Float[Tensor, "batch pos col"]:
        """The table's output at every position, over its used columns."""
        # A few sequences have few distinct tokens, so outputs are summed once per token.
        distinct, at = tokens.unique(return_inverse=True)
        outputs = sum((dense[rows] for rows in self.active_rows(distinct)), dense.new_zeros(()))
        return outputs[at] if pattern is None else pattern @ outputs[at]

    def gather(
        self, values: Float[Tensor, "batch pos col"], tokens: Tokens, pattern: HeadPattern | None
    ) -> Float[Tensor, "row col"]:
        """The transpose of `spread`: sums over positions for every row."""
        moved = (values if pattern is None else pattern.transpose(1, 2) @ values).flatten(0, 1)
        distinct, at = tokens.unique(return_inverse=True)
        sums = moved.new_zeros(len(distinct), moved.shape[1]).index_add_(0, at.flatten(), moved)
        table = values.new_zeros(len(self.used_rows) + 1, values.shape[-1])
        for rows in self.active_rows(distinct):
            table.index_add_(0, rows, sums)
        return table

    def at_entries(self, dense: Float[Tensor, "row col"]) -> Float[Tensor, " entry"]:
        """The values of a dense table at the entries."""
        return dense[self._at]


@dataclass(frozen=True, eq=False)
class Stage:
    """The rules of the direct path (without attention) or of a head."""

    lexicon: Lexicon
    head: str
    attention: AttentionRule | None
    copy: float
    sources: Int[Tensor, " entry"]
    outs: Int[Tensor, " entry"]
    values: Float[Tensor, " entry"]

    @property
    def size(self) -> int:
        """The number of values."""
        features = 0 if self.attention is None else self.attention.size
        return features + (self.copy != 0) + len(self.values)

    @property
    def in_use(self) -> bool:
        """Whether it adds to any logit."""
        return self.copy != 0 or len(self.values) > 0

    @cached_property
    def table(self) -> SparseTable:
        """Its entries; columns are tokens, then classes."""
        return SparseTable(self.lexicon, self.sources, self.outs)

    def pattern(self, tokens: Tokens) -> HeadPattern | None:
        """Its attention on tokens; None for the direct path."""
        return None if self.attention is None else self.attention.pattern(tokens, self.lexicon.size)

    def columns(self, tokens: Tokens) -> Float[Tensor, "batch pos out"]:
        """The values that it adds to every token and to every class."""
        size = self.lexicon.any
        total = torch.zeros(*tokens.shape, size)
        pattern = self.pattern(tokens)
        if len(self.values):
            output = self.table.spread(self.table.dense(self.values), tokens, pattern)
            total.index_add_(2, self.table.used_columns, output)
        if self.copy and pattern is not None:
            to = tokens[:, None, :].expand(-1, tokens.shape[1], -1)
            total.scatter_add_(2, to, self.copy * pattern)
        return total


def stage_logits(
    lexicon: Lexicon, columns: Float[Tensor, "batch pos out"]
) -> Float[Tensor, "batch pos vocab"]:
    """Logits of tokens: the sum over a token and its class."""
    by_class = columns[..., lexicon.size :]
    return columns[..., : lexicon.size] + by_class[..., lexicon.class_of]


def program_logits(stages: tuple[Stage, ...], lexicon: Lexicon, tokens: Tokens) -> Tensor:
    """The logits of a program, [batch, pos, vocab]."""
    total = torch.zeros(*tokens.shape, lexicon.any)
    for stage in stages:
        if stage.in_use:
            total += stage.columns(tokens)
    return stage_logits(lexicon, total)


def rules_of_stage(stage: Stage) -> list[Rule]:
    """A stage as rules: attention first, then its rows by source."""
    if not stage.in_use:
        return []
    rules: list[Rule] = []
    if stage.attention is not None:
        size = stage.attention.size + (stage.copy != 0)
        rules.append(Rule(stage.head, None, (), stage.attention, stage.copy, size, None))
    entries: dict[int, list[Scored]] = {}
    order = (stage.sources * (stage.lexicon.any + 1) + stage.outs).argsort()
    columns = (column[order].tolist() for column in (stage.sources, stage.outs, stage.values))
    for source, out, value in zip(*columns, strict=True):
        entries.setdefault(source, []).append(Scored(stage.lexicon.name(out), value))
    for source, writes in entries.items():
        name = stage.lexicon.name(source)
        rules.append(Rule(stage.head, name, tuple(writes), None, 0.0, len(writes), None))
    return rules


def stages_of_rules(rules: Sequence[Rule], lexicon: Lexicon) -> tuple[Stage, ...]:
    """Rules as stages: the inverse of `rules_of_stage`, in the order of the heads' labels."""
    stages: list[Stage] = []
    for head in sorted({rule.head for rule in rules}):
        of_head = [rule for rule in rules if rule.head == head]
        attends = next((rule for rule in of_head if rule.attention is not None), None)
        cells = sorted(
            (rule.source.id, write.token.id, write.value)
            for rule in of_head
            if rule.source is not None
            for write in rule.writes
        )
        sources, outs = (
            torch.tensor([cell[at] for cell in cells], dtype=torch.long) for at in (0, 1)
        )
        values = torch.tensor([value for _, _, value in cells], dtype=torch.float32)
        rule, copies = (None, 0.0) if attends is None else (attends.attention, attends.copy)
        stages.append(Stage(lexicon, head, rule, copies, sources, outs, values))
    return tuple(stages)
