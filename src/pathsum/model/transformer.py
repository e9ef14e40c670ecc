"""The parts of the transformer, in the order in which data flows.

`pathsum.model.forward` puts them together. Without edits and recording, a run is

    stream = embed(weights, tokens)
    for layer in weights.layers:
        read, _ = attention_read(config, layer, stream)
        query, key, _, _ = queries_and_keys(config, layer, read)
        z = fused_attention(config, layer, query, key, values(layer, read))
        attended = stream + write(config, layer, z)[0]
        stream = attended + mlp(config, layer, attended)[0]
    logits, _ = unembed(weights, stream)

A layer without an MLP ends at `attended`; in a parallel block the MLP reads `stream`.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.decompositions import is_finite
from pathsum.algebra.spectrum import remove_mean
from pathsum.base import HeadId, Side
from pathsum.base.errors import InputError
from pathsum.base.shapes import (
    AtDestinations,
    AtSources,
    HeadPattern,
    Logits,
    Pattern,
    PerHead,
    PerKey,
    Scale,
    Stream,
    Tokens,
)
from pathsum.model.activations import (
    NeuronEdits,
    activations,
    edited_output,
    output_of_experts,
    preactivations,
)
from pathsum.model.config import Config
from pathsum.model.rotary import rotate
from pathsum.model.weights import (
    LayerWeights,
    Weights,
    for_query_heads,
    kv_head,
    layer_of_one_head,
    one_head,
)

# Patterns of more entries than this are made for one head at a time where no kernel fuses them.
ONE_HEAD_AT_A_TIME = 1 << 20


def embed(weights: Weights, tokens: Tokens, past: int = 0) -> Stream:
    """The stream before the first layer, of tokens that follow `past` others."""
    stream = weights.W_E[tokens]
    if weights.config.positions == "residual":
        assert weights.W_pos is not None
        stream = stream + weights.W_pos[past : past + tokens.shape[1]]
    return stream


def normalize(
    config: Config,
    x: Stream,
    gain: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None,
    scale: Scale | None = None,
) -> tuple[Stream, Scale]:
    """The normalized stream and its scale, one number per position, which may be held fixed."""
    if config.norm == "none":
        return x, x.new_ones(()).expand(x.shape[:-1])
    x = remove_mean(x, config.norm == "layer")
    if scale is None:
        scale = torch.rsqrt(x.square().mean(-1) + config.norm_eps)
    y = x * scale[..., None]
    if gain is not None:
        y = y * gain
    if bias is not None:
        y = y + bias
    return y, scale


def attention_read(config: Config, layer: LayerWeights, stream: Stream) -> tuple[Stream, Scale]:
    """The input of a layer's heads, and its scale."""
    return _block_read(config, stream, layer.ln1_w, layer.ln1_b)


def mlp_read(config: Config, layer: LayerWeights, stream: Stream) -> tuple[Stream, Scale]:
    """The input of a layer's MLP, and its scale."""
    return _block_read(config, stream, layer.ln2_w, layer.ln2_b)


def _block_read(
    config: Config,
    stream: Stream,
    gain: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None,
) -> tuple[Stream, Scale]:
    if config.norm_place == "after":
        return stream, stream.new_ones(()).expand(stream.shape[:-1])
    return normalize(config, stream, gain, bias)


def queries_and_keys(
    config: Config,
    layer: LayerWeights,
    read: Stream,
    positions: Int[Tensor, " pos"] | None = None,
) -> tuple[PerHead, PerKey, Float[Tensor, "batch head pos"], Float[Tensor, "batch kv pos"]]:
    """Queries and keys ready for their product, and the scales that QK-norm gave them.

    `positions` are the positions that are read, by default all from 0 on.
    """
    if positions is None:
        positions = torch.arange(read.shape[1])
    x = read if layer.W_pos is None else read + layer.W_pos[positions]
    query, key = project(x, layer.W_Q, layer.b_Q), project(x, layer.W_K, layer.b_K)
    query, query_scale = normalize_and_rotate(config, layer, Side.Q, query, positions)
    key, key_scale = normalize_and_rotate(config, layer, Side.K, key, positions)
    return query, key, query_scale, key_scale


def normalize_and_rotate(
    config: Config,
    layer: LayerWeights,
    side: Side,
    x: Float[Tensor, "batch head pos k"],
    positions: Int[Tensor, " pos"],
) -> tuple[Float[Tensor, "batch head pos k"], Float[Tensor, "batch head pos"]]:
    """Queries or keys after QK-norm and rotary positions, and the scales of QK-norm."""
    x, scale = _head_norm(config, x, layer.q_norm_w if side is Side.Q else layer.k_norm_w)
    if config.positions == "rotary":
        x = rotate(config.at(layer.index), x, positions)
    return x, scale


def project(x: Stream, W: Float[Tensor, "head d k"], b: Float[Tensor, "head k"] | None) -> PerHead:
    """A read by every head of a layer."""
    y = torch.einsum("bpd,hdk->bhpk", x, W)
    return y if b is None else y + b[:, None, :]


