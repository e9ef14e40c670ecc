"""All totals toward a target, from sweeps up and down.

Where streams and gradients of the target meet, their inner product is the sum over all paths that
pass there. Orders are kept apart as the coefficients of a polynomial (see `sweep.py`). Carrying
L coefficients through L layers would cost L/2 sweeps, so the sweep up carries them through the
lower half only, the sweep down through the upper half, and the two polynomials are multiplied where
they meet. Edges need no orders, and have sweeps of their own (`edge_flows`), because the product of
all writers with all reads costs as much as a trace and is often not asked for.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.shapes import PerHead, Stream
from pathsum.paths.frozen import AdjointStep, DownSweep, Frozen, Streams, UpSweep, all_sources
from pathsum.paths.target import Target

# Numbers held at once while edges are summed over positions: 64 MB in float32.
EDGE_NUMBERS = 16_000_000
# Layers whose reads are multiplied with what was written below them in one product.
_LAYERS_TOGETHER = 6


@dataclass(frozen=True, eq=False)
class Flows:
    """The totals toward the target in each sequence, before averaging.

    Writers of `last` are sources, then heads: what each wrote straight into the target.
    """

    order: Float[Tensor, "batch order"]
    source: Float[Tensor, "batch source pos"]
    head: Float[Tensor, "batch heads"]
    last: Float[Tensor, "batch writer"]


def flows(frozen: Frozen, target: Target) -> Flows:
    """Totals without edges. Positions after the last target must be cut off already."""
    top = gradient_at_top(frozen, target)
    up = _sweep_up(frozen)
    order, source, head = _sweep_down(frozen, top, up)
    found = Flows(order, source, head, _last(frozen, top, target.positions, up.z))
    bias = _logit_bias(frozen, target)
    return found if bias is None else _with_bias(found, target, bias)


def edge_flows(
    frozen: Frozen, target: Target, edge_numbers: int = EDGE_NUMBERS
) -> Float[Tensor, "batch writer reader"]:
    """The total of every edge toward the target, in each sequence.

    Rows write (sources, then heads), columns read (heads, then the logits). An entry is the sum
    over all paths that use this edge, so everything that enters a head leaves it again.
    """
    top = gradient_at_top(frozen, target)
    z = tuple(step.z[0] for step in UpSweep(frozen))
    at_values = tuple(step.at_values[0] for step in DownSweep(frozen, top).to(0))[::-1]
    edge = _edges(frozen, top, target.positions, z, at_values, edge_numbers)
    bias = _logit_bias(frozen, target)
    if bias is None:
        return edge
    n_sources = len(frozen.sources)
    to_logits = torch.zeros_like(edge[:, :1])
    to_logits[:, 0, -1] = bias
    return torch.cat([edge[:, :n_sources], to_logits, edge[:, n_sources:]], 1)


def _logit_bias(frozen: Frozen, target: Target) -> Float[Tensor, " batch"] | None:
    """What the logits' own bias gives, if they have one."""
    weights = frozen.run.weights
    has_one = len(all_sources(weights)) > len(frozen.sources)
    return target.direction(weights)[1] if has_one else None


def gradient_at_top(frozen: Frozen, target: Target) -> Stream:
    """The target's gradient at the final stream: zero except at each sequence's position."""
    direction, _ = target.direction(frozen.run.weights)
    top = torch.zeros_like(frozen.start)
    rows = torch.arange(len(top), device=top.device)
    scale = frozen.final_scale[rows, target.positions]
    top[rows, target.positions] = direction * scale[:, None]
    return top


def _with_bias(found: Flows, target: Target, bias: Float[Tensor, " batch"]) -> Flows:
    """The logits' own bias as one more source: order 0, where the prediction is made."""
    rows = torch.arange(len(bias), device=bias.device)
    at_position = torch.zeros_like(found.source[:, :1])
    at_position[rows, 0, target.positions] = bias
    n_sources = found.source.shape[1]
    order = found.order.clone()
    order[:, 0] += bias
    return Flows(
        order=order,
        source=torch.cat([found.source, at_position], 1),
        head=found.head,
        last=torch.cat([found.last[:, :n_sources], bias[:, None], found.last[:, n_sources:]], 1),
    )


@dataclass(frozen=True, eq=False)
class _Up:
    """`middle[n]`: what n heads made of the sources, halfway up. `z[l]`: that of layer l."""

    middle: Streams
    z: tuple[PerHead, ...]


def _sweep_up(frozen: Frozen) -> _Up:
    half = frozen.n_layers // 2
    sweep = UpSweep(frozen, orders=half + 1)
    z = [step.z.sum(0) for step in sweep.to(half)]
    middle = sweep.streams
    sweep.merge()
    z += [step.z[0] for step in sweep]
    return _Up(middle, tuple(z))


