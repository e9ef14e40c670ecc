"""What chance gives for the spectrum of a QK circuit that is read through a lower head.

`W_E QK (OV)ᵀ W_Eᵀ`, the matrix by which K-composition matches tokens, has the nonzero eigenvalues
of a d_head × d_head product in which W_E occurs only as `C = (W_E − mean)ᵀ W_E`. With Gaussian W_Q,
W_K, W_V and W_O that product has the law of the null for virtual heads of order 2, C in the place
of the product of embeddings.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.circuits.copying import DRAWS, null_spectra
from pathsum.circuits.tokens.token_basis import ROWS, read_scales
from pathsum.model import HeadName, Model


@torch.no_grad()
def null_matching_spectra(
    model: Model, writer: HeadName, *, draws: int = DRAWS, seed: int = 0
) -> Complex[Tensor, "draws k"]:
    """Eigenvalues of heads drawn at random in the place of `writer` and of a reader above it.

    The same for all writers of a layer, and for Q- and K-composition: the product of embeddings
    that the query side reads through is the transpose of the key side's. Scale is free.
    """
    product = embedding_product(model, model.head(writer).id.layer)
    return null_spectra(product, model.config.d_head, order=2, draws=draws, seed=seed)


def embedding_product(model: Model, layer: int) -> Float[Tensor, "d d"]:
    """(W_E − mean over tokens)ᵀ W_E, in blocks of tokens.

    On the left embeddings as `layer` reads them, on the right as a deeper layer does, which is
    without a scale.
    """
    W_E, scales = model.weights.W_E, read_scales(model.weights, layer)
    mean = W_E.mean(0) if scales is None else (scales @ W_E) / len(W_E)
    total = W_E.new_zeros(W_E.shape[1], W_E.shape[1])
    for start in range(0, len(W_E), ROWS):
        rows = W_E[start : start + ROWS]
        keys = rows if scales is None else rows * scales[start : start + ROWS, None]
        total.addmm_((keys - mean).T, rows)
    if model.config.norm == "layer":
        # Reads are centered, so what the ones-direction holds reaches no head.
        total = total - total.mean(0)
        total = total - total.mean(1, keepdim=True)
    return total
