"""MLP nodes: the edges into their values (u) and into their gates (g).

Neuron i of an MLP at a position writes `value_i · gate_i` along its row of W_out (`gating`). Along
a gradient G at the MLP's output it contributes c_i = value_i gate_i (W_out,i · G), and the inputs
of value and gate are sums over everything written below. From one run there are two views of c_i:

    u    gates held: a part r_s contributes gate_i (r_s W_in)_i (W_out,i · G)
    g    values held: the gate moves along the secant from its input 0, (gate − gate at rest) / g

Each adds up to the MLP's contribution, g together with the contribution at rest; they are never
added. Between a reference run and the run, slopes are integrated along the straight line and
multiply the differences of the parts. Then u and g together add up to the difference, and there is
one answer. What no edge carries is `held`: the contribution at rest and b_out or, between two runs,
changes of normalization scales and of the router's weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Part
from pathsum.base.site import Side
from pathsum.model import Config, transformer
from pathsum.model.folding import fold_bias, fold_read
from pathsum.model.gating import (
    Neurons,
    PerNeuron,
    gate_at_rest,
    gate_of,
    gate_secant,
    mean_slopes,
    neurons,
    output_bias,
    router_part,
)
from pathsum.model.weights import LayerWeights
from pathsum.paths.attention import Inputs
from pathsum.paths.flows import FrozenRow

PerNode = Float[Tensor, "node d"]


def view_slope(config: Config, found: Neurons, side: Side) -> PerNeuron:
    """The slope of each neuron by its value with gates held, or by its gate with values held."""
    if side is Side.U:
        return found.gate if found.value_slope is None else found.gate * found.value_slope
    moved, weight = found.value * gate_secant(config, found.gate_input), found.expert_weight
    return moved if weight is None else moved * weight


@dataclass(frozen=True, eq=False)
class _State:
    """An MLP at some positions of a run: its stream, the scale of its read, neurons and output.

    `written` is the output before a norm after it, and `after` the scale of that norm.
    """

    stream: PerNode
    scale: Float[Tensor, " node"]
    neurons: Neurons
    written: PerNode
    after: Float[Tensor, " node"]

    @classmethod
    def of(cls, run: FrozenRow, layer: int, places: Int[Tensor, " node"]) -> "_State":
        weights, config = run.trace.model.weights, run.trace.model.config
        raw, stream = weights.layers[layer], run.mlp_stream(layer)[places]
        assert raw.W_out is not None
        read, scale = transformer.mlp_read(config, raw, stream[None])
        found = neurons(weights, layer, read)
        written = (found.activation @ raw.W_out + output_bias(raw, found))[0]
        after = torch.ones_like(scale[0])
        if config.norm_place != "before":
            after = transformer.normalize(config, written, None, None)[1]
        return cls(stream, scale[0], found, written, after)


@dataclass(frozen=True, eq=False)
class _Read:
    """One side of an MLP as a linear read of the stream, through slopes of its neurons."""

    side: Side
    slope: Float[Tensor, "node m"]
    W: Float[Tensor, "d m"]
    bias: Float[Tensor, " m"]
    held: Float[Tensor, " node"]


class MlpNodes:
    """The MLP of a layer at some positions, with the gradient at its output at each.

    With `start`, the reference run, edges carry the differences of the two runs.
    """

    def __init__(
        self,
        run: FrozenRow,
        layer: int,
        places: Int[Tensor, " node"],
        gradients: PerNode,
        start: FrozenRow | None = None,
        carried: FrozenRow | None = None,
    ) -> None:
        self.config: Config = run.trace.model.config
        self.raw: LayerWeights = run.trace.model.weights.layers[layer]
        self.places, self.carried = places, run if carried is None else carried
        self.level = 2 * layer + (self.config.block == "serial")
        self.here = _State.of(run, layer, places)
        self.there = None if start is None else _State.of(start, layer, places)
        post = self.raw.post2_w
        self.gradients = gradients if post is None else gradients * post
        ends = [self.here] if self.there is None else [self.here, self.there]
        self.after, self.scale = (
            torch.stack([getattr(one, name) for one in ends]).mean(0) for name in ("after", "scale")
        )
        assert self.raw.W_out is not None
        self.at_neurons = (self.gradients * self.after[:, None]) @ self.raw.W_out.T

    @property
    def by_neuron(self) -> Float[Tensor, "node m"]:
        """Each neuron's output · gradient, or the difference · gradient between the two runs."""
        active = self.here.neurons.activation[0]
        if self.there is not None:
            active = active - self.there.neurons.activation[0]
        return active * self.at_neurons

    def inputs(self) -> Iterator[tuple[Inputs, Float[Tensor, " node"]]]:
        """The edges into values and gates, and per side the part that belongs to no edge."""
        for read in self._reads() if self.there is None else self._reads_between(self.there):
            at_input = self.at_neurons * read.slope
            along = (at_input @ read.W.T) * self.scale[:, None]
            shares = self.carried.writes_at(self.level, along, self.places)
            writers = self.carried.writers(self.level)
            held = read.held
            if self.there is None:
                shares = torch.cat([shares, (at_input @ read.bias)[:, None]], 1)
                has_gate = read.side is Side.G and self.raw.W_gate is not None
                writers = (*writers, Part.bias("gate" if has_gate else "value"))
            else:
                # The stream's mean times the change of its scale.
                mean = (self.here.stream + self.there.stream) / 2
                change = (self.here.scale - self.there.scale) / self.scale
                held = held + (along * mean).sum(-1) * change
            inputs = Inputs(
                read.side,
                writers,
                shares[..., None],
                shares[..., None],
                gradient=lambda nodes, *_, along=along: along[nodes],
                positions=tuple(self.places.tolist()),
                views=2 if self.there is None else 1,
            )
            yield inputs, held

    def removals(self) -> Iterator[Inputs]:
        """The drop when a writer is removed from the read: of values, then of gates.

        With p_u and p_g the writer's parts of value and gate input, value · gate drops by
        p_u gate(g) + (value − p_u) (gate(g) − gate(g − p_g)), the U part and the G part.
        """
        found, weight = self.here.neurons, self.here.neurons.expert_weight
        written = self.carried.vectors_at(self.level, self.places) * self.scale[:, None, None]
        W_u, W_g = (self._folded(side)[0] for side in (Side.U, Side.G))
        by_value = written @ W_u
        by_gate = by_value if self.raw.W_gate is None else written @ W_g
        if found.value_slope is not None:
            by_value = by_value * found.value_slope[0][:, None]
        gate = gate_of(self.config, found.gate_input[0][:, None] - by_gate)
        change = found.gate[0][:, None] - (gate if weight is None else gate * weight[0][:, None])
        moved = self.at_neurons[:, None] * (found.value[0][:, None] - by_value) * change
        slope_u = self.at_neurons * view_slope(self.config, found, Side.U)[0]
        along_u = (slope_u @ W_u.T) * self.scale[:, None]
        slope_g = torch.where(by_gate == 0, 0.0, moved / by_gate)

        def along_g(nodes: Tensor, writers: Tensor, _: Tensor) -> Tensor:
            return (slope_g[nodes, writers] @ W_g.T) * self.scale[nodes, None]

        kinds = (
            (Side.U, torch.einsum("nwd,nd->nw", written, slope_u @ W_u.T)),
            (Side.G, moved.sum(-1)),
        )
        for side, drops in kinds:
            yield Inputs(
                side,
                self.carried.writers(self.level),
                drops[..., None],
                drops[..., None],
                gradient=along_g if side is Side.G else lambda nodes, *_: along_u[nodes],
                positions=tuple(self.places.tolist()),
            )

    def _folded(self, side: Side) -> tuple[Float[Tensor, "d m"], Float[Tensor, " m"]]:
        """The read of the stream, and its bias; gates without W_gate read as values do."""
        W, bias = self.raw.W_gate, self.raw.b_gate
        if side is Side.U or W is None:
            W, bias = self.raw.W_in, self.raw.b_in
        assert W is not None
        folded = fold_read(self.config.norm, W, self.raw.ln2_w)
        return folded, fold_bias(W, self.raw.ln2_b, bias)

    def _reads(self) -> Iterator[_Read]:
        """Gates held, then values held."""
        found = self.here.neurons
        value, gate = found.value[0], found.gate[0]
        added = output_bias(self.raw, found).expand(1, *self.gradients.shape)[0]
        constant = (added * self.gradients).sum(-1) * self.after
        held = constant
        if found.value_slope is not None:
            # Clamped values have 1 added to them.
            held = held + (self.at_neurons * gate).sum(-1)
        slopes = [view_slope(self.config, found, side)[0] for side in (Side.U, Side.G)]
        yield _Read(Side.U, slopes[0], *self._folded(Side.U), held)
        weight = found.expert_weight
        moved = value if weight is None else value * weight[0]
        at_rest = (self.at_neurons * moved).sum(-1) * gate_at_rest(self.config)
        yield _Read(Side.G, slopes[1], *self._folded(Side.G), constant + at_rest)

    def _reads_between(self, there: _State) -> Iterator[_Read]:
        """The slopes of values and of gates, integrated from the reference run."""
        ends = there.neurons, self.here.neurons
        by_value, by_gate = mean_slopes(self.config, *ends)
        written = (self.here.written + there.written) / 2
        after = self.here.after - there.after
        held = (written * self.gradients).sum(-1) * after
        routed = router_part(self.config, *ends)
        if routed is not None:
            held = held + (self.at_neurons * routed[0]).sum(-1)
            before, now = (output_bias(self.raw, one) for one in ends)
            change = (now - before).expand(1, *self.gradients.shape)[0]
            held = held + (change * self.gradients).sum(-1) * self.after
        yield _Read(Side.U, by_value[0], *self._folded(Side.U), held)
        yield _Read(Side.G, by_gate[0], *self._folded(Side.G), torch.zeros_like(held))
