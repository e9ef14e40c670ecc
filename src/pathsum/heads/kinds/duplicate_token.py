"""Duplicate-token heads attend to earlier copies of the current token.

Score from data: mean over positions i with an earlier copy of Σ A[i, j], over j < i with the same
token, on repeated random tokens and on text. Threshold 0.3, because attention without matching
gives the copies about 1/n. Score from weights: Σλ / Σ|λ| of full QK, λ the eigenvalues of
W_E QK W_Eᵀ with keys centered over tokens; the weights agree if it is positive beyond chance.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import with_negatives
from pathsum.algebra.spectrum import positivity
from pathsum.circuits.copying import eigenvalues_above_noise
from pathsum.circuits.matching import embedding_product, null_matching_spectra
from pathsum.circuits.tokens.qk import average_rotation
from pathsum.heads.kinds.kind import (
    Kind,
    WeightScore,
    data_score,
    positive_score,
    weight_info,
)
from pathsum.heads.layer_view import LayerView
from pathsum.heads.score import Score, against_null
from pathsum.model import Head, HeadId, Model


def by_position(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """Attention to all earlier copies, at the positions that have one."""
    tokens = view.probe.tokens
    earlier = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    attended = (view.pattern * earlier[:, None].to(view.pattern)).sum(-1)
    return attended.masked_fill(~earlier.any(-1)[:, None], torch.nan)


DUPLICATE_TOKEN = data_score(
    by_position=by_position,
    name="duplicate_token",
    title="duplicate token",
    about="How much the head attends to earlier copies of the current token.",
    formula="mean over i with an earlier copy of Σ A[i, j], j < i with the token of i",
    threshold=0.3,
    reason="attention without matching gives the copies about 1/n",
    citation="Wang et al. 2022, Interpretability in the Wild",
    needs="an earlier copy of its token",
)


def measure_matching(model: Model, draws: int, seed: int) -> dict[HeadId, Score]:
    """Eigenvalue positivity of every head's full QK, against its own reads rotated at random."""
    found: dict[HeadId, Score] = {}
    grams: dict[bool, Tensor] = {}
    for layer in range(model.config.n_layers):
        # Layer 0 reads normalized embeddings; all deeper layers read the same unscaled ones.
        if (layer == 0) not in grams:
            grams[layer == 0] = embedding_product(model, layer, layer)
        heads = [head for head in model.heads if head.id.layer == layer]
        scores = _match(heads, grams[layer == 0], draws, seed)
        found |= {head.id: score for head, score in zip(heads, scores, strict=True)}
    return found


def _match(heads: Sequence[Head], gram: Float[Tensor, "d d"], draws: int, seed: int) -> list[Score]:
    # The eigenvalues of A B are those of B A, which is d_head × d_head.
    W_Q = torch.stack([head.W_Q for head in heads])
    W_K = torch.stack([head.W_K for head in heads])
    if heads[0].model.config.positions == "rotary":
        W_Q = W_Q @ torch.stack([average_rotation(head) for head in heads])
    right = gram @ W_Q
    size = W_K.norm(dim=(1, 2)) * right.norm(dim=(1, 2))
    values = positivity(eigenvalues_above_noise(W_K.mT @ right, size))
    drawn = null_matching_spectra(
        heads[0].model, [head.id for head in heads], None, gram, draws=draws, seed=seed
    )
    return against_null(values[None], with_negatives(positivity(drawn)).mT)


MATCHING_BY_WEIGHTS = WeightScore(
    weight_info(
        name="matching_weights",
        title="matching (weights)",
        about="Whether tokens attend to the same token, by content alone and without composition.",
        formula="Σλ / Σ|λ|, λ the eigenvalues of W_E QK W_Eᵀ, keys centered over tokens",
        null="this head's query and key reads, rotated at random",
        reason="any excess of positive eigenvalues that chance does not explain",
    ),
    measure_matching,
)
KIND = Kind(
    "duplicate token",
    DUPLICATE_TOKEN.info,
    positive_score(MATCHING_BY_WEIGHTS.info, "QK eigenvalue ratio"),
)
