"""Prefix matching: attention to whatever followed earlier copies of the current token.

Score: mean over queries i with an earlier copy of Σ A[i, j+1], over j < i with the token of i, on
repeated random tokens. Threshold 0.3: far above what random heads give, while the 2022 paper's
heads reach 0.94. It supports induction and names no kind of its own.
"""

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER_2022, attention_to, data_score
from pathsum.heads.layer_view import LayerView


def by_position(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """For each query with an earlier copy, the sum of attention over all such positions.

    The sum, not the mean over entries: with n repeats a query has up to n − 1 such positions, and a
    mean over entries could not exceed 0.5 on four repeats for a head that does nothing else.
    """
    tokens = view.probe.tokens
    followed = (tokens[:, :, None] == tokens[:, None, :-1]).tril(-1)
    return attention_to(view.pattern[..., 1:], followed)


PREFIX_MATCHING = data_score(
    by_position=by_position,
    name="prefix_matching",
    title="prefix matching",
    about="How much the head attends to all tokens that came after earlier copies of this one.",
    formula="mean over queries with an earlier copy of Σ A[i, j+1], j < i with the token of i",
    threshold=0.3,
    reason="far above what random heads give; the 2022 paper's heads reach 0.94",
    citation=PAPER_2022,
    needs="an earlier copy of its token",
)