def values(layer: LayerWeights, read: Stream) -> PerKey:
    """The values of each key/value head at each position."""
    return project(read, layer.W_V, layer.b_V)


def head_read(
    config: Config,
    layer: LayerWeights,
    head: int,
    side: Side,
    stream: Stream,
    positions: Int[Tensor, " pos"] | None = None,
) -> Float[Tensor, "batch pos k"]:
    """The queries, keys or values of one head, from a stream that only this read sees."""
    index = head if side is Side.Q else kv_head(config, head)
    # A norm over all heads of the layer needs the others for its scale.
    if config.qk_norm != "rms_all" or side is Side.V:
        config, layer, index = one_head(config), layer_of_one_head(config, layer, head), 0
    read = attention_read(config, layer, stream)[0]
    if side is Side.V:
        return values(layer, read)[:, index]
    positions = torch.arange(read.shape[1]) if positions is None else positions
    x = read if layer.W_pos is None else read + layer.W_pos[positions]
    W, bias = (layer.W_Q, layer.b_Q) if side is Side.Q else (layer.W_K, layer.b_K)
    return normalize_and_rotate(config, layer, side, project(x, W, bias), positions)[0][:, index]


def attention_scores(config: Config, query: AtDestinations, key: AtSources) -> Pattern:
    """Scores before the soft cap, mask and softmax; each key head serves as many query heads."""
    key = for_query_heads(key, query.shape[1])
    return (query * config.score_scale) @ key.mT


def attention_pattern(
    config: Config, layer: LayerWeights, scores: Pattern, heads: Sequence[int] | None = None
) -> Pattern:
    """The softmax of scores, of all heads of a layer or of the listed ones; rows are destinations.

    Rows sum to 1, or less with sinks. Scores are capped first. A causal model masks later sources,
    and a layer with a window of w masks sources w or more positions back. Scores may be those of
    the last destinations only.
    """
    scores = soft_cap(scores, config.score_cap)
    if config.causal:
        scores = scores + _causal_mask(scores, config.window(layer.index))
    sinks = layer.sinks if layer.sinks is None or heads is None else layer.sinks[list(heads)]
    return _softmax(scores, sinks)


def head_pattern(weights: Weights, head: HeadId, scores: HeadPattern) -> HeadPattern:
    """The pattern of one head, from its scores [batch, dest, src]."""
    tensors = layer_of_one_head(weights.config, weights.layers[head.layer], head.head)
    return attention_pattern(weights.config, tensors, scores[:, None])[:, 0]


def attend(config: Config, layer: LayerWeights, query: AtDestinations, key: AtSources) -> Pattern:
    """The pattern of a layer's keys and queries; queries may cover the last positions only."""
    return attention_pattern(config, layer, attention_scores(config, query, key))


def attend_heads(
    config: Config,
    layer: LayerWeights,
    query: AtDestinations,
    key: AtSources,
    heads: Sequence[int],
) -> Float[Tensor, "batch some dest src"]:
    """The patterns of some heads of a layer, given the queries and keys of all."""
    kv_heads = [kv_head(config, head) for head in heads]
    scores = attention_scores(config, query[:, list(heads)], key[:, kv_heads])
    return attention_pattern(config, layer, scores, heads)


def attend_at(
    config: Config,
    layer: LayerWeights,
    head: Int[Tensor, " node"],
    position: Int[Tensor, " node"],
    query: Float[Tensor, "node k"],
    key: Float[Tensor, "node src k"],
) -> Float[Tensor, "node src"]:
    """The patterns of single destinations: the head and position of each, its query and its keys.

    In a causal model, keys after its own position, or outside its window, are masked.
    """
    scores = torch.einsum("nk,nsk->ns", query * config.score_scale, key)
    offset = position[:, None] - torch.arange(key.shape[1], device=key.device)
    return pattern_at(config, layer, head, offset, scores)


def pattern_at(
    config: Config,
    layer: LayerWeights,
    head: Int[Tensor, " node"],
    offset: Int[Tensor, "#node src"],
    scores: Float[Tensor, "node src"],
) -> Float[Tensor, "node src"]:
    """The patterns of single destinations from their scores; `offset` is destination − source."""
    scores, window = soft_cap(scores, config.score_cap), config.window(layer.index)
    if config.causal:
        hidden = offset < 0 if window is None else (offset < 0) | (offset >= window)
        scores = scores.masked_fill(hidden, -torch.inf)
    return _softmax(scores[:, None], None if layer.sinks is None else layer.sinks[head])[:, 0]


def _softmax(
    scores: Float[Tensor, "*batch head dest src"], sinks: Float[Tensor, " head"] | None
) -> Float[Tensor, "*batch head dest src"]:
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]


