"""Projections of a frozen run: all totals toward a target, and every writer's direct contribution.

The inner product of a stream and the target's gradient there is the sum over all paths through that
stream. Orders are the coefficients of a polynomial (see `order_sweep`). Carrying L coefficients
through L layers would cost L/2 sweeps, so the sweep up carries them through the lower half only,
the sweep down through the upper half, and the two polynomials are multiplied in the middle. Orders
and edges have separate sweeps (`order_flows`, `edge_flows`), because they cost more than all other
totals and are often not needed.

`direct_shares` is the direct attribution: a writer (a source or a head) at a position, projected on
a gradient there. `FrozenRow` holds the outputs of one sequence, from which circuits are grown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.options import batched
from pathsum.base.path import level_of
from pathsum.base.shapes import PerHead, Stream
from pathsum.model import HeadId, Source, Trace
from pathsum.model.folding import Reads, layer_reads
from pathsum.paths.frozen import Frozen, FrozenLayer, Streams, all_sources
from pathsum.paths.order_sweep import AdjointStep, DownSweep, MlpAdjointStep, Step, UpSweep
from pathsum.paths.target import Target


class Flows(NamedTuple):
    """The totals toward the target in each sequence, before averaging.

    `last` has the direct contributions of sources, then heads, then MLPs whose gates are held.
    """

    source: Float[Tensor, "batch source pos"]
    head: Float[Tensor, "batch heads"]
    mlp: Float[Tensor, "batch mlps"]
    last: Float[Tensor, "batch writer"]


def flows(frozen: Frozen, target: Target) -> Flows:
    """Totals other than by order and edge. Truncate positions after the last target beforehand."""
    top = gradient_at_top(frozen, target)
    up = _sweep_up(frozen)
    source, head, mlp = _sweep_down(frozen, top, up)
    bias = _logit_bias(frozen, target)
    last = _last(frozen, top, target.positions, up, bias)
    if bias is not None:
        # One more source, at the position of the prediction.
        row = torch.zeros_like(source[:, :1])
        row[torch.arange(len(bias), device=bias.device), 0, target.positions] = bias
        source = torch.cat([source, row], 1)
    return Flows(source, head, mlp, last)


def order_flows(frozen: Frozen, target: Target) -> Float[Tensor, "batch order"]:
    """The total of every order toward the target, in each sequence."""
    layers, half = frozen.n_layers, frozen.n_layers // 2
    top = gradient_at_top(frozen, target)
    totals = top.new_zeros(len(top), frozen.orders(layers))
    down = DownSweep(frozen, top, orders=frozen.orders(layers - half))
    for step in down.steps_to(half):
        sources = frozen.source_sum(*_levels_met(frozen, step))
        if sources is not None:
            products = torch.einsum("bpd,nbpd->bn", sources, down.gradients)
            totals[:, : products.shape[1]] += products
    streams = UpSweep.of(frozen, orders=frozen.orders(half)).advance(half)
    products = _product(streams, down.gradients)
    totals[:, : products.shape[1]] += products
    bias = _logit_bias(frozen, target)
    if bias is not None:
        totals[:, 0] += bias
    return totals


def edge_flows(frozen: Frozen, target: Target) -> Float[Tensor, "batch writer reader"]:
    """The total of every edge toward the target, in each sequence.

    Rows are writers (sources, heads, MLPs), columns are readers (heads, MLPs, the logits). MLPs are
    included if their gates are held. An entry is the sum over all paths through this edge, so
    everything that enters a head or an MLP leaves it again.
    """
    top = gradient_at_top(frozen, target)
    up, at_values, at_mlps = _sweep_up(frozen), list[Tensor](), list[Tensor]()
    for step in DownSweep(frozen, top).steps_to(0):
        if isinstance(step, AdjointStep):
            at_values.append(step.at_values[0])
        else:
            at_mlps.append(step.at_read[0])
    bias = _logit_bias(frozen, target)
    to_logits = _last(frozen, top, target.positions, up, bias)
    to_steps = _edges(frozen, top, up, at_values[::-1], at_mlps[::-1])
    if bias is not None:
        n_sources = len(frozen.sources)
        row = torch.zeros_like(to_steps[:, :1])
        to_steps = torch.cat([to_steps[:, :n_sources], row, to_steps[:, n_sources:]], 1)
    return torch.cat([to_steps, to_logits[..., None]], 2)


def _logit_bias(frozen: Frozen, target: Target) -> Float[Tensor, " batch"] | None:
    """The contribution of the logits' bias, if there is one."""
    weights = frozen.run.weights
    has_bias = Source("unembed_bias") in all_sources(weights)
    return target.direction(weights)[1] if has_bias else None


