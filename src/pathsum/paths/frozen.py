"""A run with patterns and normalization scales held fixed: a linear model.

Head h of a layer then maps the residual stream x to `A^h diag(s) x W_V^h W_O^h`. No other part of
the model depends on x: normalization gains and centering are folded into W_V, and biases and MLP
outputs are sources. Sums over paths are products of these maps.

The sources, which make up the stream before any head moves information:

    embed     the token embedding
    pos       the position embedding, where it is in the stream (positions="residual")
    bias2     the output of the biases of layer 2's heads: Σ_h b_V W_O + b_O
    mlp3      the output of layer 3's MLP, as recorded
    bias_U    the logits' own bias

If the gates of MLPs are held as well (`Gates`), an MLP maps the stream at each position linearly,
`x ↦ ((s·x W_in) ⊙ gate) W_out`. Then `mlp3` is not a source but a step of paths like a head, and
only the constant output of its biases, `mlp_bias3`, is a source.

b_V enters after the pattern and the scale, and the rows of a pattern sum to 1. So its output is the
same at every position, wherever the heads attend: it is a source *written by* its layer and
readable from the next layer on. It includes the normalization bias folded into the value read.

The sweeps that carry streams up and gradients down are in `order_sweep`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.path import Step as PathStep
from pathsum.base.path import level_of
from pathsum.base.shapes import Pattern, Scale, Stream
from pathsum.model import HeadId, Path, Run, Source, Weights
from pathsum.model.folding import attention_bias, fold_bias, fold_read, value_bias
from pathsum.model.gating import Neurons, neurons_of, output_bias
from pathsum.model.weights import LayerWeights, for_query_heads, kv_head

Streams = Float[Tensor, "many batch pos d"]
Values = Float[Tensor, "many batch kv pos k"]
PerHeads = Float[Tensor, "many batch head pos k"]
# The biases that contribute to the output of an MLP with held gates where the stream is 0. The
# biases of the gate and the router are part of the held gates.
MLP_BIASES = ("b_in", "b_out", "b_experts", "ln2_b")


@dataclass(frozen=True, eq=False)
class FrozenLayer:
    """Heads of one layer as linear maps: read, mix, write, and the adjoint of each.

    All methods take any number of streams (or gradients) at once, stacked along the first axis.
    Patterns are read on use, because those of long texts are computed on demand.
    """

    attention: Callable[[], Pattern]
    scale: Scale
    W_V: Float[Tensor, "kv d k"]
    W_O: Float[Tensor, "head k d"]

    @property
    def pattern(self) -> Pattern:
        """The heads' attention, times the scale of any norm after them."""
        return self.attention()

    def read(self, streams: Streams) -> Values:
        """Values of each stream at their source positions: diag(s) x W_V."""
        values = (streams * self.scale[..., None]) @ self._flat_V
        return values.unflatten(-1, (self.W_V.shape[0], -1)).transpose(2, 3)

    def mix(self, values: Values) -> PerHeads:
        """Values moved to their destinations: A v, which TransformerLens calls z."""
        many, batch, kv, pos, k = values.shape
        # All streams in one matrix, so that each pattern is applied once; query heads that share a
        # value head are stacked, so that no value is repeated.
        stacked = values.permute(1, 2, 3, 0, 4).reshape(batch, kv, pos, many * k)
        z = self.pattern.reshape(batch, kv, -1, pos) @ stacked
        return z.view(batch, -1, pos, many, k).permute(3, 0, 1, 2, 4)

    def write(self, z: PerHeads) -> Streams:
        """The summed output of all heads: Σ_h z W_O."""
        return z.transpose(2, 3).flatten(-2) @ self.W_O.flatten(0, 1)

    def apply(self, streams: Streams) -> Streams:
        """The output of all heads for each stream: Σ_h A diag(s) x W_V W_O."""
        return self.write(self.mix(self.read(streams)))

    def write_adjoint(self, gradients: Streams) -> PerHeads:
        """Gradients at each head's z, from gradients at the stream above."""
        at_z = gradients @ self.W_O.flatten(0, 1).T
        return at_z.unflatten(-1, self.W_O.shape[:2]).transpose(2, 3)

    def mix_adjoint(self, gradients: PerHeads) -> PerHeads:
        """Gradients at each head's values before they move: Aᵀ g."""
        many, batch, heads, pos, k = gradients.shape
        stacked = gradients.permute(1, 2, 3, 0, 4).reshape(batch, heads, pos, many * k)
        at_values = self.pattern.mT @ stacked
        return at_values.view(batch, heads, pos, many, k).permute(3, 0, 1, 2, 4)

    def read_adjoint(self, gradients: PerHeads) -> Streams:
        """Gradients at the stream below, summed over heads, from gradients at their values."""
        shared = gradients.unflatten(2, (self.W_V.shape[0], -1)).sum(3)
        at_read = shared.transpose(2, 3).flatten(-2) @ self._flat_V.T
        return at_read * self.scale[..., None]

    def adjoint(self, gradients: Streams) -> Streams:
        """Gradients at the stream below through the heads, from gradients at the stream above."""
        return self.read_adjoint(self.mix_adjoint(self.write_adjoint(gradients)))

    def per_head(
        self, values: Float[Tensor, "*lead kv pos k"]
    ) -> Float[Tensor, "*lead head pos k"]:
        """Values (or W_V) of each query head, repeated where heads share a value head."""
        return for_query_heads(values, len(self.W_O))

    @cached_property
    def _flat_V(self) -> Float[Tensor, "d kv_k"]:
        return self.W_V.transpose(0, 1).flatten(1)


