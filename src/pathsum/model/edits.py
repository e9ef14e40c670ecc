"""Edits of a run, each a typed value; `edit_plan` sorts and applies them, `node_reads` cuts edges.

    Attend          a head's pattern is given
    AttendLike      a head attends by another head's pattern
    FreezePatterns  all patterns are given
    HeadOutput      a head's z (what it moves, before W_O) is given
    KeepPart        a head's z is projected
    TableToLogits   a head raises logits by a table and writes nothing that is read
    SourceOutput    the embedding, or an MLP's output, is given
    Message         one reader sees another output of one writer
    CutEdges        single nodes see, along listed edges, what a reference has in their place
    ReadShift       one reader sees the stream with something added
    Hook            a function is called with a value of the run and may replace it

`pathsum.model.forward.run` takes them; everything after an edit is recomputed. A `ModelEdit`
belongs to a model (`Weights.edits`) and is made in every run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.base import (
    Edge,
    HeadId,
    HeadRead,
    MlpRead,
    NodeEdge,
    Reader,
    Side,
    Site,
    Source,
    Value,
)
from pathsum.base.shapes import HeadPattern, Logits, Pattern, PerHead, Stream, Tokens

if TYPE_CHECKING:
    from pathsum.model.recording import Run


@dataclass(frozen=True, eq=False)
class Attend:
    """A head attends by this pattern instead of its own."""

    linear: ClassVar[bool] = True
    head: HeadId
    pattern: HeadPattern


@dataclass(frozen=True, eq=False)
class AttendLike:
    """A head attends by the pattern that another head has in this run, of its layer or below."""

    linear: ClassVar[bool] = True
    head: HeadId
    other: HeadId


@dataclass(frozen=True, eq=False)
class FreezePatterns:
    """Every head attends by these patterns, except heads with an `Attend` of their own."""

    linear: ClassVar[bool] = True
    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """A head's z: what it moves to each destination, before W_O; `at` restricts it to some."""

    linear: ClassVar[bool] = False
    head: HeadId
    z: Float[Tensor, "batch pos k"]
    at: Bool[Tensor, "sequence pos"] | None = None


@dataclass(frozen=True, eq=False)
class KeepPart:
    """A head's z goes through a matrix before W_O; what its biases add does not."""

    linear: ClassVar[bool] = False
    head: HeadId
    matrix: Float[Tensor, "k k"]


@dataclass(frozen=True, eq=False)
class TableToLogits:
    """A head raises logits by a table of its source tokens, and writes nothing that heads read.

    `rows` gives for each position its token's row of the table; a row raises the tokens in
    `raised` by the numbers in `values`.
    """

    linear: ClassVar[bool] = False
    head: HeadId
    rows: Int[Tensor, "batch pos"]
    raised: Int[Tensor, "row n"]
    values: Float[Tensor, "row n"]

    def look_up(self, attended: HeadPattern, vocab: int) -> Logits:
        """Σ_src attended[dest, src] · table[token at src], [batch, dest, vocab]."""
        count, n = self.raised.shape
        places = torch.arange(count, device=self.raised.device).repeat_interleave(n)
        # Transposed: a sparse matrix multiplies from the left.
        table = torch.sparse_coo_tensor(
            torch.stack((self.raised.reshape(-1), places)),
            self.values.reshape(-1),
            size=(vocab, count),
            check_invariants=True,
        )
        batch, dest, _ = attended.shape
        by_row = attended.new_zeros(batch, dest, count)
        rows = self.rows[:, None, :].expand_as(attended)
        by_row.scatter_add_(-1, rows, attended)
        raised = torch.sparse.mm(table, by_row.reshape(batch * dest, count).T.contiguous())
        return raised.T.reshape(batch, dest, -1)


@dataclass(frozen=True, eq=False)
class SourceOutput:
    """The output of the embedding or of an MLP; `at` restricts the edit to some positions."""

    linear: ClassVar[bool] = False
    source: Source
    written: Stream
    at: Bool[Tensor, "sequence pos"] | None = None


def _reads_linearly(reader: Reader) -> bool:
    """Whether the logits stay a sum over paths when this read is changed.

    Patterns are held fixed in that sum, and MLP outputs are sources, so queries, keys and what an
    MLP reads do not matter.
    """
    if isinstance(reader, HeadRead):
        return reader.side is not Side.V
    return isinstance(reader, MlpRead)


@dataclass(frozen=True, eq=False)
class Message:
    """One reader sees this in place of what the writer wrote; all others see what it wrote.

    `at` restricts it to some positions of the writer: elsewhere the reader sees what it wrote.
    `destinations` restricts it to some positions of the reader: elsewhere, and in sequences without
    any, the reader does what it would do without the message. Of two messages along one edge, the
    later one wins wherever it applies.
    """

    edge: Edge
    written: Stream
    destinations: Bool[Tensor, "sequence dest"] | None = None
    at: Bool[Tensor, "sequence pos"] | None = None

    @property
    def linear(self) -> bool:
        """Whether the logits stay a sum over paths with the run's own patterns and scales."""
        return _reads_linearly(self.edge.reader)


