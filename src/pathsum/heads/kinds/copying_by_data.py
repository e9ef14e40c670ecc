"""Copying, by data: of what a head raises, the share that lands on the attended token."""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import PAPER_2022, data_score
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "draw head"]:
    """Attend to each token of the first copy alone, and see where the raise lands.

    The write is unembedded directly, the vocabulary's mean removed, and what is lowered is left
    out. The share is taken among the probe's own tokens, so chance is one over their number.
    """
    first, length = view.probe.first, view.probe.length
    block = slice(first, first + length)
    shares: list[Tensor] = []
    for draw, tokens in enumerate(view.probe.tokens[:, block]):
        value = torch.einsum("pd,hdk->hpk", view.read[draw, block], view.W_V)
        raised = (value @ (view.W_O @ view.W_U[:, tokens])).clamp_min(0)
        own = raised.diagonal(dim1=-2, dim2=-1)
        shares.append((own / raised.sum(-1).clamp_min(1e-30)).mean(-1))
    return torch.stack(shares)


COPYING_BY_DATA = data_score(
    measure,
    name="copying",
    title="copying (data)",
    about="When the head attends to a token, how much of what it raises is that very token.",
    formula="mean over probe tokens t of ReLU(logit of t) / Σ over probe tokens of ReLU(logit)",
    threshold=0.1,
    reason="chance is one over the number of the probe's tokens, 0.04 for 25: twice as much, "
    "and twice what random heads give",
    citation=PAPER_2022,
)
