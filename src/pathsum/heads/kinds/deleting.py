"""Deleting heads: take out of the stream what stands in it."""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER, data_score
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "draw head"]:
    """How much of the stream's own vector a head subtracts where it writes.

    −⟨write, stream⟩ / ⟨stream, stream⟩ at a position: 1 removes what is there, 0 leaves it.
    """
    value = torch.einsum("bpd,hdk->bhpk", view.read, view.W_V)
    # ⟨A v W_O, x⟩ = ⟨A v, x W_Oᵀ⟩: what is written is never made, which would be d_model wide.
    asked = torch.einsum("bpd,hkd->bhpk", view.stream, view.W_O)
    kept = (view.pattern @ value).mul_(asked).sum(-1)
    size = view.stream.square().sum(-1).clamp_min(1e-30)
    return (-kept / size[:, None])[..., 1:].mean(-1)


DELETING = data_score(
    measure,
    name="deleting",
    title="deleting (data)",
    about="How much of what stands in the stream the head takes out again.",
    formula="mean over i ≥ 1 of −⟨write at i, stream at i⟩ / |stream at i|²",
    threshold=0.1,
    reason="a tenth of what stands in the stream; random heads give 0 on average",
    citation=PAPER,
    # No ceiling: a head can overshoot and write the negative of what it read.
    ceiling=float("inf"),
)
