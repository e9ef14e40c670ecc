"""First-token heads are at rest: many heads attend to the first token when nothing matches.

Score: mean over i ≥ 1 of A[i, 0] on repeated random tokens. Threshold 0.5, because no other single
position can then have as much. It is reported as evidence and names no kind, because heads of every
kind rest there.
"""

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER, data_score
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "sequence head"]:
    """Mean attention to position 0."""
    return view.rows[..., 0].mean(-1)


FIRST_TOKEN = data_score(
    measure,
    name="first_token",
    title="first token",
    about="How much the head rests on the first token, as heads do when nothing matches.",
    formula="mean over i ≥ 1 of A[i, 0]",
    threshold=0.5,
    reason="half of the attention: no other single position can have as much",
    citation=PAPER,
)
