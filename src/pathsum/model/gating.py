"""MLPs as values times gates: the form in which an MLP is linear once its gates are held.

Neuron i of an MLP that reads r (the stream, normalized) writes `value_i · gate_i` along its row of
W_out. For every activation φ that the library loads:

    MLP                        value u                gate    gate's input g       gate at rest
    silu_gated and the like    r W_in + b_in          φ(g)    r W_gate + b_gate    φ(0) = 0
    bilinear                   r W_in                 g       r W_gate             0
    gelu, gelu_tanh, silu      r W_in + b_in          ψ(u)    u                    ½
    relu, relu2                r W_in + b_in          ψ(u)    u                    0
    clamped_gated              clamp(r W_in + b_in) + 1   φ(clamp(g))  r W_gate + b_gate   0

with φ(x) = x ψ(x). In a mixture of experts, the router's choice and weights are held as well: its
weight of the neuron's expert multiplies the gate, and is 0 for experts that it did not choose.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.errors import InputError, NotExactError
from pathsum.base.shapes import Stream
from pathsum.model import transformer
from pathsum.model.activations import (
    CLAMP,
    SIGMOID_GAIN,
    NeuronEdits,
    expert_weights,
    preactivations,
)
from pathsum.model.config import Config
from pathsum.model.recording import Run
from pathsum.model.weights import LayerWeights, Weights

_KINDS = ("relu", "relu2", "gelu", "gelu_tanh", "silu", "clamped", "bilinear")
PerNeuron = Float[Tensor, "batch pos m"]

# Nodes of the integral of a gate between two runs: 1e-6 for inputs that differ by 20.
NODES = 16


@dataclass(frozen=True, eq=False)
class Neurons:
    """The neurons of one MLP at every position of a run, each as value × gate.

    `value` is u with its biases. `gate` includes the router's weight of the neuron's expert.
    `gate_input` is g; of an MLP without W_gate it is the pre-activation, which is also the value.
    `value_slope` is the factor by which clamping shrank the pre-activation (`clamped_gated`), held
    like a gate; None stands for 1. `experts` holds the router's weights, None without experts.
    """

    value: PerNeuron
    gate: PerNeuron
    gate_input: PerNeuron
    value_slope: PerNeuron | None = None
    experts: Float[Tensor, "batch pos expert"] | None = None

    @property
    def activation(self) -> PerNeuron:
        """The activations that W_out reads, times the router's weights: value × gate."""
        return self.value * self.gate

    @property
    def expert_weight(self) -> PerNeuron | None:
        """The router's weight of each neuron's expert, or None without experts."""
        if self.experts is None:
            return None
        return self.experts.repeat_interleave(
            self.value.shape[-1] // self.experts.shape[-1], dim=-1
        )


def neurons(
    weights: Weights, layer: int, read: Stream, sides: tuple[Stream, Stream] | None = None
) -> Neurons:
    """The neurons of a layer's MLP, given its normalized input.

    With `sides`, values and gates read these two inputs, and only the router reads `read`.
    """
    config, tensors = weights.config, weights.layers[layer]
    if config.mlp == "none":
        raise InputError("this model has no MLPs, so it has no neurons; use a model with MLPs")
    value_read, gate_read = (read, read) if sides is None else sides
    value, gate_input = preactivations(tensors, value_read, gate_read=gate_read)
    if gate_input is None:
        same = gate_read is value_read
        gate_input = value if same else preactivations(tensors, gate_read)[0]
    slope = None
    if config.mlp == "clamped_gated":
        clamped = value.clamp(-CLAMP, CLAMP)
        slope = torch.where(value == 0, 1.0, clamped / value)
        value = clamped + 1
    experts = expert_weights(config, tensors, read) if config.n_experts else None
    result = Neurons(value, gate_of(config, gate_input), gate_input, slope, experts)
    weight = result.expert_weight
    return result if weight is None else replace(result, gate=result.gate * weight)


def mlp_of_sides(
    weights: Weights,
    layer: LayerWeights,
    stream: Tensor,
    value: Tensor,
    gate: Tensor,
    edits: NeuronEdits | None = None,
) -> tuple[Tensor, Tensor]:
    """The output of an MLP whose values and gates read separate streams; the read's scale.

    Each stream is normalized separately.
    """
    config = weights.config
    assert layer.W_out is not None
    (read, scale), *sides = (transformer.mlp_read(config, layer, x) for x in (stream, value, gate))
    result = neurons(weights, layer.index, read, (sides[0][0], sides[1][0]))
    active = result.activation if edits is None else edits("act", result.activation)
    output = active @ layer.W_out + output_bias(layer, result)
    if config.norm_place != "before":
        output = transformer.normalize(config, output, layer.post2_w, None)[0]
    return output, scale


