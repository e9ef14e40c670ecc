"""The position part of a head's scores, by offset: where position vectors are, and rotary."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.centering import remove_mean
from pathsum.circuits.tokens.qk import token_keys, token_queries
from pathsum.circuits.tokens.token import joined, token_frequencies
from pathsum.circuits.tokens.token_basis import TOKENS, score_cap_note
from pathsum.model import Head, Model
from pathsum.model.folding import ROWS, read_scales, score_read, with_qk_gain
from pathsum.model.rotary import rotate
from pathsum.model.transformer import head_pattern, pattern_at
from pathsum.names import Side

# Offsets that keys are rotated to at a time: a file may claim a context of millions.
OFFSETS = 4096


@dataclass(frozen=True, eq=False)
class OffsetParts:
    """Position scores by destination and offset, weights of destinations, and the content sd."""

    rows: Float[Tensor, "dest window"]
    weights: Float[Tensor, " dest"]
    attention: Float[Tensor, " window"] | None
    content: float
    note: str


class TokenMoments:
    """What all heads of a depth share: sums over the vocabulary, computed on first use.

    Layer 0 reads normalized embeddings, every deeper layer the same plain ones.
    """

    def __init__(self, model: Model, *, first_layer: bool) -> None:
        self.model, self.layer = model, 0 if first_layer else 1

    @cached_property
    def frequencies(self) -> Float[Tensor, " vocab"]:
        """How often each token occurs."""
        return token_frequencies(self.model).to(self.model.weights.device)

    @cached_property
    def scales(self) -> Float[Tensor, " ctx"]:
        """The normalization scale of each position, on average over tokens."""
        return _position_scales(self.model, self.layer)

    @cached_property
    def mean(self) -> Float[Tensor, " d"]:
        """Σ p(t) e(t) over tokens, e as read."""
        return self._sums[0]

    @cached_property
    def second(self) -> Float[Tensor, "d d"]:
        """Σ p(t) e(t)ᵀ e(t) over tokens, e as read."""
        return self._sums[1]

    @cached_property
    def covariance(self) -> Float[Tensor, "d d"]:
        """The covariance of embeddings over tokens, as read."""
        return self.second - self.mean.outer(self.mean)

    @cached_property
    def _sums(self) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
        W_E, p = self.model.weights.W_E, self.frequencies
        scales = read_scales(self.model.weights, self.layer)
        d = W_E.shape[1]
        mean, second = p.new_zeros(d), p.new_zeros(d, d)
        for start in range(0, len(W_E), TOKENS):
            rows, share = W_E[start : start + TOKENS], p[start : start + TOKENS]
            if scales is not None:
                rows = rows * scales[start : start + TOKENS, None]
            mean += share @ rows.to(p)
            half = rows * share.sqrt().to(rows)[:, None]
            second += half.T @ half
        return mean, second


def offset_parts(head: Head, window: int, shared: TokenMoments | None = None) -> OffsetParts:
    """The position part of a head's scores at the offsets 0 … window − 1.

    Pass `shared` when calling for many heads of one depth.
    """
    if shared is None:
        shared = TokenMoments(head.model, first_layer=head.id.layer == 0)
    if head.model.config.positions == "rotary":
        return _rotary(head, window)
    return _placed(head, window, shared)


def _placed(head: Head, window: int, shared: TokenMoments) -> OffsetParts:
    """Position vectors, in the inputs of W_Q and W_K or in the stream."""
    config = head.model.config
    scaled = config.positions == "qk" or head.id.layer == 0 or config.norm == "none"
    attention = None
    queries, keys = _position_sides(head, shared)
    if not scaled or config.qk_norm != "none":
        rows = _products_by_offset(queries, keys, window)
    else:
        scores = queries @ keys.T
        rows = _by_offset(scores, window)
        if config.score_cap is not None:
            # The same along a row, so softmax ignores it, but a cap does not.
            scores = scores + (queries @ _key_bias(head))[:, None]
        pattern = head_pattern(head.model.weights, head.id, scores[None])[0]
        attention = _by_offset(pattern, window).mean(0)
    Q, K = _content(head, shared)
    content = float((Q * K).sum().clamp(min=0).sqrt()) * abs(config.score_scale)
    note = joined(
        (
            "" if scaled else "direct path, scale omitted",
            "" if config.qk_norm == "none" else "QK-norm's scale omitted in the position part",
            score_cap_note(config),
        )
    )
    weights = torch.full_like(rows[:, 0], 1 / len(rows))
    return OffsetParts(rows, weights, attention, content, note)


def _content(head: Head, shared: TokenMoments) -> tuple[Float[Tensor, "k k"], Float[Tensor, "k k"]]:
    """Second moments of queries and the covariance of keys, over tokens by their frequency.

    With x = e W + b, Σ p xᵀx = Wᵀ G W + mᵀb + bᵀm + bᵀb, m = (Σ p e) W and G the second moments
    of embeddings: nothing is vocabulary-sized. With QK-norm the read is not linear, so all tokens
    are read.
    """
    model, config = head.model, head.model.config
    if config.qk_norm != "none":
        queries, keys, p = _tokens(head)
        return (queries * p[:, None]).T @ queries, _covariance(keys, p)
    W_Q, bias = (part.double() for part in score_read(model.weights, head.id, Side.Q))
    W_K = score_read(model.weights, head.id, Side.K)[0].double()
    mean = shared.mean @ W_Q
    Q = W_Q.T @ shared.second @ W_Q
    Q = Q + mean.outer(bias) + bias.outer(mean) + bias.outer(bias)
    return Q, W_K.T @ shared.covariance @ W_K


def _position_sides(
    head: Head, shared: TokenMoments | None
) -> tuple[Float[Tensor, "dest k"], Float[Tensor, "src k"]]:
    """posQ, scaled as scores are, and posK.

    Where positions are in the stream of a model that normalizes, layer 0 uses the mean scale of a
    position over tokens; deeper the scale is left out.
    """
    model, config = head.model, head.model.config
    layer = model.weights.layers[head.id.layer]
    W_Q, bias = score_read(model.weights, head.id, Side.Q)
    W_K = score_read(model.weights, head.id, Side.K)[0]
    if config.positions == "qk":
        # Added after the normalization, so neither gain nor scale applies.
        assert layer.W_pos is not None
        queries = layer.W_pos @ layer.W_Q[head.id.head]
        keys = layer.W_pos @ layer.W_K[head.kv]
    else:
        assert model.weights.W_pos is not None
        scales = _position_scales(model, head.id.layer) if shared is None else shared.scales
        places = model.weights.W_pos * scales[:, None]
        queries, keys = places @ W_Q, places @ W_K
    queries = with_qk_gain(queries + bias, layer.q_norm_w, head.id.head)
    keys = with_qk_gain(keys, layer.k_norm_w, head.kv)
    return queries.double() * config.score_scale, keys.double()


def _position_scales(model: Model, layer: int) -> Float[Tensor, " ctx"]:
    """The mean over tokens of the scale by which layer 0 normalizes each position."""
    config = model.config
    W_pos = model.weights.W_pos
    assert W_pos is not None
    if config.norm == "none" or layer > 0:
        return W_pos.new_ones(len(W_pos))
    centering = config.norm == "layer"
    places = remove_mean(W_pos, centering)
    p = token_frequencies(model).to(places)
    total = places.new_zeros(len(places))
    for start in range(0, len(p), ROWS):
        tokens = remove_mean(model.weights.W_E[start : start + ROWS], centering)
        # |t + p|² from one product, rather than all sums.
        square = tokens.square().sum(-1)[:, None] + places.square().sum(-1)
        square = square + 2 * tokens @ places.T
        scale = torch.rsqrt(square.clamp(min=0) / places.shape[1] + config.norm_eps)
        total += p[start : start + ROWS] @ scale
    return total


def _rotary(head: Head, window: int) -> OffsetParts:
    """The average key rotated by the offset, against every token's query."""
    config = head.model.config
    queries, keys, p = _tokens(head)
    queries = queries * config.score_scale
    center = p @ keys
    attention = None
    if head.id.layer == 0 or config.norm == "none" or config.qk_norm != "none":
        every = torch.arange(config.n_ctx, device=keys.device).split(OFFSETS)
        mean = p @ queries
        scores = torch.cat([_rotated_back(head, center, offsets) @ mean for offsets in every])
        attention = _attention_by_offset(head, scores)[:window]
    Q, K = (queries * p[:, None]).T @ queries, _covariance(keys, p)
    axes = torch.eye(config.d_head, dtype=K.dtype, device=K.device)
    variance = K.new_zeros(())
    for offset in range(window):
        places = torch.full((len(axes),), offset, device=K.device)
        R = rotate(config.at(head.id.layer), axes, places)
        variance = variance + ((R.T @ Q @ R) * K).sum() / window
    note = "rotary: the average query against the average key"
    scaled = attention is not None
    return OffsetParts(
        queries @ _rotated_back(head, center, torch.arange(window, device=keys.device)).T,
        p,
        attention,
        float(variance.clamp(min=0).sqrt()),
        joined((note, "" if scaled else "direct path, scale omitted", score_cap_note(config))),
    )


