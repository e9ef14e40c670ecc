"""Previous-token heads: each row attends one position back."""

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER_2022, data_score
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "draw head"]:
    """Mean attention to the position before."""
    return view.pattern.diagonal(-1, dim1=-2, dim2=-1).mean(-1)


PREVIOUS_TOKEN = data_score(
    measure,
    name="previous_token",
    title="previous token",
    about="How much the head attends to the token just before.",
    formula="mean over i ≥ 1 of A[i, i−1]",
    threshold=0.5,
    reason="half of the attention: no other single place can have as much",
    citation=PAPER_2022,
)
