"""Matching: does a head attend to same tokens, where its keys read what a lower head wrote?

With a previous-token head below, `W_E QK (OV)ᵀ W_Eᵀ` says how much a destination token attends to
a position because of the token *before* it. An induction head matches same with same there, so the
eigenvalues of that matrix are positive: `Σλ / Σ|λ|` near 1 is the vertical axis of the paper's
scatter of induction heads.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.circuits.copying import eigenvalues_above_noise
from pathsum.circuits.tokens.qk import average_rotation
from pathsum.circuits.tokens.token_basis import refuse_capped_scores
from pathsum.errors import InputError
from pathsum.model import HeadName, Model


@torch.no_grad()
def matching_spectra(
    model: Model,
    readers: Sequence[HeadName],
    writer: HeadName,
    product: Float[Tensor, "d d"],
) -> Complex[Tensor, "reader k"]:
    """Eigenvalues of `W_E QK (OV)ᵀ W_Eᵀ` for each reader, with the OV of one writer below them.

    They are those of `(OV W_K)ᵀ C W_Q`, which is d_head × d_head: the vocabulary occurs only in
    `C = embedding_product(model, writer's layer)`, given as `product` and made once for all. Keys
    are centered over tokens, which also takes out every bias; on a rotary model QK is averaged over
    the offsets; scales of normalization deeper than layer 0 and of QK-norm are left out.

    The factored form of the same matrix, for its entries, is
    `token_qk(model, reader, key_through=Path("embed", [writer]))`.
    """
    refuse_capped_scores(model, "what heads match")
    below = model.head(writer)
    heads = [model.head(reader) for reader in readers]
    for head in heads:
        if head.id.layer <= below.id.layer:
            raise InputError(
                f"{head.label} does not read what {below.label} writes, because it is not in a "
                f"layer above it; a head of layer {below.id.layer + 1} or higher would be right"
            )
    # The shared factors first, so that each reader costs d × d_head² and not d² × d_head.
    through = below.W_V.mT @ product
    queries = torch.stack([head.W_Q for head in heads])
    if model.config.positions == "rotary":
        queries = queries @ average_rotation(heads[0])  # the same for all
    keys = below.W_O @ torch.stack([head.W_K for head in heads])
    right = through @ queries
    size = keys.norm(dim=(1, 2)) * right.norm(dim=(1, 2))
    return eigenvalues_above_noise(keys.mT @ right, size)
