"""Projections of a frozen run: all totals toward a target, and every writer's direct contribution.

Where streams and gradients of the target meet, their inner product is the sum over all paths that
pass there. Orders are kept apart as the coefficients of a polynomial (see `order_sweep`). Carrying
L coefficients through L layers would cost L/2 sweeps, so the sweep up carries them through the
lower half only, the sweep down through the upper half, and the two polynomials are multiplied where
they meet. Orders and edges have their own sweeps (`order_flows`, `edge_flows`), because they cost
more than everything else and are often not needed.

`direct_shares` is the one direct attribution: a writer (a source or a head) at a position, along a
gradient there. `FrozenRow` has the writes of one sequence, which circuits are grown from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.options import batched
from pathsum.base.path import level_of
from pathsum.base.shapes import PerHead, Stream
from pathsum.model import HeadId, Source, Trace
from pathsum.model.folding import Reads, layer_reads
from pathsum.paths.frozen import Frozen, FrozenLayer, Streams, all_sources, stream_sources
from pathsum.paths.order_sweep import AdjointStep, DownSweep, MlpAdjointStep, Step, UpSweep
from pathsum.paths.target import Target


@dataclass(frozen=True, eq=False)
class Flows:
    """The totals toward the target in each sequence, before averaging.

    Writers of `last` are sources, then heads, then MLPs whose gates are held: their direct
    contributions to the target.
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
        # One more source, where the prediction is made.
        here = torch.zeros_like(source[:, :1])
        here[torch.arange(len(bias), device=bias.device), 0, target.positions] = bias
        source = torch.cat([source, here], 1)
    return Flows(source, head, mlp, last)


def order_flows(frozen: Frozen, target: Target) -> Float[Tensor, "batch order"]:
    """The total of every order toward the target, in each sequence."""
    layers, half = frozen.n_layers, frozen.n_layers // 2
    top = gradient_at_top(frozen, target)
    up = UpSweep(frozen, orders=frozen.orders(half))
    for _ in up.to(half):
        pass
    order = top.new_zeros(len(top), frozen.orders(layers))
    down = DownSweep(frozen, top, orders=frozen.orders(layers - half))
    for step in down.steps_to(half):
        added = frozen.added_at(*_levels_met(frozen, step))
        if added is not None:
            found = torch.einsum("bpd,nbpd->bn", added, down.gradients)
            order[:, : found.shape[1]] += found
    found = _product(up.streams, down.gradients)
    order[:, : found.shape[1]] += found
    bias = _logit_bias(frozen, target)
    if bias is not None:
        order[:, 0] += bias
    return order


def edge_flows(frozen: Frozen, target: Target) -> Float[Tensor, "batch writer reader"]:
    """The total of every edge toward the target, in each sequence.

    Rows write (sources, heads, MLPs), columns read (heads, MLPs, the logits); MLPs are there if
    their gates are held. An entry is the sum over all paths that use this edge, so everything that
    enters a head or an MLP leaves it again.
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
        none = torch.zeros_like(to_steps[:, :1])
        to_steps = torch.cat([to_steps[:, :n_sources], none, to_steps[:, n_sources:]], 1)
    return torch.cat([to_steps, to_logits[..., None]], 2)


def _logit_bias(frozen: Frozen, target: Target) -> Float[Tensor, " batch"] | None:
    """The contribution of the logits' bias, if there is one."""
    weights = frozen.run.weights
    has_one = len(all_sources(weights)) > len(stream_sources(weights))
    return target.direction(weights)[1] if has_one else None


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
    for step in UpSweep(frozen).steps_to(frozen.n_layers):
        if isinstance(step, Step):
            z.append(step.z[0])
        else:
            mlps.append(step.written[0])
    return _Up(tuple(z), tuple(mlps))


def _levels_met(frozen: Frozen, step: AdjointStep | MlpAdjointStep) -> tuple[int, ...]:
    """The levels whose writers meet the gradients that a sweep down has at a step."""
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
        _meet_sources(frozen, _levels_met(frozen, step), sweep.gradients, source)
        if isinstance(step, AdjointStep):
            heads.append((step.at_z[0] * up.z[step.index]).sum((-2, -1)))
        else:
            mlps.append((sweep.gradients[0] * up.mlps[step.index]).sum((-2, -1))[:, None])
    _meet_sources(frozen, (-1,), sweep.gradients, source)
    none = top.new_zeros(batch, 0)
    return source, torch.cat([none, *heads[::-1]], 1), torch.cat([none, *mlps[::-1]], 1)


