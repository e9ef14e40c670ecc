"""Edits: what may be exchanged in a run, each a typed value, and a plan that sorts them.

    Attend          a head's pattern is given
    FreezePatterns  all patterns are given
    HeadOutput      a head's z (what it moves, before W_O) is given
    KeepPart        a head's z is projected
    TableToLogits   a head raises logits by a table and writes nothing that is read
    SourceOutput    the embedding, or an MLP's output, is given
    Message         one reader sees another run's output of one writer
    CutEdges        single nodes see, along listed edges, what a reference has in their place

`pathsum.model.run.run` carries them out; everything after an edit is recomputed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.errors import InputError
from pathsum.names import Edge, HeadId, HeadRead, MlpRead, NodeEdge, Reader, Side, Source, Writer
from pathsum.shapes import HeadPattern, Logits, Pattern, PerHead, Stream, Tokens

if TYPE_CHECKING:
    from pathsum.model.run import Run


@dataclass(frozen=True, eq=False)
class Attend:
    """A head attends by this pattern instead of its own."""

    linear: ClassVar[bool] = True
    head: HeadId
    pattern: HeadPattern


@dataclass(frozen=True, eq=False)
class FreezePatterns:
    """Every head attends by these patterns, except heads with an `Attend` of their own."""

    linear: ClassVar[bool] = True
    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """A head's z: what it moves to each destination, before W_O."""

    linear: ClassVar[bool] = False
    head: HeadId
    z: Float[Tensor, "batch pos k"]


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
    """What the embedding gives, or what an MLP writes."""

    linear: ClassVar[bool] = False
    source: Source
    written: Stream


@dataclass(frozen=True, eq=False)
class Message:
    """One reader sees this in place of what the writer wrote; all others see what it wrote.

    `destinations` restricts it to some positions of the reader: elsewhere, and in sequences without
    any, the reader does what it would do without the message.
    """

    edge: Edge
    written: Stream
    destinations: Bool[Tensor, "sequence dest"] | None = None

    @property
    def reach(self) -> Bool[Tensor, "sequence #pos"]:
        """Where the stream that the reader sees is changed, given `destinations`.

        A head reads its sources, wherever its destinations are; other readers read where they are.
        """
        assert self.destinations is not None
        if isinstance(self.edge.reader, HeadRead):
            return self.destinations.any(-1, keepdim=True)
        return self.destinations

    @property
    def linear(self) -> bool:
        """Whether the logits stay a sum over paths with the run's own patterns and scales."""
        reader = self.edge.reader
        if isinstance(reader, HeadRead):
            return reader.side is not Side.V
        return isinstance(reader, MlpRead)


