"""Duplicate-token heads: attend to earlier copies of the same token."""

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.kind import data_score
from pathsum.heads.layer_view import LayerView


def measure(view: LayerView) -> Float[Tensor, "draw head"]:
    """Attention to all earlier copies, averaged over the positions that have one."""
    tokens, repeated = view.probe.tokens, view.probe.first + view.probe.length
    earlier = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).to(view.pattern)
    return (view.pattern * earlier[:, None]).sum(-1)[..., repeated:].mean(-1)


DUPLICATE_TOKEN = data_score(
    measure,
    name="duplicate_token",
    title="duplicate token",
    about="How much the head attends to earlier copies of the current token.",
    formula="mean over repeated i of Σ A[i, j], j < i with the token of i",
    threshold=0.3,
    reason="a head that matched by chance would give the copies about 1/n of its attention",
    citation="Wang et al. 2022, Interpretability in the Wild",
)