def _rotated_back(
    head: Head, key: Float[Tensor, " k"], offsets: Int[Tensor, " offset"]
) -> Float[Tensor, "offset k"]:
    """k R(−Δ) for each offset Δ.

    q R(Δ) kᵀ = q · (k R(−Δ)), so the one average key is rotated, not all queries.
    """
    config = head.model.config.at(head.id.layer)
    return rotate(config, key.expand(len(offsets), -1), -offsets)


def _attention_by_offset(head: Head, scores: Float[Tensor, " offset"]) -> Float[Tensor, " offset"]:
    """The pattern of a destination that sees every offset, offset 0 first."""
    layer = head.model.weights.layers[head.id.layer]
    offsets = torch.arange(len(scores), device=scores.device)[None]
    number = torch.tensor([head.id.head], device=scores.device)
    return pattern_at(head.model.config, layer, number, offsets, scores[None])[0]


def _key_bias(head: Head) -> Float[Tensor, " k"]:
    return score_read(head.model.weights, head.id, Side.K)[1].double()


def _tokens(
    head: Head,
) -> tuple[Float[Tensor, "vocab k"], Float[Tensor, "vocab k"], Float[Tensor, " vocab"]]:
    queries, keys = token_queries(head).double(), token_keys(head).double()
    return queries, keys, token_frequencies(head.model).to(queries.device)


def _covariance(x: Float[Tensor, "vocab k"], p: Float[Tensor, " vocab"]) -> Float[Tensor, "k k"]:
    centered = x - p @ x
    return (centered * p[:, None]).T @ centered


def _by_offset(scores: Float[Tensor, "dest src"], window: int) -> Float[Tensor, "late window"]:
    """scores[i, i − Δ] for the destinations that see every offset of the window."""
    i = torch.arange(window - 1, len(scores), device=scores.device)[:, None]
    return scores[i, i - torch.arange(window, device=scores.device)]


def _products_by_offset(
    queries: Float[Tensor, "dest k"], keys: Float[Tensor, "src k"], window: int
) -> Float[Tensor, "late window"]:
    """`_by_offset(queries @ keys.T)` without forming the product, which is context-sized."""
    windows = keys.unfold(0, window, 1).flip(-1)  # [late, k, window], offset 0 first
    return (queries[window - 1 :, None] @ windows)[:, 0]