@dataclass(frozen=True, eq=False)
class Writes:
    """What every writer put into the stream, position by position.

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
            mlp_outputs=run.mlp_outputs,
        )

    def scaled(self, factor: float) -> "Writes":
        """All of them multiplied by a number."""
        return Writes(
            embed=self.embed * factor,
            z=tuple(z * factor for z in self.z),
            mlp_outputs=tuple(output * factor for output in self.mlp_outputs),
        )

    def source(self, source: Source) -> Stream:
        """What the embedding or an MLP wrote."""
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
    | FreezePatterns
    | HeadOutput
    | KeepPart
    | TableToLogits
    | SourceOutput
    | Message
    | CutEdges
)


@dataclass(eq=False)
class Plan:
    """Edits by what they touch; of two that touch the same, the later one counts."""

    frozen: FreezePatterns | None = None
    attend: dict[HeadId, Attend] = field(default_factory=dict[HeadId, Attend])
    keep: dict[HeadId, KeepPart] = field(default_factory=dict[HeadId, KeepPart])
    output: dict[HeadId, HeadOutput] = field(default_factory=dict[HeadId, HeadOutput])
    tables: dict[HeadId, TableToLogits] = field(default_factory=dict[HeadId, TableToLogits])
    sources: dict[Source, SourceOutput] = field(default_factory=dict[Source, SourceOutput])
    messages: dict[Reader, list[Message]] = field(default_factory=dict[Reader, list[Message]])
    cut: CutEdges | None = None

    @classmethod
    def of(cls, edits: Sequence[Edit]) -> "Plan":
        """The plan of a list of edits."""
        plan = cls()
        for edit in edits:
            match edit:
                case FreezePatterns():
                    plan.frozen = edit
                case Attend():
                    plan.attend[edit.head] = edit
                case KeepPart():
                    plan.keep[edit.head] = edit
                case HeadOutput():
                    plan.output[edit.head] = edit
                case TableToLogits():
                    plan.tables[edit.head] = edit
                case SourceOutput():
                    plan.sources[edit.source] = edit
                case Message():
                    plan.messages.setdefault(edit.edge.reader, []).append(edit)
                case CutEdges():
                    plan.cut = edit
        return plan

    @property
    def watched(self) -> set[Writer]:
        """Writers whose output a message replaces, so that it must be known."""
        return {message.edge.writer for group in self.messages.values() for message in group}

    def heads_of(self, layer: int) -> list[HeadId]:
        """Heads of a layer that are computed one by one, because an edit touches them."""
        readers = {reader.head for reader in self.messages if isinstance(reader, HeadRead)}
        touched = readers | self.attend.keys() | self.keep.keys() | self.output.keys()
        return sorted(head for head in touched if head.layer == layer)

    def destinations(self, head: HeadId) -> Bool[Tensor, "sequence dest"] | None:
        """Where messages change what a head does; None if that is everywhere."""
        messages = [
            message for side in Side for message in self.messages.get(HeadRead(head, side), ())
        ]
        found: Bool[Tensor, "sequence dest"] | None = None
        for message in messages:
            if message.destinations is None:
                return None
            found = message.destinations if found is None else found | message.destinations
        return found

    def needs_patterns(self, layer: int) -> bool:
        """Whether the patterns of a layer must be known to run it."""
        if self.frozen is not None or self.heads_of(layer) or layer in self._cut_layers:
            return True
        return any(head.layer == layer for head in self.tables)

    @property
    def _cut_layers(self) -> set[int]:
        rows = () if self.cut is None else self.cut.edges
        return {edge.reader.head.layer for row in rows for edge in row if edge.reader.head}

    def first_layer(self, n_layers: int) -> int:
        """The first layer that an edit changes; `n_layers` if edits change only the logits."""
        if self.frozen is not None or Source("embed") in self.sources:
            return 0
        heads = self.attend.keys() | self.keep.keys() | self.output.keys() | self.tables.keys()
        layers = [head.layer for head in heads] + [source.layer for source in self.sources]
        layers += self._cut_layers
        for reader in self.messages:
            if isinstance(reader, HeadRead):
                layers.append(reader.head.layer)
            elif isinstance(reader, MlpRead):
                layers.append(reader.layer)
        return min([n_layers, *layers])


def common_batch_size(tokens: Tokens, edits: Sequence[Edit]) -> int:
    """The batch size of tokens and edits; a batch of one is repeated to fit."""
    sizes = {tokens.shape[0]}
    for edit in edits:
        match edit:
            case Attend():
                sizes.add(edit.pattern.shape[0])
            case HeadOutput():
                sizes.add(edit.z.shape[0])
            case FreezePatterns():
                sizes |= {pattern.shape[0] for pattern in edit.patterns}
            case SourceOutput() | Message():
                sizes.add(edit.written.shape[0])
            case CutEdges():
                sizes.add(len(edit.edges))
            case KeepPart() | TableToLogits():
                pass
    several = sorted(sizes - {1})
    if len(several) > 1:
        raise InputError(
            f"the run and its edits have {several[0]} and {several[1]} sequences; use batches of "
            "the same size, or of one sequence"
        )
    return several[0] if several else 1
