"""A run with patterns and normalization scales held fixed: a linear model, and its sweep.

Head h of a layer then maps the residual stream x to `A^h diag(s) x W_V^h W_O^h`, and nothing else
in the model depends on x: normalization gains and centering are folded into W_V, biases and MLP
outputs are sources. Sums over paths are products of these maps.

The sources, which make up the stream before any head has moved anything:

    embed     the token embedding
    pos       the position embedding, where it is in the stream (positions="residual")
    bias2     what the biases of layer 2's heads write: Σ_h b_V W_O + b_O
    mlp3      the output of layer 3's MLP, as recorded
    bias_U    the logits' own bias

b_V enters after the pattern and the scale, and the rows of a pattern sum to 1. So it writes the
same at every position, wherever the heads attend: it is a source *written by* its layer and
readable from the next one on. A normalization bias folded into the value read is part of it.

The sweep carries streams up from the sources and gradients down, kept apart by order: the number of
heads that they came through. With M the heads of a layer, the layer is `1 + z M`, and the
coefficient of z^n in the product of all layers is the sum over paths through n heads. A sweep
keeps as many coefficients as its caller wants; the last one also collects all higher orders:

    orders = 1             the whole stream
    orders = 2             sources alone, and everything that came through heads
    orders = n_layers + 1  every order separately

Everything is computed from sources, weights, patterns and scales, never from recorded streams.
What each head wrote (`Step.z`), what each reads (`Step.values`) and the gradients there
(`AdjointStep`) are available layer by layer, so that nothing is kept that a caller does not need.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.shapes import Pattern, Scale, Stream
from pathsum.model import HeadId, Path, Run, Source, Weights
from pathsum.model.folding import attention_bias, fold_read, value_bias
from pathsum.model.weights import for_query_heads, kv_head

Streams = Float[Tensor, "many batch pos d"]
Values = Float[Tensor, "many batch kv pos k"]
PerHeads = Float[Tensor, "many batch head pos k"]


@dataclass(frozen=True, eq=False)
class FrozenLayer:
    """Heads of one layer as linear maps: read, mix, write, and the adjoint of each.

    All methods take any number of streams (or of gradients) at once, stacked along the first axis.
    """

    pattern: Pattern
    scale: Scale
    W_V: Float[Tensor, "kv d k"]
    W_O: Float[Tensor, "head k d"]

    def read(self, streams: Streams) -> Values:
        """Values of each stream at their source positions: diag(s) x W_V."""
        values = (streams * self.scale[..., None]) @ self._flat_V
        return values.unflatten(-1, (self.W_V.shape[0], -1)).transpose(2, 3)

    def mix(self, values: Values) -> PerHeads:
        """Values moved to their destinations: A v, which TransformerLens calls z."""
        many, batch, kv, pos, k = values.shape
        # All streams in one matrix, so that each pattern is applied once; query heads that share a
        # value head are stacked, so that nothing is repeated.
        together = values.permute(1, 2, 3, 0, 4).reshape(batch, kv, pos, many * k)
        moved = self.pattern.reshape(batch, kv, -1, pos) @ together
        return moved.view(batch, -1, pos, many, k).permute(3, 0, 1, 2, 4)

    def write(self, z: PerHeads) -> Streams:
        """The output of all heads together: Σ_h z W_O."""
        return z.transpose(2, 3).flatten(-2) @ self.W_O.flatten(0, 1)

    def apply(self, streams: Streams) -> Streams:
        """The output of all heads for each stream: Σ_h A diag(s) x W_V W_O."""
        return self.write(self.mix(self.read(streams)))

    def write_adjoint(self, gradients: Streams) -> PerHeads:
        """Gradients at each head's z, given those at the stream above."""
        back = gradients @ self.W_O.flatten(0, 1).T
        return back.unflatten(-1, self.W_O.shape[:2]).transpose(2, 3)

    def mix_adjoint(self, gradients: PerHeads) -> PerHeads:
        """Gradients at each head's values before they move: Aᵀ g."""
        many, batch, heads, pos, k = gradients.shape
        together = gradients.permute(1, 2, 3, 0, 4).reshape(batch, heads, pos, many * k)
        back = self.pattern.mT @ together
        return back.view(batch, heads, pos, many, k).permute(3, 0, 1, 2, 4)

    def read_adjoint(self, gradients: PerHeads) -> Streams:
        """Gradients at the stream below, summed over heads, given those at their values."""
        shared = gradients.unflatten(2, (self.W_V.shape[0], -1)).sum(3)
        back = shared.transpose(2, 3).flatten(-2) @ self._flat_V.T
        return back * self.scale[..., None]

    def adjoint(self, gradients: Streams) -> Streams:
        """Gradients at the stream below through the heads, given those at the stream above."""
        return self.read_adjoint(self.mix_adjoint(self.write_adjoint(gradients)))

    def per_head(self, of_kv: Float[Tensor, "*lead kv pos k"]) -> Float[Tensor, "*lead head pos k"]:
        """Values (or W_V) of each query head, repeated where heads share a value head."""
        return for_query_heads(of_kv, len(self.W_O))

    @cached_property
    def _flat_V(self) -> Float[Tensor, "d kv_k"]:
        return self.W_V.transpose(0, 1).flatten(1)