def _causal_mask(scores: Tensor, window: int | None) -> Float[Tensor, "dest src"]:
    """The causal mask of the last destinations: −∞ where they cannot attend, else 0."""
    # Adding −∞ takes a third of the time of masked_fill with a broadcast mask.
    last, length = scores.shape[-2:]
    infinite = scores.new_full((length, length), -torch.inf)
    mask = infinite.triu(1)
    if window is not None and window < length:
        mask += infinite.tril(-window)
    return mask[-last:]


def mix(pattern: Pattern, value: AtSources) -> AtDestinations:
    """Values moved from sources to destinations: each head's z."""
    return pattern @ for_query_heads(value, pattern.shape[1])


def fused_attention(
    config: Config, layer: LayerWeights, query: AtDestinations, key: AtSources, value: AtSources
) -> AtDestinations:
    """Scores, softmax and mix in one kernel, except with soft caps on scores or with sinks."""
    if config.score_cap is not None or layer.sinks is not None:
        if query.shape[2] * key.shape[2] < ONE_HEAD_AT_A_TIME:
            return mix(attend(config, layer, query, key), value)
        values = for_query_heads(value, query.shape[1]).split(1, 1)
        patterns = (attend_heads(config, layer, query, key, [h]) for h in range(len(values)))
        return torch.cat([pattern @ v for pattern, v in zip(patterns, values, strict=True)], 1)
    window, last, length = config.window(layer.index), query.shape[2], key.shape[2]
    mask = None
    if config.causal and ((window is not None and window < length) or last < length):
        mask = _causal_mask(query.new_empty(()).expand(last, length), window)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=config.causal and mask is None,
        scale=config.score_scale,
        enable_gqa=True,
    )


def write(config: Config, layer: LayerWeights, z: PerHead) -> tuple[Stream, Scale]:
    """The output of a layer's heads, and the scale of the norm after them."""
    if layer.post1_w is None:
        W_O, b_O = layer.W_O, layer.b_O
    else:
        assert layer.raw_W_O is not None
        W_O, b_O = layer.raw_W_O, layer.raw_b_O
    output = torch.einsum("bhpk,hkd->bpd", z, W_O)
    if b_O is not None:
        output = output + b_O
    if config.norm_place == "before":
        return output, output.new_ones(()).expand(output.shape[:-1])
    return normalize(config, output, layer.post1_w, None)


def mlp(
    config: Config, layer: LayerWeights, stream: Stream, edits: NeuronEdits | None = None
) -> tuple[Stream, Scale]:
    """The output of a layer's MLP, and the scale of its read."""
    assert layer.W_out is not None
    read, scale = mlp_read(config, layer, stream)
    if edits is not None:
        output = edited_output(config, layer, read, edits)
    elif config.n_experts:
        output = output_of_experts(config, layer, read)
    else:
        output = activations(config, *preactivations(layer, read)) @ layer.W_out
    if layer.b_out is not None:
        output = output + layer.b_out
    if config.norm_place != "before":
        output = normalize(config, output, layer.post2_w, None)[0]
    return output, scale


def unembed(weights: Weights, stream: Stream) -> tuple[Logits, Scale]:
    """Logits of the final stream, and the scale of that read."""
    logits, scale = unembed_uncapped(weights, stream)
    return soft_cap(logits, weights.config.logit_cap), scale


def unembed_uncapped(weights: Weights, stream: Stream) -> tuple[Logits, Scale]:
    """Logits of the final stream before the soft cap, and the scale of that read."""
    read, scale = normalize(weights.config, stream, weights.ln_f_w, weights.ln_f_b)
    return logits_of_read(weights, read), scale


def logits_of_read(weights: Weights, read: Float[Tensor, "*pos d"]) -> Float[Tensor, "*pos vocab"]:
    """Logits before the soft cap, from the unembedding's input."""
    logits = read @ weights.W_U
    if weights.b_U is not None:
        logits += weights.b_U
    return logits


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """Soft cap: squash values into ±cap with tanh."""
    return x if cap is None else cap * torch.tanh(x / cap)


def _head_norm(
    config: Config, x: PerHead, gain: Float[Tensor, "*head k"] | None
) -> tuple[PerHead, Float[Tensor, "batch head pos"]]:
    if config.qk_norm == "none":
        return x, x.new_ones(()).expand(x.shape[:-1])
    if config.qk_norm != "rms_all":
        scale = torch.rsqrt(x.square().mean(-1) + config.norm_eps)
    else:
        # One norm over all heads of the layer.
        scale = torch.rsqrt(x.square().mean((1, 3)) + config.norm_eps)[:, None].expand(x.shape[:-1])
    y = x * scale[..., None]
    if gain is None:
        return y, scale
    return y * (gain if gain.ndim == 1 else gain[:, None]), scale


def check_overflow(result: Tensor) -> None:
    """Raise InputError if a run overflowed; anything measured on it would be NaN too."""
    if not is_finite(result):
        raise InputError(
            f"the run overflowed {result.dtype}: the weights are finite, but the result is NaN "
            "or infinite; check the scale of the weights, or use float64"
        )
