"""Positional heads: where they look depends on the offset alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER, data_score
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "draw head"]:
    """The share of the pattern's variance about its row means that the offset explains.

    Over the first copy alone: where the probe repeats itself, matching looks like an offset. The
    first column, where heads rest, is left out. A head that spreads its attention evenly has
    nothing to explain and scores 0.
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
    left = ((pattern - explained) * causal).square().sum((-1, -2))
    whole = ((pattern - mean) * causal).square().sum((-1, -2))
    # A pattern that hardly differs from even attention is not explained by anything.
    enough = whole > 1e-2 * pattern.square().sum((-1, -2))
    # A profile that fits worse than the row's mean explains nothing, however much worse it is.
    return torch.where(enough, 1 - left / whole.clamp_min(1e-30), 0.0).clamp_min(0.0)


BY_OFFSET = data_score(
    measure,
    name="positional",
    title="positional",
    about="How far the head looks by distance alone, whatever tokens stand there.",
    formula="1 − Σ(A − mean of A at this offset)² / Σ(A − mean of the row)², in the first copy, "
    "and 0 where that is negative",
    threshold=0.5,
    reason="the offset explains more of the pattern than all the rest",
    citation=PAPER,
)