@dataclass(frozen=True, eq=False)
class Frozen:
    """A run as a linear model; `rows` and `length` select sequences and first positions."""

    run: Run
    rows: slice = field(default_factory=lambda: slice(None))
    length: int | None = None

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return self.run.weights.config.n_layers

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the stream, from the bottom up."""
        return stream_sources(self.run.weights)

    def source(self, source: Source) -> Stream:
        """The stream of one source."""
        run, weights = self.run, self.run.weights
        if source.kind == "embed":
            stream = weights.W_E[run.tokens]
        elif source.kind == "pos":
            assert weights.W_pos is not None
            stream = weights.W_pos[: run.tokens.shape[1]].expand(*run.tokens.shape, -1)
        elif source.kind == "mlp":
            stream = run.mlp_outputs[source.layer]
        else:
            stream = bias_stream(run, source.layer)
        return stream[self.rows, : self.length]

    def added_after(self, layer: int) -> Stream | None:
        """The sum of a layer's sources (−1: before the first layer), if it has any."""
        streams = [self.source(source) for source in self.sources if source.layer == layer]
        return sum(streams[1:], start=streams[0]) if streams else None

    @property
    def start(self) -> Stream:
        """The stream before the first layer, from the embeddings."""
        added = self.added_after(-1)
        assert added is not None
        return added

    def layer(self, layer: int, head: int | None = None) -> FrozenLayer:
        """The heads of a layer, or one of them as a layer of its own.

        Built at each call, so that a deep model need not fit into memory at once.
        """
        weights, run = self.run.weights, self.run
        raw = weights.layers[layer]
        q = kv = slice(None)
        if head is not None:
            shared = kv_head(weights.config, head)
            q, kv = slice(head, head + 1), slice(shared, shared + 1)
        pattern = run.patterns[layer][self.rows, q, : self.length, : self.length]
        if weights.config.norm_place != "before":
            # A norm after the heads multiplies what they write at each destination.
            pattern = pattern * run.scales.write[layer][self.rows, None, : self.length, None]
        return FrozenLayer(
            pattern=pattern,
            scale=run.scales.attention[layer][self.rows, : self.length],
            W_V=fold_read(weights.config.norm, raw.W_V[kv], raw.ln1_w),
            W_O=raw.W_O[q],
        )

    def head(self, head: HeadId) -> FrozenLayer:
        """One head as a layer of its own."""
        return self.layer(head.layer, head.head)

    def through(self, heads: Sequence[HeadId], stream: Stream) -> Stream:
        """A stream carried through a chain of heads, bottom to top."""
        streams = stream[None]
        for head in heads:
            streams = self.head(head).apply(streams)
        return streams[0]

    def through_adjoint(self, heads: Sequence[HeadId], gradient: Stream) -> Stream:
        """The gradient below a chain of heads, bottom to top, given the one above it."""
        gradients = gradient[None]
        for head in reversed(heads):
            gradients = self.head(head).adjoint(gradients)
        return gradients[0]

    def along(self, path: Path) -> Stream:
        """A path's source carried through its heads."""
        return self.through(path.heads, self.source(path.source))

    @property
    def final_scale(self) -> Scale:
        """The scale of the final read."""
        return self.run.scales.final[self.rows, : self.length]


def stream_sources(weights: Weights) -> tuple[Source, ...]:
    """The sources that heads and logits read from the stream, from the bottom up."""
    config = weights.config
    found = [Source("embed")]
    if config.positions == "residual":
        found.append(Source("pos"))
    for layer in range(config.n_layers):
        if _has_any(weights, f"layers.{layer}.", ("b_V", "b_O", "ln1_b")):
            found.append(Source("bias", layer))
        if config.mlp != "none":
            found.append(Source("mlp", layer))
    return tuple(found)


def all_sources(weights: Weights) -> tuple[Source, ...]:
    """`stream_sources`, followed by `bias_U` where the logits have their own bias."""
    found = stream_sources(weights)
    if _has_any(weights, "", ("b_U", "ln_f_b")):
        found += (Source("unembed_bias"),)
    return found


def bias_stream(run: Run, layer: int) -> Stream:
    """The stream that a layer's attention biases write.

    The same at every position, except where sinks take a share of a row, or a norm follows.
    """
    weights, shape = run.weights, (*run.tokens.shape, -1)
    if weights.config.sinks:
        raw = weights.layers[layer]
        each = torch.einsum("hk,hkd->hd", value_bias(raw), raw.W_O)
        written = torch.einsum("bhp,hd->bpd", run.patterns[layer].sum(-1), each)
        written = written if raw.b_O is None else written + raw.b_O
    else:
        written = attention_bias(weights, layer).expand(shape)
    if weights.config.norm_place == "before":
        return written
    return written * run.scales.write[layer][..., None]