def _product(
    streams: Float[Tensor, "lower batch pos d"], gradients: Float[Tensor, "upper batch pos d"]
) -> Float[Tensor, "batch order"]:
    """The product of two polynomials whose coefficients meet by an inner product."""
    pairs = torch.einsum("mbpd,nbpd->bmn", streams, gradients)
    order = pairs.new_zeros(pairs.shape[0], pairs.shape[1] + pairs.shape[2] - 1)
    for lower in range(pairs.shape[1]):
        order[:, lower : lower + pairs.shape[2]] += pairs[:, lower]
    return order


def _meet_sources(
    frozen: Frozen, levels: Sequence[int], gradients: Streams, source: Tensor
) -> None:
    """Fill in the contributions of the sources of some levels, position by position."""
    together = gradients.sum(0)
    for place, found in enumerate(frozen.sources):
        if level_of(found) in levels:
            source[:, place] = (frozen.source(found) * together).sum(-1)


def _edges(
    frozen: Frozen,
    top: Stream,
    up: _Up,
    at_values: Sequence[PerHead],
    at_mlps: Sequence[Stream],
) -> Float[Tensor, "batch writer reader"]:
    """Inner products of every writer's output with every reader's gradient, over positions.

    Some positions at a time, so that memory does not grow with the length of the text.
    """
    layers = [frozen.layer(index) for index in range(frozen.n_layers)]
    n_heads, mlps = frozen.run.weights.config.n_heads, len(up.mlps)
    heads = [2 * index for index in range(len(layers)) for _ in range(n_heads)]
    written_at = [*map(level_of, frozen.sources), *heads, *(2 * at + 1 for at in range(mlps))]
    read_below = heads + [2 * at + (not frozen.parallel) for at in range(mlps)]
    edge = top.new_zeros(len(top), len(written_at), len(read_below))
    bytes_each = 2 * edge.shape[1] * top[:, 0].nbytes
    for part in batched(range(top.shape[1]), bytes_each):
        here = slice(part[0], part[-1] + 1)
        writers = [frozen.source(source)[:, None, here] for source in frozen.sources]
        writers += [each[:, :, here] @ layer.W_O for each, layer in zip(up.z, layers, strict=True)]
        writers += [each[:, None, here] for each in up.mlps]
        written = torch.cat(writers, 1).flatten(2)
        for index, (layer, each) in enumerate(zip(layers, at_values, strict=True)):
            scaled = each[:, :, here] * layer.scale[:, None, here, None]
            read = (scaled @ layer.per_head(layer.W_V).mT).flatten(2)
            edge[:, :, index * n_heads : (index + 1) * n_heads] += written @ read.mT
        for index, each in enumerate(at_mlps, start=len(heads)):
            edge[:, :, index] += (written @ each[:, here].flatten(1)[..., None])[..., 0]
    writes, reads = (torch.tensor(one, device=top.device) for one in (written_at, read_below))
    return edge * (writes[:, None] < reads)


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
    of_logits = None if bias is None else bias[:, None]
    found = direct_shares(frozen, gradient[:, None], of_logits, positions[:, None], up.z)[..., 0]
    mlps = [(each[rows, positions] * gradient).sum(-1)[:, None] for each in up.mlps]
    return torch.cat([found, *mlps], 1)


