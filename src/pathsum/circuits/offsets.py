"""The position part of a head's scores, by offset: where position vectors are, and rotary."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.basis import ROWS
from pathsum.circuits.qk import token_keys, token_queries
from pathsum.circuits.tokens import joined, token_frequencies
from pathsum.model import Head
from pathsum.model.reads import fold_bias, fold_read
from pathsum.model.rotary import rotate
from pathsum.model.transformer import attention_pattern


@dataclass(frozen=True, eq=False)
class OffsetParts:
    """Position scores by destination and offset, how much each destination counts, and the rest."""

    rows: Float[Tensor, "dest window"]
    weights: Float[Tensor, " dest"]
    attention: Float[Tensor, " window"] | None
    content: float
    note: str


def offset_parts(head: Head, window: int) -> OffsetParts:
    """The position part of a head's scores at the offsets 0 … window − 1."""
    if head.model.config.positions == "rotary":
        return _rotary(head, window)
    return _placed(head, window)


def _placed(head: Head, window: int) -> OffsetParts:
    """Position vectors, in the inputs of W_Q and W_K or in the stream."""
    config = head.model.config
    scores = position_scores(head)
    rows = _by_offset(scores, window)
    scaled = config.positions == "qk" or head.id.layer == 0 or config.norm == "none"
    attention = None
    if scaled and config.qk_norm == "none":
        attention = _by_offset(attention_pattern(scores[None, None])[0, 0], window).mean(0)
    queries, keys, p = _tokens(head)
    Q = (queries * p[:, None]).T @ queries
    K = _covariance(keys, p)
    content = float((Q * K).sum().clamp(min=0).sqrt()) * abs(config.score_scale)
    note = joined(
        (
            "" if scaled else "direct path, scale omitted",
            "" if config.qk_norm == "none" else "QK-norm's scale omitted in the position part",
        )
    )
    weights = torch.full_like(rows[:, 0], 1 / len(rows))
    return OffsetParts(rows, weights, attention, content, note)


def position_scores(head: Head) -> Float[Tensor, "dest src"]:
    """posQ[i] · posK[j] for all places, b_Q's part of the query included, in float64.

    Where positions are in the stream of a model that normalises, layer 0 takes the scale that a
    place has on average over tokens; deeper it is left out.
    """
    model, config = head.model, head.model.config
    layer = model.weights.layers[head.id.layer]
    W_Q, W_K = layer.W_Q[head.id.head], layer.W_K[head.kv]
    b_Q = None if layer.b_Q is None else layer.b_Q[head.id.head]
    bias = fold_bias(W_Q, layer.ln1_b, b_Q)
    if config.positions == "qk":
        # Added after the normalisation, so neither gain nor scale touches it.
        assert layer.W_pos is not None
        queries, keys = layer.W_pos @ W_Q, layer.W_pos @ W_K
    else:
        assert model.weights.W_pos is not None
        places = model.weights.W_pos * _place_scales(head)[:, None]
        queries = places @ fold_read(config.norm, W_Q, layer.ln1_w)
        keys = places @ fold_read(config.norm, W_K, layer.ln1_w)
    queries = queries + bias
    if layer.q_norm_w is not None:
        queries = queries * layer.q_norm_w
    if layer.k_norm_w is not None:
        keys = keys * layer.k_norm_w
    return queries.double() @ keys.double().T * config.score_scale


def _place_scales(head: Head) -> Float[Tensor, " ctx"]:
    """The mean over tokens of what a place's stream is multiplied by when layer 0 reads it."""
    model, config = head.model, head.model.config
    W_pos = model.weights.W_pos
    assert W_pos is not None
    if config.norm == "none" or head.id.layer > 0:
        return W_pos.new_ones(len(W_pos))
    centring = config.norm == "layer"
    places = W_pos - W_pos.mean(-1, keepdim=True) if centring else W_pos
    p = token_frequencies(model).to(places)
    total = places.new_zeros(len(places))
    for start in range(0, len(p), ROWS):
        tokens = model.weights.W_E[start : start + ROWS]
        tokens = tokens - tokens.mean(-1, keepdim=True) if centring else tokens
        # |t + p|² from one product, rather than all sums.
        square = tokens.square().sum(-1)[:, None] + places.square().sum(-1)
        square = square + 2 * tokens @ places.T
        scale = torch.rsqrt(square.clamp(min=0) / places.shape[1] + config.norm_eps)
        total += p[start : start + ROWS] @ scale
    return total


def _rotary(head: Head, window: int) -> OffsetParts:
    """The average key turned by the offset, met by every token's query."""
    config = head.model.config
    queries, keys, p = _tokens(head)
    queries = queries * config.score_scale
    centre = p @ keys
    every = torch.arange(config.n_ctx, device=keys.device)
    # q R(Δ) kᵀ = q · (k R(−Δ)): the one average key is turned, not all queries.
    turned = rotate(config, centre.expand(len(every), -1), -every)
    attention = None
    if head.id.layer == 0 or config.norm == "none" or config.qk_norm != "none":
        attention = ((p @ queries) @ turned.T).softmax(-1)[:window]
    Q, K = (queries * p[:, None]).T @ queries, _covariance(keys, p)
    axes = torch.eye(config.d_head, dtype=K.dtype, device=K.device)
    variance = K.new_zeros(())
    for offset in range(window):
        R = rotate(config, axes, torch.full((len(axes),), offset, device=K.device))
        variance = variance + ((R.T @ Q @ R) * K).sum() / window
    note = "rotary: the average query against the average key"
    scaled = attention is not None
    return OffsetParts(
        queries @ turned[:window].T,
        p,
        attention,
        float(variance.clamp(min=0).sqrt()),
        note if scaled else joined((note, "direct path, scale omitted")),
    )


def _tokens(
    head: Head,
) -> tuple[Float[Tensor, "vocab k"], Float[Tensor, "vocab k"], Float[Tensor, " vocab"]]:
    queries, keys = token_queries(head).double(), token_keys(head).double()
    return queries, keys, token_frequencies(head.model).to(queries.device)


def _covariance(x: Float[Tensor, "vocab k"], p: Float[Tensor, " vocab"]) -> Float[Tensor, "k k"]:
    centred = x - p @ x
    return (centred * p[:, None]).T @ centred


def _by_offset(scores: Float[Tensor, "dest src"], window: int) -> Float[Tensor, "late window"]:
    """scores[i, i − Δ] for the destinations that see every offset of the window."""
    i = torch.arange(window - 1, len(scores), device=scores.device)[:, None]
    return scores[i, i - torch.arange(window, device=scores.device)]
