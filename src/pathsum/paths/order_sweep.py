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

Everything is computed from sources, weights, patterns and scales, never from recorded streams.
What each head wrote (`Step.z`), what each reads (`Step.values`) and the gradients there
(`AdjointStep`) are available layer by layer, so that nothing is kept that a caller does not need.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pathsum.base.shapes import Stream
from pathsum.paths.frozen import Frozen, FrozenLayer, FrozenMlp, PerHeads, Streams, Values


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
