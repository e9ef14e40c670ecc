"""Attention by position alone: a profile over offsets for each head, from weights.

The score of destination i and source j has a part that does not depend on tokens. Where position
vectors exist (in the inputs of W_Q and W_K, or in the stream) it is `posQ[i] · posK[j]`, plus b_Q's
part of the query; on a rotary model it is the average query against the average key, rotated by the
offset. Softmax ignores a constant along a row, so each row is centered over a window of offsets,
the same for all destinations: a score that depends only on the offset then has sd 0.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.base import Column, Progress, Record, Side, Table, silent, text_column
from pathsum.base.errors import InputError
from pathsum.base.record import HeadMapping
from pathsum.base.table import columns_table
from pathsum.circuits import token_basis
from pathsum.circuits.qk_ov import token_keys, token_queries
from pathsum.circuits.reads_and_writes import rotated_gram
from pathsum.circuits.token_basis import TokenMoments, join_notes
from pathsum.model import Head, HeadId, HeadName, Model
from pathsum.model.folding import score_read, with_qk_gain
from pathsum.model.processes import shared_map
from pathsum.model.rotary import rotate
from pathsum.model.sequences import require_causal
from pathsum.model.transformer import head_pattern, pattern_at

WINDOW = 64
# Keys are rotated to this many offsets at a time: a file may claim a context of millions.
OFFSETS = 4096


@dataclass(frozen=True, eq=False)
class OffsetProfile(Record, kind="offset-profile"):
    """One head's scores by offset, destination − source, from 0 to the window's end.

    `score[Δ]` is the mean over destinations of the position part of the score, minus each
    destination's mean over the window, and `sd[Δ]` its standard deviation over destinations
    (positions, or on a rotary model destination tokens). `attention[Δ]` is the mean pattern of only
    the position part, over the whole context (None if it depends on a scale that weights do not
    determine). `content` is the standard deviation of the content part of the score over token
    pairs, and `position` the standard deviation of `score` over offsets: the larger decides what
    the head attends to.
    """

    head: HeadId
    score: Float[Tensor, " window"]
    sd: Float[Tensor, " window"]
    attention: Float[Tensor, " window"] | None
    position: float
    content: float
    note: str

    @property
    def peak(self) -> int:
        """The offset with the largest score."""
        return int(self.score.argmax())

    @property
    def share(self) -> float:
        """position² / (position² + content²): 1 for a head that attends by position alone."""
        total = self.position**2 + self.content**2
        return self.position**2 / total if total > 0 else float("nan")

    def to_table(self) -> Table:
        """The first offsets, one per row; none where positions do not enter the scores."""
        title = f"{self.head}: scores by offset from position alone"
        if not bool(self.score.any() or self.sd.any()):
            absent = f"positions do not enter this head's scores; content sd {self.content:.3g}"
            return Table((), (), title=title, note=join_notes((absent, self.note)))
        columns = (Column("offset"), Column("score", "+.3f"), Column("sd"), Column("attention"))
        offsets = range(min(len(self.score), 10))
        attention = [None] * len(offsets) if self.attention is None else self.attention.tolist()
        cells = zip(offsets, self.score.tolist(), self.sd.tolist(), attention, strict=False)
        summary = f"position sd {self.position:.3g}, content sd {self.content:.3g}"
        return Table(columns, tuple(cells), title=title, note=join_notes((summary, self.note)))


@dataclass(frozen=True, eq=False)
class Positional(Record, HeadMapping[OffsetProfile], kind="positional"):
    """The offset profiles of all heads."""

    heads: tuple[OffsetProfile, ...]
    note: str

    def to_table(self) -> Table:
        """One row per head: where its profile peaks, and position against content."""

        def attention(h: OffsetProfile) -> float | None:
            return None if h.attention is None else float(h.attention[h.peak])

        columns = (
            *(text_column("head", "head"), Column("peak at", read="peak")),
            Column("score", "+.2f", read=lambda h: float(h.score[h.peak])),
            *(Column("attention", read=attention), Column("position sd", ".2f", read="position")),
            *(Column("content sd", ".2f", read="content"), Column("share", ".1%", read="share")),
        )
        legend = "score, attention: at the peak; share: position² / (position² + content²)"
        note = join_notes((legend, self.note))
        return columns_table(self.heads, columns, "attention by position alone", note)


@torch.no_grad()
def positional(
    model: Model, *heads: HeadName, window: int | None = None, progress: Progress = silent
) -> Positional:
    """The offset profile of each head (by default all), with the size of its content term.

    `window` is the number of offsets: by default half the context, 64 at most. Destinations from
    window − 1 on see all of them; only these are averaged.

    >>> from pathsum.model import construct
    >>> profile = positional(construct.induction(), "L0H0").heads[0]
    >>> profile.peak, round(float(profile.attention[1]), 3)
    (1, 1.0)

    Position effects through composition (a head that reads positions from an earlier head's output)
    are not included; they are part of the scores of a run.
    """
    token_basis.require_heads(model)
    token_basis.require_score_edges(model, "attention by position")
    require_causal(model, "attention by offset")
    config = model.config
    if config.positions == "none":
        raise InputError(
            "this model has positions='none', so its scores do not depend on position; "
            "use a model with positions 'qk', 'residual' or 'rotary'"
        )
    if window is None:
        window = max(1, min(WINDOW, config.n_ctx // 2))
    if not 1 <= window <= config.n_ctx:
        raise InputError(
            f"window={window} offsets do not fit a context of {config.n_ctx}; "
            f"choose from 1 to {config.n_ctx}"
        )
    rotates = [config.at(layer).positions != "none" for layer in range(config.n_layers)]
    default = [head for head in config.every_head if rotates[head.layer]]
    requested = [model.head(name) for name in heads or default]
    for head in requested:
        if not rotates[head.id.layer]:
            raise InputError(
                f"{head.label} has no position part: layer {head.id.layer} does not rotate; choose "
                "a head of another layer"
            )
    progress(0, len(requested), "offsets")
    shared = {is_first: TokenMoments(model, first_layer=is_first) for is_first in (True, False)}

    def profile(head: Head) -> OffsetProfile:
        return offset_profile(head, window, shared[head.id.layer == 0])

    profiles = shared_map(requested, profile, progress, "offsets")
    remarks = dict.fromkeys(remark for record in profiles for remark in record.note.split("; "))
    return Positional(tuple(profiles), join_notes(tuple(remarks)))


def offset_profile(head: Head, window: int, shared: TokenMoments | None = None) -> OffsetProfile:
    """The position part of a head's scores at the offsets 0 … window − 1.

    Pass `shared` when calling for many heads of one depth.
    """
    shared = shared or TokenMoments(head.model, first_layer=head.id.layer == 0)
    rotary = head.model.config.positions == "rotary"
    return (_rotary_profile if rotary else _position_vectors)(head, window, shared)


def position_rows(
    head: Head, window: int, shared: TokenMoments | None = None
) -> Float[Tensor, "late window"]:
    """Position scores by offset, of destinations that see the whole window; not for rotary."""
    queries, keys = _position_sides(head, shared)
    # Without the full product, which is context-sized.
    windows = keys.unfold(0, window, 1).flip(-1)  # [late, k, window], offset 0 first
    return (queries[window - 1 :, None] @ windows)[:, 0]


def _position_vectors(head: Head, window: int, shared: TokenMoments) -> OffsetProfile:
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
            # Constant along a row, so softmax ignores it, but a cap does not.
            key_bias = score_read(head.model.weights, head.id, Side.K)[1].double()
            scores = scores + (queries @ key_bias)[:, None]
        pattern = head_pattern(head.model.weights, head.id, scores[None])[0]
        attention = _by_offset(pattern, window).mean(0)
    centered, moments = remove_mean(rows), _read_moments(head, shared)
    content = (moments.query_square * moments.key_covariance).sum()
    notes = (
        "" if scaled else "direct path, scale omitted",
        "" if config.qk_norm == "none" else "QK-norm's scale omitted in the position part",
    )
    spread = centered.std(0, correction=0)
    return _profile(head, centered.mean(0), spread, attention, content, notes)


def _profile(
    head: Head,
    score: Float[Tensor, " window"],
    sd: Float[Tensor, " window"],
    attention: Float[Tensor, " window"] | None,
    content_square: Float[Tensor, ""],
    notes: tuple[str, ...],
) -> OffsetProfile:
    position, content = score.std(correction=0), content_square.clamp(min=0).sqrt()
    note = join_notes((*notes, token_basis.score_cap_note(head.model.config)))
    return OffsetProfile(head.label, score, sd, attention, float(position), float(content), note)


class _ReadMoments(NamedTuple):
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
    """From the embeddings' moments: x = e W + b has the mean ē W + b and the covariance Wᵀ C W.

    Nothing is vocabulary-sized, except with QK-norm, where the read is not linear.
    """
    weights, scale = head.model.weights, head.model.config.score_scale
    moments: list[Tensor] = []
    for side, factor in ((Side.Q, scale), (Side.K, 1.0)):
        if head.model.config.qk_norm == "none":
            W, bias = (tensor.double() for tensor in score_read(weights, head.id, side))
            mean, covariance = shared.mean @ W + bias, W.T @ shared.covariance @ W
        else:
            x = (token_queries if side is Side.Q else token_keys)(head).double()
            mean = shared.frequencies @ x
            centered = x - mean
            covariance = (centered * shared.frequencies[:, None]).T @ centered
        moments += [mean * factor, covariance * factor**2]
    return _ReadMoments(*moments)


def _position_sides(
    head: Head, shared: TokenMoments | None
) -> tuple[Float[Tensor, "dest k"], Float[Tensor, "src k"]]:
    """posQ, scaled like scores, and posK.

    Where positions are in the stream of a model that normalizes, layer 0 uses each position's mean
    scale over tokens; deeper layers leave the scale out.
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
        scales = (
            token_basis.position_scales(model, head.id.layer) if shared is None else shared.scales
        )
        positions = model.weights.W_pos * scales[:, None]
        queries, keys = positions @ W_Q, positions @ W_K
    queries = with_qk_gain(queries + bias, layer.q_norm_w, head.id.head)
    keys = with_qk_gain(keys, layer.k_norm_w, head.kv)
    return queries.double() * config.score_scale, keys.double()


def _rotary_profile(head: Head, window: int, shared: TokenMoments) -> OffsetProfile:
    """The average key rotated by the offset, against every token's query."""
    config, moments = head.model.config, _read_moments(head, shared)
    attention = None
    if head.id.layer == 0 or config.norm == "none" or config.qk_norm != "none":
        offset_blocks = torch.arange(config.n_ctx, device=moments.key_mean.device).split(OFFSETS)
        keys = [_rotated_back(head, moments.key_mean, offsets) for offsets in offset_blocks]
        scores = torch.cat([block @ moments.query_mean for block in keys])
        attention = _attention_by_offset(head, scores)[:window]
    offsets = torch.arange(window, device=moments.key_mean.device)
    keys = _rotated_back(head, moments.key_mean, offsets)
    keys = keys - keys.mean(0)
    variance = ((keys @ moments.query_covariance) * keys).sum(-1)
    # The mean square of the scores over the window: tr(R(−Δ) Q R(−Δ)ᵀ K).
    square = rotated_gram(
        config.at(head.id.layer), moments.query_square[None], range(window), back=True
    )
    content, sd = (square[0] * moments.key_covariance).sum(), variance.clamp(min=0).sqrt()
    omitted = "direct path, scale omitted" if attention is None else ""
    notes = ("rotary: the average query against the average key", omitted)
    return _profile(head, keys @ moments.query_mean, sd, attention, content, notes)


def _rotated_back(
    head: Head, key: Float[Tensor, " k"], offsets: Int[Tensor, " offset"]
) -> Float[Tensor, "offset k"]:
    """k R(−Δ) for each offset Δ.

    q R(Δ) kᵀ = q · (k R(−Δ)), so only the average key is rotated, not all queries.
    """
    config = head.model.config.at(head.id.layer)
    return rotate(config, key.expand(len(offsets), -1), -offsets)


def _attention_by_offset(head: Head, scores: Float[Tensor, " offset"]) -> Float[Tensor, " offset"]:
    """The pattern of a destination that sees every offset, offset 0 first."""
    layer = head.model.weights.layers[head.id.layer]
    offsets = torch.arange(len(scores), device=scores.device)[None]
    number = torch.tensor([head.id.head], device=scores.device)
    return pattern_at(head.model.config, layer, number, offsets, scores[None])[0]


def _by_offset(scores: Float[Tensor, "dest src"], window: int) -> Float[Tensor, "late window"]:
    """scores[i, i − Δ] for the destinations that see every offset of the window."""
    i = torch.arange(window - 1, len(scores), device=scores.device)[:, None]
    return scores[i, i - torch.arange(window, device=scores.device)]
