"""Sweeps over a frozen run: streams carried up from the sources, gradients down, by order.

The order of a stream (or gradient) is the number of heads and MLPs that it came through. With M
the heads of a layer, the layer is `1 + z M`, and the coefficient of z^n in the product of all
layers is the sum over paths through n heads. MLPs with held gates are one more step: a layer is
`(1 + z Mlp)(1 + z Heads)`, or `1 + z (Heads + Mlp)` in a parallel block. A sweep keeps the first
few coefficients separate, and the last one also collects all higher orders:

    orders = 1             the whole stream
    orders = 2             sources, and everything that came through heads
    orders = n_layers + 1  every order separately

Sweeps compute from sources, weights, patterns and scales, never from recorded streams. They yield
the heads' values and outputs (`Step`) or the gradients there (`AdjointStep`) layer by layer, so
that a caller keeps only the tensors it needs.

`truncate` computes the streams of all paths of order ≤ n, for every n, in one pass. The paper runs
the model n + 2 times: once to save the patterns, then with patterns forced, each time adding to the
stream the head outputs saved in the previous run. With Xₙ[l] the stream before layer l of paths of
order ≤ n,

    X₀[l+1] = X₀[l] + leaves of l          Xₙ[l+1] = Xₙ[l] + heads_l(Xₙ₋₁[l]) + leaves of l

where heads_l is the frozen layer, and the leaves (outputs of biases and MLPs) are of order 0. No
path reaches layer l through more than l heads, so for n ≥ l Xₙ[l] is the recorded stream of the
run, and layer l only reads X₀ … X_{l−1}. These are running sums of the streams of an `UpSweep`.
Sums are needed because normalization scales and MLP outputs can be recomputed from them. With MLPs
as terms (`MlpOutputs.LINEAR`) nothing is recomputed, and the sweep itself is used.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from pathsum.base.path import Step as PathStep
from pathsum.base.shapes import Stream, Tokens
from pathsum.model import HeadId, Run, Source, transformer
from pathsum.model.losses import PredictionMetric, SequenceLosses, read_losses
from pathsum.paths.frozen import (
    Frozen,
    FrozenLayer,
    FrozenMlp,
    Gates,
    PerHeads,
    Streams,
    Values,
    bias_stream,
)


@runtime_checkable
class LinearLayers(Protocol):
    """Layers that a sweep passes: a `Frozen` run, or `lens.HeldPositions`."""

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether MLPs read the same stream as the heads of their layer."""
        ...

    def layer(self, layer: int) -> FrozenLayer:
        """The heads of a layer."""
        ...

    def mlp(self, layer: int) -> FrozenMlp | None:
        """The MLP of a layer, or None if it is not linear."""
        ...

    def source_sum(self, *levels: int) -> Stream | None:
        """The sum of the sources written at some levels."""
        ...


@dataclass(frozen=True, eq=False)
class Step:
    """The heads of one layer in an upward sweep: their values and z, by order.

    Streams that end in the same order are added before they are read, so there may be one fewer
    here than the sweep carries. They sum to the whole stream.
    """

    index: int
    layer: FrozenLayer
    values: Values
    z: PerHeads


@dataclass(frozen=True, eq=False)
class AdjointStep:
    """The heads of one layer in a downward sweep: gradients at z and at their values, by order."""

    index: int
    layer: FrozenLayer
    at_z: PerHeads
    at_values: PerHeads


@dataclass(frozen=True, eq=False)
class MlpStep:
    """The MLP of one layer in an upward sweep, and its output, by order."""

    index: int
    output: Streams


@dataclass(frozen=True, eq=False)
class MlpAdjointStep:
    """The MLP of one layer in a downward sweep: gradients at its input stream, by order."""

    index: int
    at_read: Streams


