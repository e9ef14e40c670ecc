"""Local-window heads: attend to the last few tokens, whatever they are."""

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER, data_score
from pathsum.heads.layer_view import LayerView

WINDOW = 5


def measure(view: LayerView) -> Float[Tensor, "draw head"]:
    """Attention to the five positions before, from positions that have as many and more."""
    pattern = view.pattern[:, :, WINDOW + 1 :]
    back = pattern.new_zeros(pattern.shape[-2:])
    for offset in range(1, WINDOW + 1):
        back.diagonal(WINDOW + 1 - offset).fill_(1.0)
    if pattern.shape[-2] == 0:
        return pattern.new_zeros(pattern.shape[:2])
    return (pattern * back).sum(-1).mean(-1)


LOCAL_WINDOW = data_score(
    measure,
    name="local_window",
    title="local window",
    about="How much the head attends to the five tokens just before, whatever they are.",
    formula="mean over i > 5 of Σ A[i, i−Δ], Δ = 1 … 5",
    threshold=0.7,
    reason="most of the attention, and more than one place, or it is a previous-token head",
    citation=PAPER + " (erratum: heads that attend to the last several tokens)",
)
