"""Duplicate-token heads attend to earlier copies of the current token.

Score from data: mean over repeated positions i of Σ A[i, j], over j < i with the same token, on
repeated random tokens. Threshold 0.3, because attention without matching gives the copies about
1/n. Score from weights: Σλ / Σ|λ| of full QK, λ the eigenvalues of W_E QK W_Eᵀ with keys centered
over tokens; the weights agree if it is positive beyond chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import eigvals
from pathsum.algebra.spectrum import positivity
from pathsum.circuits.tokens.qk import average_rotation
from pathsum.heads.kinds.kind import Kind, WeightScore, data_score, positive_score, weight_info
from pathsum.heads.layer_view import LayerView, RandomFrames, root
from pathsum.heads.score import Score, against_null
from pathsum.model import Head, HeadId, Model
from pathsum.model.folding import embeddings_as_read


def measure(view: LayerView) -> Float[Tensor, "sequence head"]:
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
    reason="attention without matching gives the copies about 1/n",
    citation="Wang et al. 2022, Interpretability in the Wild",
)


def measure_matching(model: Model, frames: RandomFrames) -> dict[HeadId, Score]:
    """Eigenvalue positivity of every head's full QK, against reads rotated at random."""
    found: dict[HeadId, Score] = {}
    grams: dict[bool, _TokenGram] = {}
    for layer in range(model.config.n_layers):
        # Layer 0 reads normalized embeddings; all deeper layers read the same unscaled ones.
        if (layer == 0) not in grams:
            grams[layer == 0] = _token_gram(model, layer, frames)
        heads = [head for head in model.heads if head.id.layer == layer]
        scores = _match(heads, grams[layer == 0], frames)
        found |= {head.id: score for head, score in zip(heads, scores, strict=True)}
    return found


@dataclass(frozen=True, eq=False)
class _TokenGram:
    """Eᵀ E with keys centered over tokens: all that the eigenvalues of full QK need of W_E.

    `framed` is the same between the random frames of keys and of queries, shared by all layers that
    read these embeddings: a layer's null is then made of d_head × d_head products.
    """

    whole: Float[Tensor, "d d"]
    framed: Float[Tensor, "drawn r r"]


def _token_gram(model: Model, layer: int, frames: RandomFrames) -> _TokenGram:
    embeddings = embeddings_as_read(model.weights, layer)
    whole = (embeddings - embeddings.mean(0)).T @ embeddings
    return _TokenGram(whole, frames.key.mT @ (whole @ frames.query))


def _match(heads: Sequence[Head], gram: _TokenGram, frames: RandomFrames) -> list[Score]:
    # The eigenvalues of A B are those of B A, which is d_head × d_head.
    W_Q = torch.stack([head.W_Q for head in heads])
    W_K = torch.stack([head.W_K for head in heads])
    if heads[0].model.config.positions == "rotary":
        W_Q = W_Q @ torch.stack([average_rotation(head) for head in heads])
    drawn = torch.arange(frames.count) % len(heads)
    values = positivity(eigvals(W_K.mT @ gram.whole @ W_Q))
    null = eigvals(root(W_K)[drawn].mT @ gram.framed @ root(W_Q)[drawn])
    return against_null(values[None], positivity(null))


MATCHING_BY_WEIGHTS = WeightScore(
    weight_info(
        name="matching_weights",
        title="matching (weights)",
        about="Whether tokens attend to the same token, by content alone and without composition.",
        formula="Σλ / Σ|λ|, λ the eigenvalues of W_E QK W_Eᵀ, keys centered over tokens",
        null="query and key reads of the layer's heads, rotated at random",
        reason="any excess of positive eigenvalues that chance does not explain",
    ),
    measure_matching,
)
KIND = Kind(
    "duplicate token",
    DUPLICATE_TOKEN.info,
    positive_score(MATCHING_BY_WEIGHTS.info, "QK eigenvalue ratio"),
)
