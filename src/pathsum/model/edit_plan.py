"""The edits of a run, sorted (`Plan`) and applied inside its layers (`EditedReads`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.base import HeadId, HeadRead, MlpRead, Reader, Side, Source, Value, Writer
from pathsum.base.errors import InputError
from pathsum.base.shapes import HeadPattern, Pattern, Stream, Tokens
from pathsum.model import transformer
from pathsum.model.config import Config
from pathsum.model.edits import (
    Attend,
    AttendLike,
    CutEdges,
    Edit,
    FreezePatterns,
    HeadOutput,
    Hook,
    KeepPart,
    Message,
    ReadShift,
    SourceOutput,
    TableToLogits,
)
from pathsum.model.folding import bias_in_z
from pathsum.model.weights import LayerWeights, layer_of_one_head


@dataclass(eq=False)
class Plan:
    """Edits grouped by what they touch; a later edit overrides an earlier one of the same thing."""

    frozen: FreezePatterns | None = None
    attend: dict[HeadId, Attend | AttendLike] = field(
        default_factory=dict[HeadId, Attend | AttendLike]
    )
    keep: dict[HeadId, KeepPart] = field(default_factory=dict[HeadId, KeepPart])
    output: dict[HeadId, list[HeadOutput]] = field(default_factory=dict[HeadId, list[HeadOutput]])
    tables: dict[HeadId, TableToLogits] = field(default_factory=dict[HeadId, TableToLogits])
    sources: dict[Source, list[SourceOutput]] = field(
        default_factory=dict[Source, list[SourceOutput]]
    )
    messages: dict[Reader, list[Message | ReadShift]] = field(
        default_factory=dict[Reader, list[Message | ReadShift]]
    )
    cut: CutEdges | None = None
    hooks: dict[Value, list[Hook]] = field(default_factory=dict[Value, list[Hook]])

    @classmethod
    def of(cls, edits: Sequence[Edit]) -> "Plan":
        """The plan of a list of edits."""
        plan = cls()
        for edit in edits:
            match edit:
                case FreezePatterns():
                    plan.frozen = edit
                case Attend() | AttendLike():
                    plan.attend[edit.head] = edit
                case KeepPart():
                    plan.keep[edit.head] = edit
                case HeadOutput():
                    plan.output.setdefault(edit.head, []).append(edit)
                case TableToLogits():
                    plan.tables[edit.head] = edit
                case SourceOutput():
                    plan.sources.setdefault(edit.source, []).append(edit)
                case Message():
                    plan.messages.setdefault(edit.edge.reader, []).append(edit)
                case ReadShift():
                    plan.messages.setdefault(edit.reader, []).append(edit)
                case CutEdges():
                    plan.cut = edit
                case Hook():
                    plan.hooks.setdefault(edit.value, []).append(edit)
        return plan

    @property
    def watched(self) -> set[Writer]:
        """Writers whose output a message replaces, so that it must be known."""
        return {
            message.edge.writer
            for group in self.messages.values()
            for message in group
            if isinstance(message, Message)
        }

    @property
    def borrowed(self) -> set[HeadId]:
        """Heads whose patterns other heads attend by."""
        return {edit.other for edit in self.attend.values() if isinstance(edit, AttendLike)}

    def heads_of(self, layer: int) -> list[HeadId]:
        """Heads of a layer that are computed one by one, because an edit touches them.

        Heads that borrow the pattern of another head come last.
        """
        readers = {reader.head for reader in self.messages if isinstance(reader, HeadRead)}
        hooked = {value.head for value in self.hooks if value.head is not None}
        touched = readers | hooked | self.attend.keys() | self.keep.keys() | self.output.keys()

        def order(head: HeadId) -> tuple[bool, HeadId]:
            return isinstance(self.attend.get(head), AttendLike), head

        return sorted((head for head in touched if head.layer == layer), key=order)

    def remixed(self, head: HeadId) -> bool:
        """Whether the z of a head must be recomputed separately from that of its layer."""
        reads = [HeadRead(head, side) for side in Side]
        hooked = [Value("pattern", head), *(Value("read", read) for read in reads)]
        return (
            head in self.attend
            or head in self.keep
            or any(read in self.messages for read in reads)
            or any(value in self.hooks for value in hooked)
        )

    def destination_masks(self, head: HeadId) -> list[Bool[Tensor, "sequence dest"]]:
        """Masks of at most one destination per sequence, at which messages reach a head.

        A head computes each destination from keys and values at all positions, so two destinations
        that see different messages are computed apart.
        """
        limits = [
            message.destinations
            for side in Side
            for message in self.messages.get(HeadRead(head, side), ())
            if isinstance(message, Message) and message.destinations is not None
        ]
        if not limits:
            return []
        union = torch.stack(torch.broadcast_tensors(*limits)).any(0)
        number = union.long().cumsum(-1) * union
        return [number == wave for wave in range(1, int(number.max()) + 1)]

    def needs_patterns(self, layer: int) -> bool:
        """Whether the patterns of a layer must be known to run it."""
        if self.frozen is not None or self.heads_of(layer) or layer in self._cut_layers:
            return True
        return any(head.layer == layer for head in (*self.tables, *self.borrowed))

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
        for reader in self.messages:
            if isinstance(reader, HeadRead):
                layers.append(reader.head.layer)
            elif isinstance(reader, MlpRead):
                layers.append(reader.layer)
        layers += self._cut_layers
        # A hook sees every value, also one that a run to start from has already.
        layers += [0 for value in self.hooks if value.layer is not None]
        return min([n_layers, *layers])

    def only_in(self, layer: int) -> bool:
        """Whether the edits are confined to one layer (the embedding counts as layer 0)."""
        if self.frozen or self.hooks or self.tables or self.watched:
            return False
        heads = self.attend.keys() | self.keep.keys() | self.output.keys()
        layers = {head.layer for head in heads} | {max(0, one.layer) for one in self.sources}
        for reader in self.messages:
            if isinstance(reader, HeadRead):
                layers.add(reader.head.layer)
            else:
                layers.add(reader.layer if isinstance(reader, MlpRead) else -1)
        return layers <= {layer}

    def changes_the_stream_of(self, layer: int) -> bool:
        """Whether edits may change the stream before a layer, not only the layer itself."""
        hooked = any(value.kind in ("residual", "written") for value in self.hooks)
        return hooked or (layer == 0 and Source("embed") in self.sources)


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
            case ReadShift():
                sizes.add(edit.change.shape[0])
            case CutEdges():
                sizes.add(len(edit.edges))
            case KeepPart() | TableToLogits() | AttendLike() | Hook():
                pass
    several = sorted(sizes - {1})
    if len(several) > 1:
        raise InputError(
            f"the run and its edits have {several[0]} and {several[1]} sequences; use batches of "
            "the same size, or of one sequence"
        )
    return several[0] if several else 1


class EditedReads:
    """The edits of a run in progress.

    `written` is what watched writers wrote, `lent` the patterns that other heads attend by, `used`
    the hooks that replaced something. Positions before `offset` are not computed.
    """

    def __init__(self, config: Config, plan: Plan) -> None:
        self.config, self.plan = config, plan
        self.written: dict[Writer, Stream] = {}
        self.lent: dict[HeadId, HeadPattern] = {}
        self.used: set[Hook] = set()
        self.offset = 0

    def as_read(
        self, reader: Reader, stream: Stream, mask: Bool[Tensor, "sequence dest"] | None = None
    ) -> Stream:
        """The stream as one reader sees it: with messages in place of what was written.

        A head sees messages for some of its destinations only where it computes these (`mask`); it
        reads its sources, wherever its destinations are. Other readers read where they are.
        """
        seen: dict[Writer, Stream] = {}
        for message in self.plan.messages.get(reader, ()):
            if isinstance(message, ReadShift):
                stream = stream + message.change[:, self.offset :]
                continue
            limited = message.destinations
            if limited is not None and isinstance(reader, HeadRead):
                if mask is None:
                    continue
                limited = (limited & mask).any(-1, keepdim=True)
            writer = message.edge.writer
            change = message.written - seen.get(writer, self.written[writer])
            for where in (limited, message.at):
                change = change if where is None else change * where[..., None]
            seen[writer] = seen.get(writer, self.written[writer]) + change
            stream = stream + change
        if isinstance(reader, HeadRead):
            return self.hooked(Value("read", reader), stream)
        return stream

    def hooked(self, value: Value, tensor: Tensor) -> Tensor:
        """A value after the functions that are called with it."""
        for hook in self.plan.hooks.get(value, ()):
            given = hook.function(tensor)
            if given is None:
                continue
            if not isinstance(given, Tensor) or given.shape != tensor.shape:
                got = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
                raise InputError(
                    f"the hook on {value} returned {got}; return a tensor of shape "
                    f"{list(tensor.shape)}, like the one it was called with, or None"
                )
            tensor = given.to(tensor)
            self.used.add(hook)
        return tensor

    def pattern(
        self, head: HeadId, layer: LayerWeights, stream: Stream, patterns: Pattern
    ) -> HeadPattern:
        """The pattern of one edited head, given those of its layer."""
        pattern, plan = patterns[:, head.head], self.plan
        given = plan.attend.get(head)
        reads = [HeadRead(head, side) for side in (Side.Q, Side.K)]
        changed = any(read in plan.messages or Value("read", read) in plan.hooks for read in reads)
        if isinstance(given, Attend):
            pattern = given.pattern.expand_as(pattern)
        elif plan.frozen is None and given is not None:
            other = given.other
            here = other.layer == head.layer
            pattern = patterns[:, other.head] if here else self.lent[other]
        elif plan.frozen is None and changed:
            pattern = self._attend(head, layer, stream)
            for mask in plan.destination_masks(head):
                reached = self._attend(head, layer, stream, mask)
                pattern = torch.where(mask[..., None], reached, pattern)
        return self.hooked(Value("pattern", head), pattern)

    def z(
        self,
        head: HeadId,
        layer: LayerWeights,
        stream: Stream,
        pattern: HeadPattern,
        z: Float[Tensor, "batch pos k"],
    ) -> Float[Tensor, "batch pos k"]:
        """The z of one edited head, given the one that its own pattern and values give."""
        if self.plan.remixed(head):
            values = HeadRead(head, Side.V)
            z = pattern @ self._read(values, layer, stream)
            for mask in self.plan.destination_masks(head):
                reached = pattern @ self._read(values, layer, stream, mask)
                z = torch.where(mask[..., None], reached, z)
            keep = self.plan.keep.get(head)
            if keep is not None:
                bias = bias_in_z(layer, head.head, pattern)
                z = (z - bias) @ keep.matrix + bias
        for output in self.plan.output.get(head, ()):
            there = None if output.at is None else output.at[..., None]
            given = output.z.expand_as(z)
            z = given if there is None else torch.where(there, given, z)
        return self.hooked(Value("z", head), z)

    def _attend(
        self,
        head: HeadId,
        layer: LayerWeights,
        stream: Stream,
        mask: Bool[Tensor, "sequence dest"] | None = None,
    ) -> HeadPattern:
        """The pattern of one head, queries and keys each from a read of its own."""
        query = self._read(HeadRead(head, Side.Q), layer, stream, mask)
        key = self._read(HeadRead(head, Side.K), layer, stream, mask)
        alone = layer_of_one_head(self.config, layer, head.head)
        return transformer.attend(self.config, alone, query[:, None], key[:, None])[:, 0]

    def _read(
        self,
        read: HeadRead,
        layer: LayerWeights,
        stream: Stream,
        mask: Bool[Tensor, "sequence dest"] | None = None,
    ) -> Float[Tensor, "batch pos k"]:
        """The queries, keys or values of one head, from the stream as this read sees it."""
        seen = self.as_read(read, stream, mask)
        return transformer.head_read(self.config, layer, read.head.head, read.side, seen)
