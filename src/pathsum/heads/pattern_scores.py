"""Scores of attention patterns, measured on repeated random tokens, most of them on text too.

A[i, j] is the attention of destination i to source j. A threshold of 0.5 means half of the
attention, so that no other single position can have as much. Thresholds of 0.3 are far above the
scores of random heads, while trained heads reach 0.4 to 1.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.heads.score import DataScore, LayerView, score_info
from pathsum.text.token_pool import RepeatedTokens

HALF = 0.5
WINDOW = 5


def attention_to(
    pattern: Float[Tensor, "sequence head dest src"], wanted: Bool[Tensor, "sequence dest src"]
) -> Float[Tensor, "sequence head dest"]:
    """The sum of each row over the wanted sources, NaN at destinations without one.

    Reads only those entries: they are few, and the patterns of random heads are many.
    """
    result = pattern.new_zeros(pattern.shape[:-1])
    for sums, rows, sources in zip(result, pattern, wanted.to(pattern.device), strict=True):
        dest, src = sources.nonzero(as_tuple=True)
        sums.index_add_(-1, dest, rows[:, dest, src])
    return result.masked_fill_(~wanted.any(-1).to(result.device)[:, None], torch.nan)


def _from_second(
    values: Float[Tensor, "sequence head row"],
) -> Float[Tensor, "sequence head dest"]:
    """Values of the destinations after the first, which gets NaN."""
    return F.pad(values, (1, 0), value=torch.nan)


def _previous_token(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    return _from_second(view.pattern.diagonal(-1, dim1=-2, dim2=-1))


PREVIOUS_TOKEN = DataScore(score_info("previous_token"), by_position=_previous_token)


def _current_token(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    return _from_second(view.pattern.diagonal(dim1=-2, dim2=-1)[..., 1:])


CURRENT_TOKEN = DataScore(score_info("current_token"), by_position=_current_token)


def _first_token(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    return _from_second(view.pattern[:, :, 1:, 0])


FIRST_TOKEN = DataScore(score_info("first_token"), by_position=_first_token)


def _duplicate_token(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    tokens = view.probe.tokens
    return attention_to(view.pattern, (tokens[:, :, None] == tokens[:, None, :]).tril(-1))


DUPLICATE_TOKEN = DataScore(
    score_info("duplicate_token"),
    by_position=_duplicate_token,
    needs="an earlier copy of its token",
)


def stripe(
    pattern: Float[Tensor, "sequence head dest src"], probe: RepeatedTokens
) -> Float[Tensor, "sequence head"]:
    """Mean attention from the second copy to L − 1 positions back, L the length of a copy.

    On text (a probe of one copy) it is prefix matching, NaN for a sequence without repeats.
    """
    if probe.repeats == 1:
        return attention_to(pattern, induction_cells(probe)).nanmean(-1)
    return _in_second_copy(pattern, probe).mean(-1)


def induction_cells(probe: RepeatedTokens) -> Bool[Tensor, "sequence dest src"]:
    """The sources to which induction attends from each destination.

    In the second copy of a probe these are L − 1 positions back; on text, all positions after
    earlier copies of the destination's token.
    """
    tokens = probe.tokens
    if probe.repeats == 1:
        return F.pad((tokens[:, :, None] == tokens[:, None, :-1]).tril(-1), (1, 0))
    cells = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.bool)
    rows = torch.arange(probe.first + probe.length, probe.first + 2 * probe.length)
    cells[:, rows, rows - probe.length + 1] = True
    return cells


def _in_second_copy(
    pattern: Float[Tensor, "sequence head dest src"], probe: RepeatedTokens
) -> Float[Tensor, "sequence head length"]:
    start = probe.first + probe.length
    second = pattern[:, :, start : start + probe.length, probe.first + 1 :]
    return second.diagonal(dim1=-2, dim2=-1)


def _stripe_by_position(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    start = view.probe.first + view.probe.length
    values = torch.full_like(view.pattern[..., 0], torch.nan)
    values[..., start : start + view.probe.length] = _in_second_copy(view.pattern, view.probe)
    return values


INDUCTION_STRIPE = DataScore(score_info("induction"), by_position=_stripe_by_position)


def _prefix_matching(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """For each query with an earlier copy, the sum of attention over all such positions.

    The sum, not the mean over entries: with n repeats a query has up to n − 1 such positions, and a
    mean over entries could not exceed 0.5 on four repeats for a head that does nothing else.
    """
    return attention_to(view.pattern, induction_cells(replace(view.probe, repeats=1)))


PREFIX_MATCHING = DataScore(
    score_info("prefix_matching"),
    by_position=_prefix_matching,
    needs="an earlier copy of its token",
)


def _positional(view: LayerView) -> Float[Tensor, "sequence head"]:
    """The share of the pattern's variance around its row means that the offset explains.

    Over the first copy alone, because in a repeat matching resembles an offset. The first column,
    where heads rest, is left out. Uniform attention has nothing to explain and scores 0.
    """
    end = view.probe.first + view.probe.length
    pattern = view.pattern[:, :, 1:end, 1:end]
    size = pattern.shape[-1]
    square = pattern.square().sum((-1, -2))
    at_offset = offset_sums(pattern)
    counts = torch.arange(size, 0, -1).to(pattern)
    profile = at_offset.mean(0) / counts
    # Σ(A − a)², with a the mean of each offset or row, is ΣA² − 2Σ a·A + Σ a².
    residual = square - 2 * (at_offset * profile).sum(-1) + (profile.square() * counts).sum(-1)
    total = square - (pattern.sum(-1).square() / counts.flip(0)).sum(-1)
    # A pattern that hardly differs from uniform attention has no variance to explain.
    varies = total > 1e-2 * square
    # A profile that fits worse than the row's mean explains nothing, however much worse it is.
    return torch.where(varies, 1 - residual / total.clamp_min(1e-30), 0.0).clamp_min(0.0)


def offset_sums(pattern: Float[Tensor, "*some n n"]) -> Float[Tensor, "*some n"]:
    """Sums of causal patterns over pairs of each offset, from 0 on.

    >>> offset_sums(torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    tensor([1.7500, 0.2500])
    """
    size = pattern.shape[-1]
    # A row one longer than the matrix is wide moves each row of the flipped pattern on by one, so
    # that an offset is a column, the last for offset 0; above the diagonal everything is 0.
    rows = F.pad(pattern.flip(-1), (0, 1)).flatten(-2).unflatten(-1, (size + 1, size))
    return rows.sum(-2).roll(1, -1)


POSITIONAL = DataScore(score_info("positional"), _positional)


def _local_window(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """Attention to the five positions before, from positions that have more than five."""
    attended = view.pattern.new_zeros(view.pattern.shape[:-1])
    for back in range(1, min(WINDOW + 1, attended.shape[-1])):
        attended[..., back:] += view.pattern.diagonal(-back, dim1=-2, dim2=-1)
    attended[..., : WINDOW + 1] = torch.nan
    return attended


LOCAL_WINDOW = DataScore(
    score_info("local_window"),
    by_position=_local_window,
    needs=f"more than {WINDOW} positions before it",
)

PATTERN_SCORES = (
    *(PREVIOUS_TOKEN, CURRENT_TOKEN, FIRST_TOKEN, DUPLICATE_TOKEN),
    *(INDUCTION_STRIPE, PREFIX_MATCHING, POSITIONAL, LOCAL_WINDOW),
)
