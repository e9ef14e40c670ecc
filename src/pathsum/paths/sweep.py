"""All totals toward a target, from one sweep up and one down.

A sweep up carries streams, a sweep down carries gradients of the target. Where they meet, an inner
product is the sum over all paths that pass there. Paths of each order are kept apart as the
coefficients of a polynomial: a layer is `1 + z M`, and the product of all layers at z^n is the sum
over paths through n heads. Carrying L coefficients through L layers would cost L/2 sweeps, so the
sweep up carries them through the lower half only, the sweep down through the upper half, and the
two polynomials are multiplied where they meet.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.paths.explain.target import Target
from pathsum.paths.frozen import Frozen, Streams
from pathsum.paths.stream_sources import all_sources
from pathsum.shapes import PerHead, Stream

# Numbers held at once while edges are summed over positions: 32 MB in float32.
EDGE_NUMBERS = 8_000_000


@dataclass(frozen=True, eq=False)
class Flows:
    """What flows to the target in each sequence, before any averaging.

    Rows of `edge` write (sources, then heads), columns read (heads, then the logits). An entry is
    the sum over all paths that use this edge, so all that enters a head leaves it again.
    """

    order: Float[Tensor, "batch order"]
    source: Float[Tensor, "batch source pos"]
    head: Float[Tensor, "batch heads"]
    edge: Float[Tensor, "batch writer reader"]


def flows(frozen: Frozen, target: Target) -> Flows:
    """Every total toward the target. Positions after the last target must be cut off already."""
    weights = frozen.trace.model.weights
    direction, bias = target.direction(weights)
    top = torch.zeros_like(frozen.start)
    rows = torch.arange(len(target.tokens), device=top.device)
    scale = frozen.final_scale[rows, target.positions]
    top[rows, target.positions] = direction * scale[:, None]
    up = _sweep_up(frozen)
    down = _sweep_down(frozen, top, up)
    edge = _edges(frozen, top, target.positions, up.mixed, down.pulled)
    found = Flows(down.order, down.source, down.head, edge)
    if len(all_sources(weights)) == len(frozen.sources):
        return found
    return _with_bias(found, target, bias)


def _with_bias(found: Flows, target: Target, bias: Float[Tensor, " batch"]) -> Flows:
    """The logits' own bias as one source more: order 0, where the prediction is made."""
    rows = torch.arange(len(bias), device=bias.device)
    there = torch.zeros_like(found.source[:, :1])
    there[rows, 0, target.positions] = bias
    straight = torch.zeros_like(found.edge[:, :1])
    straight[:, 0, -1] = bias
    n_sources = found.source.shape[1]
    order = found.order.clone()
    order[:, 0] += bias
    return Flows(
        order=order,
        source=torch.cat([found.source, there], 1),
        head=found.head,
        edge=torch.cat([found.edge[:, :n_sources], straight, found.edge[:, n_sources:]], 1),
    )


@dataclass(frozen=True, eq=False)
class _Up:
    """`middle[n]`: what n heads made of the sources, halfway up. `mixed[l]`: values, moved."""

    middle: Streams
    mixed: tuple[PerHead, ...]


@dataclass(frozen=True, eq=False)
class _Down:
    """`pulled[l]`: the target's gradient at the values of layer l's heads, before they move."""

    order: Float[Tensor, "batch order"]
    source: Float[Tensor, "batch source pos"]
    head: Float[Tensor, "batch heads"]
    pulled: tuple[PerHead, ...]


def _sweep_up(frozen: Frozen) -> _Up:
    half = frozen.n_layers // 2
    start = frozen.start
    by_order = start.new_zeros(half + 1, *start.shape)
    by_order[0] = start
    streams = by_order[:1]
    mixed: list[PerHead] = []
    for index in range(frozen.n_layers):
        if index == half:
            streams = by_order.sum(0, keepdim=True)
        layer = frozen.layer(index)
        moved = layer.mixed(streams)
        mixed.append(moved.sum(0))
        written = layer.written(moved)
        if index < half:
            streams = _one_more(by_order, written)
        else:
            streams += written
        added = frozen.added_after(index)
        if added is not None:
            streams[0] += added
    return _Up(by_order, tuple(mixed))


