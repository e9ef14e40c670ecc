"""One sequence of a frozen run: the writes and reads that circuits are grown from.

Attention looks back only, so what a run wrote and read before a position is the same however long
the text is. Circuits of several predictions of one text share one `FrozenRow`, kept by its trace.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import HeadId, Source, Trace
from pathsum.names import Part, Side
from pathsum.paths.frozen import Frozen, FrozenLayer
from pathsum.paths.score_sides import QkRead, qk_read
from pathsum.paths.sweep import UpSweep

_KEPT = "_frozen_row"
"""The attribute of a trace that holds the row used last."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Candidate edges into one read of a node: writers × positions.

    `shares` are in logits, `exact` in the read's own unit; `gradient` is that of the share at what
    a writer writes at each position; `positions` says which position each column is.
    """

    side: Side
    writers: tuple[Source | HeadId | Part, ...]
    shares: Float[Tensor, "writer src"]
    exact: Float[Tensor, "writer src"]
    gradient: Float[Tensor, "src d"]
    positions: tuple[int, ...]


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
        self._reads: dict[tuple[HeadId, str], QkRead] = {}
        self._read_vectors: dict[tuple[HeadId, str], Tensor] = {}
        self._writers: dict[int, tuple[Source | HeadId, ...]] = {}
        self._k = trace.model.config.d_head
        self._extra: dict[tuple[HeadId, str], tuple[tuple[Part, Tensor], ...]] = {}

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

    def writes_along(
        self, layer: int, directions: Float[Tensor, "#src d"], at: slice
    ) -> Float[Tensor, "writer src"]:
        """Writes below a layer at some positions, projected on one direction per position."""
        rows: list[Tensor] = []
        for source, stream in self.sources:
            if source.layer < layer:
                rows.append((stream[at] * directions).sum(-1)[None])
        for below in range(layer):
            back = (self.layers[below].W_O.flatten(0, 1) @ directions.T).unflatten(0, (-1, self._k))
            z = self.z[below][:, at]
            # One direction is a matrix product, several are one each.
            each = (z @ back)[..., 0] if len(directions) == 1 else (z * back.mT).sum(-1)
            rows.append(each)
        return torch.cat(rows)

    def read(self, head: HeadId, side: str) -> QkRead:
        """A head's query or key read on this sequence."""
        found = self._reads.get((head, side))
        if found is None:
            whole = qk_read(self.trace, head, "query" if side == "q" else "key")
            found = self._reads[head, side] = whole.cut(self.rows, self.length)
        return found

    def query(self, head: HeadId, position: int) -> Float[Tensor, " k"]:
        """The query at a position, score scale included."""
        scale = self.trace.model.config.score_scale
        return self._vectors(head, "q")[position] * scale

    def keys(self, head: HeadId, position: int) -> Float[Tensor, "src k"]:
        """The keys of all positions up to one."""
        return self._vectors(head, "k")[: position + 1]

    def _vectors(self, head: HeadId, side: str) -> Float[Tensor, "pos k"]:
        found = self._read_vectors.get((head, side))
        if found is None:
            found = self.read(head, side).of_stream(self.streams[head.layer][None])[0]
            for _, vectors in self.extra(head, side):
                found = found + vectors
            self._read_vectors[head, side] = found
        return found

    def extra(self, head: HeadId, side: str) -> tuple[tuple[Part, Float[Tensor, "pos k"]], ...]:
        """The parts of a read that are not in the stream: positions, the bias."""
        found = self._extra.get((head, side))
        if found is None:
            read, parts = self.read(head, side), list[tuple[Part, Tensor]]()
            if read.positions is not None:
                parts.append((Part.position(head.layer), read.of_positions()[0]))
            if read.bias is not None:
                parts.append((Part.bias(read.side), read.of_bias()[0]))
            found = self._extra[head, side] = tuple(parts)
        return found

    def key_inputs(
        self,
        head: HeadId,
        query: Float[Tensor, " k"],
        at: slice,
        weights: Float[Tensor, " src"],
        contrast: Float[Tensor, " src"],
    ) -> Inputs:
        """The contribution of each writer to the keys."""
        read, positions = self.read(head, "k"), range(at.start, at.stop)
        along = read.adjoint(query.expand(len(positions), -1), positions)
        if self.trace.model.config.positions == "rotary":
            parts = [self.writes_along(head.layer, along, at)]
        else:
            scale = (read.own_scale * read.scale)[0, at]
            parts = [self.writes_along(head.layer, (read.W @ query)[None], at) * scale]
        writers: tuple[Source | HeadId | Part, ...] = self.writers(head.layer)
        for part, vectors in self.extra(head, "k"):
            parts.append((vectors[at] @ query)[None])
            writers = (*writers, part)
        scores = torch.cat(parts)
        gradient = along * weights[:, None]
        exact = scores * contrast
        return Inputs(Side.K, writers, scores * weights, exact, gradient, tuple(positions))

    def query_inputs(
        self,
        head: HeadId,
        position: int,
        keys: Float[Tensor, "src k"],
        weights: Float[Tensor, " src"],
        contrast: Float[Tensor, " src"],
    ) -> Inputs:
        """The contribution of each writer to the query."""
        scale = self.trace.model.config.score_scale
        worth = torch.stack([weights @ keys, contrast @ keys]) * scale
        along = self.read(head, "q").adjoint(worth, [position, position])
        writers: tuple[Source | HeadId | Part, ...] = self.writers(head.layer)
        parts = [self.writes_along(head.layer, along, slice(position, position + 1))]
        for part, vectors in self.extra(head, "q"):
            parts.append((worth @ vectors[position])[None])
            writers = (*writers, part)
        found = torch.cat(parts)
        return Inputs(Side.Q, writers, found[:, :1], found[:, 1:], along[:1], (position,))
