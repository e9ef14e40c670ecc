"""Edges between single nodes: a head at one position that reads other writes than the rest.

A node is a head at a position (or the logits there), and an edge into it says which writer, at
which position, one of its reads sees. `NodeReads` computes the nodes whose reads differ from the
stream's, by the differences alone: a read at a position is the stream there plus the changes of the
listed edges, renormalized; keys and values at all other positions are shared.

    kept_logits   runs in which only the listed edges carry what is computed; all others carry a
                  reference's writes
    CutEdges      the other way round, an edit of the one forward pass (see `run`); near its end,
                  `cut_logits` computes only what changes
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import HeadId, Node, NodeEdge, Side, Source
from pathsum.base.node import Component
from pathsum.base.shapes import AtSources, Pattern, PerHead, Scale, Stream
from pathsum.model import transformer
from pathsum.model.config import Config
from pathsum.model.edits import CutEdges, Writes
from pathsum.model.grouped_query import kv_head
from pathsum.model.weights import LayerWeights, Weights

if TYPE_CHECKING:
    from pathsum.model.recording import Run

Rows = Sequence[Sequence[NodeEdge]]
# A stream before a layer with its queries, keys and values: of all runs, or of fewer that repeat.
LayerReads: TypeAlias = tuple[
    Float[Tensor, "part last d"],
    Float[Tensor, "part head last k"],
    Float[Tensor, "part kv src k"],
    Float[Tensor, "part kv src k"],
]


def layer_reads(config: Config, layer: LayerWeights, stream: Stream) -> LayerReads:
    """A stream before a layer, with its queries, keys and values."""
    read, _ = transformer.attention_read(config, layer, stream)
    query, key, _, _ = transformer.queries_and_keys(config, layer, read)
    return stream, query, key, transformer.values(layer, read)


# A node's run, head and position, and the slots that change each of its reads.
_Reader: TypeAlias = tuple[int, int, int, dict[tuple[Side, int], list[int]]]


@dataclass(frozen=True, eq=False)
class _Group:
    """Changed reads of one head and side: for each, its node, its position, and what changes it.

    `slots` are numbers of changes and `reads` says which read each belongs to.
    """

    head: int
    side: Side
    node: Int[Tensor, " read"]
    place: Int[Tensor, " read"]
    slots: Int[Tensor, " change"]
    reads: Int[Tensor, " change"]


@dataclass(frozen=True, eq=False)
class _LayerNodes:
    """The nodes of one layer: their rows, heads and positions, and their changed reads."""

    row: Int[Tensor, " node"]
    head: Int[Tensor, " node"]
    place: Int[Tensor, " node"]
    groups: tuple[_Group, ...]


@dataclass(frozen=True, eq=False)
class _Written:
    """The listed writes of one component: their slots, runs and positions; `begin` is the first."""

    slots: Int[Tensor, " write"]
    row: Int[Tensor, " write"]
    place: Int[Tensor, " write"]
    begin: int

    def of(
        self,
        tensor: Float[Tensor, "part last k"],
        first: int = 0,
        before: Callable[[], Float[Tensor, "part pos k"]] | None = None,
    ) -> Float[Tensor, "write k"]:
        """A tensor at these runs and positions; a smaller batch is repeated.

        It may start at a later position, `first`; `before` has the positions before that.
        """
        found = tensor[self.row % len(tensor), (self.place - first).clamp(min=0)]
        if self.begin >= first:
            return found
        assert before is not None
        earlier = before()
        return torch.where(
            (self.place < first)[:, None], earlier[self.row % len(earlier), self.place], found
        )


class NodeReads:
    """Nodes whose reads the listed edges change, in a batch of runs with one list each.

    `changes[n]` is what edge writer n changes in a stream that reads it; they are filled in as the
    run gets there. `others` are nodes, with their runs, to compute though nothing changes for them.
    """

    def __init__(
        self, weights: Weights, rows: Rows, others: Iterable[tuple[int, Node]] = ()
    ) -> None:
        self.weights, self.config, self.count = weights, weights.config, len(rows)
        self.slots: dict[tuple[int, Node], int] = {}
        readers: dict[tuple[int, Node], dict[tuple[Side, int], list[int]]] = {}
        for row, edges in enumerate(rows):
            for edge in edges:
                slot = self.slots.setdefault((row, edge.writer), len(self.slots))
                sides = readers.setdefault((row, edge.reader), {})
                sides.setdefault((edge.side, edge.writer.position), []).append(slot)
        for other in others:
            readers.setdefault(other, {})
        dtype, device = weights.dtype, weights.device
        writes: dict[Component, list[tuple[int, int, int]]] = {}
        for (row, node), slot in self.slots.items():
            writes.setdefault(node.component, []).append((slot, row, node.position))
        self.written_by = {
            component: _Written(
                *torch.tensor(found, dtype=torch.long, device=device).T,
                begin=min(place for _, _, place in found),
            )
            for component, found in writes.items()
        }
        self.changes = torch.zeros(len(self.slots), self.config.d_model, dtype=dtype, device=device)
        here: list[list[_Reader]] = [[] for _ in range(self.config.n_layers if readers else 0)]
        into: list[tuple[int, int, int]] = []
        for (row, node), sides in readers.items():
            if (head := node.head) is not None:
                here[head.layer].append((row, head.head, node.position, sides))
            elif node.component == "logits":
                slots = (slot for found in sides.values() for slot in found)
                into += [(row, node.position, slot) for slot in slots]
        self.layers = [_layer_nodes(found, device) for found in here]
        # Row, position and slot of what the logits read.
        self.into_logits = torch.tensor(into, dtype=torch.long, device=device).view(-1, 3).T

    def heads_written(self, layer: int) -> Iterator[tuple[HeadId, _Written]]:
        """The heads of a layer that are listed as writers."""
        for component, found in self.written_by.items():
            if isinstance(component, HeadId) and component.layer == layer:
                yield component, found

    def nodes(
        self,
        layer: LayerWeights,
        stream: Stream,
        query: PerHead,
        key: AtSources,
        value: AtSources,
        before: Float[Tensor, "part before d"] | None = None,
    ) -> tuple[Float[Tensor, "node src"], Float[Tensor, "node k"]]:
        """Pattern and z of a layer's nodes; a smaller batch of streams is repeated by the runs.

        Streams and queries may start at a later position than keys and values: the stream of the
        positions before it is `before`, which runs repeat.
        """
        nodes = self.layers[layer.index]
        row = nodes.row % len(stream)
        kv = kv_head(self.config, nodes.head)
        first = 0 if before is None else before.shape[1]
        reads = {
            Side.Q: query[row, nodes.head, nodes.place - first][:, None],
            Side.K: key[row, kv],
            Side.V: value[row, kv],
        }
        for group in nodes.groups:
            seen = stream[row[group.node], (group.place - first).clamp(min=0)]
            if before is not None:
                mine = nodes.row[group.node] % len(before)
                earlier = before[mine, group.place.clamp(max=first - 1)]
                seen = torch.where((group.place < first)[:, None], earlier, seen)
            seen = seen.index_add(0, group.reads, self.changes[group.slots])
            at = torch.zeros_like(group.place) if group.side is Side.Q else group.place
            reads[group.side][group.node, at] = transformer.head_read(
                self.config, layer, group.head, group.side, seen[None], group.place
            )[0]
        pattern = transformer.attend_at(
            self.config, layer, nodes.head, nodes.place, reads[Side.Q][:, 0], reads[Side.K]
        )
        return pattern, torch.einsum("ns,nsk->nk", pattern, reads[Side.V])


class Cuts:
    """`CutEdges` as a run applies them, if there are any: listed edges carry the reference.

    A run may leave out positions before the first reader of a cut edge: what is there is taken from
    the run that it starts from.
    """

    def __init__(self, weights: Weights, edit: CutEdges | None) -> None:
        self.weights, self.edit = weights, edit
        self.start: Run | None = None
        self.reads = NodeReads(weights, () if edit is None else edit.edges)
        self.any = bool(self.reads.slots)

    def _first(self, positions: int) -> int:
        """The position at which a tensor of this many positions, the last ones, begins."""
        return 0 if self.start is None else self.start.tokens.shape[1] - positions

    def source(self, source: Source, written: Stream) -> None:
        """The output of the embedding or of an MLP."""
        found = self.reads.written_by.get(source)
        if found is None or self.edit is None:
            return

        def before() -> Stream:
            assert self.start is not None
            return self.start.mlp_outputs[source.layer]

        own = found.of(written, self._first(written.shape[1]), before)
        self.reads.changes[found.slots] = found.of(self.edit.reference.source(source)) - own

    def heads(
        self,
        layer: LayerWeights,
        reads: LayerReads,
        pattern: Pattern,
        z: PerHead,
    ) -> None:
        """Replace patterns and z of the nodes that see a cut edge."""
        if self.any and len((nodes := self.reads.layers[layer.index]).row):
            first, before = self._first(reads[0].shape[1]), None
            if first:
                assert self.start is not None
                before = self.start.streams[layer.index][:, :first]
            where = nodes.row, nodes.head, nodes.place - self._first(z.shape[2])
            pattern[where], z[where] = self.reads.nodes(layer, *reads, before)

    def wrote(self, layer: int, z: PerHead, scale: Scale) -> None:
        """Record the writes of a layer's heads, given z and the scale of the norm after them."""
        first = self._first(z.shape[2])
        for head, found in self.reads.heads_written(layer):
            assert self.edit is not None

            def before(number: int = head.head) -> Float[Tensor, "part pos k"]:
                assert self.start is not None
                scaled = self.start.scales.write[layer][..., None]
                return self.start.z(layer)[:, number] * scaled

            own = found.of(z[:, head.head] * scale[..., None], first, before)
            there = found.of(self.edit.reference.z[layer][:, head.head])
            W_O = self.weights.layers[layer].W_O[head.head]
            self.reads.changes[found.slots] = (there - own) @ W_O

    def take(self, start: "Run", first: int) -> None:
        """Take over what the layers below `first` wrote in the unedited run."""
        self.start = start
        if not self.any or first == 0:
            return
        self.source(Source("embed"), self.weights.W_E[start.tokens])
        for layer in range(first):
            if any(self.reads.heads_written(layer)):
                self.wrote(layer, start.z(layer), start.scales.write[layer])
        for layer, output in enumerate(start.mlp_outputs[:first]):
            self.source(Source("mlp", layer), output)

    def read_by_logits(self, stream: Stream) -> Stream:
        """The stream as the unembedding reads it."""
        if not self.any:
            return stream
        rows, places, slots = self.reads.into_logits
        places = places - self._first(stream.shape[1])
        return stream.index_put((rows, places), self.reads.changes[slots], accumulate=True)


