"""SideSum: a head's query or key as a sum of parts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Part, find_head
from pathsum.base.errors import PathError
from pathsum.base.shapes import Stream
from pathsum.model import HeadId, Path, Source, Trace
from pathsum.model.folding import Reads, layer_reads
from pathsum.model.rotary import rotate
from pathsum.paths.frozen import Frozen, Streams
from pathsum.paths.path_sum import count_of_order, paths_of_order
from pathsum.paths.sweep import UpSweep

Side: TypeAlias = Literal["query", "key"]
Group: TypeAlias = Literal["none", "q", "k", "qk"]
Vectors = Float[Tensor, "batch pos k"]


def group_of(query: Part, key: Part) -> Group:
    """The group of a term: lower heads in neither part, in its query, in its key, or in both."""
    if query.headed:
        return "qk" if key.headed else "q"
    return "k" if key.headed else "none"


@dataclass(frozen=True, eq=False)
class QkRead:
    """A head's query or key read: `s_q · rotate(s · x W + positions + bias)`, s and s_q frozen."""

    side: Side
    W: Float[Tensor, "d k"]
    positions: Float[Tensor, "pos k"] | None
    bias: Float[Tensor, " k"] | None
    scale: Float[Tensor, "batch pos"]
    own_scale: Float[Tensor, "batch pos"]
    trace: Trace
    layer: int

    def of_stream(self, x: Stream) -> Vectors:
        """The query (or key) of a stream, or of one part of it."""
        return self.finish((x * self.scale[..., None]) @ self.W)

    def of_positions(self) -> Vectors:
        """The positions' part, added after normalization and so without the stream's scale."""
        assert self.positions is not None
        return self.finish(self.positions.expand(*self.scale.shape, -1))

    def of_bias(self) -> Vectors:
        """The bias's part, the same at every position up to rotation and QK-norm."""
        assert self.bias is not None
        return self.finish(self.bias.expand(*self.scale.shape, -1))

    def finish(self, x: Vectors) -> Vectors:
        """Apply QK-norm's frozen scale and the rotation of a rotary model."""
        x = x * self.own_scale[..., None]
        if self.trace.model.config.positions != "rotary":
            return x
        here = self.trace.model.config.at(self.layer)
        return rotate(here, x, torch.arange(x.shape[1], device=x.device))

    def adjoint(
        self, y: Float[Tensor, "src k"], places: Int[Tensor, " src"]
    ) -> Float[Tensor, "src d"]:
        """The gradient of (the read at a position) · y at the first stream, by position."""
        config = self.trace.model.config
        if config.positions == "rotary":
            y = rotate(config.at(self.layer), y, -places)
        scale = self.own_scale[0, places] * self.scale[0, places]
        return (y * scale[:, None]) @ self.W.T

    def cut(self, rows: slice, length: int) -> "QkRead":
        """This read for some sequences and their first positions."""
        return replace(
            self,
            positions=None if self.positions is None else self.positions[:length],
            scale=self.scale[rows, :length],
            own_scale=self.own_scale[rows, :length],
        )


def qk_read(trace: Trace, head: HeadId, side: Side, reads: Reads | None = None) -> QkRead:
    """The read of one head's query or key, normalization folded in; `reads` are its layer's."""
    weights, scales = trace.model.weights, trace.scales
    reads = layer_reads(weights, head.layer) if reads is None else reads
    raw = weights.layers[head.layer]
    length = trace.tokens.shape[1]
    if side == "query":
        at, W, b, pos = head.head, reads.W_Q, reads.b_Q, reads.pos_Q
        own, biased = scales.query[head.layer], raw.b_Q is not None
    else:
        at, W, b, pos = trace.model.head(head).kv, reads.W_K, reads.b_K, reads.pos_K
        own, biased = scales.key[head.layer], raw.b_K is not None
    return QkRead(
        side=side,
        W=W[at],
        positions=None if pos is None else pos[at, :length],
        bias=b[at] if biased or raw.ln1_b is not None else None,
        scale=scales.attention[head.layer],
        own_scale=own[:, at],
        trace=trace,
        layer=head.layer,
    )