@dataclass(frozen=True, eq=False)
class ReadShift:
    """One reader sees the stream with this added: messages of many writers, one per sequence."""

    reader: Reader
    change: Stream

    @property
    def linear(self) -> bool:
        """Whether the logits stay a sum over paths with the run's own patterns and scales."""
        return _reads_linearly(self.reader)


if TYPE_CHECKING:
    Hooks: TypeAlias = Mapping[str, Callable[[Tensor], Tensor | None]]
else:
    # Anything may be passed at run time; `find_hook` raises a clear error if it is not a hook.
    Hooks = Any
"""Functions by the names of the values that they are called with."""


@dataclass(frozen=True, eq=False)
class Hook:
    """A function that is called with a value of the run and returns a replacement, or None."""

    value: Value
    function: Callable[[Tensor], Tensor | None]

    @property
    def linear(self) -> bool:
        """Whether the logits stay a sum over paths with the run's own patterns and scales."""
        if isinstance(self.value.of, HeadRead):
            return _reads_linearly(self.value.of)
        return self.value.kind == "pattern" or str(self.value).startswith("mlp")


@dataclass(frozen=True, eq=False)
class Writes:
    """The output of every writer, position by position.

    `z[l]` is what the heads of layer l moved, times the scale of the norm after them: multiplied
    by W_O it is what each of them wrote.
    """

    embed: Stream
    z: tuple[PerHead, ...]
    mlp_outputs: tuple[Stream, ...]

    @classmethod
    def of(cls, run: "Run") -> "Writes":
        """The writes of a run."""
        return cls(
            embed=run.weights.W_E[run.tokens],
            z=tuple(
                run.z(layer) * scale[:, None, :, None]
                for layer, scale in enumerate(run.scales.write)
            ),
            mlp_outputs=tuple(run.mlp_outputs),
        )

    @classmethod
    def zero(cls, run: "Run") -> "Writes":
        """Writes of the shapes of a run's that are all zero; nothing of the run is computed."""
        config, nothing = run.weights.config, run.streams[0].new_zeros(())
        batch, length, d = run.streams[0].shape
        heads = nothing.expand(batch, config.n_heads, length, config.d_head)
        return cls(
            embed=nothing.expand(batch, length, d),
            z=(heads,) * config.n_layers,
            mlp_outputs=tuple(map(torch.zeros_like, run.mlp_outputs)),
        )

    def zeros(self) -> "Writes":
        """Writes of the same shapes that are all zero."""
        return Writes(
            embed=torch.zeros_like(self.embed),
            z=tuple(map(torch.zeros_like, self.z)),
            mlp_outputs=tuple(map(torch.zeros_like, self.mlp_outputs)),
        )

    def source(self, source: Source) -> Stream:
        """The output of the embedding or of an MLP."""
        return self.embed if source.kind == "embed" else self.mlp_outputs[source.layer]


@dataclass(frozen=True, eq=False)
class CutEdges:
    """Edges between nodes that carry the reference's writes, a list of them for each sequence.

    Only the reading node is affected: all other readers of the writer, and the same head at other
    destinations, see what it wrote.
    """

    linear: ClassVar[bool] = False
    edges: tuple[tuple[NodeEdge, ...], ...]
    reference: Writes


Edit: TypeAlias = (
    Attend
    | AttendLike
    | FreezePatterns
    | HeadOutput
    | KeepPart
    | TableToLogits
    | SourceOutput
    | Message
    | ReadShift
    | CutEdges
    | Hook
)


@dataclass(frozen=True, eq=False)
class ModelEdit:
    """One edit of an edited model: `site` is a node or an edge, or the head whose pattern is given.

    `value` describes what replaces it. Nodes are edited in the weights alone (`in_weights`). Other
    edits are made in every run: `tensor` is what an edge carries (or an MLP writes) at every
    position, or a pattern for the whole context; `pattern_of` is the head whose pattern is used.
    """

    site: Site
    value: str
    tensor: Float[Tensor, " d"] | Float[Tensor, "ctx ctx"] | None = None
    pattern_of: HeadId | None = None

    def __str__(self) -> str:
        return f"{self.site}{'.pattern' if self.gives_pattern else ''} = {self.value}"

    @property
    def gives_pattern(self) -> bool:
        """Whether the site is a head whose pattern is replaced."""
        return self.pattern_of is not None or (self.tensor is not None and self.tensor.ndim == 2)

    @property
    def in_weights(self) -> bool:
        """Whether the weights alone hold the edit."""
        return self.tensor is None and self.pattern_of is None

    def on(self, tokens: Tokens, stream: Tensor) -> Edit:
        """The edit of a run on these tokens, in the dtype and on the device of the stream."""
        length, writer = tokens.shape[1], self.site.writer
        if self.pattern_of is not None:
            assert isinstance(writer, HeadId)
            return AttendLike(writer, self.pattern_of)
        assert self.tensor is not None
        tensor = self.tensor.to(stream)
        if tensor.ndim == 2:
            assert isinstance(writer, HeadId)
            return Attend(writer, tensor[None, :length, :length])
        written = tensor.expand(1, length, -1)
        if self.site.edge is not None:
            return Message(self.site.edge, written)
        assert isinstance(writer, Source)
        return SourceOutput(writer, written)
