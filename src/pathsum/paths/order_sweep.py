"""Sweeps over a frozen run: streams carried up from the sources, gradients down, by order.

Streams and gradients are kept apart by order: the number of heads (and MLPs) that they came
through. With M the heads of a layer, the layer is `1 + z M`, and the coefficient of z^n in the
product of all layers is the sum over paths through n heads. A sweep keeps as many coefficients as
its caller wants; the last one also collects all higher orders:

    orders = 1             the whole stream
    orders = 2             sources alone, and everything that came through heads
    orders = n_layers + 1  every order separately

MLPs with held gates are a step more: a layer is `(1 + z Mlp)(1 + z Heads)`, and `1 + z (Heads +
Mlp)` in a parallel block.

Everything is computed from sources, weights, patterns and scales, never from recorded streams. The
outputs of heads (`Step.z`), their inputs (`Step.values`) and the gradients there (`AdjointStep`)
are available layer by layer, so that a caller keeps only the tensors it needs.

Streams truncated by order, all in one pass.

The paper runs the model n + 2 times: once to save the patterns, then with patterns forced, each
time adding to the stream the head outputs saved in the run before. Run n + 2 holds all paths
through at most n heads. The same streams in one pass: with Xₙ[l] the stream before layer l of paths
of order ≤ n,

    X₀[l+1] = X₀[l] + leaves of l          Xₙ[l+1] = Xₙ[l] + heads_l(Xₙ₋₁[l]) + leaves of l

where heads_l is the frozen layer, and the leaves (what biases and MLPs write) are of order 0. No
path reaches layer l through more than l heads, so Xₙ[l] is the run's own stream for n ≥ l, which is
known: layer l has to read only X₀ … X_{l−1}.

These are running sums of the streams that `order_sweep.UpSweep` carries by order. Sums are needed
because normalization scales and MLP outputs can be recomputed from them, and the highest order of
each layer, the run's own stream, costs nothing. With MLPs as terms (`MlpOutputs.LINEAR`) nothing is
recomputed, and the sweep is used as it is.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pathsum.base.path import Step as PathStep
from pathsum.base.shapes import Stream, Tokens
from pathsum.model import HeadId, Run, Source, transformer
from pathsum.model.losses import (
    PredictionMetric,
    SequenceLosses,
    next_tokens,
    read_losses,
    target_losses,
)
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


@dataclass(frozen=True, eq=False)
class Step:
    """One layer of an upward sweep: the values that its heads read, and z, by order.

    Streams that end in the same order are added before they are read, so there may be one fewer
    here than the sweep carries; their sum is that of the whole stream.
    """

    index: int
    layer: FrozenLayer
    values: Values
    z: PerHeads


@dataclass(frozen=True, eq=False)
class AdjointStep:
    """One layer of a downward sweep: gradients at z and at the values of its heads, by order."""

    index: int
    layer: FrozenLayer
    at_z: PerHeads
    at_values: PerHeads


@dataclass(frozen=True, eq=False)
class MlpStep:
    """The MLP of one layer in an upward sweep, and its output, by order."""

    index: int
    mlp: FrozenMlp
    written: Streams


@dataclass(frozen=True, eq=False)
class MlpAdjointStep:
    """The MLP of one layer in a downward sweep: gradients at its input stream, by order."""

    index: int
    mlp: FrozenMlp
    at_read: Streams


class UpSweep:
    """Streams on their way up, by order; iterating yields one `Step` per layer."""

    def __init__(self, frozen: Frozen, orders: int = 1) -> None:
        self.frozen = frozen
        self.index = 0
        self._carried = Orders(frozen.start, orders)

    @property
    def streams(self) -> Streams:
        """The streams before layer `index`, one per order reached; the next step changes them."""
        return self._carried.reached

    def merge(self) -> None:
        """Continue with the sum of the streams over orders."""
        self._carried = Orders(self.streams.sum(0), 1)

    def to(self, layer: int) -> Iterator[Step]:
        """Move up to a layer."""
        return (step for step in self.steps_to(layer) if isinstance(step, Step))

    def steps_to(self, layer: int) -> Iterator[Step | MlpStep]:
        """Move up to a layer; MLPs with held gates are steps too."""
        while self.index < layer:
            index = self.index
            frozen_layer, mlp = self.frozen.layer(index), self.frozen.mlp(index)
            sent = self._carried.sent()
            values = frozen_layer.read(sent)
            z = frozen_layer.mix(values)
            yield Step(index, frozen_layer, values, z)
            written = frozen_layer.write(z)
            if mlp is not None and self.frozen.parallel:
                from_mlp = mlp.apply(sent)
                yield MlpStep(index, mlp, from_mlp)
                written = written + from_mlp
            self._carried.raise_order(written)
            self._add(2 * index)
            if mlp is not None and not self.frozen.parallel:
                from_mlp = mlp.apply(self._carried.sent())
                yield MlpStep(index, mlp, from_mlp)
                self._carried.raise_order(from_mlp)
            self._add(2 * index + 1)
            self.index += 1

    def _add(self, level: int) -> None:
        added = self.frozen.added_at(level)
        if added is not None:
            self.streams[0] += added

    def __iter__(self) -> Iterator[Step]:
        return self.to(self.frozen.n_layers)


class DownSweep:
    """Gradients on their way down from the final stream, by order; one `AdjointStep` per layer."""

    def __init__(self, frozen: Frozen, top: Stream, orders: int = 1) -> None:
        self.frozen = frozen
        self.index = frozen.n_layers
        self._carried = Orders(top, orders)

    @property
    def gradients(self) -> Streams:
        """Gradients at the stream before layer `index`; the next step changes them."""
        return self._carried.reached

    def merge(self) -> None:
        """Continue with the sum of the gradients over orders."""
        self._carried = Orders(self.gradients.sum(0), 1)

    def to(self, layer: int) -> Iterator[AdjointStep]:
        """Move down to the stream before a layer."""
        return (step for step in self.steps_to(layer) if isinstance(step, AdjointStep))

    def steps_to(self, layer: int) -> Iterator[AdjointStep | MlpAdjointStep]:
        """Move down to a layer; MLPs with held gates are steps too, each before its heads.

        In a serial block, the gradients at a layer's `AdjointStep` are those below its MLP.
        """
        while self.index > layer:
            index = self.index - 1
            frozen_layer, mlp = self.frozen.layer(index), self.frozen.mlp(index)
            at_read = None
            if mlp is not None:
                at_read = mlp.adjoint(self._carried.sent())
                yield MlpAdjointStep(index, mlp, at_read)
                if not self.frozen.parallel:
                    self._carried.raise_order(at_read)
                    at_read = None
            at_z = frozen_layer.write_adjoint(self._carried.sent())
            at_values = frozen_layer.mix_adjoint(at_z)
            yield AdjointStep(index, frozen_layer, at_z, at_values)
            below = frozen_layer.read_adjoint(at_values)
            self._carried.raise_order(below if at_read is None else below + at_read)
            self.index -= 1


class Orders:
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

    def raise_order(self, through: Streams) -> None:
        """Apply (1 + z M): a pass through a head or an MLP raises the order by one."""
        if len(self._all) == 1:
            self._all += through
            return
        count = len(through)
        self._all[1 : count + 1] += through
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


class Scales(enum.StrEnum):
    """The normalization scale that a truncated stream is multiplied by.

    `FROZEN`      the scale of the run's stream: the logits stay an exact sum over paths
    `RECOMPUTED`  the scale of the truncated stream, as in the paper's reruns: not a path sum
    """

    FROZEN = "frozen"
    RECOMPUTED = "recomputed"


class MlpOutputs(enum.StrEnum):
    """The MLP outputs that a truncated stream holds.

    `FROZEN`      the run's own, as leaves of order 0; they depend on the outputs of heads
    `RECOMPUTED`  the outputs of MLPs that read the truncated stream: not a path sum
    `LINEAR`      the outputs of MLPs with held gates: terms like heads, each one order higher
    """

    FROZEN = "frozen"
    RECOMPUTED = "recomputed"
    LINEAR = "linear"


@dataclass(frozen=True, eq=False)
class Truncated:
    """The streams of one run truncated by order.

    `free[2l]` is X₀[l], what no head has touched, by the level (`level_of`) below which it was
    written; `last[n]` is Xₙ at the top, n = 0 … n_layers, or more with MLPs as terms.
    """

    frozen: Frozen
    scale: Scales
    mlps: MlpOutputs
    free: Mapping[int, Stream]
    last: tuple[Stream, ...]

    def read(self, stream: Stream) -> Stream:
        """A truncated stream as the unembedding reads it."""
        weights, config = self.frozen.run.weights, self.frozen.run.weights.config
        scale = self.frozen.final_scale if self.scale is Scales.FROZEN else None
        return transformer.normalize(config, stream, weights.ln_f_w, weights.ln_f_b, scale)[0]

    def losses(
        self,
        stream: Stream,
        first: int = 0,
        targets: Tokens | None = None,
        metric: PredictionMetric = target_losses,
    ) -> SequenceLosses:
        """Losses of the logits of a truncated stream, from position `first` on."""
        run = self.frozen.run
        wanted = next_tokens(run.tokens) if targets is None else targets
        losses = read_losses(run.weights, self.read(stream), wanted, first, metric)
        transformer.refuse_overflow(losses.total)
        return losses

    def term(self, steps: Sequence[PathStep]) -> Stream:
        """The output of a chain of steps, bottom to top, on a stream without other heads."""
        streams = self.free[self.frozen.reads_below(steps[0])][None]
        for step in steps:
            linear = self.frozen.step(step)
            if isinstance(linear, FrozenLayer):
                linear = _scaled(self.frozen, linear, streams, self.scale)
            streams = linear.apply(streams)
        return streams[0]


@torch.no_grad()
def truncate(
    run: Run,
    scale: Scales = Scales.FROZEN,
    mlps: MlpOutputs = MlpOutputs.FROZEN,
) -> Truncated:
    """All truncated streams of a run."""
    if mlps is MlpOutputs.LINEAR and run.weights.config.mlp != "none":
        return _truncate_linear(run, scale)
    frozen, config = Frozen(run), run.weights.config
    recompute_mlps = config.mlp != "none" and mlps is MlpOutputs.RECOMPUTED
    streams: list[Stream] = []
    free = [frozen.start]
    for index, weights in enumerate(run.weights.layers):
        # Orders 0 … index, the last of which is the run's own stream. One at a time, from the
        # highest down: a stream stays in the processor's cache and is read before it changes.
        streams.append(run.streams[index].clone())
        parallel = recompute_mlps and config.block == "parallel"
        before = [stream.clone() for stream in streams] if parallel else streams
        layer = frozen.layer(index)
        for order in range(index, 0, -1):
            lower = streams[order - 1][None]
            streams[order] += _scaled(frozen, layer, lower, scale).apply(lower)[0]
        leaves = bias_stream(run, index) if recompute_mlps else frozen.added_after(index)
        for read, stream in zip(before, streams, strict=True):
            if leaves is not None:
                stream += leaves
            if recompute_mlps:
                stream += transformer.mlp(config, weights, read)[0]
        free.append(streams[0].clone())
    below = {2 * index: stream for index, stream in enumerate(free)}
    return Truncated(frozen, scale, mlps, below, (*streams, run.streams[-1]))


def _truncate_linear(run: Run, scale: Scales) -> Truncated:
    """Truncated streams with MLPs as separate steps."""
    frozen = Frozen(run, gates=Gates(run))
    sweep = UpSweep(frozen, orders=frozen.orders(frozen.n_layers))
    free: dict[int, Stream] = {}
    for step in sweep.steps_to(frozen.n_layers):
        mlp = isinstance(step, MlpStep)
        below = frozen.reads_below(Source("mlp", step.index) if mlp else HeadId(step.index, 0))
        free[below] = sweep.streams[0].clone()
    return Truncated(frozen, scale, MlpOutputs.LINEAR, free, tuple(sweep.streams.cumsum(0)))


def _scaled(frozen: Frozen, layer: FrozenLayer, streams: Streams, scale: Scales) -> FrozenLayer:
    """The layer as it reads truncated streams: with the run's own scale or with theirs."""
    config = frozen.run.weights.config
    if scale is Scales.FROZEN or config.norm == "none" or config.norm_place == "after":
        return layer
    return replace(layer, scale=transformer.normalize(config, streams[0], None, None)[1])
