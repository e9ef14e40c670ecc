"""Edges at single positions, `L0H7@4→L1H4@9.k`, as the forward pass applies them.

A node is a component at a position. A head whose reads at a destination differ from those at
others is computed apart there, all such nodes of a layer together: a read at a position is the
stream there plus the changes of the listed edges, renormalized; keys and values at all other
positions are shared. MLPs and the logits read at their own position only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.shapes import AtSources, PerHead, Stream, Tokens
from pathsum.base.site import Side, Site
from pathsum.model import transformer
from pathsum.model.config import Config
from pathsum.model.edit import COMPUTED, Edit, EditValue, Writes
from pathsum.model.recording import Prefix, prepend
from pathsum.model.weights import LayerWeights, Weights, kv_head


@dataclass(frozen=True, eq=False)
class _Changes:
    """The listed writes of one component that one value replaces: slots, sequences, positions.

    `nodes` gives for each write the number of its node in the writer's layer, −1 if it is none.
    """

    value: EditValue
    slots: Int[Tensor, " write"]
    row: Int[Tensor, " write"]
    place: Int[Tensor, " write"]
    nodes: Int[Tensor, " write"]


@dataclass(frozen=True, eq=False)
class _Reads:
    """Changed reads of one kind: for each its row and, at a head, its node; and its position.

    `slots` are numbers of changes, and `reads` gives the read that each belongs to.
    """

    read: Site
    row: Int[Tensor, " read"]
    node: Int[Tensor, " read"]
    place: Int[Tensor, " read"]
    slots: Int[Tensor, " change"]
    reads: Int[Tensor, " change"]


@dataclass(frozen=True, eq=False)
class NodeValues:
    """Nodes of one layer by sequence, head and position, with their patterns and z."""

    row: Int[Tensor, " node"]
    head: Int[Tensor, " node"]
    place: Int[Tensor, " node"]
    pattern: Float[Tensor, "node src"]
    z: Float[Tensor, "node k"]

    @property
    def where(self) -> tuple[Tensor, Tensor, Tensor]:
        """The index of the nodes in a tensor [sequence, head, pos, …]."""
        return self.row, self.head, self.place


# A node of a layer: its sequence, head number and position; and a read: its sequence, the position
# of its node, and the position that it reads.
_Node = tuple[int, int, int]
_Read = tuple[int, int, int]


class NodeEdges:
    """The edges into single nodes of a run in progress.

    `changes[n]` is the change that writer slot n makes in a stream that reads it; the slots are
    filled as the run computes their writers. With a `prefix`, the run starts after it, and writes
    and streams at earlier positions are the prefix's; positions of edits count from its start.
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
        length = self.first + tokens.shape[1]
        slots: dict[tuple[int, Any, int, int], int] = {}
        values: dict[int, EditValue] = {}
        # The slot of each writer in each read; a later edit of the same edge replaces an earlier.
        changed: dict[Site, dict[_Read, dict[Any, int]]] = {}
        for edit in edits:
            site, value = edit.site, edit.value
            assert value is not None
            values[id(value)] = value
            for row in range(batch) if edit.sequence is None else (edit.sequence,):
                for place in _places(self.config, site, length):
                    slot = slots.setdefault((row, site.writer, place, id(value)), len(slots))
                    seen = row, place if site.to is None else site.to, place
                    by_writer = changed.setdefault(site.read, {}).setdefault(seen, {})
                    by_writer[site.writer] = slot
        # The nodes of each layer, numbered as their reads name them.
        self._nodes: dict[int, dict[_Node, int]] = {}
        self._reads = {read: self._stacked(read, found) for read, found in changed.items()}
        if self.config.norm_place != "before":
            # The scale of a computed output depends on all heads that are computed apart there.
            for row, writer, place, value in slots:
                if isinstance(writer, HeadId) and values[value] is COMPUTED:
                    self._number(writer.layer, (row, writer.head, place))
        self._tensors = {
            layer: tuple(map(self._long, zip(*nodes, strict=True)))
            for layer, nodes in self._nodes.items()
        }
        self._written = self._changes(slots, values)
        self.changes = weights.W_E.new_zeros(len(slots), self.config.d_model)
        self._found: NodeValues | None = None
        # Edges that are also replaced at all positions, and the change in the read.
        self._overrides = {(edit.site.writer, edit.site.read) for edit in edits}
        self._writers = [writer for _, writer, _, _ in slots]
        self.whole_edges: dict[tuple[object, Site], Stream] = {}

    def _long(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.weights.device)

    def _number(self, layer: int, node: _Node) -> int:
        """The number of a node in its layer."""
        nodes = self._nodes.setdefault(layer, {})
        return nodes.setdefault(node, len(nodes))

    def _stacked(self, read: Site, found: dict[_Read, dict[Any, int]]) -> _Reads:
        """The changed reads of one kind as tensors."""
        head, nodes = read.head, [0] * len(found)
        if head is not None:
            nodes = [self._number(head.layer, (row, head.head, to)) for row, to, _ in found]
        slots = [(at, slot) for at, some in enumerate(found.values()) for slot in some.values()]
        rows, places = [row for row, _, _ in found], [place for _, _, place in found]
        columns = rows, nodes, places, [slot for _, slot in slots], [at for at, _ in slots]
        return _Reads(read, *map(self._long, columns))

    def _changes(
        self, slots: dict[tuple[int, Any, int, int], int], values: dict[int, EditValue]
    ) -> dict[Any, list[_Changes]]:
        """The slots by writer and by the value that they carry."""
        groups: dict[tuple[Any, int], list[tuple[int, int, int, int]]] = {}
        for (row, writer, place, value), slot in slots.items():
            node = -1
            if isinstance(writer, HeadId):
                node = self._nodes.get(writer.layer, {}).get((row, writer.head, place), -1)
            groups.setdefault((writer, value), []).append((slot, row, place, node))
        found: dict[Any, list[_Changes]] = {}
        for (writer, value), entries in groups.items():
            columns = (self._long(column) for column in zip(*entries, strict=True))
            found.setdefault(writer, []).append(_Changes(values[value], *columns))
        return found

    def overrides(self, writer: object, read: Site) -> bool:
        """Whether single positions of an edge are replaced, whatever replaces the whole edge."""
        return (writer, read) in self._overrides

    def in_layer(self, layer: int) -> bool:
        """Whether a layer has heads to compute apart."""
        return layer in self._tensors

    def reach(self, read: Site) -> bool:
        """Whether edges enter a read of an MLP or of the logits at single positions."""
        return read.head is None and read in self._reads

    def as_read(self, read: Site, stream: Stream) -> Float[Tensor, "copies pos d"]:
        """The stream of all sequences as an MLP or the logits read it."""
        found = self._reads[read]
        rows, places = found.row[found.reads], found.place[found.reads] - self.first
        return stream.index_put((rows, places), self._changes_of(found), accumulate=True)

    def _changes_of(self, found: _Reads) -> Float[Tensor, "change d"]:
        """The changes in some reads, in place of those of the same edges as a whole."""
        changes = self.changes[found.slots]
        if not self.whole_edges:
            return changes
        rows, places = found.row[found.reads].tolist(), found.place[found.reads].tolist()
        for number, slot in enumerate(found.slots.tolist()):
            whole = self.whole_edges.get((self._writers[slot], found.read))
            if whole is not None:
                changes[number] -= whole[rows[number] % len(whole), places[number] - self.first]
        return changes

    def attend(
        self,
        layer: LayerWeights,
        stream: Stream,
        streams: dict[tuple[int, Side], Stream],
        query: PerHead,
        key: AtSources,
        value: AtSources,
    ) -> NodeValues:
        """Pattern and z of a layer's nodes; copies share the rows of a smaller batch.

        `streams` are those that single reads see, where edges change a whole read.
        """
        row, head, place = self._tensors[layer.index]
        if self.prefix is not None:
            stream = prepend(self.prefix.streams[layer.index][:, : self.first], stream)
        shared, kv = row % len(stream), kv_head(self.config, head)
        reads = {
            Side.Q: query[shared, head, place - self.first][:, None],
            Side.K: key[shared, kv],
            Side.V: value[shared, kv],
        }
        for (number, side), seen in streams.items():
            mine = (head == number).nonzero()[:, 0]
            if len(mine):
                whole = transformer.head_read(self.config, layer, number, side, seen)
                picked = whole[row[mine] % len(whole)]
                if side is Side.Q:
                    picked = picked[torch.arange(len(mine)), place[mine]][:, None]
                reads[side][mine] = picked
        for found in self._reads.values():
            read = found.read.head
            if read is None or read.layer != layer.index:
                continue
            assert found.read.side is not None
            side, base = found.read.side, streams.get((read.head, found.read.side), stream)
            seen = base[found.row % len(base), found.place]
            seen = seen.index_add(0, found.reads, self._changes_of(found))
            at = torch.zeros_like(found.place) if side is Side.Q else found.place
            reads[side][found.node, at] = transformer.head_read(
                self.config, layer, read.head, side, seen[None], found.place
            )[0]
        pattern = transformer.attend_at(
            self.config, layer, head, place, reads[Side.Q][:, 0], reads[Side.K]
        )
        z = torch.einsum("ns,nsk->nk", pattern, reads[Side.V])
        self._found = NodeValues(row, head, place - self.first, pattern, z)
        return self._found

    def source_written(self, source: Source, written: Stream, own: Stream) -> None:
        """Fill the slots of the embedding or of an MLP."""
        if self.prefix is not None:
            written = prepend(self.prefix.writes.source(source)[:, : self.first], written)
        for change in self._written.get(source, ()):
            here = self._rows(written, change)
            match change.value:
                case Writes():
                    there = self._rows(change.value.source(source), change)
                case Tensor():
                    there = self._rows(change.value, change)
                case _:
                    there = self._rows(own, change)
            self.changes[change.slots] = there - here

    def heads_written(
        self, layer: LayerWeights, written: PerHead, own: PerHead, z: PerHead
    ) -> None:
        """Fill the slots of a layer's heads.

        `written` and `own` are z times the scale of the norm after the heads: as the stream has it,
        and as the heads computed it.
        """
        if self.prefix is not None:
            before = self.prefix.writes.z[layer.index][:, :, : self.first]
            written = prepend(before, written)
        computed: Tensor | None = None
        for writer, listed in self._written.items():
            if not isinstance(writer, HeadId) or writer.layer != layer.index:
                continue
            head, W_O = writer.head, layer.W_O[writer.head]
            for change in listed:
                here = self._rows(written[:, head], change)
                match change.value:
                    case Writes():
                        there = self._rows(change.value.z[layer.index][:, head], change)
                        found = (there - here) @ W_O
                    case Tensor():
                        found = self._rows(change.value, change) - here @ W_O
                    case _:
                        if computed is None:
                            computed = self._scaled_nodes(layer, z)
                        there = self._rows(own[:, head], change)
                        mine = change.nodes >= 0
                        there[mine] = computed[change.nodes[mine]]
                        found = (there - here) @ W_O
                self.changes[change.slots] = found

    def _rows(
        self, tensor: Float[Tensor, "part pos n"], change: _Changes
    ) -> Float[Tensor, "write n"]:
        """A tensor at the sequences and positions of some writes."""
        return tensor[change.row % len(tensor), change.place.clamp(max=tensor.shape[1] - 1)]

    def _scaled_nodes(self, layer: LayerWeights, z: PerHead) -> Float[Tensor, "node k"]:
        """z of the layer's nodes times the scale of the norm after the heads."""
        found = self._found
        if found is None or not self.in_layer(layer.index):
            return z.new_zeros(0, z.shape[-1])
        if self.config.norm_place == "before":
            return found.z
        # The norm after the heads measures all that is written at a position of a sequence.
        pairs = torch.stack((found.row, found.place))
        places, which = pairs.unique(dim=1, return_inverse=True)
        together = z[places[0] % len(z), :, places[1]]
        together[which, found.head] = found.z
        scale = transformer.write(self.config, layer, together[:, :, None])[1][:, 0]
        return found.z * scale[which][:, None]


def _places(config: Config, site: Site, length: int) -> Sequence[int]:
    """The positions at which the reader of an edge sees the writer, in a text of this length."""
    if site.at is not None:
        return (site.at,)
    assert site.to is not None
    if site.side not in (Side.K, Side.V):
        return (site.to,)
    return range(config.visible_length(site.to, length))