class UpSweep:
    """Streams on their way up, by order; iterating yields one `Step` per layer.

    A sweep starts with the embeddings of a frozen run or with the given `stream` before a layer.
    """

    def __init__(
        self, layers: LinearLayers, stream: Stream, orders: int = 1, index: int = 0
    ) -> None:
        self.layers, self.index = layers, index
        self._orders = Orders(stream, orders)

    @classmethod
    def of(cls, frozen: Frozen, orders: int = 1) -> "UpSweep":
        """A sweep from the embeddings."""
        return cls(frozen, frozen.start, orders)

    @property
    def streams(self) -> Streams:
        """The streams before layer `index`, one per order reached; the next step changes them."""
        return self._orders.reached

    def to(self, layer: int) -> Iterator[Step]:
        """Move up to a layer."""
        return (step for step in self.steps_to(layer) if isinstance(step, Step))

    def steps_to(self, layer: int) -> Iterator[Step | MlpStep]:
        """Move up to a layer; MLPs with held gates are steps too."""
        while self.index < layer:
            index = self.index
            heads, mlp = self.layers.layer(index), self.layers.mlp(index)
            streams = self._orders.sent()
            values = heads.read(streams)
            z = heads.mix(values)
            yield Step(index, heads, values, z)
            output = heads.write(z)
            if mlp is not None and self.layers.parallel:
                mlp_output = mlp.apply(streams)
                yield MlpStep(index, mlp_output)
                output = output + mlp_output
            self._orders.raise_order(output)
            self._add_sources(2 * index)
            if mlp is not None and not self.layers.parallel:
                mlp_output = mlp.apply(self._orders.sent())
                yield MlpStep(index, mlp_output)
                self._orders.raise_order(mlp_output)
            self._add_sources(2 * index + 1)
            self.index += 1

    def advance(self, layer: int) -> Streams:
        """Move up to a layer, and return the streams before it."""
        for _ in self.steps_to(layer):
            pass
        return self.streams

    def _add_sources(self, level: int) -> None:
        added = self.layers.source_sum(level)
        if added is not None:
            self.streams[0] += added

    def __iter__(self) -> Iterator[Step]:
        return self.to(self.layers.n_layers)


class DownSweep:
    """Gradients on their way down from the final stream, by order."""

    def __init__(self, frozen: Frozen, top: Stream, orders: int = 1) -> None:
        self.frozen = frozen
        self.index = frozen.n_layers
        self._orders = Orders(top, orders)

    @property
    def gradients(self) -> Streams:
        """Gradients at the stream before layer `index`; the next step changes them."""
        return self._orders.reached

    def steps_to(self, layer: int) -> Iterator[AdjointStep | MlpAdjointStep]:
        """Move down to the stream before a layer; MLPs with held gates are steps too.

        In a serial block, the gradients at a layer's `AdjointStep` are those below its MLP.
        """
        while self.index > layer:
            index = self.index - 1
            heads, mlp = self.frozen.layer(index), self.frozen.mlp(index)
            at_mlp = None
            if mlp is not None:
                at_mlp = mlp.adjoint(self._orders.sent())
                yield MlpAdjointStep(index, at_mlp)
                if not self.frozen.parallel:
                    self._orders.raise_order(at_mlp)
                    at_mlp = None
            at_z = heads.write_adjoint(self._orders.sent())
            at_values = heads.mix_adjoint(at_z)
            yield AdjointStep(index, heads, at_z, at_values)
            at_read = heads.read_adjoint(at_values)
            self._orders.raise_order(at_read if at_mlp is None else at_read + at_mlp)
            self.index -= 1


class Orders:
    """Streams by order, in one tensor that is updated in place."""

    def __init__(self, start: Stream, orders: int) -> None:
        self._all = start.new_zeros(orders, *start.shape)
        self._all[0] = start
        self._count = 1

    @property
    def reached(self) -> Streams:
        """The streams of the orders up to the highest one reached."""
        return self._all[: self._count]

    def sent(self) -> Streams:
        """The streams that the next layer reads, one per order of its output."""
        if self._count < len(self._all) or self._count == 1:
            return self.reached
        # The last two orders end in the last one, so the heads read their sum.
        return torch.cat([self._all[:-2], self._all[-2:].sum(0, keepdim=True)])

    def raise_order(self, output: Streams) -> None:
        """Apply (1 + z M): a pass through a head or an MLP raises the order by one."""
        if len(self._all) == 1:
            self._all += output
            return
        count = len(output)
        self._all[1 : count + 1] += output
        self._count = count + 1


def split_at(frozen: Frozen, layer: int) -> Streams:
    """The stream before a layer as two: sources, and everything that came through heads."""
    streams = UpSweep.of(frozen, orders=2).advance(layer)
    return streams if len(streams) == 2 else torch.cat([streams, torch.zeros_like(streams)])


def final_stream(frozen: Frozen) -> Stream:
    """The stream that the unembedding reads, as the sum over all paths."""
    return UpSweep.of(frozen).advance(frozen.n_layers)[0]


class Scales(enum.StrEnum):
    """The normalization scale that a truncated stream is multiplied by.

    `FROZEN`      the scale of the run's stream: the logits stay an exact sum over paths
    `RECOMPUTED`  the scale of the truncated stream, as in the paper's reruns: not a path sum
    """

    FROZEN = "frozen"
    RECOMPUTED = "recomputed"


