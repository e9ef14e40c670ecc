"""The neurons of an MLP: their inputs, their activations, and the router of their experts."""

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pathsum.base.shapes import Stream
from pathsum.model.config import Config
from pathsum.model.weights import LayerWeights

# Of mlp="clamped_gated": where gate and input are clamped, and the gate's gain inside its sigmoid.
CLAMP, SIGMOID_GAIN = 7.0, 1.702
# Passes a named value of an MLP's neurons, [batch, pos, neuron], through the edits of a run.
NeuronEdits: TypeAlias = Callable[[str, Tensor], Tensor]


def preactivations(
    layer: LayerWeights,
    read: Float[Tensor, "*pos d"],
    neurons: slice = slice(None),
    gate_read: Float[Tensor, "*pos d"] | None = None,
) -> tuple[Float[Tensor, "*pos m"], Float[Tensor, "*pos m"] | None]:
    """r W_in + b_in of an MLP's neurons and, if they have gates, r W_gate + b_gate.

    Gates may have a separate read.
    """
    assert layer.W_in is not None
    pre = read @ layer.W_in[:, neurons]
    if layer.b_in is not None:
        pre = pre + layer.b_in[neurons]
    if layer.W_gate is None:
        return pre, None
    gate = (read if gate_read is None else gate_read) @ layer.W_gate[:, neurons]
    return pre, gate if layer.b_gate is None else gate + layer.b_gate[neurons]


def activations(
    config: Config, pre: Float[Tensor, "*pos m"], gate: Float[Tensor, "*pos m"] | None
) -> Float[Tensor, "*pos m"]:
    """The activations of neurons, given `preactivations`."""
    if gate is None:
        return activation(config, pre)
    if config.mlp == "clamped_gated":
        gate, pre = gate.clamp(max=CLAMP), pre.clamp(-CLAMP, CLAMP) + 1
    return activation(config, gate) * pre


def activation(config: Config, x: Tensor) -> Tensor:
    """The MLP's nonlinearity."""
    match config.mlp.removesuffix("_gated"):
        case "relu":
            return F.relu(x)
        case "relu2":
            return F.relu(x).square()
        case "solu":
            return x * x.softmax(-1)
        case "solu_ln":
            y = x * x.softmax(-1)
            return y * torch.rsqrt(y.var(-1, False, keepdim=True) + config.norm_eps)
        case "silu":
            return F.silu(x)
        case "bilinear":
            return x
        case "clamped":
            return x * torch.sigmoid(SIGMOID_GAIN * x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case _:
            return F.gelu(x)


def expert_weights(
    config: Config, layer: LayerWeights, read: Float[Tensor, "*pos d"]
) -> Float[Tensor, "*pos expert"]:
    """The factor of each expert's output: 0 for those that the router did not choose."""
    assert layer.W_router is not None
    logits = read @ layer.W_router
    if layer.b_router is not None:
        logits = logits + layer.b_router
    routed = config.n_experts - config.shared_experts
    logits, shared = logits[..., :routed], logits[..., routed:]
    best = logits.topk(config.experts_per_token)
    weights = best.values.softmax(-1)
    if config.router == "all":
        weights = logits.softmax(-1).gather(-1, best.indices)
    return torch.cat(
        (torch.zeros_like(logits).scatter(-1, best.indices, weights), shared.sigmoid()), -1
    )


def output_of_experts(config: Config, layer: LayerWeights, read: Stream) -> Stream:
    """The sum of the experts' outputs, each computed at the positions that chose it."""
    assert layer.W_out is not None
    weights = expert_weights(config, layer, read)
    output = torch.zeros_like(read)
    width = config.d_mlp // config.n_experts
    for expert in range(config.n_experts):
        positions = weights[..., expert].nonzero(as_tuple=True)
        if len(positions[0]):
            block = slice(expert * width, (expert + 1) * width)
            active = activations(config, *preactivations(layer, read[positions], block))
            weighted = (active @ layer.W_out[block]) * weights[..., expert][positions][:, None]
            output = output.index_put(positions, weighted, accumulate=True)
    return output if layer.b_experts is None else output + weights @ layer.b_experts


def edited_output(
    config: Config, layer: LayerWeights, read: Stream, edits: NeuronEdits
) -> Float[Tensor, "copies pos d"]:
    """The output of an MLP whose neurons are edited; all experts are computed everywhere."""
    assert layer.W_out is not None
    pre, gate = preactivations(layer, read)
    active = activations(config, edits("pre", pre), None if gate is None else edits("gate", gate))
    if not config.n_experts:
        return edits("act", active) @ layer.W_out
    weights = expert_weights(config, layer, read)
    active = active * weights.repeat_interleave(config.d_mlp // config.n_experts, -1)
    output = edits("act", active) @ layer.W_out
    return output if layer.b_experts is None else output + weights @ layer.b_experts