@torch.no_grad()
def kept_logits(
    start: "Run", rows: Rows, reference: Writes, position: int
) -> Float[Tensor, "row vocab"]:
    """Logits at a position if only the listed edges carry what the run computes.

    `start` is the unedited run of one sequence. All other edges carry the reference's writes, so
    every node outside the lists computes what it computes there, and costs nothing. What no
    component writes (positions, biases) is the same in every run and stays. The embedding and MLPs
    are leaves: a listed edge carries what they wrote in `start`.
    """
    weights = start.weights
    heads = ((row, edge.writer) for row, edges in enumerate(rows) for edge in edges)
    reads = NodeReads(weights, rows, (pair for pair in heads if pair[1].head is not None))
    own = Writes.of(start)
    for component, found in reads.written_by.items():
        if isinstance(component, Source):
            change = found.of(own.source(component)) - found.of(reference.source(component))
            reads.changes[found.slots] = change
    streams = reference_streams(start, own, reference)
    for index, nodes in enumerate(reads.layers):
        if len(nodes.row):
            _keep_layer(reads, weights.layers[index], streams[index], reference.z[index])
    into, _, slots = reads.into_logits
    last = streams[-1][:, position].expand(len(rows), -1).index_add(0, into, reads.changes[slots])
    return transformer.unembed(weights, last[:, None])[0][:, 0]


