"""What edits do inside a layer: streams as readers see them, patterns and z of single heads."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model import transformer
from pathsum.model.config import Config
from pathsum.model.edits import Attend, Hook, ReadShift
from pathsum.model.folding import bias_in_z
from pathsum.model.plan import Plan
from pathsum.model.weights import LayerWeights, layer_of_one_head
from pathsum.names import HeadId, HeadRead, Reader, Side, Value, Writer
from pathsum.shapes import HeadPattern, Pattern, Stream


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
