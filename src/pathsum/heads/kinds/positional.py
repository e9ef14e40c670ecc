"""Positional heads attend by offset alone, whatever the tokens are.

Score: 1 − Σ(A − mean of A at this offset)² / Σ(A − mean of the row)² over the probe's first copy,
at least 0. Threshold 0.5: the offset explains more of the pattern than everything else together.
The weights agree if the position part makes at least half of the variance of the head's scores.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import NO_POSITIONS, PAPER, Finding, HeadEvidence, Kind, data_score
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "sequence head"]:
    """The share of the pattern's variance around its row means that the offset explains.

    Over the first copy alone, because in a repeat matching looks like an offset. The first column,
    where heads rest, is left out. Even attention has nothing to explain and scores 0.
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
    # A pattern that hardly differs from even attention has no variance worth explaining.
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


POSITIONAL = data_score(
    measure,
    name="positional",
    title="positional",
    about="How much the offset alone decides where the head attends, whatever the tokens are.",
    formula="1 − Σ(A − mean of A at this offset)² / Σ(A − mean of the row)², in the first copy, "
    "and 0 where that is negative",
    threshold=0.5,
    reason="the offset explains more of the pattern than everything else together",
    citation=PAPER,
)


def _by_position(known: HeadEvidence) -> Finding:
    if known.profile is None:
        return NO_POSITIONS
    share = known.profile.share
    return Finding(share >= 0.5, f"position makes {share:.2f} of its score's variance")


KIND = Kind("positional", POSITIONAL.info, _by_position)
