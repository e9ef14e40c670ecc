"""The position part of a head's scores, by offset: where position vectors are, and rotary."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.centering import remove_mean
from pathsum.circuits.composition.reads_and_writes import rotated_gram
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
    """The position part of a head's scores by offset, and the standard deviation of the content.

    `score` is the mean over destinations, each with its own mean over the window removed, and `sd`
    the standard deviation over destinations.
    """

    score: Float[Tensor, " window"]
    sd: Float[Tensor, " window"]
    attention: Float[Tensor, " window"] | None
    content: float
    note: str


class TokenMoments:
    """Sums over the vocabulary that all heads of a depth share, computed on first use.

    Layer 0 reads normalized embeddings, every deeper layer the same plain ones.
    """

    def __init__(self, model: Model, *, first_layer: bool) -> None:
        self.model, self.layer = model, 0 if first_layer else 1

    @cached_property
    def frequencies(self) -> Float[Tensor, " vocab"]:
        """The frequency of each token."""
        return token_frequencies(self.model).to(self.model.weights.device)

    @cached_property
    def scales(self) -> Float[Tensor, " ctx"]:
        """The normalization scale of each position, on average over tokens."""
        return _position_scales(self.model, self.layer)

    @cached_property
    def mean(self) -> Float[Tensor, " d"]:
        """Σ p(t) e(t) over tokens, e as read."""
        mean = self.frequencies.new_zeros(self.model.config.d_model)
        for share, rows in self._rows():
            mean += share @ rows.to(share)
        return mean

    @cached_property
    def covariance(self) -> Float[Tensor, "d d"]:
        """The covariance of embeddings over tokens, as read."""
        # The mean is removed first: it may be much larger than what tokens differ by.
        mean = self.mean
        total = mean.new_zeros(len(mean), len(mean))
        for share, rows in self._rows():
            half = (rows - mean.to(rows)) * share.sqrt().to(rows)[:, None]
            total += half.T @ half
        return total

    def _rows(self) -> Iterator[tuple[Float[Tensor, " some"], Float[Tensor, "some d"]]]:
        """Frequencies and embeddings as read, some tokens at a time."""
        W_E, p = self.model.weights.W_E, self.frequencies
        scales = read_scales(self.model.weights, self.layer)
        for start in range(0, len(W_E), TOKENS):
            here = slice(start, start + TOKENS)
            yield p[here], W_E[here] if scales is None else W_E[here] * scales[here, None]


def offset_parts(head: Head, window: int, shared: TokenMoments | None = None) -> OffsetParts:
    """The position part of a head's scores at the offsets 0 … window − 1.

    Pass `shared` when calling for many heads of one depth.
    """
    if shared is None:
        shared = TokenMoments(head.model, first_layer=head.id.layer == 0)
    if head.model.config.positions == "rotary":
        return _rotary(head, window, shared)
    return _placed(head, window, shared)


def position_rows(
    head: Head, window: int, shared: TokenMoments | None = None
) -> Float[Tensor, "late window"]:
    """Position scores by offset of each destination that sees the window, window − 1 and later.

    On a model that is not rotary.
    """
    return _products_by_offset(*_position_sides(head, shared), window)


def _placed(head: Head, window: int, shared: TokenMoments) -> OffsetParts:
    """Position vectors, in the inputs of W_Q and W_K or in the stream."""
    config = head.model.config
    scaled = config.positions == "qk" or head.id.layer == 0 or config.norm == "none"
    attention = None
    if not scaled or config.qk_norm != "none":
        rows = position_rows(head, window, shared)
    else:
        queries, keys = _position_sides(head, shared)
        scores = queries @ keys.T
        rows = _by_offset(scores, window)
        if config.score_cap is not None:
            # The same along a row, so softmax ignores it, but a cap does not.
            scores = scores + (queries @ _key_bias(head))[:, None]
        pattern = head_pattern(head.model.weights, head.id, scores[None])[0]
        attention = _by_offset(pattern, window).mean(0)
    centered = remove_mean(rows)
    read = _read_moments(head, shared)
    content = (read.query_square * read.key_covariance).sum().clamp(min=0).sqrt()
    note = joined(
        (
            "" if scaled else "direct path, scale omitted",
            "" if config.qk_norm == "none" else "QK-norm's scale omitted in the position part",
            score_cap_note(config),
        )
    )
    sd = centered.std(0, correction=0)
    return OffsetParts(centered.mean(0), sd, attention, float(content), note)


@dataclass(frozen=True, eq=False)
class _ReadMoments:
    """Means and covariances of a head's queries, scaled as scores are, and keys over tokens."""

    query_mean: Float[Tensor, " k"]
    query_covariance: Float[Tensor, "k k"]
    key_mean: Float[Tensor, " k"]
    key_covariance: Float[Tensor, "k k"]

    @property
    def query_square(self) -> Float[Tensor, "k k"]:
        """Σ p(t) q(t)ᵀ q(t) over tokens."""
        return self.query_covariance + self.query_mean.outer(self.query_mean)


def _read_moments(head: Head, shared: TokenMoments) -> _ReadMoments:
    """Of the embeddings' own: x = e W + b has the mean ē W + b and the covariance Wᵀ C W.

    Nothing is vocabulary-sized. With QK-norm the read is not linear, so all tokens are read.
    """
    weights, scale = head.model.weights, head.model.config.score_scale
    found: list[Tensor] = []
    for side, factor in ((Side.Q, scale), (Side.K, 1.0)):
        if head.model.config.qk_norm == "none":
            W, bias = (part.double() for part in score_read(weights, head.id, side))
            mean, covariance = shared.mean @ W + bias, W.T @ shared.covariance @ W
        else:
            x = (token_queries if side is Side.Q else token_keys)(head).double()
            mean = shared.frequencies @ x
            centered = x - mean
            covariance = (centered * shared.frequencies[:, None]).T @ centered
        found += [mean * factor, covariance * factor**2]
    return _ReadMoments(*found)


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


def _rotary(head: Head, window: int, shared: TokenMoments) -> OffsetParts:
    """The average key rotated by the offset, against every token's query."""
    config, read = head.model.config, _read_moments(head, shared)
    attention = None
    if head.id.layer == 0 or config.norm == "none" or config.qk_norm != "none":
        every = torch.arange(config.n_ctx, device=read.key_mean.device).split(OFFSETS)
        keys = [_rotated_back(head, read.key_mean, offsets) for offsets in every]
        scores = torch.cat([each @ read.query_mean for each in keys])
        attention = _attention_by_offset(head, scores)[:window]
    offsets = torch.arange(window, device=read.key_mean.device)
    keys = _rotated_back(head, read.key_mean, offsets)
    keys = keys - keys.mean(0)
    variance = ((keys @ read.query_covariance) * keys).sum(-1)
    # Over the window, the mean of the scores' square: tr(R(−Δ) Q R(−Δ)ᵀ K).
    square = rotated_gram(
        config.at(head.id.layer), read.query_square[None], range(window), back=True
    )
    content = (square[0] * read.key_covariance).sum()
    note = "rotary: the average query against the average key"
    scaled = attention is not None
    return OffsetParts(
        keys @ read.query_mean,
        variance.clamp(min=0).sqrt(),
        attention,
        float(content.clamp(min=0).sqrt()),
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