@dataclass(frozen=True, eq=False)
class SideSum:
    """A query or a key as a sum over parts, listed as needed."""

    read: QkRead
    frozen: Frozen
    head: HeadId

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The sources that this head's layer can read."""
        return tuple(source for source in self.frozen.sources if source.layer < self.head.layer)

    @property
    def extra(self) -> tuple[Part, ...]:
        """The parts that do not come from the stream: positions, the bias."""
        parts: tuple[Part, ...] = ()
        if self.read.positions is not None:
            parts += (Part.position(self.head.layer),)
        if self.read.bias is not None:
            parts += (Part.bias(self.read.side),)
        return parts

    def parts(self, order: int) -> Iterator[Part]:
        """The parts that came through `order` lower heads."""
        for path in paths_of_order(self.sources, self.head.layer, self._n_heads, order):
            yield Part.of_path(path)
        if order == 0:
            yield from self.extra

    def count(self, order: int) -> int:
        """The number of parts that came through `order` lower heads."""
        found = count_of_order(self.sources, self.head.layer, self._n_heads, order)
        return found + (len(self.extra) if order == 0 else 0)

    @property
    def total_count(self) -> int:
        """The number of parts of all orders."""
        return sum(self.count(order) for order in range(self.head.layer + 1))

    def listed(self) -> Iterator[tuple[Part, Vectors]]:
        """Every part with its vectors; paths that share their lower heads share the work."""
        for part in self.extra:
            yield part, self.vectors(part)
        for source in self.sources:
            yield from self._grown(Path(source), self.frozen.source(source))

    def _grown(self, path: Path, stream: Stream) -> Iterator[tuple[Part, Vectors]]:
        yield Part.of_path(path), self.read.of_stream(stream)
        last = path.heads[-1].layer if path.heads else path.source.layer
        for layer in range(last + 1, self.head.layer):
            for index in range(self._n_heads):
                head = HeadId(layer, index)
                longer = Path(path.source, (*path.heads, head))
                yield from self._grown(longer, self.frozen.through([head], stream))

    def cut(self, rows: slice, length: int) -> "SideSum":
        """This side for some sequences and their first positions."""
        short = Frozen(self.frozen.run, rows, length)
        return SideSum(self.read.cut(rows, length), short, self.head)

    def writers(self) -> Iterator[tuple[Part, Vectors]]:
        """Coarser parts that still add up: each source, and all that each lower head wrote."""
        for part in self.parts(0):
            yield part, self.vectors(part)
        for step in UpSweep(self.frozen).to(self.head.layer):
            for head in range(self._n_heads):
                written = step.z[0, :, head] @ step.layer.W_O[head]
                yield Part.writer(HeadId(step.index, head)), self.read.of_stream(written)

    def vectors(self, part: Part) -> Vectors:
        """A part's share of the queries (or keys), ready for the dot product."""
        self.check(part)
        if part.kind == "position":
            return self.read.of_positions()
        if part.kind == "bias":
            return self.read.of_bias()
        if part.kind == "writer":
            return next(found for known, found in self.writers() if known == part)
        return self.read.of_stream(self.frozen.along(part.path))

    def split(self, streams: Streams) -> tuple[Vectors, Vectors]:
        """The share of sources alone and of what came through heads, from `split_at`."""
        free, through_heads = streams
        whole = self.read.of_stream(free)
        if self.read.positions is not None:
            whole = whole + self.read.of_positions()
        if self.read.bias is not None:
            whole = whole + self.read.of_bias()
        return whole, self.read.of_stream(through_heads)

    def check(self, part: Part) -> None:
        """Raise PathError if this side has no such part."""
        layer, side = self.head.layer, self.read.side
        if part.kind in ("position", "bias"):
            if part not in self.extra:
                known = ", ".join(map(str, self.extra)) or "neither positions nor a bias"
                raise PathError(
                    f"{part} is not a part of the {side} of {self.head}: its read adds {known}"
                )
            return
        for head in part.heads:
            if head.layer >= layer:
                raise PathError(
                    f"{self.head} cannot read what {head} wrote: only heads in layers below "
                    f"{layer} come before it"
                )
        if part.kind == "writer":
            config = self.frozen.run.weights.config
            find_head(part.heads[0], config.n_layers, config.n_heads)
            return
        Path(part.path.source, part.heads).check_in(self.frozen.run.weights)
        if part.source not in self.sources:
            raise PathError(
                f"{self.head} cannot read {part.source}: the sources below layer {layer} are "
                f"{', '.join(map(str, self.sources))}"
            )

    @property
    def _n_heads(self) -> int:
        return self.frozen.run.weights.config.n_heads