def output_bias(layer: LayerWeights, neurons: Neurons) -> Tensor:
    """b_out and the biases of experts, [batch, pos, d] or a shape that broadcasts to it."""
    assert layer.W_out is not None
    bias = layer.W_out.new_zeros(layer.W_out.shape[1]) if layer.b_out is None else layer.b_out
    if layer.b_experts is None:
        return bias
    assert neurons.experts is not None
    return bias + neurons.experts @ layer.b_experts


def neurons_of(run: Run, layer: int) -> Neurons:
    """The neurons of a layer's MLP in a run, from its recorded streams and patterns.

    >>> import pathsum as ps
    >>> config = ps.Config(
    ...     n_layers=1, n_heads=1, d_model=8, d_head=8, d_vocab=9, n_ctx=4, mlp="gelu"
    ... )
    >>> mlp0 = neurons_of(ps.random_model(config).trace([[1, 2, 3]]), 0)
    >>> mlp0.activation.shape, bool((mlp0.value == mlp0.gate_input).all())
    (torch.Size([1, 3, 32]), True)
    """
    layer = run.weights.layers.number(layer)
    return neurons(run.weights, layer, _mlp_read(run, layer))


def neuron_values(run: Run, layer: int, value: str) -> PerNeuron:
    """`pre` (r W_in + b_in), `gate` (r W_gate + b_gate) or `act` of a layer's neurons in a run."""
    layer = run.weights.layers.number(layer)
    if value == "act":
        return neurons_of(run, layer).activation
    pre, gate = preactivations(run.weights.layers[layer], _mlp_read(run, layer))
    result = pre if value == "pre" else gate
    assert result is not None
    return result


def _mlp_read(run: Run, layer: int) -> Stream:
    """The normalized input of a layer's MLP in a run."""
    weights = run.weights
    return transformer.mlp_read(weights.config, weights.layers[layer], mlp_stream(run, layer))[0]


def mlp_stream(run: Run, layer: int) -> Stream:
    """The stream that a layer's MLP reads in a run, before its normalization."""
    config = run.weights.config
    if config.mlp == "none":
        raise InputError("this model has no MLPs, so it has no neurons; use a model with MLPs")
    if config.block == "parallel":
        return run.streams[layer]
    if run.edits or run.weights.edits:
        # Edited outputs of heads are in the streams only.
        return run.streams[layer + 1] - run.mlp_outputs[layer]
    # Not the next stream minus the MLP's output: that loses digits where the output is large.
    heads = transformer.write(config, run.weights.layers[layer], run.z(layer))[0]
    return run.streams[layer] + heads


def gate_of(config: Config, g: Tensor) -> Tensor:
    """The gate, given its input.

    >>> from pathsum.model import Config
    >>> sizes = dict(n_layers=1, n_heads=1, d_model=2, d_head=2, d_vocab=2, n_ctx=2)
    >>> gate_of(Config(**sizes, mlp="relu"), torch.tensor([-2.0, 0.0, 3.0]))
    tensor([0., 0., 1.])
    """
    kind = _kind(config)
    if not config.gated:
        return _psi(kind, g)
    if kind == "bilinear":
        return g
    if kind == "clamped":
        g = g.clamp(max=CLAMP)
    return g * _psi(kind, g)


def gate_at_rest(config: Config) -> float:
    """The gate at input 0."""
    return 0.0 if config.gated or _kind(config) in ("relu", "relu2") else 0.5


def gate_secant(config: Config, g: Tensor) -> Tensor:
    """(gate(g) − gate(0)) / g, and the gate's derivative where g is 0 (a step has 0 there).

    A gate with a kink at 0 has the slope of its right side there.
    """
    kind = _kind(config)
    if not config.gated:
        if kind == "relu":
            return torch.where(g > 0, 1 / g, 0.0)
        if kind == "relu2":
            return (g >= 0).to(g)
        slope = {"gelu": 0.5 * math.sqrt(2 / math.pi), "silu": 0.25}
        slope["gelu_tanh"] = slope["gelu"]
        return torch.where(g == 0, slope[kind], 0.5 * _odd(kind, g) / g)
    if kind == "bilinear":
        return torch.ones_like(g)
    if kind == "clamped":
        clamped = g.clamp(max=CLAMP)
        return torch.where(g == 0, 0.5, clamped / g * _psi(kind, clamped))
    return _psi(kind, g)