def direct_shares(
    frozen: Frozen,
    gradient: Float[Tensor, "batch some d"],
    bias: Float[Tensor, "batch some"] | None = None,
    positions: Int[Tensor, "batch some"] | None = None,
    z: Sequence[PerHead] | None = None,
) -> Float[Tensor, "batch writer some"]:
    """The output of every source and head at some positions, projected on a gradient at each.

    Without `positions` they are all positions, in order. `z` are the heads' outputs before W_O, if
    a sweep has computed them already. The writers are `frozen.sources`, the logits' own `bias` if
    it is given, and all heads.
    """

    def at(values: Float[Tensor, "batch *head pos k"]) -> Float[Tensor, "batch *head some k"]:
        if positions is None:
            return values
        index = positions.view(len(positions), *(1,) * (values.ndim - 3), -1, 1)
        return values.gather(-2, index.expand(*values.shape[:-2], -1, values.shape[-1]))

    found = [(at(frozen.source(each)) * gradient).sum(-1)[:, None] for each in frozen.sources]
    if bias is not None:
        found.append(bias[:, None])
    if z is None:
        steps = ((step.layer, step.z[0]) for step in UpSweep(frozen))
    else:
        steps = ((frozen.layer(index), each) for index, each in enumerate(z))
    for layer, mixed in steps:
        found.append((at(mixed) * layer.write_adjoint(gradient[None])[0]).sum(-1))
    return torch.cat(found, 1)


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
        sweep = UpSweep(frozen)
        for step in sweep:
            layers.append(step.layer)
            z.append(step.z[0, 0])
            streams.append(sweep.streams[0, 0].clone())
        sources = tuple((source, frozen.source(source)[0]) for source in frozen.sources)
        parts = tuple(layers), tuple(z), tuple(streams), sources, sweep.streams[0, 0].clone()
        return cls(trace, row, length, frozen, *parts)

    @property
    def rows(self) -> slice:
        """The sequence, as a slice of the batch."""
        return slice(self.row, self.row + 1)

    def minus(self, other: "FrozenRow") -> "FrozenRow":
        """This row with all writes replaced by their differences from another run's."""
        pairs = zip(self.sources, other.sources, strict=True)
        return replace(
            self,
            z=tuple(here - there for here, there in zip(self.z, other.z, strict=True)),
            sources=tuple((source, here - there) for (source, here), (_, there) in pairs),
        )

    def mlp_stream(self, layer: int) -> Float[Tensor, "pos d"]:
        """The stream that a layer's MLP reads, before its normalization."""
        stream = self.streams[layer]
        if self.frozen.parallel:
            return stream
        written = torch.einsum("hpk,hkd->pd", self.z[layer], self.layers[layer].W_O)
        biases = [each for source, each in self.sources if source == Source("bias", layer)]
        return sum(biases, start=stream + written)

    def writers(self, level: int) -> tuple[Source | HeadId, ...]:
        """Everything written below a level (`level_of`): sources, then heads."""
        heads = self._heads[: _layers(level) * self.trace.model.config.n_heads]
        return (*(source for source, _ in self.sources if level_of(source) < level), *heads)

    @cached_property
    def _heads(self) -> tuple[HeadId, ...]:
        return self.trace.model.config.every_head

    def writes_everywhere(
        self, level: int, directions: Float[Tensor, "node d"], length: int
    ) -> Float[Tensor, "node writer src"]:
        """Writes below a level at the first positions, projected on each direction."""
        rows = [
            (directions @ stream[:length].T)[:, None]
            for source, stream in self.sources
            if level_of(source) < level
        ]
        for below in range(_layers(level)):
            back = self._through_W_O(below, directions)
            rows.append((back.transpose(0, 1) @ self.z[below][:, :length].mT).transpose(0, 1))
        return torch.cat(rows, 1)

    def writes_at(
        self, level: int, directions: Float[Tensor, "read d"], places: Int[Tensor, " read"]
    ) -> Float[Tensor, "read writer"]:
        """Writes below a level, each direction at its own position."""
        rows = [
            (stream[places] * directions).sum(-1)[:, None]
            for source, stream in self.sources
            if level_of(source) < level
        ]
        for below in range(_layers(level)):
            z = self.z[below][:, places].transpose(0, 1)
            rows.append((z * self._through_W_O(below, directions)).sum(-1))
        return torch.cat(rows, 1)

    def vectors_at(
        self, level: int, places: Int[Tensor, " read"]
    ) -> Float[Tensor, "read writer d"]:
        """The outputs of everything written below a level, at some positions."""
        rows = [
            stream[places][:, None] for source, stream in self.sources if level_of(source) < level
        ]
        for below in range(_layers(level)):
            z = self.z[below][:, places]
            rows.append(torch.einsum("hpk,hkd->phd", z, self.layers[below].W_O))
        return torch.cat(rows, 1)

    def reads(self, layer: int) -> Reads:
        """The folded reads of a layer's heads."""
        return layer_reads(self.trace.model.weights, layer)

    def _through_W_O(
        self, layer: int, directions: Float[Tensor, "read d"]
    ) -> Float[Tensor, "read head k"]:
        W_O = self.layers[layer].W_O
        return (directions @ W_O.flatten(0, 1).T).unflatten(1, (-1, W_O.shape[1]))


def _layers(level: int) -> int:
    """The number of layers whose heads write below a level."""
    return (level + 1) // 2
