"""First-token heads: at rest. Many heads attend to the first token when nothing matches."""

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER, data_score
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "draw head"]:
    """Mean attention to position 0."""
    return view.rows[..., 0].mean(-1)


FIRST_TOKEN = data_score(
    measure,
    name="first_token",
    title="first token",
    about="How much the head rests on the first token, which is where heads look when idle.",
    formula="mean over i ≥ 1 of A[i, 0]",
    threshold=0.5,
    reason="half of the attention: no other single place can have as much",
    citation=PAPER,
)
