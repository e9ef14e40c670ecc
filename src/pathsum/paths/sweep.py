"""The linear sweep over a frozen run: streams carried up from the sources, gradients carried down.

Streams are kept apart by order, the number of heads that they came through: with M the heads of a
layer, the layer is `1 + z M`, and the coefficient of z^n in the product of all layers is the sum
over paths through n heads. A sweep keeps as many coefficients as its caller wants; the last one
also collects all higher orders:

    orders = 1             the whole stream
    orders = 2             sources alone, and everything that came through heads
    orders = n_layers + 1  every order separately

Everything is computed from sources, weights, patterns and scales, never from recorded streams.
What each head wrote (`Step.z`), what each reads (`Step.values`) and the gradients there
(`AdjointStep`) are available layer by layer, so that nothing is kept that a caller does not need.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pathsum.base.shapes import Stream
from pathsum.paths.frozen import Frozen, FrozenLayer, PerHeads, Streams, Values


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
