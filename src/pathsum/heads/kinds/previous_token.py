"""Previous-token heads attend to the token before.

Score: mean over i ≥ 1 of A[i, i−1] on repeated random tokens. Threshold 0.5, because no other
single position can then have as much. The weights agree if the position part of QK peaks at
offset 1.
"""

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER_2022, Kind, at_rows, data_score, position_peak
from pathsum.heads.layer_view import LayerView


def by_position(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """Attention to the position before."""
    return at_rows(view.pattern.diagonal(-1, dim1=-2, dim2=-1), 1)


PREVIOUS_TOKEN = data_score(
    by_position=by_position,
    name="previous_token",
    title="previous token",
    about="How much the head attends to the token just before.",
    formula="mean over i ≥ 1 of A[i, i−1]",
    threshold=0.5,
    reason="half of the attention: no other single position can have as much",
    citation=PAPER_2022,
)
KIND = Kind("previous token", PREVIOUS_TOKEN.info, position_peak(1))