def _keep_layer(reads: NodeReads, layer: LayerWeights, stream: Stream, reference: PerHead) -> None:
    """The writes of the listed nodes of a layer, minus the reference's."""
    config, nodes = reads.config, reads.layers[layer.index]
    _, query, key, value = layer_reads(config, layer, stream)
    _, z = reads.nodes(layer, stream, query, key, value)
    if config.norm_place != "before":
        # The norm after the heads measures what all of them write at a position.
        pattern = transformer.attend(config, layer, query, key)
        whole = transformer.mix(pattern, value)[0].transpose(0, 1)
        places, which = torch.stack((nodes.row, nodes.place)).unique(dim=1, return_inverse=True)
        together = whole[places[1]]
        together[which, nodes.head] = z
        scale = transformer.write(config, layer, together[:, :, None])[1][:, 0]
        z = z * scale[which][:, None]
    change = z - reference[0, nodes.head, nodes.place]
    slots = [
        reads.slots.get((row, Node(HeadId(layer.index, head), place)))
        for row, head, place in zip(
            nodes.row.tolist(), nodes.head.tolist(), nodes.place.tolist(), strict=True
        )
    ]
    for head in nodes.head.unique().tolist():
        here = [
            number
            for number, (one, slot) in enumerate(zip(nodes.head.tolist(), slots, strict=True))
            if one == head and slot is not None
        ]
        if here:
            to = [slot for number in here if (slot := slots[number]) is not None]
            reads.changes[to] = change[here] @ layer.W_O[head]


def reference_streams(start: "Run", own: Writes, reference: Writes) -> list[Stream]:
    """The streams of a run in which every writer wrote what the reference has instead."""
    change = reference.embed - own.embed
    streams = [start.streams[0] + change]
    for index, (there, here) in enumerate(zip(reference.z, own.z, strict=True)):
        W_O = start.weights.layers[index].W_O
        change = change + torch.einsum("bhpk,hkd->bpd", there - here, W_O)
        if own.mlp_outputs:
            change = change + reference.mlp_outputs[index] - own.mlp_outputs[index]
        streams.append(start.streams[index + 1] + change)
    return streams


def _layer_nodes(here: Sequence[_Reader], device: torch.device) -> _LayerNodes:
    """The nodes of one layer, their changed reads grouped by head and side."""

    def long(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    found: dict[tuple[int, Side], list[tuple[int, int, list[int]]]] = {}
    for number, (_, head, _, sides) in enumerate(here):
        for (side, place), slots in sides.items():
            found.setdefault((head, side), []).append((number, place, slots))
    groups = tuple(
        _Group(
            head=head,
            side=side,
            node=long([number for number, _, _ in reads]),
            place=long([place for _, place, _ in reads]),
            slots=long([slot for _, _, slots in reads for slot in slots]),
            reads=long([at for at, (_, _, slots) in enumerate(reads) for _ in slots]),
        )
        for (head, side), reads in found.items()
    )
    return _LayerNodes(
        row=long([row for row, _, _, _ in here]),
        head=long([head for _, head, _, _ in here]),
        place=long([place for _, _, place, _ in here]),
        groups=groups,
    )
