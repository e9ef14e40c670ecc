"""The parts of the transformer, in the order in which data flows.

`pathsum.model.run` puts them together. Without edits and recording, a run is

    stream = embed(weights, tokens)
    for layer in weights.layers:
        read, _ = attention_read(config, layer, stream)
        query, key, _, _ = queries_and_keys(config, layer, read)
        z = fused_attention(config, query, key, values(layer, read))
        attended = stream + write(layer, z)
        stream = attended + mlp(config, layer, attended)[0]
    logits, _ = unembed(weights, stream)

A layer without an MLP ends at `attended`; in a parallel block the MLP reads `stream`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pathsum.model.config import Config
from pathsum.model.rotary import rotate
from pathsum.model.weights import LayerWeights, Weights
from pathsum.shapes import Logits, Pattern, PerHead, PerKey, Scale, Stream, Tokens


def embed(weights: Weights, tokens: Tokens) -> Stream:
    """The stream before the first layer."""
    stream = weights.W_E[tokens]
    if weights.config.positions == "residual":
        assert weights.W_pos is not None
        stream = stream + weights.W_pos[: tokens.shape[1]]
    return stream


def normalize(
    config: Config,
    x: Stream,
    gain: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None,
) -> tuple[Stream, Scale]:
    """What a read sees of the stream, and its scale, one number per position."""
    if config.norm == "none":
        return x, x.new_ones(()).expand(x.shape[:-1])
    if config.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(x.square().mean(-1) + config.norm_eps)
    y = x * scale[..., None]
    if gain is not None:
        y = y * gain
    if bias is not None:
        y = y + bias
    return y, scale


def attention_read(config: Config, layer: LayerWeights, stream: Stream) -> tuple[Stream, Scale]:
    """What the heads of a layer read, and its scale."""
    return normalize(config, stream, layer.ln1_w, layer.ln1_b)


def queries_and_keys(
    config: Config, layer: LayerWeights, read: Stream
) -> tuple[PerHead, PerKey, Float[Tensor, "batch head pos"], Float[Tensor, "batch kv pos"]]:
    """Queries and keys ready for their product, and the scales that QK-norm gave them."""
    placed = read if layer.W_pos is None else read + layer.W_pos[: read.shape[1]]
    query, query_scale = _head_norm(config, project(placed, layer.W_Q, layer.b_Q), layer.q_norm_w)
    key, key_scale = _head_norm(config, project(placed, layer.W_K, layer.b_K), layer.k_norm_w)
    if config.positions == "rotary":
        places = torch.arange(read.shape[1], device=read.device)
        query, key = rotate(config, query, places), rotate(config, key, places)
    return query, key, query_scale, key_scale


def project(x: Stream, W: Float[Tensor, "head d k"], b: Float[Tensor, "head k"] | None) -> PerHead:
    """A read by every head of a layer."""
    y = torch.einsum("bpd,hdk->bhpk", x, W)
    return y if b is None else y + b[:, None, :]


def values(layer: LayerWeights, read: Stream) -> PerKey:
    """The values of each key/value head at each position."""
    return project(read, layer.W_V, layer.b_V)


def attention_scores(config: Config, query: PerHead, key: PerKey) -> Pattern:
    """Scores before mask and softmax, soft cap included."""
    key = key.repeat_interleave(config.heads_per_kv, dim=1)
    scores = (query * config.score_scale) @ key.transpose(-1, -2)
    return soft_cap(scores, config.score_cap)


def attention_pattern(scores: Pattern) -> Pattern:
    """The causal softmax of scores: rows are destinations and sum to 1."""
    return (scores + _future(scores)).softmax(-1)


def attend(config: Config, query: PerHead, key: PerKey) -> Pattern:
    """The pattern of queries and keys; the scores are overwritten."""
    scores = attention_scores(config, query, key)
    return scores.add_(_future(scores)).softmax(-1)


def _future(scores: Pattern) -> Float[Tensor, "dest src"]:
    # Adding −∞ costs a third of what filling by a mask that has to be broadcast does.
    return scores.new_full(scores.shape[-2:], -torch.inf).triu(1)


def mix(config: Config, pattern: Pattern, value: PerKey) -> PerHead:
    """Values moved from sources to destinations: each head's z."""
    return pattern @ value.repeat_interleave(config.heads_per_kv, dim=1)


def z(config: Config, layer: LayerWeights, stream: Stream, pattern: Pattern) -> PerHead:
    """Each head's z, given the stream before a layer and the layer's patterns."""
    return mix(config, pattern, values(layer, attention_read(config, layer, stream)[0]))


def fused_attention(config: Config, query: PerHead, key: PerKey, value: PerKey) -> PerHead:
    """Scores, softmax and mix in one kernel; a soft cap on scores needs the plain way."""
    if config.score_cap is not None:
        return mix(config, attend(config, query, key), value)
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=config.score_scale, enable_gqa=True
    )


def write(layer: LayerWeights, z: PerHead) -> Stream:
    """What all heads of a layer add to the stream."""
    written = torch.einsum("bhpk,hkd->bpd", z, layer.W_O)
    return written if layer.b_O is None else written + layer.b_O


def mlp(config: Config, layer: LayerWeights, stream: Stream) -> tuple[Stream, Scale]:
    """What the layer's MLP adds to the stream, and the scale of its read."""
    assert layer.W_in is not None
    assert layer.W_out is not None
    read, scale = normalize(config, stream, layer.ln2_w, layer.ln2_b)
    before = read @ layer.W_in
    if layer.b_in is not None:
        before = before + layer.b_in
    if config.mlp == "silu_gated":
        assert layer.W_gate is not None
        gate = read @ layer.W_gate
        neurons = F.silu(gate if layer.b_gate is None else gate + layer.b_gate) * before
    elif config.mlp == "relu":
        neurons = F.relu(before)
    else:
        neurons = F.gelu(before, approximate="tanh" if config.mlp == "gelu_tanh" else "none")
    written = neurons @ layer.W_out
    return (written if layer.b_out is None else written + layer.b_out), scale


def unembed(weights: Weights, stream: Stream) -> tuple[Logits, Scale]:
    """Logits of the final stream, and the scale of that read."""
    read, scale = normalize(weights.config, stream, weights.ln_f_w, weights.ln_f_b)
    logits = read @ weights.W_U
    if weights.b_U is not None:
        logits = logits + weights.b_U
    return soft_cap(logits, weights.config.logit_cap), scale


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """Soft cap: squash values into ±cap with tanh."""
    return x if cap is None else cap * torch.tanh(x / cap)


def _head_norm(
    config: Config, x: PerHead, gain: Float[Tensor, " k"] | None
) -> tuple[PerHead, Float[Tensor, "batch head pos"]]:
    if config.qk_norm == "none":
        return x, x.new_ones(()).expand(x.shape[:-1])
    scale = torch.rsqrt(x.square().mean(-1) + config.norm_eps)
    y = x * scale[..., None]
    return (y if gain is None else y * gain), scale
