"""Current-token heads: each row attends to itself."""

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER_2022, data_score
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "draw head"]:
    """Mean attention to the own position."""
    return view.pattern.diagonal(dim1=-2, dim2=-1)[..., 1:].mean(-1)


CURRENT_TOKEN = data_score(
    measure,
    name="current_token",
    title="current token",
    about="How much the head attends to the position it stands on.",
    formula="mean over i ≥ 1 of A[i, i]",
    threshold=0.5,
    reason="half of the attention: no other single place can have as much",
    citation=PAPER_2022,
)