def _sweep_down(frozen: Frozen, top: Stream, up: _Up) -> tuple[Tensor, Tensor, Tensor]:
    """`order`, `source` and `head` of `Flows`."""
    layers, half = frozen.n_layers, frozen.n_layers // 2
    batch, length, _ = top.shape
    order = top.new_zeros(batch, layers + 1)
    source = top.new_zeros(batch, len(frozen.sources), length)
    head: list[Tensor] = []
    sweep = DownSweep(frozen, top, orders=layers - half + 1)

    def meet(step: AdjointStep) -> None:
        _meet_sources(frozen, step.index, sweep.gradients, source)
        head.append((step.at_z.sum(0) * up.z[step.index]).sum((-2, -1)))

    for step in sweep.to(half):
        added = frozen.added_after(step.index)
        if added is not None:
            found = torch.einsum("bpd,nbpd->bn", added, sweep.gradients)
            order[:, : found.shape[1]] += found
        meet(step)
    order += _product(up.middle, sweep.gradients)
    sweep.merge()
    for step in sweep.to(0):
        meet(step)
    _meet_sources(frozen, -1, sweep.gradients, source)
    heads = torch.cat(head[::-1], 1) if head else top.new_zeros(batch, 0)
    return order, source, heads


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


def _last(
    frozen: Frozen, top: Stream, positions: Int[Tensor, " batch"], z: tuple[PerHead, ...]
) -> Float[Tensor, "batch writer"]:
    """What each source and each head wrote straight into the target, at its position."""
    rows = torch.arange(len(top), device=top.device)
    gradient = top[rows, positions]
    found = [(frozen.source(each)[rows, positions] * gradient).sum(-1) for each in frozen.sources]
    for index, each in enumerate(z):
        at_z = frozen.layer(index).write_adjoint(gradient[None, :, None])[0, :, :, 0]
        found += (each[rows, :, positions] * at_z).sum(-1).unbind(1)
    return torch.stack(found, 1)


def _edges(
    frozen: Frozen,
    top: Stream,
    positions: Int[Tensor, " batch"],
    z: tuple[PerHead, ...],
    at_values: tuple[PerHead, ...],
    edge_numbers: int,
) -> Float[Tensor, "batch writer reader"]:
    """Inner products of what each writer wrote with each reader's gradient, over positions.

    Writers and readers are laid out in the stream for some positions at a time, so that memory
    does not grow with the length of the text.
    """
    config = frozen.run.weights.config
    batch, length, d = top.shape
    n_sources, n_heads = len(frozen.sources), config.n_layers * config.n_heads
    places, written = _in_order_of_writing(frozen)
    edge = top.new_zeros(batch, n_sources + n_heads, n_heads + 1)
    step = max(1, min(length, edge_numbers // (batch * d * (n_sources + 2 * n_heads + 1))))
    written_space = top.new_empty(batch * len(places) * step * d)
    read_space = top.new_empty(batch * n_heads * step * d)
    for begin in range(0, length, step):
        part = slice(begin, min(begin + step, length))
        count = part.stop - begin
        writers = written_space[: batch * len(places) * count * d].view(batch, -1, count, d)
        readers = read_space[: batch * n_heads * count * d].view(batch, n_heads, count, d)
        _lay_out(frozen, z, at_values, part, writers, readers)
        # Several layers at a time make a matrix product out of thin ones.
        for low in range(0, config.n_layers, _LAYERS_TOGETHER):
            high = min(low + _LAYERS_TOGETHER, config.n_layers)
            columns = slice(low * config.n_heads, high * config.n_heads)
            before = written[high - 1]
            products = writers[:, :before].flatten(2) @ readers[:, columns].flatten(2).mT
            edge[:, :before, columns] += products
        for row, position in enumerate(positions.tolist()):
            # The logits read one position of each sequence.
            if part.start <= position < part.stop:
                edge[row, :, -1] = writers[row, :, position - begin] @ top[row, position]
    for index, before in enumerate(written):
        # What a layer writes or what is written later, it does not read.
        edge[:, before:, index * config.n_heads : (index + 1) * config.n_heads] = 0
    return torch.empty_like(edge).index_copy_(1, torch.tensor(places, device=edge.device), edge)


def _in_order_of_writing(frozen: Frozen) -> tuple[list[int], list[int]]:
    """Rows of `Flows.edge` in the order in which they are written, and how many each layer reads.

    In this order what a layer can read is a prefix.
    """
    heads, n_sources = frozen.run.weights.config.n_heads, len(frozen.sources)
    places: list[int] = []
    written: list[int] = []
    for index in range(-1, frozen.n_layers):
        if index >= 0:
            written.append(len(places))
            places += range(n_sources + index * heads, n_sources + (index + 1) * heads)
        places += [at for at, source in enumerate(frozen.sources) if source.layer == index]
    return places, written


def _lay_out(
    frozen: Frozen,
    z: tuple[PerHead, ...],
    at_values: tuple[PerHead, ...],
    part: slice,
    writers: Float[Tensor, "batch writer some d"],
    readers: Float[Tensor, "batch heads some d"],
) -> None:
    """The output of every writer and the gradient of every read at some positions."""
    heads, place = frozen.run.weights.config.n_heads, 0
    for index in range(-1, frozen.n_layers):
        if index >= 0:
            layer = frozen.layer(index)
            reads = at_values[index][:, :, part] * layer.scale[:, None, part, None]
            here = slice(index * heads, (index + 1) * heads)
            W_V = layer.per_head(layer.W_V).mT
            # One sequence at a time, straight into place: a copy would take as long as a product.
            for row, (written, read) in enumerate(zip(z[index][:, :, part], reads, strict=True)):
                torch.bmm(read, W_V, out=readers[row, here])
                torch.bmm(written, layer.W_O, out=writers[row, place : place + heads])
            place += heads
        for source in frozen.sources:
            if source.layer == index:
                writers[:, place] = frozen.source(source)[:, part]
                place += 1
