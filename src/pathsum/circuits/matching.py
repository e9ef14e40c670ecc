"""Matching: does a head attend to equal tokens, directly or through a lower head?

The ratio of `copying` for QK. With a previous-token head below, `W_E QK (OV)ᵀ W_Eᵀ` is the
attention of a destination token to a position because of the token *before* that position. An
induction head matches equal tokens there, so the eigenvalues of this matrix are positive:
`Σλ / Σ|λ|` near 1 is the vertical axis of the paper's scatter of induction heads. The null rotates
the reader's queries and keys at random in the stream; the reader's singular values, the writer and
the embeddings stay the same.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.algebra import Factored, rotations
from pathsum.algebra.decompositions import svdvals
from pathsum.algebra.rotations import DRAWS
from pathsum.algebra.spectrum import remove_both_means
from pathsum.base import Side, Site
from pathsum.base.errors import InputError
from pathsum.circuits import token_basis
from pathsum.circuits.copying import eigenvalues_above_noise
from pathsum.circuits.qk_ov import average_rotation
from pathsum.model import Head, HeadName, Model
from pathsum.model.folding import read_scales


@torch.no_grad()
def matching_spectra(
    model: Model,
    readers: Sequence[HeadName],
    writer: HeadName | None,
    product: Float[Tensor, "d d"],
) -> Complex[Tensor, "reader k"]:
    """Eigenvalues of `W_E QK (OV)ᵀ W_Eᵀ` for each reader, with the OV of one writer below them.

    They equal the eigenvalues of `(OV W_K)ᵀ C W_Q`, which is d_head × d_head: the vocabulary occurs
    only in `product`, C = `embedding_product(model, writer's layer)`, which all readers share. For
    `writer=None` they are the eigenvalues of full QK, read from embeddings without a head between.
    Keys are centered over tokens, which also removes every bias. On a rotary model, QK is averaged
    over offsets. Scales of normalization above layer 0 and of QK-norm are omitted, and scores are
    taken before any soft cap.

    The factored form of the same matrix, for its entries, is
    `token_qk(model, reader, key_through=Path("embed", [writer]))`.
    """
    heads = list(map(model.head, readers))
    queries = torch.stack(list(map(_mean_queries, heads)))
    keys = torch.stack([head.W_K for head in heads])
    if writer is not None:
        below = model.head(writer)
        if early := [head.label for head in heads if head.id.layer <= below.id.layer]:
            raise InputError(
                f"{early[0]} cannot read what {below.label} writes: it is not in a later layer; "
                f"name a head of layer {below.id.layer + 1} or above"
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
    values = torch.stack([qk_values(model.head(reader)) for reader in readers])
    return rotations.spectra_between(cores, [values])


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
        embeddings = svdvals(product.double().cpu())
    else:
        below = model.head(writer)
        embeddings = rotations.significant_values(
            Factored(below.W_O.mT, below.W_V.mT @ product)
        ).cpu()
    # No head reads what LayerNorm removes: rotations fix the ones-vector.
    d = model.config.d_model - (model.config.norm == "layer")
    # No more than d singular values of a matrix in d dimensions differ from 0.
    return rotations.rotated_cores(
        [embeddings], d, min(model.config.d_head, d), draws=draws, seed=seed
    )


def qk_values(head: Head) -> Float[Tensor, " k"]:
    """The singular values of a head's QK, averaged over offsets on a rotary model."""
    return rotations.significant_values(Factored(_mean_queries(head), head.W_K.mT))


def _mean_queries(head: Head) -> Float[Tensor, "d k"]:
    rotary = head.model.config.positions == "rotary"
    return head.W_Q @ average_rotation(head) if rotary else head.W_Q


def embedding_product(model: Model, keys: int, queries: int = 1) -> Float[Tensor, "d d"]:
    """(W_E − mean over tokens)ᵀ W_E, in blocks of tokens.

    The left factor has embeddings as the layer `keys` reads them, the right factor as the layer
    `queries` does, by default a deeper layer, which reads without a scale.
    """
    W_E, scales = model.weights.W_E, read_scales(model.weights, keys)
    mean = W_E.mean(0) if scales is None else (scales @ W_E) / len(W_E)
    total = W_E.new_zeros(W_E.shape[1], W_E.shape[1])
    sides = (token_basis.embedding_blocks(model.weights, layer) for layer in (keys, queries))
    for (_, key), (_, query) in zip(*sides, strict=True):
        total.addmm_((key - mean).T, query)
    # If reads are centered, no head reads the ones-direction.
    return remove_both_means(total, model.config.norm == "layer")