def relative_error(found: Tensor, truth: Tensor) -> float:
    """max|found − truth| / max|truth|, or max|found − truth| where the truth is all zero."""
    error, size = float((found - truth).abs().max()), float(truth.abs().max())
    return error / size if size else error


def _has_any(weights: Weights, prefix: str, names: tuple[str, ...]) -> bool:
    return any(f"{prefix}{name}" in weights.store.shapes for name in names)


@dataclass(frozen=True, eq=False)
class Step:
    """One layer of a sweep up: the values its heads read and z, what they mixed, by order.

    Streams that end in the same order are added before they are read, so there may be one fewer
    here than the sweep carries; their sum is that of the whole stream.
    """

    index: int
    layer: FrozenLayer
    values: Values
    z: PerHeads


@dataclass(frozen=True, eq=False)
class AdjointStep:
    """One layer of a sweep down: gradients at z and at the values of its heads, by order."""

    index: int
    layer: FrozenLayer
    at_z: PerHeads
    at_values: PerHeads


class UpSweep:
    """Streams on their way up, by order; iterating yields one `Step` per layer."""

    def __init__(self, frozen: Frozen, orders: int = 1) -> None:
        self.frozen = frozen
        self.index = 0
        self._carried = _Orders(frozen.start, orders)

    @property
    def streams(self) -> Streams:
        """The streams before layer `index`, one per order reached; the next step changes them."""
        return self._carried.reached

    def merge(self) -> None:
        """Continue with the whole stream, orders no longer kept apart."""
        self._carried = _Orders(self.streams.sum(0), 1)

    def to(self, layer: int) -> Iterator[Step]:
        """Move up to a layer."""
        while self.index < layer:
            frozen_layer = self.frozen.layer(self.index)
            values = frozen_layer.read(self._carried.sent())
            z = frozen_layer.mix(values)
            yield Step(self.index, frozen_layer, values, z)
            self._carried.raise_order(frozen_layer.write(z))
            added = self.frozen.added_after(self.index)
            if added is not None:
                self.streams[0] += added
            self.index += 1

    def __iter__(self) -> Iterator[Step]:
        return self.to(self.frozen.n_layers)


class DownSweep:
    """Gradients on their way down from the final stream, by order; one `AdjointStep` per layer."""

    def __init__(self, frozen: Frozen, top: Stream, orders: int = 1) -> None:
        self.frozen = frozen
        self.index = frozen.n_layers
        self._carried = _Orders(top, orders)

    @property
    def gradients(self) -> Streams:
        """Gradients at the stream before layer `index`; the next step changes them."""
        return self._carried.reached

    def merge(self) -> None:
        """Continue with the gradient of the whole, orders no longer kept apart."""
        self._carried = _Orders(self.gradients.sum(0), 1)

    def to(self, layer: int) -> Iterator[AdjointStep]:
        """Move down to the stream before a layer."""
        while self.index > layer:
            frozen_layer = self.frozen.layer(self.index - 1)
            at_z = frozen_layer.write_adjoint(self._carried.sent())
            at_values = frozen_layer.mix_adjoint(at_z)
            yield AdjointStep(self.index - 1, frozen_layer, at_z, at_values)
            self._carried.raise_order(frozen_layer.read_adjoint(at_values))
            self.index -= 1


class _Orders:
    """Streams by order, in one tensor that is updated in place."""

    def __init__(self, start: Stream, orders: int) -> None:
        self._all = start.new_zeros(orders, *start.shape)
        self._all[0] = start
        self._count = 1

    @property
    def reached(self) -> Streams:
        """The orders that anything has reached."""
        return self._all[: self._count]

    def sent(self) -> Streams:
        """The streams that the next layer reads, one for each order that it raises them to."""
        if self._count < len(self._all) or self._count == 1:
            return self.reached
        # The last two orders become the last one, so their sum goes through the heads once.
        return torch.cat([self._all[:-2], self._all[-2:].sum(0, keepdim=True)])

    def raise_order(self, through_heads: Streams) -> None:
        """(1 + z M) applied: what went through a head of the layer has one order more."""
        if len(self._all) == 1:
            self._all += through_heads
            return
        count = len(through_heads)
        self._all[1 : count + 1] += through_heads
        self._count = count + 1


def split_at(frozen: Frozen, layer: int) -> Streams:
    """The stream before a layer as two: sources alone, and everything that came through heads."""
    sweep = UpSweep(frozen, orders=2)
    for _ in sweep.to(layer):
        pass
    streams = sweep.streams
    return streams if len(streams) == 2 else torch.cat([streams, torch.zeros_like(streams)])


def final_stream(frozen: Frozen) -> Stream:
    """The stream that the unembedding reads, as the sum over all paths."""
    sweep = UpSweep(frozen)
    for _ in sweep:
        pass
    return sweep.streams[0]
