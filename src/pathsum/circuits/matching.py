"""Matching: does a head attend to equal tokens if its keys read a lower head's output?

With a previous-token head below, `W_E QK (OV)ᵀ W_Eᵀ` is how much a destination token attends to a
position because of the token *before* it. An induction head matches equal tokens there, so the
eigenvalues of that matrix are positive: `Σλ / Σ|λ|` near 1 is the vertical axis of the paper's
scatter of induction heads.

The matrix has the nonzero eigenvalues of a d_head × d_head product in which W_E occurs only as
`C = (W_E − mean)ᵀ W_E`. The null rotates the reader's queries and keys at random in the stream and
keeps the reader's singular values, the writer and the embeddings.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.algebra.decompositions import svdvals
from pathsum.algebra.rotations import DRAWS, rotated_cores, significant_values, spectra_between
from pathsum.algebra.subspaces import remove_both_means
from pathsum.base import Side, Site
from pathsum.base.errors import InputError
from pathsum.circuits.copying import eigenvalues_above_noise
from pathsum.circuits.qk_ov import average_rotation
from pathsum.model import Head, HeadName, Model
from pathsum.model.folding import ROWS, read_scales


@torch.no_grad()
def matching_spectra(
    model: Model,
    readers: Sequence[HeadName],
    writer: HeadName | None,
    product: Float[Tensor, "d d"],
) -> Complex[Tensor, "reader k"]:
    """Eigenvalues of `W_E QK (OV)ᵀ W_Eᵀ` for each reader, with the OV of one writer below them.

    They are those of `(OV W_K)ᵀ C W_Q`, which is d_head × d_head: the vocabulary occurs only in
    `product`, C = `embedding_product(model, writer's layer)`, which all readers share. For
    `writer=None` they are those of full QK itself, read from embeddings without a head in between.
    Keys are centered over tokens, which also removes every bias; on a rotary model QK is averaged
    over offsets; scales of normalization above layer 0 and of QK-norm are left out, and scores are
    those before any soft cap.

    The factored form of the same matrix, for its entries, is
    `token_qk(model, reader, key_through=Path("embed", [writer]))`.
    """
    heads = [model.head(reader) for reader in readers]
    rotary = model.config.positions == "rotary"
    queries = torch.stack([h.W_Q @ average_rotation(h) if rotary else h.W_Q for h in heads])
    keys = torch.stack([head.W_K for head in heads])
    if writer is not None:
        below = model.head(writer)
        for head in heads:
            if head.id.layer <= below.id.layer:
                raise InputError(
                    f"{head.label} cannot read what {below.label} writes: it is not in a later "
                    f"layer; name a head of layer {below.id.layer + 1} or above"
                )
        # The shared factors first, so that each reader costs d × d_head² and not d² × d_head.
        product = below.W_V.mT @ product
        edited = model.weights.edited_edges
        carried = [Site(below.id, head.id, Side.K) not in edited for head in heads]
        keys = below.W_O @ keys * torch.tensor(carried, device=keys.device)[:, None, None]
    right = product @ queries
    size = keys.norm(dim=(1, 2)) * right.norm(dim=(1, 2))
    return eigenvalues_above_noise(keys.mT @ right, size)


@torch.no_grad()
def null_matching_spectra(
    model: Model,
    readers: Sequence[HeadName],
    writer: HeadName | None,
    product: Float[Tensor, "d d"],
    *,
    draws: int = DRAWS,
) -> Complex[Tensor, "reader half k"]:
    """Eigenvalues with each reader's queries and keys rotated at random; see `rotated_spectra`.

    The distribution is the same for Q- and K-composition: the product of embeddings that the query
    side reads through is the transpose of the key side's. The common scale is arbitrary.
    """
    cores = matching_cores(model, writer, product, draws=draws)
    own = torch.stack([qk_values(model.head(reader)) for reader in readers])
    return spectra_between(cores, [own])


def matching_cores(
    model: Model,
    writer: HeadName | None,
    product: Float[Tensor, "d d"],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[Float[Tensor, "half r r"]]:
    """The part of `null_matching_spectra` that all readers share: see `rotated_cores`."""
    if writer is None:
        around = svdvals(product.double().cpu())
    else:
        below = model.head(writer)
        around = significant_values(Factored(below.W_O.mT, below.W_V.mT @ product)).cpu()
    # No head reads what LayerNorm removes: rotations leave the ones-vector where it is.
    d = model.config.d_model - (model.config.norm == "layer")
    # No more than d singular values of a matrix in d dimensions differ from 0.
    return rotated_cores([around], d, min(model.config.d_head, d), draws=draws, seed=seed)


def qk_values(head: Head) -> Float[Tensor, " k"]:
    """The singular values of a head's QK, averaged over offsets on a rotary model."""
    queries = head.W_Q
    if head.model.config.positions == "rotary":
        queries = queries @ average_rotation(head)
    return significant_values(Factored(queries, head.W_K.mT))


def embedding_product(model: Model, keys: int, queries: int = 1) -> Float[Tensor, "d d"]:
    """(W_E − mean over tokens)ᵀ W_E, in blocks of tokens.

    On the left embeddings as the layer `keys` reads them, on the right as the layer `queries` does,
    by default a deeper one, which reads without a scale.
    """
    W_E = model.weights.W_E
    left, right = (read_scales(model.weights, layer) for layer in (keys, queries))
    mean = W_E.mean(0) if left is None else (left @ W_E) / len(W_E)
    total = W_E.new_zeros(W_E.shape[1], W_E.shape[1])
    for start in range(0, len(W_E), ROWS):
        here = slice(start, start + ROWS)
        key, query = (
            W_E[here] if scales is None else W_E[here] * scales[here, None]
            for scales in (left, right)
        )
        total.addmm_((key - mean).T, query)
    # Where reads are centered, what the ones-direction holds reaches no head.
    return remove_both_means(total, model.config.norm == "layer")