@dataclass(frozen=True, eq=False)
class FrozenMlp:
    """The MLP of a layer as a linear map at each position: x ↦ ((x W_in) ⊙ gate) W_out.

    `gate` is the product of all factors held at a position: the neurons' gates, the router's
    weights, and the scales of the norms before and after the MLP. Methods take stacked streams.
    """

    gate: Float[Tensor, "batch pos m"]
    W_in: Float[Tensor, "d m"]
    W_out: Float[Tensor, "m d"]

    def apply(self, streams: Streams) -> Streams:
        """The MLP's output for each stream."""
        return ((streams @ self.W_in) * self.gate) @ self.W_out

    def adjoint(self, gradients: Streams) -> Streams:
        """Gradients at the stream that the MLP reads, from gradients at the stream above."""
        return ((gradients @ self.W_out.T) * self.gate) @ self.W_in.T


class Gates:
    """The held gates of a run's MLPs, computed lazily per layer and cached.

    One number per neuron and position, shared by all sweeps of a run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._layers: dict[int, tuple[Float[Tensor, "batch pos m"], Stream]] = {}

    def gate(self, layer: int) -> Float[Tensor, "batch pos m"]:
        """`FrozenMlp.gate` of a layer."""
        return self._gate_and_bias(layer)[0]

    def bias(self, layer: int) -> Stream:
        """The part of an MLP's output that does not depend on the stream: `mlp_bias3`."""
        return self._gate_and_bias(layer)[1]

    def _gate_and_bias(self, layer: int) -> tuple[Float[Tensor, "batch pos m"], Stream]:
        if layer in self._layers:
            return self._layers[layer]
        config, raw = self.run.weights.config, self.run.weights.layers[layer]
        neurons = neurons_of(self.run, layer)
        gate, bias = neurons.gate, _constant_output(raw, neurons)
        if neurons.value_slope is not None:
            gate = gate * neurons.value_slope
        gate = gate * self.run.scales.mlp[layer][..., None]
        if config.norm_place != "before":
            assert raw.W_out is not None
            output = neurons.activation @ raw.W_out + output_bias(raw, neurons)
            scale = torch.rsqrt(output.square().mean(-1, keepdim=True) + config.norm_eps)
            gate, bias = gate * scale, bias * scale
            bias = bias if raw.post2_w is None else bias * raw.post2_w
        self._layers[layer] = gate, bias.expand(*gate.shape[:2], -1)
        return self._layers[layer]


def _constant_output(raw: LayerWeights, neurons: Neurons) -> Tensor:
    """The output of an MLP with held gates for a stream of 0, before a norm after it."""
    assert raw.W_in is not None
    assert raw.W_out is not None
    value = fold_bias(raw.W_in, raw.ln2_b, raw.b_in)
    if neurons.value_slope is not None:
        # Clamped values have 1 added to them.
        value = value * neurons.value_slope + 1
    return (value * neurons.gate) @ raw.W_out + output_bias(raw, neurons)