def gradient_at_top(frozen: Frozen, target: Target) -> Stream:
    """The target's gradient at the final stream: zero except at each sequence's position."""
    direction, _ = target.direction(frozen.run.weights)
    top = torch.zeros_like(frozen.start)
    rows = torch.arange(len(top), device=top.device)
    scale = frozen.final_scale[rows, target.positions]
    top[rows, target.positions] = direction * scale[:, None]
    return top


@dataclass(frozen=True, eq=False)
class _Up:
    """The outputs of each layer's heads (before W_O) and MLP."""

    z: tuple[PerHead, ...]
    mlps: tuple[Stream, ...]


def _sweep_up(frozen: Frozen) -> _Up:
    z, mlps = list[Tensor](), list[Tensor]()
    for step in UpSweep.of(frozen).steps_to(frozen.n_layers):
        if isinstance(step, Step):
            z.append(step.z[0])
        else:
            mlps.append(step.output[0])
    return _Up(tuple(z), tuple(mlps))


def _levels_met(frozen: Frozen, step: AdjointStep | MlpAdjointStep) -> tuple[int, ...]:
    """The levels whose writers are projected on the gradients of a downward sweep at a step."""
    if isinstance(step, MlpAdjointStep):
        return (2 * step.index + 1,)
    return (2 * step.index,) if frozen.gates is not None else (2 * step.index, 2 * step.index + 1)


def _sweep_down(frozen: Frozen, top: Stream, up: _Up) -> tuple[Tensor, Tensor, Tensor]:
    """`source`, `head` and `mlp` of `Flows`."""
    batch, length, _ = top.shape
    source = top.new_zeros(batch, len(frozen.sources), length)
    heads, mlps = list[Tensor](), list[Tensor]()
    sweep = DownSweep(frozen, top)
    for step in sweep.steps_to(0):
        _project_sources(frozen, _levels_met(frozen, step), sweep.gradients, source)
        if isinstance(step, AdjointStep):
            heads.append((step.at_z[0] * up.z[step.index]).sum((-2, -1)))
        else:
            mlps.append((sweep.gradients[0] * up.mlps[step.index]).sum((-2, -1))[:, None])
    _project_sources(frozen, (-1,), sweep.gradients, source)
    empty = top.new_zeros(batch, 0)
    return source, torch.cat([empty, *heads[::-1]], 1), torch.cat([empty, *mlps[::-1]], 1)


def _product(
    streams: Float[Tensor, "lower batch pos d"], gradients: Float[Tensor, "upper batch pos d"]
) -> Float[Tensor, "batch order"]:
    """The product of two polynomials; coefficients are multiplied by an inner product."""
    pairs = torch.einsum("mbpd,nbpd->bmn", streams, gradients)
    totals = pairs.new_zeros(pairs.shape[0], pairs.shape[1] + pairs.shape[2] - 1)
    for order in range(pairs.shape[1]):
        totals[:, order : order + pairs.shape[2]] += pairs[:, order]
    return totals


def _project_sources(
    frozen: Frozen, levels: Sequence[int], gradients: Streams, rows: Tensor
) -> None:
    """Fill in the contributions of the sources of some levels, position by position."""
    for number, source in enumerate(frozen.sources):
        if level_of(source) in levels:
            rows[:, number] = (frozen.source(source) * gradients.sum(0)).sum(-1)