def _sweep_down(frozen: Frozen, top: Stream, up: _Up) -> _Down:
    layers, half = frozen.n_layers, frozen.n_layers // 2
    batch, length, _ = top.shape
    by_order = top.new_zeros(layers - half + 1, *top.shape)
    by_order[0] = top
    gradients = by_order[:1]
    order = top.new_zeros(batch, layers + 1)
    source = top.new_zeros(batch, len(frozen.sources), length)
    head: list[Tensor] = []
    pulled: list[PerHead] = []
    for index in reversed(range(layers)):
        layer = frozen.layer(index)
        _meet_sources(frozen, index, gradients, source)
        added = frozen.added_after(index)
        if index >= half and added is not None:
            order[:, : len(gradients)] += torch.einsum("bpd,nbpd->bn", added, gradients)
        at_mixed = layer.write_adjoint(gradients)
        head.append((at_mixed.sum(0) * up.mixed[index]).sum((-2, -1)))
        at_values = layer.mix_adjoint(at_mixed)
        pulled.append(at_values.sum(0))
        below = layer.read_adjoint(at_values)
        if index >= half:
            gradients = _one_more(by_order, below)
        else:
            gradients += below
        if index == half:
            gradients = by_order.sum(0, keepdim=True)
    order += _product(up.middle, by_order)
    _meet_sources(frozen, -1, gradients, source)
    heads = torch.cat(head[::-1], 1) if head else top.new_zeros(batch, 0)
    return _Down(order, source, heads, tuple(pulled[::-1]))


def _one_more(
    by_order: Float[Tensor, "orders batch pos d"],
    through_a_head: Float[Tensor, "carried batch pos d"],
) -> Float[Tensor, "reached batch pos d"]:
    """(1 + z M) applied in place: what goes through a head of this layer has one order more."""
    orders = len(through_a_head)
    by_order[1 : orders + 1] += through_a_head
    return by_order[: orders + 1]


def _product(
    streams: Float[Tensor, "lower batch pos d"], gradients: Float[Tensor, "upper batch pos d"]
) -> Float[Tensor, "batch order"]:
    """The product of two polynomials whose coefficients meet by an inner product."""
    pairs = torch.einsum("mbpd,nbpd->bmn", streams, gradients)
    order = pairs.new_zeros(pairs.shape[0], pairs.shape[1] + pairs.shape[2] - 1)
    for lower in range(pairs.shape[1]):
        order[:, lower : lower + pairs.shape[2]] += pairs[:, lower]
    return order


def _meet_sources(frozen: Frozen, layer: int, gradients: Streams, source: Tensor) -> None:
    """Fill in what the sources of a layer give, position by position."""
    together = gradients.sum(0)
    for place, found in enumerate(frozen.sources):
        if found.layer == layer:
            source[:, place] = (frozen.source(found) * together).sum(-1)


def _edges(
    frozen: Frozen,
    top: Stream,
    positions: Int[Tensor, " batch"],
    mixed: tuple[PerHead, ...],
    pulled: tuple[PerHead, ...],
) -> Float[Tensor, "batch writer reader"]:
    """Inner products of what each writer wrote with what each reader pulls, over positions.

    Writers and readers are laid out in the stream for some positions at a time, so that memory
    does not grow with the length of the text.
    """
    config = frozen.trace.model.config
    batch, length, d = top.shape
    n_sources, n_heads = len(frozen.sources), config.n_layers * config.n_heads
    edge = top.new_zeros(batch, n_sources + n_heads, n_heads + 1)
    step = max(1, EDGE_NUMBERS // (batch * d * (n_sources + n_heads + config.n_heads)))
    streams = [frozen.source(source) for source in frozen.sources]
    space = top.new_empty(batch, n_sources + n_heads, min(step, length), d)
    for begin in range(0, length, step):
        part = slice(begin, min(begin + step, length))
        writers = space[:, :, : part.stop - begin]
        # In the order in which they are written, so that what a layer can read is a prefix.
        places: list[int] = []
        for index in range(-1, config.n_layers):
            if index >= 0:
                layer = frozen.layer(index)
                reads = pulled[index][:, :, part] * layer.scale[:, None, part, None]
                reads = (reads @ layer.each_V.mT).flatten(2)
                columns = slice(index * config.n_heads, (index + 1) * config.n_heads)
                edge[:, places, columns] += writers[:, : len(places)].flatten(2) @ reads.mT
                first = len(places)
                places += range(n_sources + columns.start, n_sources + columns.stop)
                writers[:, first : len(places)] = mixed[index][:, :, part] @ layer.W_O
            for place, source in enumerate(frozen.sources):
                if source.layer == index:
                    writers[:, len(places)] = streams[place][:, part]
                    places.append(place)
        for row, position in enumerate(positions.tolist()):
            # The logits read one position of each sequence.
            if part.start <= position < part.stop:
                edge[row, places, -1] = writers[row, :, position - begin] @ top[row, position]
    return edge