def mean_slopes(config: Config, reference: Neurons, run: Neurons) -> tuple[PerNeuron, PerNeuron]:
    """The mean slopes of each neuron's activation between two runs, by its value and by its gate.

    Along the straight line from the reference to the run these are ∫ gate(g_t) dt and
    ∫ gate′(g_t) u_t dt. Multiplied by the differences of the two pre-activations they add up to the
    difference of the activations. Without W_gate both multiply the same difference, and the second
    is 0 for a ReLU, whose gate moves where the value is 0. Where values and gates are clamped the
    line is straight after the clamp.

    In a mixture of experts the slopes are multiplied by the mean of the router's two weights, and
    the rest of the difference is `router_part`.
    """
    mean_weight = _mean_weight(reference, run)
    if not config.gated:
        a, b = reference.value, run.value
        near = _close(a, b)
        quotient = (b * gate_of(config, b) - a * gate_of(config, a)) / torch.where(near, 1.0, b - a)
        slope = torch.where(near, _slope(lambda x: x * gate_of(config, x), (a + b) / 2), quotient)
        by_value = slope if config.mlp == "relu" else _mean_gate(config, a, b)
        return by_value * mean_weight, (slope - by_value) * mean_weight
    u, g = (reference.value, run.value), (reference.gate_input, run.gate_input)
    clamped = g
    if config.mlp == "clamped_gated":
        clamped = (g[0].clamp(max=CLAMP), g[1].clamp(max=CLAMP))
    by_value = _mean_gate(config, *clamped)
    change = u[1] * gate_of(config, g[1]) - u[0] * gate_of(config, g[0])
    near = _close(*clamped)
    # By parts: the gate takes the rest of the difference after the value's slope.
    rest = (change - by_value * (u[1] - u[0])) / torch.where(near, 1.0, clamped[1] - clamped[0])
    middle = _slope(lambda g: gate_of(config, g), (clamped[0] + clamped[1]) / 2)
    middle = middle * (u[0] + u[1]) / 2
    by_gate = torch.where(near, middle, rest)
    if config.mlp == "clamped_gated":
        by_value = by_value * _clamp_slope(_unclamped(reference), _unclamped(run), (u[0], u[1]))
        by_gate = by_gate * _clamp_slope(*g, clamped)
    return by_value * mean_weight, by_gate * mean_weight


def router_part(config: Config, reference: Neurons, run: Neurons) -> PerNeuron | None:
    """The part of the difference of activations that a change of the router's weights makes.

    The mean activation times the change of the weight; None without experts.
    """
    before, after = reference.expert_weight, run.expert_weight
    if before is None or after is None:
        return None
    first, second = (
        neurons.value * gate_of(config, neurons.gate_input) for neurons in (reference, run)
    )
    return (first + second) / 2 * (after - before)


def has_gates(config: Config) -> bool:
    """Whether the MLPs of a model are values times gates, which circuits need to pass them."""
    return config.mlp.removesuffix("_gated") in _KINDS


def _kind(config: Config) -> str:
    kind = config.mlp.removesuffix("_gated")
    if kind not in _KINDS:
        raise NotExactError(
            f"mlp={config.mlp!r} is not known as a value times a gate, so no path passes through "
            "these MLPs exactly; paths, circuits and term importance stop at them by default"
        )
    return kind


def _psi(kind: str, x: Tensor) -> Tensor:
    """ψ with φ(x) = x ψ(x)."""
    if kind == "relu":
        return (x > 0).to(x)
    if kind == "relu2":
        return x.relu()
    if kind == "clamped":
        return torch.sigmoid(SIGMOID_GAIN * x)
    if kind == "silu":
        return torch.sigmoid(x)
    return 0.5 * (1 + _odd(kind, x))


def _odd(kind: str, x: Tensor) -> Tensor:
    """2ψ − 1, which is odd in x, without cancellation near 0."""
    if kind == "gelu":
        return torch.erf(x / math.sqrt(2))
    if kind == "silu":
        return torch.tanh(x / 2)
    return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _mean_gate(config: Config, a: PerNeuron, b: PerNeuron) -> PerNeuron:
    """∫ gate(a + t (b − a)) dt over 0 ≤ t ≤ 1, by Gauss–Legendre quadrature."""
    total = torch.zeros_like(a)
    for node, weight in zip(*np.polynomial.legendre.leggauss(NODES), strict=True):
        total += float(weight) / 2 * gate_of(config, torch.lerp(a, b, float(node + 1) / 2))
    return total


def _slope(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivative of a function of single numbers."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]


def _close(a: PerNeuron, b: PerNeuron) -> Tensor:
    """Where two numbers are too close for a difference quotient.

    At ∛ε its rounding error, ε/Δ, equals the error of the derivative at the midpoint, Δ². Close
    numbers on opposite sides of 0 are small, and so is the rounding error.
    """
    return ((b - a).abs() < torch.finfo(a.dtype).eps ** (1 / 3)) & (a.sign() == b.sign())


def _unclamped(neurons: Neurons) -> PerNeuron:
    assert neurons.value_slope is not None
    return (neurons.value - 1) / neurons.value_slope


def _clamp_slope(a: PerNeuron, b: PerNeuron, clamped: tuple[PerNeuron, PerNeuron]) -> PerNeuron:
    """The difference quotient of a clamp: 1 inside, 0 where both ends are clamped alike."""
    change = b - a
    inside = (clamped[1] - clamped[0]) / torch.where(change == 0, 1.0, change)
    return torch.where(change == 0, 1.0, inside)


def _mean_weight(reference: Neurons, run: Neurons) -> PerNeuron | float:
    before, after = reference.expert_weight, run.expert_weight
    return 1.0 if before is None or after is None else (before + after) / 2
