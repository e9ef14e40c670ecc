"""Local-window heads attend to the last few tokens, whatever they are.

Score: mean over i > 5 of Σ A[i, i−Δ], Δ = 1 … 5, on repeated random tokens. Threshold 0.7: most of
the attention, spread over more than one position (a previous-token head is named first). The
weights agree if the position part alone gives at least half of the attention to the same window.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import NO_POSITIONS, PAPER, Finding, HeadEvidence, Kind, data_score
from pathsum.heads.layer_view import LayerView

WINDOW = 5


def by_position(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """Attention to the five positions before, from positions that have more than five."""
    attended = view.pattern.new_zeros(view.pattern.shape[:-1])
    for back in range(1, min(WINDOW + 1, attended.shape[-1])):
        attended[..., back:] += view.pattern.diagonal(-back, dim1=-2, dim2=-1)
    attended[..., : WINDOW + 1] = torch.nan
    return attended


LOCAL_WINDOW = data_score(
    by_position=by_position,
    name="local_window",
    title="local window",
    about="How much the head attends to the five tokens just before, whatever they are.",
    formula="mean over i > 5 of Σ A[i, i−Δ], Δ = 1 … 5",
    threshold=0.7,
    reason="most of the attention, over more than one position, or it is a previous-token head",
    citation=PAPER + " (erratum: heads that attend to the last several tokens)",
    needs=f"more than {WINDOW} positions before it",
)


def _position_window(known: HeadEvidence) -> Finding:
    profile = known.profile
    if profile is None or profile.attention is None:
        return NO_POSITIONS
    share = float(profile.attention[1 : WINDOW + 1].sum())
    return Finding(share >= 0.5, f"by position alone it gives {share:.2f} to the last {WINDOW}")


KIND = Kind("local window", LOCAL_WINDOW.info, _position_window)
