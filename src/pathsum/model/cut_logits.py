"""Edges cut near the end of a run, from what they change.

An edge into one of the last two layers changes little of what a prediction is computed from: the
node that reads it, the stream at that node's position, and the last layer's heads at the predicted
position, which look there. `cut_logits` computes these and takes everything else from the unedited
run. An edge into a lower layer changes all later positions of the layers between, and MLPs see the
sum of all writes: for those, `run` with `CutEdges` computes the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import HeadId, NodeEdge, Side, Source
from pathsum.base.shapes import PerHead, Stream
from pathsum.model import transformer
from pathsum.model.edits import Writes
from pathsum.model.grouped_query import for_query_heads
from pathsum.model.node_reads import NodeReads, Rows, layer_reads
from pathsum.model.weights import Weights

if TYPE_CHECKING:
    from pathsum.model.recording import Run


def can_cut_by_changes(weights: Weights, edges: Sequence[NodeEdge]) -> bool:
    """Whether `cut_logits` can cut these edges of a model."""
    config = weights.config
    plain = config.n_layers > 0 and config.mlp == "none" and config.norm_place == "before"
    if not plain or any(not edit.in_weights for edit in weights.edits):
        return False
    heads = (edge.reader.head for edge in edges)
    return all(head is None or head.layer >= config.n_layers - 2 for head in heads)


@torch.no_grad()
def cut_logits(
    start: "Run", rows: Rows, reference: Writes, position: int
) -> Float[Tensor, "row vocab"]:
    """Logits at a position with some edges taken from the reference, for each list of edges.

    `start` is the unedited run of one sequence, up to that position or longer.
    """
    # The last row cuts nothing: what its heads do in the same products is what others change.
    run = _CutRun(start, (*rows, ()), reference, position)
    changed = run.before_the_last_layer()
    z = run.last_heads(changed)
    stream = run.last_stream(changed, z)[:-1]
    logits = transformer.unembed(start.weights, stream[:, None])[0][:, 0]
    transformer.refuse_overflow(logits if len(logits) else stream)
    return logits


@dataclass(frozen=True, eq=False)
class _Changed:
    """Where the stream before the last layer differs from that of the unedited run.

    `vectors` has a row of zeros at the end; `number` gives the row of each run and position.
    """

    row: Int[Tensor, " change"]
    place: Int[Tensor, " change"]
    vectors: Float[Tensor, "change1 d"]
    number: Int[Tensor, "row src"]

    def at(self, row: Int[Tensor, " n"], place: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """The changes of some runs, at a position each."""
        return self.vectors[self.number[row, place]]


class _CutRun:
    """A batch of runs of one sequence up to a position, each with a list of cut edges."""

    def __init__(self, start: "Run", rows: Rows, reference: Writes, position: int) -> None:
        self.start, self.weights, self.config = start, start.weights, start.weights.config
        self.reference, self.position, self.count = reference, position, len(rows)
        self.last = self.config.n_layers - 1
        self.reads = NodeReads(self.weights, rows)
        self._z: dict[int, PerHead] = {}
        # Relative to the unedited run; what layers near the end change is taken off later.
        for component, found in self.reads.written_by.items():
            if isinstance(component, Source):
                there, here = reference.source(component), self.weights.W_E[start.tokens]
                self.reads.changes[found.slots] = found.of(there) - found.of(here)
            elif isinstance(component, HeadId) and component.layer < self.last:
                own = found.of(self._own_z(component.layer)[:, component.head])
                self._set_head(component, own)

    def _own_z(self, layer: int) -> PerHead:
        if layer not in self._z:
            self._z[layer] = self.start.z(layer)
        return self._z[layer]

    def _set_head(self, head: HeadId, own: Float[Tensor, "write k"]) -> None:
        """The changes of edges from a head, given what it moved there."""
        found = self.reads.written_by[head]
        there = found.of(self.reference.z[head.layer][:, head.head])
        W_O = self.weights.layers[head.layer].W_O[head.head]
        self.reads.changes[found.slots] = (there - own) @ W_O

    def before_the_last_layer(self) -> _Changed:
        """The changes of the stream by nodes of the last layer but one."""
        stream, length = self.start.streams[self.last], self.position + 1
        number = torch.zeros(self.count, length, dtype=torch.long, device=stream.device)
        nodes = self.reads.layers[self.last - 1] if self.last and self.reads.layers else None
        if nodes is None or not len(nodes.row):
            none = number.new_zeros(0)
            return _Changed(none, none, stream.new_zeros(1, stream.shape[-1]), number)
        layer = self.weights.layers[self.last - 1]
        before = layer_reads(self.config, layer, self.start.streams[self.last - 1])
        z = self.reads.nodes(layer, *before)[1]
        moved = z - self._own_z(self.last - 1)[0, nodes.head, nodes.place]
        written = stream.new_zeros(len(moved), stream.shape[-1])
        for head in nodes.head.unique().tolist():
            here = nodes.head == head
            written[here] = moved[here] @ layer.W_O[head]
        self._take_off(written)
        seen = nodes.place <= self.position
        where = (nodes.row * length + nodes.place)[seen]
        each, which = where.unique(return_inverse=True)
        vectors = stream.new_zeros(len(each) + 1, stream.shape[-1])
        vectors.index_add_(0, which, written[seen])
        number = number.fill_(len(each)).view(-1)
        number[each] = torch.arange(len(each), device=number.device)
        return _Changed(each // length, each % length, vectors, number.view(self.count, length))

    def _take_off(self, written: Float[Tensor, "node d"]) -> None:
        """Cut edges from nodes that changed: the stream holds the change, which they do not."""
        nodes = self.reads.layers[self.last - 1]
        places = zip(nodes.row.tolist(), nodes.head.tolist(), nodes.place.tolist(), strict=True)
        numbers = {place: number for number, place in enumerate(places)}
        for (row, node), slot in self.reads.slots.items():
            if node.head is not None and node.head.layer == self.last - 1:
                number = numbers.get((row, node.head.head, node.position))
                if number is not None:
                    self.reads.changes[slot] -= written[number]

    def last_heads(self, changed: _Changed) -> Float[Tensor, "row head k"]:
        """z of the last layer's heads at the position."""
        config, layer, at = self.config, self.weights.layers[self.last], self.position
        stream = self.start.streams[self.last][:, : at + 1]
        _, query, *shared = layer_reads(config, layer, stream)
        key, value = (for_query_heads(one[0], config.n_heads) for one in shared)
        query = query[0, :, at].expand(self.count, -1, -1).clone()
        rows, places = changed.row, changed.place
        seen = stream[0, places] + changed.vectors[:-1]
        read = transformer.attention_read(config, layer, seen[None])[0]
        there = transformer.queries_and_keys(config, layer, read, places)
        keys, values = (
            for_query_heads(one[0], config.n_heads)
            for one in (there[1], transformer.values(layer, read))
        )
        query[rows[places == at]] = there[0][0][:, places == at].transpose(0, 1)
        groups = _LastReads(self, changed)
        for head, row, vectors in groups.queries:
            query[row, head] = vectors
        query = (query * config.score_scale).transpose(0, 1)
        scores = query @ key.mT
        scores[:, rows, places] = (query[:, rows] * keys).sum(-1)
        for head, row, place, vectors in groups.keys:
            scores[head, row, place] = (query[head, row] * vectors).sum(-1)
        heads = torch.arange(config.n_heads, device=scores.device).repeat_interleave(self.count)
        offset = (at - torch.arange(at + 1, device=scores.device))[None]
        flat = transformer.pattern_at(config, layer, heads, offset, scores.flatten(0, 1))
        pattern = flat.view_as(scores)
        z = pattern @ value
        z.index_add_(1, rows, pattern[:, rows, places, None] * (values - value[:, places]))
        for head, row, place, vectors in groups.values:
            z[head].index_add_(0, row, pattern[head, row, place, None] * vectors)
        return z.transpose(0, 1)

    def last_stream(
        self, changed: _Changed, z: Float[Tensor, "row head k"]
    ) -> Float[Tensor, "row d"]:
        """The stream at the position, as the unembedding reads it."""
        for component, found in self.reads.written_by.items():
            if isinstance(component, HeadId) and component.layer == self.last:
                self._set_head(component, z[found.row, component.head])
        every = torch.arange(self.count, device=z.device)
        stream = self.start.streams[-1][0, self.position]
        stream = stream + changed.at(every, torch.full_like(every, self.position))
        moved = (z - z[-1:]).flatten(1)
        stream = stream + moved @ self.weights.layers[self.last].W_O.flatten(0, 1)
        rows, places, slots = self.reads.into_logits
        here = places == self.position
        return stream.index_add(0, rows[here], self.reads.changes[slots[here]])


