"""What chance gives for the spectrum of a QK circuit that is read through a lower head.

`W_E QK (OV)ᵀ W_Eᵀ`, the matrix by which K-composition matches tokens, has the nonzero eigenvalues
of a d_head × d_head product in which W_E occurs only as `C = (W_E − mean)ᵀ W_E`. With Gaussian W_Q,
W_K, W_V and W_O that product has the law of the null for virtual heads of order 2, C in the place
of the product of embeddings.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.circuits.basis import ROWS, read_scales
from pathsum.circuits.copying import DRAWS, null_spectra
from pathsum.model import HeadName, Model


@torch.no_grad()
def null_matching_spectra(
    model: Model, reader: HeadName, *, draws: int = DRAWS, seed: int = 0
) -> Complex[Tensor, "draws k"]:
    """Eigenvalues of heads drawn at random in the place of reader and writer; scale is free."""
    model.head(reader)
    product = embedding_product(model, 0)
    return null_spectra(product, model.config.d_head, order=2, draws=draws, seed=seed)


def embedding_product(model: Model, layer: int) -> Float[Tensor, "d d"]:
    """(W_E − mean over tokens)ᵀ W_E, embeddings as a layer reads them, in blocks of tokens."""
    W_E, scales = model.weights.W_E, read_scales(model.weights, layer)
    total, ones = W_E.new_zeros(W_E.shape[1], W_E.shape[1]), W_E.new_zeros(W_E.shape[1])
    for start in range(0, len(W_E), ROWS):
        rows = W_E[start : start + ROWS]
        if scales is not None:
            rows = rows * scales[start : start + ROWS, None]
        total.addmm_(rows.T, rows)
        ones += rows.sum(0)
    return total - torch.outer(ones, ones) / len(W_E)
