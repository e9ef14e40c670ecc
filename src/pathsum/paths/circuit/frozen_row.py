"""One sequence of a frozen run: the writes and reads that circuits are grown from.

Attention looks back only, so what a run wrote and read before a position is the same however long
the text is. Circuits of several predictions of one text share one `FrozenRow`, kept by its trace.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Part, Side
from pathsum.model import HeadId, Source, Trace
from pathsum.model.folding import Reads, layer_reads
from pathsum.paths.frozen import Frozen, FrozenLayer, UpSweep
from pathsum.paths.score_sum import QkRead, qk_read

_KEPT = "_frozen_row"
"""The attribute of a trace that holds the row used last."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Candidate edges into one read of several nodes: writers × positions.

    `shares` are in logits, `exact` in the read's own unit. Column s is position s; a read of one
    position has one column, and `places` says which position that is of each node. `gradient` gives
    the gradients of shares at what is written, for some nodes and columns.
    """

    side: Side
    writers: tuple[Source | HeadId | Part, ...]
    shares: Float[Tensor, "node writer src"]
    exact: Float[Tensor, "node writer src"]
    gradient: Callable[[Int[Tensor, " edge"], Int[Tensor, " edge"]], Float[Tensor, "edge d"]]
    places: tuple[int, ...] | None = None


def frozen_row(trace: Trace, row: int, length: int) -> "FrozenRow":
    """One sequence of a run, at least `length` tokens of it; the one used last is kept.

    Its length is that of the text, or a half, a quarter and so on if that is enough: circuits at
    rising positions make it a few times, and one circuit at the beginning of a text stays cheap.
    """
    kept = vars(trace).get(_KEPT)
    if isinstance(kept, FrozenRow) and kept.row == row and kept.length >= length:
        return kept
    enough = trace.tokens.shape[1]
    while enough // 2 >= length:
        enough //= 2
    # A trace is frozen, and this is no field of it: nothing that the trace says depends on it.
    found = vars(trace)[_KEPT] = FrozenRow(trace, row, enough)
    return found


class FrozenRow:
    """One sequence of a frozen run, up to a length: what every component writes and reads."""

    def __init__(self, trace: Trace, row: int, length: int) -> None:
        self.trace, self.row, self.rows, self.length = trace, row, slice(row, row + 1), length
        self.frozen = Frozen(trace, self.rows, length)
        self.n_layers = trace.model.config.n_layers
        self.layers: list[FrozenLayer] = []
        self.z: list[Float[Tensor, "head pos k"]] = []
        self.streams: list[Float[Tensor, "pos d"]] = []
        sweep = UpSweep(self.frozen)
        for step in sweep:
            self.layers.append(step.layer)
            self.z.append(step.z[0, 0])
            self.streams.append(sweep.streams[0, 0].clone())
        self._layer_reads: dict[int, Reads] = {}
        self._reads: dict[tuple[HeadId, Side], QkRead] = {}
        self._read_vectors: dict[tuple[HeadId, Side], Tensor] = {}
        self._writers: dict[int, tuple[Source | HeadId, ...]] = {}
        self._k = trace.model.config.d_head
        self._extra: dict[tuple[HeadId, Side], tuple[tuple[Part, Tensor], ...]] = {}

    @cached_property
    def sources(self) -> list[tuple[Source, Float[Tensor, "pos d"]]]:
        """Each source and its stream."""
        return [(source, self.frozen.source(source)[0]) for source in self.frozen.sources]

    def writers(self, layer: int) -> tuple[Source | HeadId, ...]:
        """Everything that a layer's heads can read: sources, then heads."""
        found = self._writers.get(layer)
        if found is None:
            n_heads = self.trace.model.config.n_heads
            heads = (HeadId(below, head) for below in range(layer) for head in range(n_heads))
            read = (source for source, _ in self.sources if source.layer < layer)
            found = self._writers[layer] = (*read, *heads)
        return found

    def writes_everywhere(
        self, layer: int, directions: Float[Tensor, "node d"], length: int
    ) -> Float[Tensor, "node writer src"]:
        """Writes below a layer at the first positions, projected on each direction."""
        rows = [
            (directions @ stream[:length].T)[:, None]
            for source, stream in self.sources
            if source.layer < layer
        ]
        for below in range(layer):
            back = self._through_W_O(below, directions)
            rows.append((back.transpose(0, 1) @ self.z[below][:, :length].mT).transpose(0, 1))
        return torch.cat(rows, 1)

    def writes_at(
        self, layer: int, directions: Float[Tensor, "read d"], places: Int[Tensor, " read"]
    ) -> Float[Tensor, "read writer"]:
        """Writes below a layer, each direction at a position of its own."""
        rows = [
            (stream[places] * directions).sum(-1)[:, None]
            for source, stream in self.sources
            if source.layer < layer
        ]
        for below in range(layer):
            z = self.z[below][:, places].transpose(0, 1)
            rows.append((z * self._through_W_O(below, directions)).sum(-1))
        return torch.cat(rows, 1)

    def _through_W_O(
        self, layer: int, directions: Float[Tensor, "read d"]
    ) -> Float[Tensor, "read head k"]:
        back = directions @ self.layers[layer].W_O.flatten(0, 1).T
        return back.unflatten(1, (-1, self._k))

    def read(self, head: HeadId, side: Side) -> QkRead:
        """A head's query or key read on this sequence."""
        found = self._reads.get((head, side))
        if found is None:
            if head.layer not in self._layer_reads:
                self._layer_reads[head.layer] = layer_reads(self.trace.model.weights, head.layer)
            reads = self._layer_reads[head.layer]
            whole = qk_read(self.trace, head, side, reads)
            found = self._reads[head, side] = whole.select(self.rows, self.length)
        return found

    def queries(self, head: HeadId, places: Int[Tensor, " node"]) -> Float[Tensor, "node k"]:
        """The queries at some positions, score scale included."""
        scale = self.trace.model.config.score_scale
        return self._vectors(head, Side.Q)[places] * scale

    def keys(self, head: HeadId, length: int) -> Float[Tensor, "src k"]:
        """The keys of the first positions."""
        return self._vectors(head, Side.K)[:length]

    def _vectors(self, head: HeadId, side: Side) -> Float[Tensor, "pos k"]:
        found = self._read_vectors.get((head, side))
        if found is None:
            found = self.read(head, side).of_stream(self.streams[head.layer][None])[0]
            for _, vectors in self.extra(head, side):
                found = found + vectors
            self._read_vectors[head, side] = found
        return found

    def extra(self, head: HeadId, side: Side) -> tuple[tuple[Part, Float[Tensor, "pos k"]], ...]:
        """The parts of a read that are not in the stream: positions, the bias."""
        found = self._extra.get((head, side))
        if found is None:
            read, parts = self.read(head, side), list[tuple[Part, Tensor]]()
            if read.positions is not None:
                parts.append((Part.position(head.layer), read.of_positions()[0]))
            if read.bias is not None:
                parts.append((read.bias_part, read.of_bias()[0]))
            found = self._extra[head, side] = tuple(parts)
        return found

    def key_inputs(
        self,
        head: HeadId,
        queries: Float[Tensor, "node k"],
        weights: Float[Tensor, "node src"],
        contrast: Float[Tensor, "node src"],
    ) -> Inputs:
        """The contribution of each writer to the keys of some nodes of a head."""
        read, length = self.read(head, Side.K), weights.shape[1]

        def along(nodes: Tensor, places: Tensor) -> Tensor:
            return read.adjoint(queries[nodes], places)

        if self.trace.model.config.positions == "rotary":
            # A direction of its own for each node and position, where that has any weight.
            nodes, places = (weights != 0).logical_or(contrast != 0).nonzero().T
            writers = self.writers(head.layer)
            found = weights.new_zeros(len(queries), length, len(writers))
            found[nodes, places] = self.writes_at(head.layer, along(nodes, places), places)
            parts = [found.mT]
        else:
            scale = (read.own_scale * read.scale)[0, :length]
            directions = queries @ read.W.T
            parts = [self.writes_everywhere(head.layer, directions, length) * scale]
        for _, vectors in self.extra(head, Side.K):
            parts.append((queries @ vectors[:length].T)[:, None])
        scores = torch.cat(parts, 1)
        return Inputs(
            Side.K,
            (*self.writers(head.layer), *(part for part, _ in self.extra(head, Side.K))),
            shares=scores * weights[:, None],
            exact=scores * contrast[:, None],
            gradient=lambda nodes, places: along(nodes, places) * weights[nodes, places][:, None],
        )

    def query_inputs(
        self,
        head: HeadId,
        places: Int[Tensor, " node"],
        weights: Float[Tensor, "node src"],
        contrast: Float[Tensor, "node src"],
    ) -> Inputs:
        """The contribution of each writer to the queries of some nodes of a head."""
        keys, count = self.keys(head, weights.shape[1]), len(places)
        # The worth of a unit of the query to the prediction, then to the contrast.
        worth = torch.cat([weights @ keys, contrast @ keys]) * self.trace.model.config.score_scale
        twice = places.repeat(2)
        along = self.read(head, Side.Q).adjoint(worth, twice)
        parts = [self.writes_at(head.layer, along, twice)]
        for _, vectors in self.extra(head, Side.Q):
            parts.append((worth * vectors[twice]).sum(-1)[:, None])
        shares, exact = torch.cat(parts, 1)[..., None].split(count)
        return Inputs(
            Side.Q,
            (*self.writers(head.layer), *(part for part, _ in self.extra(head, Side.Q))),
            shares,
            exact,
            gradient=lambda nodes, _: along[nodes],
            places=tuple(places.tolist()),
        )
