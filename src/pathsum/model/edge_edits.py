"""EdgeEdits: edges as the forward pass edits them, where a reader sees another output of a writer.

An edge into a whole read, `L0H3→L1H4.k`, adds value − output to the stream that this reader sees;
all other readers see the unchanged stream.

An edge between nodes, `L0H7@4→L1H4@9.k`, does so at one position of the writer for one position of
the reader. A head whose reads differ between destinations is computed separately at these, all such
nodes of a layer together: the stream at a position plus the changes of the listed edges is
normalized and read, and keys and values at all other positions are shared. MLPs and the logits read
at their own position only.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.shapes import AtSources, Pattern, PerHead, Stream, Tokens
from pathsum.base.site import Component, Side, Site
from pathsum.model import transformer
from pathsum.model.config import Config
from pathsum.model.edit import Edit, EditValue, Output, Writes, expand_batch, rows_of
from pathsum.model.recording import Prefix, prepend
from pathsum.model.weights import LayerWeights, Weights, kv_head


class EdgeEdits:
    """The edited edges of a run in progress.

    With a `prefix`, the run starts after it; positions of edits count from its start.
    """

    def __init__(
        self,
        weights: Weights,
        edits: Sequence[Edit],
        batch: int,
        tokens: Tokens,
        prefix: Prefix | None = None,
    ) -> None:
        self.weights, self.first = weights, 0 if prefix is None else prefix.length
        self.writers = {edit.site.writer for edit in edits}
        self.whole: dict[Site, list[Edit]] = {}
        for edit in edits:
            if not is_between_nodes(edit.site):
                self.whole.setdefault(edit.site.read, []).append(edit)
        between = [edit for edit in edits if is_between_nodes(edit.site)]
        self.nodes = NodeEdges(weights, between, batch, tokens, prefix)
        self._outputs: dict[Component | None, Output] = {}

    def record(self, writer: HeadId | Source, output: Output, computed: Output) -> None:
        """Record a writer's output in the stream, and the output that it computed."""
        if writer in self.writers:
            self._outputs[writer] = output
            self.nodes.record(writer, output, computed)

    def enter(self, read: Site) -> bool:
        """Whether edges enter a read of an MLP or of the logits."""
        return read in self.whole or read in self.nodes.reads

    def apply(self, read: Site, stream: Stream) -> Float[Tensor, "copies pos d"]:
        """The stream as one reader sees it."""
        edits = self.whole.get(read, ())
        if edits:
            stream = stream.clone()
        # The output that the reader sees of each writer: an edit replaces an earlier one.
        visible: dict[tuple[Component | None, int | None], Stream] = {}
        for edit in edits:
            writer, sequence = edit.site.writer, edit.sequence
            before = visible.get((writer, sequence), visible.get((writer, None)))
            if before is None:
                before = self._outputs[writer].stream
            before = rows_of(before, sequence)
            change = rows_of(self._value(edit, before), sequence) - before
            if edit.site.at is not None:
                positions = self.first + torch.arange(change.shape[1], device=change.device)
                change = change * (positions == edit.site.at)[:, None]
            visible[writer, sequence] = before + change
            rows = rows_of(stream, sequence)
            rows += expand_batch(change, len(rows))
            if (writer, read) in self.nodes.edges:
                whole = self.nodes.whole_changes.setdefault(
                    (writer, read), torch.zeros_like(stream)
                )
                rows = rows_of(whole, sequence)
                rows += expand_batch(change, len(rows))
        return self.nodes.apply(read, stream)

    def _value(self, edit: Edit, output: Stream) -> Float[Tensor, "copies pos d"]:
        """The output that an edge carries instead of its writer's, at the last positions."""
        value, writer = edit.value, edit.site.writer
        if isinstance(value, Writes):
            assert isinstance(writer, HeadId | Source)
            return value.output(self.weights, writer).stream[:, self.first :]
        assert isinstance(value, Tensor)
        value = value.to(output)
        return value if value.ndim == 3 else value.expand(1, output.shape[1], -1)


def is_between_nodes(site: Site) -> bool:
    """Whether a site is an edge into single nodes, not into a whole read."""
    return site.to is not None or (site.is_edge and site.at is not None and site.side is None)


