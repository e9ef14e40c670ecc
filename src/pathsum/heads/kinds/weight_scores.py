"""Scores from weights alone: what a head would do, whatever text it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import eigvals
from pathsum.algebra.spectrum import positivity
from pathsum.circuits.copying import copying_ratios
from pathsum.circuits.tokens.qk import average_rotation
from pathsum.heads.kinds.kind import PAPER, ScoreInfo
from pathsum.heads.layer_view import RandomFrames, root, turned
from pathsum.heads.score import Score, against_null
from pathsum.model import Head, HeadId, Model
from pathsum.model.head import embeddings_as_read

COPYING_BY_WEIGHTS = ScoreInfo(
    name="copying_weights",
    title="copying (weights)",
    about="Whether attending to a token raises that same token, for all tokens at once.",
    evidence="weights",
    formula="Σλ / Σ|λ|, λ the eigenvalues of W_E OV W_U, W_U centered",
    probe="none: weights alone",
    ceiling=1.0,
    null="W_V and W_O drawn at random between this model's own embeddings",
    threshold=0.0,
    reason="any excess of positive eigenvalues that chance does not explain",
    citation=PAPER,
)

MATCHING_BY_WEIGHTS = ScoreInfo(
    name="matching_weights",
    title="matching (weights)",
    about="Whether tokens attend to the same token, by content alone and read straight off.",
    evidence="weights",
    formula="Σλ / Σ|λ|, λ the eigenvalues of W_E QK W_Eᵀ, keys centered over tokens",
    probe="none: weights alone",
    ceiling=1.0,
    null="query and key reads of the layer's heads, rotated at random",
    threshold=0.0,
    reason="any excess of positive eigenvalues that chance does not explain: same attends to same",
    citation=PAPER,
)

DELETING_BY_WEIGHTS = ScoreInfo(
    name="deleting_weights",
    title="deleting (weights)",
    about="Whether the head writes the negative of what it reads.",
    evidence="weights",
    formula="−Σλ / Σ|λ|, λ the eigenvalues of OV in the stream's basis",
    probe="none: weights alone",
    ceiling=1.0,
    null="reads of the layer's heads, rotated at random",
    threshold=0.0,
    reason="any excess of negative eigenvalues that chance does not explain",
    citation=PAPER,
)

WEIGHT_SCORES = (COPYING_BY_WEIGHTS, MATCHING_BY_WEIGHTS, DELETING_BY_WEIGHTS)


def weight_scores(
    model: Model, frames: RandomFrames, seed: int = 0
) -> dict[HeadId, dict[str, Score]]:
    """Every score from weights of every head."""
    found: dict[HeadId, dict[str, Score]] = {head.id: {} for head in model.heads}
    copies = copying_ratios(model, seed=seed)
    for ratio, head in zip(copies.heads, model.heads, strict=True):
        found[head.id]["copying_weights"] = Score(
            ratio.ratio, 0.0, 0.0, ratio.p, drawn=copies.draws
        )
    grams: dict[bool, _TokenGram] = {}
    for layer in range(model.config.n_layers):
        # Layer 0 meets normalized embeddings, all deeper ones the same plain ones.
        if (layer == 0) not in grams:
            grams[layer == 0] = _token_gram(model, layer, frames)
        heads = [head for head in model.heads if head.id.layer == layer]
        matching = _matching(heads, grams[layer == 0], frames)
        deleting = _deleting(heads, frames)
        for head, matches, deletes in zip(heads, matching, deleting, strict=True):
            found[head.id] |= {"matching_weights": matches, "deleting_weights": deletes}
    return found


@dataclass(frozen=True, eq=False)
class _TokenGram:
    """Eᵀ E with keys centered over tokens: all that eigenvalues of full QK see of the embeddings.

    `framed` is the same between the random frames of keys and of queries, which all layers that
    read these embeddings share: a layer's null is then made of d_head × d_head products.
    """

    whole: Float[Tensor, "d d"]
    framed: Float[Tensor, "drawn r r"]


def _token_gram(model: Model, layer: int, frames: RandomFrames) -> _TokenGram:
    embeddings = embeddings_as_read(model.weights, layer)
    whole = (embeddings - embeddings.mean(0)).T @ embeddings
    return _TokenGram(whole, frames.key.mT @ (whole @ frames.query))


def _matching(heads: Sequence[Head], gram: _TokenGram, frames: RandomFrames) -> list[Score]:
    """Eigenvalue positivity of full QK, by eig(A B) = eig(B A), against reads rotated at random."""
    W_Q = torch.stack([head.W_Q for head in heads])
    W_K = torch.stack([head.W_K for head in heads])
    if heads[0].model.config.positions == "rotary":
        W_Q = W_Q @ torch.stack([average_rotation(head) for head in heads])
    like = torch.arange(frames.count) % len(heads)
    return _scored(
        positivity(eigvals(W_K.mT @ gram.whole @ W_Q)),
        positivity(eigvals(root(W_K)[like].mT @ gram.framed @ root(W_Q)[like])),
    )


def _deleting(heads: Sequence[Head], frames: RandomFrames) -> list[Score]:
    """Eigenvalue negativity of OV in the stream, against reads rotated at random."""
    W_V = torch.stack([head.W_V for head in heads])
    W_O = torch.stack([head.W_O for head in heads])
    like = torch.arange(frames.count) % len(heads)
    return _scored(
        -positivity(eigvals(W_O @ W_V)),
        -positivity(eigvals(W_O[like] @ turned(W_V, like, frames.value))),
    )


def _scored(values: Float[Tensor, " head"], null: Float[Tensor, " drawn"]) -> list[Score]:
    return [replace(score, stderr=0.0) for score in against_null(values[None], null)]
