"""Matching through a previous-token head: the vertical axis of the paper's induction scatter.

Score: Σλ / Σ|λ|, λ the eigenvalues of W_E QK (OV)ᵀ W_Eᵀ, with the OV of the best previous-token
head below and keys centered over tokens. Threshold 0: any excess of positive eigenvalues that
chance does not explain means that a token attends to where the token before is the same. Weights
alone; the probe only decides which head is the previous-token head. It supports induction and names
no kind.
"""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import with_negatives
from pathsum.algebra.spectrum import positivity
from pathsum.circuits.copying import DRAWS
from pathsum.circuits.matching import (
    embedding_product,
    matching_spectra,
    null_matching_spectra,
)
from pathsum.heads.kinds.kind import PAPER, ScoreInfo
from pathsum.heads.score import HeadScores, Score, against_null
from pathsum.model import HeadId, Model

MATCHING_THROUGH_PREVIOUS = ScoreInfo(
    name="matching_through_previous",
    title="matching through previous token",
    about="Whether the head attends to where the token before is the current one, as induction "
    "heads do, by what its keys read of a previous-token head.",
    evidence="weights",
    formula="Σλ / Σ|λ|, λ the eigenvalues of W_E QK (OV)ᵀ W_Eᵀ, OV the best previous-token head's "
    "below, keys centered over tokens",
    probe="none: weights alone; the probe only decides which head is the previous-token head",
    ceiling=1.0,
    null="this head's queries and keys, rotated at random; the previous-token head stays as it is",
    threshold=0.0,
    reason="any excess of positive eigenvalues that chance does not explain: same matches same, "
    "one token on",
    citation=PAPER,
)


def matching_scores(
    model: Model,
    readers: Sequence[HeadId],
    writer: HeadId | None,
    product: Float[Tensor, "d d"],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[HeadId, Score]:
    """Σλ / Σ|λ| of each reader's QK, through a writer or not, against its reads rotated."""
    values = positivity(matching_spectra(model, readers, writer, product))
    drawn = null_matching_spectra(model, readers, writer, product, draws=draws, seed=seed)
    null = with_negatives(positivity(drawn)).mT
    return dict(zip(readers, against_null(values[None], null, through=writer), strict=True))


def through_previous(model: Model, previous: Mapping[HeadId, float], seed: int = 0) -> HeadScores:
    """How every head matches tokens through the best previous-token head below it.

    `previous` maps previous-token heads to their scores; the best below a layer is the one with the
    largest. Layers with none below have no such score. Costs one product of embeddings per layer
    that contains such a head, and d_head × d_head products per draw.
    """
    config = model.config
    if config.n_layers == 1:
        return HeadScores({}, "one layer of heads has no layer below it to read")
    if not previous:
        return HeadScores({}, "no head is a previous-token head, so there is none to read")
    products: dict[bool, Float[Tensor, "d d"]] = {}
    found: dict[HeadId, Score] = {}
    for layer in range(1, config.n_layers):
        below = {head: score for head, score in previous.items() if head.layer < layer}
        if not below:
            continue
        writer = max(below, key=lambda head: below[head])
        # Layer 0 reads normalized embeddings; all deeper layers read the same unscaled ones.
        first = writer.layer == 0
        if first not in products:
            products[first] = embedding_product(model, writer.layer)
        readers = [HeadId(layer, head) for head in range(config.n_heads)]
        found |= matching_scores(model, readers, writer, products[first], seed=seed)
    if not found:
        return HeadScores({}, "no head is above a previous-token head")
    return HeadScores(found)