class MlpOutputs(enum.StrEnum):
    """The MLP outputs in a truncated stream.

    `FROZEN`      those of the run, as leaves of order 0; they depend on the outputs of heads
    `RECOMPUTED`  those of MLPs that read the truncated stream: not a path sum
    `LINEAR`      those of MLPs with held gates: terms like heads, each one order higher
    """

    FROZEN = "frozen"
    RECOMPUTED = "recomputed"
    LINEAR = "linear"


@dataclass(frozen=True, eq=False)
class Truncated:
    """The streams of one run truncated by order.

    `free[2l]` is X₀[l], by the level (`level_of`) below which it was written; `last[n]` is Xₙ at
    the top, n = 0 … n_layers, or more with MLPs as terms.
    """

    frozen: Frozen
    scale: Scales
    free: Mapping[int, Stream]
    last: tuple[Stream, ...]

    def read(self, stream: Stream) -> Stream:
        """A truncated stream, normalized for the unembedding."""
        weights, config = self.frozen.run.weights, self.frozen.run.weights.config
        scale = self.frozen.final_scale if self.scale is Scales.FROZEN else None
        return transformer.normalize(config, stream, weights.ln_f_w, weights.ln_f_b, scale)[0]

    def losses(
        self, stream: Stream, first: int, targets: Tokens, metric: PredictionMetric
    ) -> SequenceLosses:
        """Losses of the logits of a truncated stream, from position `first` on."""
        weights = self.frozen.run.weights
        losses = read_losses(weights, self.read(stream), targets, first, metric)
        transformer.check_overflow(losses.total)
        return losses

    def term(self, steps: Sequence[PathStep]) -> Stream:
        """The output of a chain of steps, bottom to top, on X₀."""
        streams = self.free[self.frozen.reads_below(steps[0])][None]
        for step in steps:
            linear = self.frozen.step(step)
            if isinstance(linear, FrozenLayer):
                linear = _rescaled(self.frozen, linear, streams, self.scale)
            streams = linear.apply(streams)
        return streams[0]


@torch.no_grad()
def truncate(
    run: Run, scale: Scales = Scales.FROZEN, mlps: MlpOutputs = MlpOutputs.FROZEN
) -> Truncated:
    """All truncated streams of a run."""
    if mlps is MlpOutputs.LINEAR and run.weights.config.mlp != "none":
        return _truncate_linear(run, scale)
    frozen, config = Frozen(run), run.weights.config
    recompute_mlps = config.mlp != "none" and mlps is MlpOutputs.RECOMPUTED
    streams: list[Stream] = []
    free = [frozen.start]
    for index, weights in enumerate(run.weights.layers):
        # Orders 0 … index, the last of which is the recorded stream. One at a time, from the
        # highest down: a stream stays in the processor's cache and is read before it changes.
        streams.append(run.streams[index].clone())
        parallel = recompute_mlps and config.block == "parallel"
        before = [stream.clone() for stream in streams] if parallel else streams
        layer = frozen.layer(index)
        for order in range(index, 0, -1):
            lower = streams[order - 1][None]
            streams[order] += _rescaled(frozen, layer, lower, scale).apply(lower)[0]
        levels = 2 * index, 2 * index + 1
        leaves = bias_stream(run, index) if recompute_mlps else frozen.source_sum(*levels)
        for read, stream in zip(before, streams, strict=True):
            if leaves is not None:
                stream += leaves
            if recompute_mlps:
                stream += transformer.mlp(config, weights, read)[0]
        free.append(streams[0].clone())
    below = {2 * index: stream for index, stream in enumerate(free)}
    return Truncated(frozen, scale, below, (*streams, run.streams[-1]))


def _truncate_linear(run: Run, scale: Scales) -> Truncated:
    """Truncated streams with MLPs as separate steps."""
    frozen = Frozen(run, gates=Gates(run))
    sweep = UpSweep.of(frozen, orders=frozen.orders(frozen.n_layers))
    free: dict[int, Stream] = {}
    for step in sweep.steps_to(frozen.n_layers):
        mlp = isinstance(step, MlpStep)
        below = frozen.reads_below(Source("mlp", step.index) if mlp else HeadId(step.index, 0))
        free[below] = sweep.streams[0].clone()
    return Truncated(frozen, scale, free, tuple(sweep.streams.cumsum(0)))


def _rescaled(frozen: Frozen, layer: FrozenLayer, streams: Streams, scale: Scales) -> FrozenLayer:
    """The layer with the scale of the run or of the truncated streams."""
    config = frozen.run.weights.config
    if scale is Scales.FROZEN or config.norm == "none" or config.norm_place == "after":
        return layer
    return replace(layer, scale=transformer.normalize(config, streams[0], None, None)[1])
