"""Edits: what may be exchanged in a run, each a typed value.

    Attend         a head's pattern is given
    FreezePatterns all patterns are given
    HeadOutput     what a head moves is given
    KeepPart       what a head moves is projected
    TableToLogits  what a head writes goes to the logits alone, by a table
    SourceOutput   the embedding, or what an MLP writes, is given
    Message        one reader sees another run's output of one writer

`interventions.run_edited` runs a model with a list of them.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

from pathsum.names import Edge, HeadId, HeadRead, MlpRead, Side, Source
from pathsum.shapes import HeadPattern, Pattern, Stream


@dataclass(frozen=True, eq=False)
class Attend:
    """A head attends by this pattern, whatever its scores say."""

    linear: ClassVar[bool] = True
    head: HeadId
    pattern: HeadPattern


@dataclass(frozen=True, eq=False)
class FreezePatterns:
    """Every head attends by these patterns (a head's own `Attend` comes before it)."""

    linear: ClassVar[bool] = True
    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """What a head moves to each destination, before W_O."""

    linear: ClassVar[bool] = False
    head: HeadId
    mixed: Float[Tensor, "batch pos k"]


@dataclass(frozen=True, eq=False)
class KeepPart:
    """What a head moves goes through a matrix before W_O; what its biases add does not."""

    linear: ClassVar[bool] = False
    head: HeadId
    matrix: Float[Tensor, "k k"]


@dataclass(frozen=True, eq=False)
class TableToLogits:
    """A head raises logits by a table of its source tokens, and writes nothing that heads read.

    `rows` says for each position which row of the table its token has; a row raises the tokens in
    `raised` by the numbers in `values`.
    """

    linear: ClassVar[bool] = False
    head: HeadId
    rows: Int[Tensor, "batch pos"]
    raised: Int[Tensor, "row n"]
    values: Float[Tensor, "row n"]


@dataclass(frozen=True, eq=False)
class SourceOutput:
    """What the embedding gives, or an MLP writes."""

    linear: ClassVar[bool] = False
    source: Source
    written: Stream


@dataclass(frozen=True, eq=False)
class Message:
    """One reader sees this in place of what the writer wrote; all others see what it wrote."""

    edge: Edge
    written: Stream

    @property
    def linear(self) -> bool:
        """Whether the logits stay a sum over paths with the run's own patterns and scales."""
        reader = self.edge.reader
        if isinstance(reader, HeadRead):
            return reader.side is not Side.V
        return isinstance(reader, MlpRead)


Edit: TypeAlias = (
    Attend | FreezePatterns | HeadOutput | KeepPart | TableToLogits | SourceOutput | Message
)
