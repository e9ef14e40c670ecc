"""MLP nodes: the edges into their values (u) and into their gates (g).

The output of neuron i of an MLP at a position is `value_i · gate_i` times its row of W_out
(`gating`). Along a gradient G at the MLP's output it contributes c_i = value_i gate_i (W_out,i ·
G), and the inputs of value and gate are sums over all writers below. From one run there are two
views of c_i:

    u    gates held: a part r_s contributes gate_i (r_s W_in)_i (W_out,i · G)
    g    values held: the gate moves along the secant from its input 0, (gate − gate at rest) / g

Each adds up to the MLP's contribution, g together with the contribution at rest; they are never
added. Between a reference run and the run, slopes are integrated along the straight line and
multiply the differences of the parts. Then u and g together add up to the difference, and there is
one answer. The rest, which belongs to no edge, is `held`: the contribution at rest and b_out or,
between two runs, changes of normalization scales and of the router's weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Part
from pathsum.base.site import Side
from pathsum.model import Config, gating, transformer
from pathsum.model.folding import fold_bias, fold_read
from pathsum.model.gating import Neurons, PerNeuron
from pathsum.model.weights import LayerWeights
from pathsum.paths.attention import Inputs
from pathsum.paths.flows import FrozenRow

PerNode = Float[Tensor, "node d"]


def view_slope(config: Config, neurons: Neurons, side: Side) -> PerNeuron:
    """The slope of each neuron by its value with gates held, or by its gate with values held."""
    if side is Side.U:
        slope, factor = neurons.gate, neurons.value_slope
    else:
        slope = neurons.value * gating.gate_secant(config, neurons.gate_input)
        factor = neurons.expert_weight
    return slope if factor is None else slope * factor


@dataclass(frozen=True, eq=False)
class _State:
    """An MLP at some positions of a run: its stream, the scale of its read, neurons and output.

    `output` is the output before a norm after it, and `output_scale` the scale of that norm.
    """

    stream: PerNode
    scale: Float[Tensor, " node"]
    neurons: Neurons
    output: PerNode
    output_scale: Float[Tensor, " node"]

    @classmethod
    def of(cls, run: FrozenRow, layer: int, positions: Int[Tensor, " node"]) -> "_State":
        weights, config = run.trace.model.weights, run.trace.model.config
        raw, stream = weights.layers[layer], run.mlp_stream(layer)[positions]
        assert raw.W_out is not None
        read, scale = transformer.mlp_read(config, raw, stream[None])
        state = gating.neurons(weights, layer, read)
        output = (state.activation @ raw.W_out + gating.output_bias(raw, state))[0]
        output_scale = torch.ones_like(scale[0])
        if config.norm_place != "before":
            output_scale = transformer.normalize(config, output, None, None)[1]
        return cls(stream, scale[0], state, output, output_scale)


@dataclass(frozen=True, eq=False)
class _Read:
    """One side of an MLP as a linear read of the stream, through slopes of its neurons.

    `held` is the part of the contribution that belongs to no edge.
    """

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
        positions: Int[Tensor, " node"],
        gradients: PerNode,
        start: FrozenRow | None = None,
        carried: FrozenRow | None = None,
    ) -> None:
        self.config: Config = run.trace.model.config
        self.raw: LayerWeights = run.trace.model.weights.layers[layer]
        self.positions, self.carried = positions, run if carried is None else carried
        self.level = 2 * layer + (self.config.block == "serial")
        self.state = _State.of(run, layer, positions)
        self.reference = None if start is None else _State.of(start, layer, positions)
        post = self.raw.post2_w
        self.gradients = gradients if post is None else gradients * post
        states = [self.state] if self.reference is None else [self.state, self.reference]
        self.scale = torch.stack([state.scale for state in states]).mean(0)
        self.output_scale = torch.stack([state.output_scale for state in states]).mean(0)
        assert self.raw.W_out is not None
        self.at_neurons = (self.gradients * self.output_scale[:, None]) @ self.raw.W_out.T

    @property
    def by_neuron(self) -> Float[Tensor, "node m"]:
        """Each neuron's output · gradient, or the difference · gradient between the two runs."""
        activation = self.state.neurons.activation[0]
        if self.reference is not None:
            activation = activation - self.reference.neurons.activation[0]
        return activation * self.at_neurons

    def inputs(self) -> Iterator[tuple[Inputs, Float[Tensor, " node"]]]:
        """The edges into values and gates, and per side the part that belongs to no edge."""
        for read in (
            self._reads() if self.reference is None else self._reads_between(self.reference)
        ):
            at_input = self.at_neurons * read.slope
            directions = (at_input @ read.W.T) * self.scale[:, None]
            shares = self.carried.writes_at(self.level, directions, self.positions)
            writers, held = self.carried.writers(self.level), read.held
            if self.reference is None:
                shares = torch.cat([shares, (at_input @ read.bias)[:, None]], 1)
                has_gate = read.side is Side.G and self.raw.W_gate is not None
                writers = (*writers, Part.bias("gate" if has_gate else "value"))
            else:
                # The stream's mean times the change of its scale.
                mean = (self.state.stream + self.reference.stream) / 2
                change = (self.state.scale - self.reference.scale) / self.scale
                held = held + (directions * mean).sum(-1) * change
            inputs = Inputs(
                read.side,
                writers,
                shares[..., None],
                shares[..., None],
                gradient=lambda nodes, *_, directions=directions: directions[nodes],
                positions=tuple(self.positions.tolist()),
                views=2 if self.reference is None else 1,
            )
            yield inputs, held

    def removals(self) -> Iterator[Inputs]:
        """The drop when a writer is removed from the read: of values, then of gates.

        With p_u and p_g the writer's parts of value and gate input, value · gate drops by
        p_u gate(g) + (value − p_u) (gate(g) − gate(g − p_g)), the U part and the G part.
        """
        neurons, weight = self.state.neurons, self.state.neurons.expert_weight
        outputs = self.carried.vectors_at(self.level, self.positions) * self.scale[:, None, None]
        W_u, W_g = (self._folded(side)[0] for side in (Side.U, Side.G))
        by_value = outputs @ W_u
        by_gate = by_value if self.raw.W_gate is None else outputs @ W_g
        if neurons.value_slope is not None:
            by_value = by_value * neurons.value_slope[0][:, None]
        gate = gating.gate_of(self.config, neurons.gate_input[0][:, None] - by_gate)
        change = neurons.gate[0][:, None] - (gate if weight is None else gate * weight[0][:, None])
        drops_g = self.at_neurons[:, None] * (neurons.value[0][:, None] - by_value) * change
        slopes_g = torch.where(by_gate == 0, 0.0, drops_g / by_gate)
        at_u = (self.at_neurons * view_slope(self.config, neurons, Side.U)[0]) @ W_u.T

        def gradient_u(nodes: Tensor, *_: Tensor) -> Tensor:
            return at_u[nodes] * self.scale[nodes, None]

        def gradient_g(nodes: Tensor, writers: Tensor, _: Tensor) -> Tensor:
            return (slopes_g[nodes, writers] @ W_g.T) * self.scale[nodes, None]

        for side, drops, gradient in (
            (Side.U, torch.einsum("nwd,nd->nw", outputs, at_u), gradient_u),
            (Side.G, drops_g.sum(-1), gradient_g),
        ):
            yield Inputs(
                side,
                self.carried.writers(self.level),
                drops[..., None],
                drops[..., None],
                gradient=gradient,
                positions=tuple(self.positions.tolist()),
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
        neurons, weight = self.state.neurons, self.state.neurons.expert_weight
        constant = self._output_along(gating.output_bias(self.raw, neurons)) * self.output_scale
        # Clamped values have 1 added to them.
        is_clamped = neurons.value_slope is not None
        added = (self.at_neurons * neurons.gate[0]).sum(-1) if is_clamped else 0.0
        slope_u, slope_g = (view_slope(self.config, neurons, side)[0] for side in (Side.U, Side.G))
        yield _Read(Side.U, slope_u, *self._folded(Side.U), constant + added)
        value = neurons.value[0] if weight is None else neurons.value[0] * weight[0]
        at_rest = (self.at_neurons * value).sum(-1) * gating.gate_at_rest(self.config)
        yield _Read(Side.G, slope_g, *self._folded(Side.G), constant + at_rest)

    def _reads_between(self, reference: _State) -> Iterator[_Read]:
        """The slopes of values and of gates, integrated from the reference run."""
        ends = reference.neurons, self.state.neurons
        by_value, by_gate = gating.mean_slopes(self.config, *ends)
        change = self.state.output_scale - reference.output_scale
        held = self._output_along((self.state.output + reference.output) / 2) * change
        routed = gating.router_part(self.config, *ends)
        if routed is not None:
            before, after = (gating.output_bias(self.raw, neurons) for neurons in ends)
            held = held + (self.at_neurons * routed[0]).sum(-1)
            held = held + self._output_along(after - before) * self.output_scale
        yield _Read(Side.U, by_value[0], *self._folded(Side.U), held)
        yield _Read(Side.G, by_gate[0], *self._folded(Side.G), torch.zeros_like(held))

    def _output_along(self, output: Tensor) -> Float[Tensor, " node"]:
        """The projection of an output on the gradient of each node."""
        return (output.expand(1, *self.gradients.shape)[0] * self.gradients).sum(-1)
