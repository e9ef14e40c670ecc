"""Duplicate-token heads attend to earlier copies of the current token.

Score from data: mean over positions i with an earlier copy of Σ A[i, j], over j < i with the same
token, on repeated random tokens and on text. Threshold 0.3, because attention without matching
gives the copies about 1/n. Score from weights: Σλ / Σ|λ| of full QK, λ the eigenvalues of
W_E QK W_Eᵀ with keys centered over tokens; the weights agree if it is positive beyond chance.
"""

from jaxtyping import Float
from torch import Tensor

from pathsum.base import Progress
from pathsum.heads.kinds.kind import (
    Kind,
    WeightScore,
    attention_to,
    data_score,
    positive_score,
    weight_info,
)
from pathsum.heads.kinds.matching_through_previous import MatchingNull
from pathsum.heads.layer_view import LayerView
from pathsum.heads.score import Score
from pathsum.model import HeadId, Model


def by_position(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """Attention to all earlier copies, at the positions that have one."""
    tokens = view.probe.tokens
    return attention_to(view.pattern, (tokens[:, :, None] == tokens[:, None, :]).tril(-1))


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


def measure_matching(
    model: Model, draws: int, seed: int, progress: Progress
) -> dict[HeadId, Score]:
    """Eigenvalue positivity of every head's full QK, against its own reads rotated at random."""
    layers = [(layer, None) for layer in range(model.config.n_layers)]
    return MatchingNull(model, draws, seed).scores(layers, progress, "matching")


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