@dataclass(frozen=True, eq=False)
class Frozen:
    """A run as a linear model; `rows` and `length` select sequences and first positions.

    With `gates`, MLPs are linear maps; otherwise their outputs are sources.
    """

    run: Run
    rows: slice = field(default_factory=lambda: slice(None))
    length: int | None = None
    gates: Gates | None = None

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return self.run.weights.config.n_layers

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the stream, from the bottom up."""
        return stream_sources(self.run.weights, linear=self.gates is not None)

    @property
    def parallel(self) -> bool:
        """Whether MLPs read the same stream as the heads of their layer."""
        return self.run.weights.config.block == "parallel"

    def reads_below(self, step: PathStep) -> int:
        """The level below which a step reads (`level_of`)."""
        return 2 * step.layer if isinstance(step, HeadId) or self.parallel else 2 * step.layer + 1

    def orders(self, layers: int) -> int:
        """The number of orders that paths through this many layers have."""
        return layers * (1 if self.gates is None or self.parallel else 2) + 1

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
        elif source.kind == "mlp_bias":
            assert self.gates is not None
            stream = self.gates.bias(source.layer)
        else:
            stream = bias_stream(run, source.layer)
        return stream[self.rows, : self.length]

    def source_sum(self, *levels: int) -> Stream | None:
        """The sum of the sources written at some levels (`level_of`), if there are any."""
        streams = [self.source(source) for source in self.sources if level_of(source) in levels]
        return sum(streams[1:], start=streams[0]) if streams else None

    @property
    def start(self) -> Stream:
        """The stream before the first layer, from the embeddings."""
        embeddings = self.source_sum(-1)
        assert embeddings is not None
        return embeddings

    def layer(self, layer: int, head: int | None = None) -> FrozenLayer:
        """The heads of a layer, or one of them as a separate layer.

        Built at each call, so that a deep model need not fit into memory at once.
        """
        weights, run = self.run.weights, self.run
        raw = weights.layers[layer]
        q = kv = slice(None)
        if head is not None:
            shared = kv_head(weights.config, head)
            q, kv = slice(head, head + 1), slice(shared, shared + 1)

        def attention() -> Pattern:
            pattern = run.patterns[layer][self.rows, q, : self.length, : self.length]
            if weights.config.norm_place != "before":
                # A norm after the heads multiplies their output at each destination.
                pattern = pattern * run.scales.write[layer][self.rows, None, : self.length, None]
            return pattern

        return FrozenLayer(
            attention=attention,
            scale=run.scales.attention[layer][self.rows, : self.length],
            W_V=fold_read(weights.config.norm, raw.W_V[kv], raw.ln1_w),
            W_O=raw.W_O[q],
        )

    def head(self, head: HeadId) -> FrozenLayer:
        """One head as a separate layer."""
        return self.layer(head.layer, head.head)

    def mlp(self, layer: int) -> FrozenMlp | None:
        """The MLP of a layer as a linear map, or None if MLP outputs are sources."""
        if self.gates is None:
            return None
        config, raw = self.run.weights.config, self.run.weights.layers[layer]
        assert raw.W_in is not None
        assert raw.W_out is not None
        return FrozenMlp(
            gate=self.gates.gate(layer)[self.rows, : self.length],
            W_in=fold_read(config.norm, raw.W_in, raw.ln2_w),
            W_out=raw.W_out if raw.post2_w is None else raw.W_out * raw.post2_w,
        )

    def step(self, step: PathStep) -> FrozenLayer | FrozenMlp:
        """A head, as a separate layer, or an MLP."""
        if isinstance(step, HeadId):
            return self.head(step)
        mlp = self.mlp(step.layer)
        assert mlp is not None
        return mlp

    def through(self, steps: Sequence[PathStep], stream: Stream) -> Stream:
        """A stream carried through a chain of steps, bottom to top."""
        streams = stream[None]
        for step in steps:
            streams = self.step(step).apply(streams)
        return streams[0]

    def through_adjoint(self, steps: Sequence[PathStep], gradient: Stream) -> Stream:
        """The gradient below a chain of steps, bottom to top, from the gradient above it."""
        gradients = gradient[None]
        for step in reversed(steps):
            gradients = self.step(step).adjoint(gradients)
        return gradients[0]

    def along(self, path: Path) -> Stream:
        """A path's source carried through its steps."""
        return self.through(path.steps, self.source(path.source))

    @property
    def final_scale(self) -> Scale:
        """The scale of the final read."""
        return self.run.scales.final[self.rows, : self.length]


def stream_sources(weights: Weights, linear: bool = False) -> tuple[Source, ...]:
    """The sources that heads and logits read from the stream, from the bottom up.

    With `linear` MLPs, only their biases are sources.
    """
    config = weights.config
    sources = [Source("embed")]
    if config.positions == "residual":
        sources.append(Source("pos"))
    for layer in range(config.n_layers):
        if _has_any(weights, f"layers.{layer}.", ("b_V", "b_O", "ln1_b")):
            sources.append(Source("bias", layer))
        if config.mlp == "none":
            continue
        if not linear:
            sources.append(Source("mlp", layer))
        elif config.mlp == "clamped_gated" or _has_any(weights, f"layers.{layer}.", MLP_BIASES):
            sources.append(Source("mlp_bias", layer))
    return tuple(sources)


def all_sources(weights: Weights, linear: bool = False) -> tuple[Source, ...]:
    """`stream_sources`, followed by `bias_U` if the logits have a bias."""
    has_bias = _has_any(weights, "", ("b_U", "ln_f_b"))
    return stream_sources(weights, linear) + (Source("unembed_bias"),) * has_bias


def bias_stream(run: Run, layer: int) -> Stream:
    """The output of a layer's attention biases.

    It is the same at every position, unless sinks take a share of a row or a norm follows.
    """
    weights = run.weights
    if weights.config.sinks:
        raw = weights.layers[layer]
        per_head = torch.einsum("hk,hkd->hd", value_bias(raw), raw.W_O)
        output = torch.einsum("bhp,hd->bpd", run.patterns[layer].sum(-1), per_head)
        output = output if raw.b_O is None else output + raw.b_O
    else:
        output = attention_bias(weights, layer).expand(*run.tokens.shape, -1)
    if weights.config.norm_place == "before":
        return output
    return output * run.scales.write[layer][..., None]


def relative_error(value: Tensor, truth: Tensor, scale: Tensor | None = None) -> float:
    """max|value − truth| / max|scale|, or max|value − truth| if `scale` (the truth) is all zero."""
    error = float((value - truth).abs().max())
    size = float((truth if scale is None else scale).abs().max())
    return error / size if size else error


def _has_any(weights: Weights, prefix: str, names: tuple[str, ...]) -> bool:
    return any(f"{prefix}{name}" in weights.store.shapes for name in names)