class _LastReads:
    """Reads of the last layer's heads, at the position, that cut edges change.

    Each is of one head: runs, the positions that they read, and the vectors there; of `values`,
    what these change.
    """

    def __init__(self, run: _CutRun, changed: _Changed) -> None:
        self.queries: list[tuple[int, Tensor, Tensor]] = []
        self.keys: list[tuple[int, Tensor, Tensor, Tensor]] = []
        self.values: list[tuple[int, Tensor, Tensor, Tensor]] = []
        if not run.reads.layers:
            return
        layer, nodes = run.weights.layers[run.last], run.reads.layers[run.last]

        def read(head: int, side: Side, seen: Float[Tensor, "n d"], places: Tensor) -> Tensor:
            return transformer.head_read(run.config, layer, head, side, seen[None], places)[0]

        stream: Stream = run.start.streams[run.last]
        for group in nodes.groups:
            # Heads at other positions are not seen by the prediction.
            here = nodes.place[group.node] == run.position
            row, place = nodes.row[group.node], group.place
            whole = stream[0, place] + changed.at(row, place.clamp(max=run.position))
            seen = whole.index_add(0, group.reads, run.reads.changes[group.slots])
            vectors = read(group.head, group.side, seen, place)
            if group.side is Side.Q:
                self.queries.append((group.head, row[here], vectors[here]))
            elif group.side is Side.K:
                self.keys.append((group.head, row[here], place[here], vectors[here]))
            else:
                vectors = vectors - read(group.head, group.side, whole, place)
                self.values.append((group.head, row[here], place[here], vectors[here]))
