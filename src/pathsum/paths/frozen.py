"""A run with patterns and normalization scales held at what they were: a linear model.

Head h of a layer then maps the stream x to `A^h diag(s) x W_V^h W_O^h`, and nothing else in the
model depends on x (normalization gains and centering are folded into W_V, biases are sources). Sums
over paths are products of such maps. `up` moves streams towards the logits, `down` moves gradients
towards the sources; both carry any number of streams at once.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import HeadId, Path, Source, Trace
from pathsum.model.reads import fold_read
from pathsum.paths.stream_sources import source_stream, stream_sources
from pathsum.shapes import Pattern, Scale, Stream

Streams = Float[Tensor, "many batch pos d"]
Mixed = Float[Tensor, "many batch head pos k"]


@dataclass(frozen=True, eq=False)
class FrozenLayer:
    """One layer's heads as linear maps."""

    pattern: Pattern
    scale: Scale
    W_V: Float[Tensor, "kv d k"]
    W_O: Float[Tensor, "head k d"]

    def mixed(self, x: Streams) -> Mixed:
        """Values of each stream moved to their destinations: A diag(s) x W_V."""
        many, batch, pos = x.shape[:3]
        kv, k = self.W_V.shape[0], self.W_V.shape[-1]
        value = (x * self.scale[..., None]) @ self._flat_V
        # All streams side by side, so that each pattern is applied once.
        beside = value.view(many, batch, pos, kv, k).permute(1, 3, 2, 0, 4)
        beside = beside.reshape(batch, kv, pos, many * k)
        # Heads that share a value head are stacked: one product, nothing repeated.
        moved = self.pattern.reshape(batch, kv, -1, pos) @ beside
        return moved.view(batch, -1, pos, many, k).permute(3, 0, 1, 2, 4)

    def written(self, mixed: Mixed) -> Streams:
        """What all heads of the layer write of it."""
        return mixed.transpose(2, 3).flatten(-2) @ self.W_O.flatten(0, 1)

    def write_adjoint(self, gradient: Streams) -> Mixed:
        """Gradient at each head's mixed values, given the one at the stream above."""
        heads, k = self.W_O.shape[:2]
        back = gradient @ self.W_O.flatten(0, 1).T
        return back.view(*gradient.shape[:-1], heads, k).transpose(2, 3)

    def mix_adjoint(self, gradient: Mixed) -> Mixed:
        """Gradient at each head's values before they move: Aᵀ applied."""
        many, batch, heads, pos, k = gradient.shape
        beside = gradient.permute(1, 2, 3, 0, 4).reshape(batch, heads, pos, many * k)
        back = self.pattern.mT @ beside
        return back.view(batch, heads, pos, many, k).permute(3, 0, 1, 2, 4)

    def read_adjoint(self, gradient: Mixed) -> Streams:
        """Gradient at the stream below through all heads, given the one at their values."""
        many, batch, heads, pos, k = gradient.shape
        kv = self.W_V.shape[0]
        shared = gradient.reshape(many, batch, kv, heads // kv, pos, k).sum(3)
        back = shared.transpose(2, 3).flatten(-2) @ self._flat_V.T
        return back * self.scale[..., None]

    @property
    def each_V(self) -> Float[Tensor, "head d k"]:
        """The value read of each query head, repeated where heads share one."""
        return self.W_V.repeat_interleave(self.W_O.shape[0] // self.W_V.shape[0], dim=0)

    @cached_property
    def _flat_V(self) -> Float[Tensor, "d kv_k"]:
        return self.W_V.transpose(0, 1).flatten(1)


@dataclass(frozen=True, eq=False)
class Frozen:
    """A trace as a linear model; `rows` and `length` cut out sequences and first positions."""

    trace: Trace
    rows: slice = field(default_factory=lambda: slice(None))
    length: int | None = None

    @property
    def n_layers(self) -> int:
        """How many layers there are."""
        return self.trace.model.config.n_layers

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """What the stream is made of, from the bottom up."""
        return stream_sources(self.trace.model.weights)

    def source(self, source: Source) -> Stream:
        """What a source puts into the stream."""
        return source_stream(self.trace, source)[self.rows, : self.length]

    def added_after(self, layer: int) -> Stream | None:
        """What the sources of a layer add to the stream (−1: before the first), or nothing."""
        streams = [self.source(source) for source in self.sources if source.layer == layer]
        return sum(streams[1:], start=streams[0]) if streams else None

    @property
    def start(self) -> Stream:
        """The stream before the first layer, made anew from embeddings."""
        added = self.added_after(-1)
        assert added is not None
        return added

    def layer(self, layer: int) -> FrozenLayer:
        """One layer's heads. Made anew at each call, so that deep models need not fit at once."""
        weights, trace = self.trace.model.weights, self.trace
        raw = weights.layers[layer]
        return FrozenLayer(
            pattern=trace.patterns[layer][self.rows, :, : self.length, : self.length],
            scale=trace.scales.attention[layer][self.rows, : self.length],
            W_V=fold_read(weights.config.norm, raw.W_V, raw.ln1_w),
            W_O=raw.W_O,
        )

    def through(self, head: HeadId, stream: Stream) -> Stream:
        """What one head makes of a stream: A diag(s) x W_V W_O."""
        weights, trace = self.trace.model.weights, self.trace
        raw = weights.layers[head.layer]
        W_V = raw.W_V[head.head // weights.config.heads_per_kv]
        W_V = fold_read(weights.config.norm, W_V, raw.ln1_w)
        scale = trace.scales.attention[head.layer][self.rows, : self.length]
        pattern = trace.patterns[head.layer][self.rows, head.head, : self.length, : self.length]
        return pattern @ ((stream * scale[..., None]) @ W_V) @ raw.W_O[head.head]

    def along(self, path: Path) -> Stream:
        """What a path's heads make of its source, in the stream above the last of them."""
        stream = self.source(path.source)
        for head in path.heads:
            stream = self.through(head, stream)
        return stream

    @property
    def final_scale(self) -> Scale:
        """The scale of the final read."""
        return self.trace.scales.final[self.rows, : self.length]

    def up_to(self, layer: int) -> tuple[Stream, Stream]:
        """The stream before a layer as two parts: sources alone, and what heads wrote.

        Computed from sources and weights by a linear sweep, never from recorded streams.
        """
        free = self.start
        headed = torch.zeros_like(free)
        for below in range(layer):
            heads = self.layer(below)
            headed = headed + heads.written(heads.mixed((free + headed)[None]))[0]
            added = self.added_after(below)
            free = free if added is None else free + added
        return free, headed


def relative_error(found: Tensor, truth: Tensor) -> float:
    """max|found − truth| / max|truth|; plain max|found − truth| where the truth is all zero."""
    error, size = float((found - truth).abs().max()), float(truth.abs().max())
    return error / size if size else error