@dataclass(frozen=True, eq=False)
class _Changes:
    """The changes that one value makes to a writer's output: slots, sequences and positions."""

    value: EditValue
    slots: Int[Tensor, " write"]
    row: Int[Tensor, " write"]
    position: Int[Tensor, " write"]


@dataclass(frozen=True, eq=False)
class _Reads:
    """The changed reads of one kind: the row and position of each and, at a head, its node.

    `slots` are the numbers of changes, and `reads` is the read that each belongs to.
    """

    read: Site
    row: Int[Tensor, " read"]
    node: Int[Tensor, " read"]
    position: Int[Tensor, " read"]
    slots: Int[Tensor, " change"]
    reads: Int[Tensor, " change"]


# A node of a layer: its sequence, head number and position. A read: its sequence, the position of
# its node, and the position that it reads. A slot: sequence, writer, position and id of the value.
_Node: TypeAlias = tuple[int, int, int]
_Read: TypeAlias = tuple[int, int, int]
_Slot: TypeAlias = tuple[int, Component | None, int, int]


class NodeEdges:
    """The edges between single nodes of a run in progress.

    `_change[n]` is the change that writer slot n makes in a stream that reads it; the slots are
    filled as the run computes their writers. With a `prefix`, outputs and streams at earlier
    positions are taken from it.
    """

    def __init__(
        self,
        weights: Weights,
        edits: Sequence[Edit],
        batch: int,
        tokens: Tokens,
        prefix: Prefix | None = None,
    ) -> None:
        self.weights, self.config, self.prefix = weights, weights.config, prefix
        self.first = 0 if prefix is None else prefix.length
        # Edges that are also replaced as a whole, with the changes that this makes in the read.
        self.edges = {(edit.site.writer, edit.site.read) for edit in edits}
        self.whole_changes: dict[tuple[Component | None, Site], Stream] = {}
        slots: dict[_Slot, int] = {}
        values: dict[int, EditValue] = {}
        # The slot of each writer in each read; a later edit of the same edge replaces an earlier.
        reads: dict[Site, dict[_Read, dict[Component | None, int]]] = {}
        for edit in edits:
            site, value = edit.site, edit.value
            assert value is not None
            values[id(value)] = value
            for row in range(batch) if edit.sequence is None else (edit.sequence,):
                for position in _positions(self.config, site, self.first + tokens.shape[1]):
                    slot = slots.setdefault((row, site.writer, position, id(value)), len(slots))
                    read = row, position if site.to is None else site.to, position
                    by_writer = reads.setdefault(site.read, {}).setdefault(read, {})
                    by_writer[site.writer] = slot
        nodes: dict[int, dict[_Node, int]] = defaultdict(dict)
        self.reads = {
            read: self._stack_reads(read, changed, nodes) for read, changed in reads.items()
        }
        self._nodes = {layer: self._columns(list(numbers)) for layer, numbers in nodes.items()}
        self._writers = [writer for _, writer, _, _ in slots]
        groups: dict[tuple[Component | None, int], list[tuple[int, int, int]]] = defaultdict(list)
        for (row, writer, position, value), slot in slots.items():
            groups[writer, value].append((slot, row, position))
        self._changes: dict[Component | None, list[_Changes]] = defaultdict(list)
        for (writer, value), entries in groups.items():
            self._changes[writer].append(_Changes(values[value], *self._columns(entries)))
        self._change = weights.W_E.new_zeros(len(slots), self.config.d_model)

    def _columns(self, rows: Sequence[tuple[int, ...]]) -> list[Tensor]:
        return list(torch.tensor(rows, dtype=torch.long, device=self.weights.device).unbind(1))

    def _stack_reads(
        self,
        read: Site,
        changed: dict[_Read, dict[Component | None, int]],
        nodes: dict[int, dict[_Node, int]],
    ) -> _Reads:
        """The changed reads of one kind as tensors; nodes are numbered as reads name them."""
        rows: list[tuple[int, int, int]] = []
        for row, to, position in changed:
            node = 0
            if read.head is not None:
                numbers = nodes[read.head.layer]
                node = numbers.setdefault((row, read.head.head, to), len(numbers))
            rows.append((row, node, position))
        slots = [(slot, at) for at, some in enumerate(changed.values()) for slot in some.values()]
        return _Reads(read, *self._columns(rows), *self._columns(slots))

    def record(self, writer: HeadId | Source, output: Output, computed: Output) -> None:
        """Fill the slots of a writer, given its output in the stream and its computed output."""
        if self.prefix is not None and writer in self._changes:
            first = self.prefix.writes.output(self.weights, writer).tensor[:, : self.first]
            output = output._replace(tensor=prepend(first, output.tensor))
        for change in self._changes.get(writer, ()):
            match change.value:
                case Writes():
                    value = change.value.output(self.weights, writer)
                case Tensor():
                    value = Output(change.value[(None,) * (3 - change.value.ndim)])
                case _:
                    value = computed
            before = output.at(change.row, change.position)
            self._change[change.slots] = value.at(change.row, change.position) - before

    def apply(self, read: Site, stream: Stream) -> Float[Tensor, "copies pos d"]:
        """The stream of all sequences as an MLP or the logits read it."""
        reads = self.reads.get(read)
        if reads is None or read.head is not None:
            return stream
        rows, positions = reads.row[reads.reads], reads.position[reads.reads] - self.first
        return stream.index_put((rows, positions), self._changes_of(reads), accumulate=True)

    def _changes_of(self, reads: _Reads) -> Float[Tensor, "change d"]:
        """The changes in some reads, instead of the changes of the same edges as a whole."""
        changes = self._change[reads.slots]
        if not self.whole_changes:
            return changes
        rows, positions = reads.row[reads.reads].tolist(), reads.position[reads.reads].tolist()
        for number, slot in enumerate(reads.slots.tolist()):
            whole = self.whole_changes.get((self._writers[slot], reads.read))
            if whole is not None:
                changes[number] -= whole[rows[number] % len(whole), positions[number] - self.first]
        return changes

    def attend(
        self,
        layer: LayerWeights,
        stream: Stream,
        streams: dict[Site, Stream],
        query: PerHead,
        key: AtSources,
        value: AtSources,
        pattern: Pattern | None,
        z: PerHead,
    ) -> tuple[Float[Tensor, "copies head dest src"] | None, Float[Tensor, "copies head pos k"]]:
        """Patterns (if they are computed) and z of a layer's heads, with its nodes recomputed.

        `streams` are those that single reads see, where edges change a whole read. Copies share the
        rows of a smaller batch.
        """
        if layer.index not in self._nodes:
            return pattern, z
        row, head, position = self._nodes[layer.index]
        if self.prefix is not None:
            stream = prepend(self.prefix.streams[layer.index][:, : self.first], stream)
        shared, kv = row % len(stream), kv_head(self.config, head)
        inputs = {
            Side.Q: query[shared, head, position - self.first][:, None],
            Side.K: key[shared, kv],
            Side.V: value[shared, kv],
        }
        for read, changed in streams.items():
            assert read.head is not None
            assert read.side is not None
            nodes = (head == read.head.head).nonzero()[:, 0]
            if len(nodes):
                x = transformer.head_read(self.config, layer, read.head.head, read.side, changed)
                x = x[row[nodes] % len(x)]
                if read.side is Side.Q:
                    x = x[torch.arange(len(nodes)), position[nodes]][:, None]
                inputs[read.side][nodes] = x
        for read, reads in self.reads.items():
            if read.head is None or read.head.layer != layer.index:
                continue
            assert read.side is not None
            base = streams.get(read, stream)
            changed = base[reads.row % len(base), reads.position]
            changed = changed.index_add(0, reads.reads, self._changes_of(reads))
            at = torch.zeros_like(reads.position) if read.side is Side.Q else reads.position
            inputs[read.side][reads.node, at] = transformer.head_read(
                self.config, layer, read.head.head, read.side, changed[None], reads.position
            )[0]
        rows = transformer.attend_at(
            self.config, layer, head, position, inputs[Side.Q][:, 0], inputs[Side.K]
        )
        where = row, head, position - self.first
        if pattern is not None:
            pattern = pattern.index_put(where, rows)
        return pattern, z.index_put(where, torch.einsum("ns,nsk->nk", rows, inputs[Side.V]))


def _positions(config: Config, site: Site, length: int) -> Sequence[int]:
    """The positions at which the reader of an edge sees the writer, in a text of this length."""
    if site.at is not None:
        return (site.at,)
    assert site.to is not None
    if site.side not in (Side.K, Side.V):
        return (site.to,)
    return range(config.visible_length(site.to, length))
