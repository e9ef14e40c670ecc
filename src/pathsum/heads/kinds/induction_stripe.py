"""Induction heads by their stripe: in a second repeat, attend to what followed the first time."""

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER, data_score
from pathsum.heads.layer_view import LayerView
from pathsum.text.probes import RepeatedTokens


def stripe(
    pattern: Float[Tensor, "draw head dest src"], probe: RepeatedTokens
) -> Float[Tensor, "draw head"]:
    """Mean attention in the second copy to the place that is one less than a copy back."""
    start, length = probe.first + probe.length, probe.length
    second = pattern[:, :, start : start + length]
    return second[..., start - length + 1 :].diagonal(dim1=-2, dim2=-1).mean(-1)


def measure(view: LayerView) -> Float[Tensor, "draw head"]:
    """The stripe of every head."""
    return stripe(view.pattern, view.probe)


INDUCTION_STRIPE = data_score(
    measure,
    name="induction",
    title="induction stripe",
    about="In a repeat, how much the head attends to the token that came next the first time.",
    formula="mean over i in the second of two repeats of length L of A[i, i−L+1]",
    threshold=0.3,
    reason="far above what random heads give; trained induction heads reach 0.4 to 1",
    citation=PAPER,
)