def _edges(
    frozen: Frozen,
    top: Stream,
    up: _Up,
    at_values: Sequence[PerHead],
    at_mlps: Sequence[Stream],
) -> Float[Tensor, "batch writer reader"]:
    """Inner products of every writer's output with every reader's gradient, over positions.

    Computed a few positions at a time, so that memory does not grow with the length of the text.
    """
    layers = [frozen.layer(index) for index in range(frozen.n_layers)]
    n_heads, mlps = frozen.run.weights.config.n_heads, range(len(up.mlps))
    heads = [2 * index for index in range(len(layers)) for _ in range(n_heads)]
    write_levels = [*map(level_of, frozen.sources), *heads, *(2 * index + 1 for index in mlps)]
    read_levels = heads + [2 * index + (not frozen.parallel) for index in mlps]
    totals = top.new_zeros(len(top), len(write_levels), len(read_levels))
    for part in batched(range(top.shape[1]), 2 * totals.shape[1] * top[:, 0].nbytes):
        at = slice(part[0], part[-1] + 1)
        outputs = [frozen.source(source)[:, None, at] for source in frozen.sources]
        outputs += [z[:, :, at] @ layer.W_O for z, layer in zip(up.z, layers, strict=True)]
        outputs += [output[:, None, at] for output in up.mlps]
        writes = torch.cat(outputs, 1).flatten(2)
        for index, (layer, gradients) in enumerate(zip(layers, at_values, strict=True)):
            scaled = gradients[:, :, at] * layer.scale[:, None, at, None]
            reads = (scaled @ layer.per_head(layer.W_V).mT).flatten(2)
            totals[:, :, index * n_heads : (index + 1) * n_heads] += writes @ reads.mT
        for column, gradients in enumerate(at_mlps, start=len(heads)):
            totals[:, :, column] += (writes @ gradients[:, at].flatten(1)[..., None])[..., 0]
    levels = (torch.tensor(each, device=top.device) for each in (write_levels, read_levels))
    write_level, read_level = levels
    return totals * (write_level[:, None] < read_level)


def _last(
    frozen: Frozen,
    top: Stream,
    positions: Int[Tensor, " batch"],
    up: _Up,
    bias: Float[Tensor, " batch"] | None,
) -> Float[Tensor, "batch writer"]:
    """The direct contribution of each source, head and MLP to the target, at its position."""
    rows = torch.arange(len(top), device=top.device)
    gradient = top[rows, positions]
    bias_row = None if bias is None else bias[:, None]
    shares = direct_shares(frozen, gradient[:, None], bias_row, positions[:, None], up.z)[..., 0]
    mlps = [(output[rows, positions] * gradient).sum(-1)[:, None] for output in up.mlps]
    return torch.cat([shares, *mlps], 1)


def direct_shares(
    frozen: Frozen,
    gradient: Float[Tensor, "batch n d"],
    bias: Float[Tensor, "batch n"] | None = None,
    positions: Int[Tensor, "batch n"] | None = None,
    z: Iterable[PerHead] | None = None,
) -> Float[Tensor, "batch writer n"]:
    """The output of every source and head at some positions, projected on a gradient at each.

    Args:
        frozen: The run.
        gradient: One gradient per position.
        bias: The contribution of the logits' bias.
        positions: By default all positions, in order.
        z: The heads' outputs before W_O, if a sweep has computed them already.

    Returns:
        One row per writer: `frozen.sources`, the bias if there is one, and all heads.
    """

    def at(values: Float[Tensor, "batch *head pos k"]) -> Float[Tensor, "batch *head n k"]:
        if positions is None:
            return values
        index = positions.view(len(positions), *(1,) * (values.ndim - 3), -1, 1)
        return values.gather(-2, index.expand(*values.shape[:-2], -1, values.shape[-1]))

    rows = [(at(frozen.source(source)) * gradient).sum(-1)[:, None] for source in frozen.sources]
    if bias is not None:
        rows.append(bias[:, None])
    if z is None:
        z = (step.z[0] for step in UpSweep.of(frozen))
    for index, head_z in enumerate(z):
        at_z = frozen.layer(index).write_adjoint(gradient[None])[0]
        rows.append((at(head_z) * at_z).sum(-1))
    return torch.cat(rows, 1)


