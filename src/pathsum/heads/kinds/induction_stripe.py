"""Induction heads attend, in a repeat, to the token that followed the first time.

Score: mean over i in the second of two repeats of length L of A[i, i−L+1], the induction stripe, on
repeated random tokens. Threshold 0.3: far above what random heads give, while trained induction
heads reach 0.4 to 1. The weights agree if OV copies and the keys or queries read some lower head
more than chance. `heads.induction` tests the mechanism itself.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.p_value import LEAST_FITTED, format_p
from pathsum.heads.kinds.copying import COPYING_BY_WEIGHTS
from pathsum.heads.kinds.kind import PAPER, Finding, HeadEvidence, Kind, data_score, positive_score
from pathsum.heads.layer_view import LayerView
from pathsum.text.probes import RepeatedTokens


def stripe(
    pattern: Float[Tensor, "sequence head dest src"], probe: RepeatedTokens
) -> Float[Tensor, "sequence head"]:
    """Mean attention from the second copy to L − 1 positions back, L the length of a copy."""
    return _in_second_copy(pattern, probe).mean(-1)


def _in_second_copy(
    pattern: Float[Tensor, "sequence head dest src"], probe: RepeatedTokens
) -> Float[Tensor, "sequence head length"]:
    start = probe.first + probe.length
    second = pattern[:, :, start : start + probe.length, probe.first + 1 :]
    return second.diagonal(dim1=-2, dim2=-1)


def by_position(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """The stripe at every position of the second copy."""
    start = view.probe.first + view.probe.length
    values = torch.full_like(view.pattern[..., 0], torch.nan)
    values[..., start : start + view.probe.length] = _in_second_copy(view.pattern, view.probe)
    return values


INDUCTION_STRIPE = data_score(
    by_position=by_position,
    name="induction",
    title="induction stripe",
    about="In a repeat, how much the head attends to the token that came next the first time.",
    formula="mean over i in the second of two repeats of length L of A[i, i−L+1]",
    threshold=0.3,
    reason="far above what random heads give; trained induction heads reach 0.4 to 1",
    citation=PAPER,
)


def _copies_and_reads_a_lower_head(known: HeadEvidence) -> Finding:
    copies = positive_score(COPYING_BY_WEIGHTS.info, "OV eigenvalue ratio")(known)
    column = known.composition.heads.index(known.head.id)
    edges: list[tuple[float, float, str]] = []
    for kind in ("k", "q"):
        scores = known.composition.scores(kind)
        p, z = scores.p[:, column].tolist(), scores.z[:, column].tolist()
        edges += [
            (chance, -size, f"{kind.upper()}-composition with {writer}")
            for chance, size, writer in zip(p, z, known.composition.heads, strict=True)
            if chance == chance
        ]
    if not edges:
        return Finding(False, f"no head is below it; {copies.because}")
    # The best of many edges: chance has as many tries. Beyond the reach of p, z decides.
    least, _, edge = min((max(chance, LEAST_FITTED), *rest) for chance, *rest in edges)
    corrected = min(1.0, least * len(edges))
    because = f"{edge}, {format_p(corrected)}; {copies.because}"
    return Finding(copies.agrees and corrected <= known.alpha, because)


KIND = Kind("induction", INDUCTION_STRIPE.info, _copies_and_reads_a_lower_head)
