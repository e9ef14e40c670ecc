"""Positional heads attend by offset alone, whatever the tokens are.

Score: 1 − Σ(A − mean of A at this offset)² / Σ(A − mean of the row)² over the probe's first copy,
at least 0. Threshold 0.5: the offset explains more of the pattern than everything else together.
The weights agree if the position part makes at least half of the variance of the head's scores.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import (
    NO_POSITIONS,
    PAPER,
    Finding,
    HeadEvidence,
    Kind,
    data_score,
)
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "sequence head"]:
    """The share of the pattern's variance around its row means that the offset explains.

    Over the first copy alone, because in a repeat matching looks like an offset. The first column,
    where heads rest, is left out. Even attention has nothing to explain and scores 0.
    """
    end = view.probe.first + view.probe.length
    pattern = view.pattern[:, :, 1:end, 1:end]
    size = pattern.shape[-1]
    offset = (torch.arange(size)[:, None] - torch.arange(size)[None]).clamp_min(0)
    causal = torch.ones(size, size).tril().to(pattern)
    counts = torch.zeros(size).to(pattern).index_add(0, offset.flatten(), causal.flatten())
    flat = (pattern * causal).sum(0).flatten(1)
    sums = flat.new_zeros(flat.shape[0], size).index_add(1, offset.flatten(), flat)
    profile = sums / (counts * pattern.shape[0])
    explained = profile[:, offset] * causal
    mean = pattern.sum(-1, keepdim=True) / causal.sum(-1, keepdim=True)
    residual = ((pattern - explained) * causal).square().sum((-1, -2))
    total = ((pattern - mean) * causal).square().sum((-1, -2))
    # A pattern that hardly differs from even attention has no variance worth explaining.
    varies = total > 1e-2 * pattern.square().sum((-1, -2))
    # A profile that fits worse than the row's mean explains nothing, however much worse it is.
    return torch.where(varies, 1 - residual / total.clamp_min(1e-30), 0.0).clamp_min(0.0)


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