@dataclass(frozen=True, eq=False)
class FrozenRow:
    """One sequence of a frozen run, up to a length: the outputs and inputs of every component."""

    trace: Trace
    row: int
    length: int
    frozen: Frozen
    layers: tuple[FrozenLayer, ...]
    z: tuple[Float[Tensor, "head pos k"], ...]
    streams: tuple[Float[Tensor, "pos d"], ...]
    sources: tuple[tuple[Source, Float[Tensor, "pos d"]], ...]
    final_stream: Float[Tensor, "pos d"]

    @classmethod
    def of(cls, trace: Trace, row: int, length: int) -> "FrozenRow":
        """The first positions of one sequence of a run."""
        frozen = Frozen(trace, slice(row, row + 1), length)
        layers, z, streams = list[FrozenLayer](), list[Tensor](), list[Tensor]()
        sweep = UpSweep.of(frozen)
        for step in sweep:
            layers.append(step.layer)
            z.append(step.z[0, 0])
            streams.append(sweep.streams[0, 0].clone())
        return cls(
            *(trace, row, length, frozen),
            *(tuple(layers), tuple(z), tuple(streams)),
            sources=tuple((source, frozen.source(source)[0]) for source in frozen.sources),
            final_stream=sweep.streams[0, 0].clone(),
        )

    @property
    def rows(self) -> slice:
        """The sequence, as a slice of the batch."""
        return slice(self.row, self.row + 1)

    def minus(self, other: "FrozenRow") -> "FrozenRow":
        """This row with all outputs replaced by their differences from another run."""
        pairs = zip(self.sources, other.sources, strict=True)
        return replace(
            self,
            z=tuple(z - reference for z, reference in zip(self.z, other.z, strict=True)),
            sources=tuple((source, x - reference) for (source, x), (_, reference) in pairs),
        )

    def mlp_stream(self, layer: int) -> Float[Tensor, "pos d"]:
        """The stream that a layer's MLP reads, before its normalization."""
        stream = self.streams[layer]
        if self.frozen.parallel:
            return stream
        heads = torch.einsum("hpk,hkd->pd", self.z[layer], self.layers[layer].W_O)
        biases = [bias for source, bias in self.sources if source == Source("bias", layer)]
        return sum(biases, start=stream + heads)

    def writers(self, level: int) -> tuple[Source | HeadId, ...]:
        """All writers below a level (`level_of`): sources, then heads."""
        heads = self._heads[: _n_layers(level) * self.trace.model.config.n_heads]
        return (*(source for source, _ in self.sources if level_of(source) < level), *heads)

    @cached_property
    def _heads(self) -> tuple[HeadId, ...]:
        return self.trace.model.config.every_head

    def writes_everywhere(
        self, level: int, directions: Float[Tensor, "node d"], length: int
    ) -> Float[Tensor, "node writer src"]:
        """Writes below a level at the first positions, projected on each direction."""
        rows = [(directions @ stream[:length].T)[:, None] for stream in self._sources(level)]
        for layer in range(_n_layers(level)):
            at_z = self._at_z(layer, directions)
            rows.append((at_z.transpose(0, 1) @ self.z[layer][:, :length].mT).transpose(0, 1))
        return torch.cat(rows, 1)

    def writes_at(
        self, level: int, directions: Float[Tensor, "read d"], positions: Int[Tensor, " read"]
    ) -> Float[Tensor, "read writer"]:
        """Writes below a level, projected on one direction per position."""
        streams = self._sources(level)
        rows = [(stream[positions] * directions).sum(-1)[:, None] for stream in streams]
        for layer in range(_n_layers(level)):
            z = self.z[layer][:, positions].transpose(0, 1)
            rows.append((z * self._at_z(layer, directions)).sum(-1))
        return torch.cat(rows, 1)

    def vectors_at(
        self, level: int, positions: Int[Tensor, " read"]
    ) -> Float[Tensor, "read writer d"]:
        """The outputs of all writers below a level, at some positions."""
        rows = [stream[positions][:, None] for stream in self._sources(level)]
        for layer in range(_n_layers(level)):
            z = self.z[layer][:, positions]
            rows.append(torch.einsum("hpk,hkd->phd", z, self.layers[layer].W_O))
        return torch.cat(rows, 1)

    def reads(self, layer: int) -> Reads:
        """The folded reads of a layer's heads."""
        return layer_reads(self.trace.model.weights, layer)

    def _sources(self, level: int) -> list[Float[Tensor, "pos d"]]:
        """The streams of the sources below a level."""
        return [stream for source, stream in self.sources if level_of(source) < level]

    def _at_z(
        self, layer: int, directions: Float[Tensor, "read d"]
    ) -> Float[Tensor, "read head k"]:
        """Directions of the stream, carried back through W_O."""
        W_O = self.layers[layer].W_O
        return (directions @ W_O.flatten(0, 1).T).unflatten(1, (-1, W_O.shape[1]))


def _n_layers(level: int) -> int:
    """The number of layers whose heads write below a level."""
    return (level + 1) // 2
