"""Fuzzy induction: attention to what followed a *similar* token.

Induction heads of larger models also complete [a*][b*] … [a] → [b] with a* like a. Two tokens are
similar here if one has the other as its nearest neighbor by the cosine of their embeddings, W_E
with the mean over the vocabulary removed, and that cosine is at least 0.3.

Score: mean over i in the second block of A[i, i−L+1], on a block of L random tokens followed by a
block of their nearest neighbors: the induction stripe, with a similar token in place of the same.
Threshold 0.3, that of the stripe. It supports induction and names no kind.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.seeds import seeded
from pathsum.base import Progress, silent
from pathsum.heads.kinds.kind import PAPER_2022, RANDOM_HEADS, ScoreInfo, score_layers
from pathsum.heads.layer_view import LayerView, RandomFrames, compare_with_random_heads, layer_view
from pathsum.heads.probe import attention_trace
from pathsum.heads.score import HeadScores, Score
from pathsum.model import Model
from pathsum.model.folding import centered_unembedding
from pathsum.text.probes import RepeatedTokens, with_start

LEAST_COSINE = 0.3
FEWEST_PAIRS = 4
LENGTH = 25
# A probe needs a few hundred pairs, and all of them would take vocabulary² products. So only some
# tokens of a large vocabulary are drawn, at least FEWEST_DRAWN and more while they take at most
# PRODUCTS products, and each is paired with its nearest neighbor among all tokens.
PRODUCTS, FEWEST_DRAWN = 1 << 25, 1024

FUZZY_INDUCTION = ScoreInfo(
    name="fuzzy_induction",
    title="fuzzy induction",
    about="How much the head attends to what came next after a token similar to the current one.",
    evidence="data",
    formula="mean over i in the second block of A[i, i−L+1], the second block being the nearest "
    "neighbors of the first by the cosine of centered embeddings",
    probe="a block of random tokens, then a block of their nearest neighbors by embedding",
    ceiling=1.0,
    null=RANDOM_HEADS,
    threshold=0.3,
    reason="that of the induction stripe",
    citation=PAPER_2022 + " (heads that match similar tokens)",
)


def similar_pairs(model: Model, seed: int = 0) -> Int[Tensor, "pair 2"]:
    """Tokens that may be drawn, each with its nearest neighbor among them, no token twice.

    The most similar pairs come first. Of a large vocabulary these are the pairs of some tokens
    drawn at random.
    """
    ids = model.token_pool().ids()
    W_E = model.weights.W_E
    vectors = (W_E[ids] - W_E.mean(0)).float()
    vectors = vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    generator = seeded(seed)
    many = max(FEWEST_DRAWN, PRODUCTS // max(1, len(ids)))
    drawn = torch.randperm(len(ids), generator=generator)[:many].sort().values
    products = vectors[drawn] @ vectors.mT
    products[torch.arange(len(drawn)), drawn] = -1.0
    best = products.max(-1)
    cosine, neighbor = best.values.cpu(), best.indices.cpu()
    taken: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for row in cosine.argsort(descending=True, stable=True).tolist():
        place, other = int(drawn[row]), int(neighbor[row])
        if float(cosine[row]) < LEAST_COSINE:
            break
        if place not in taken and other not in taken:
            taken |= {place, other}
            pairs.append((int(ids[place]), int(ids[other])))
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)


@torch.no_grad()
def fuzzy_induction_scores(
    model: Model,
    frames: RandomFrames,
    sequences: int,
    seed: int = 0,
    progress: Progress = silent,
) -> HeadScores:
    """The score of every head against random heads."""
    progress(0, model.config.n_layers, "finding similar tokens")
    pairs = similar_pairs(model, seed)
    room = (model.config.n_ctx - (model.config.start_token is not None)) // 2
    length = min(LENGTH, room, len(pairs))
    if len(pairs) < FEWEST_PAIRS:
        return HeadScores(
            {},
            f"{len(pairs)} pairs of tokens have embeddings with a cosine of at least "
            f"{LEAST_COSINE}, and the probe needs {FEWEST_PAIRS}",
        )
    if length < 2:
        return HeadScores({}, f"two blocks of 2 tokens do not fit into {room * 2} positions")
    probe = _probe(pairs, length, sequences, seed, model.config.start_token)
    trace = attention_trace(model, probe.tokens, progress, "similar tokens")
    W_U = centered_unembedding(model.weights)

    def layer_scores(layer: int) -> list[Score]:
        view = layer_view(trace, probe, layer, W_U)
        [scores] = compare_with_random_heads(
            model, layer, view, frames, [_stripe], last=probe.length
        )
        return scores

    return HeadScores(score_layers(model, layer_scores, progress, "heads on similar tokens"))


def _stripe(view: LayerView) -> Float[Tensor, "sequence head"]:
    """The induction stripe in the last rows, those of the second block."""
    rows = view.pattern[:, :, -view.probe.length :, view.probe.first + 1 :]
    return rows.diagonal(dim1=-2, dim2=-1).mean(-1)


def _probe(
    pairs: Int[Tensor, "pair 2"], length: int, sequences: int, seed: int, start: int | None
) -> RepeatedTokens:
    """Random pairs: a block of one token of each, then a block of the other."""
    generator = seeded(seed)
    rows: list[Tensor] = []
    for _ in range(sequences):
        chosen = pairs[torch.randperm(len(pairs), generator=generator)[:length]]
        swap = torch.rand(length, generator=generator) < 0.5
        chosen = torch.where(swap[:, None], chosen.flip(1), chosen)
        rows.append(chosen.mT.flatten())
    tokens = with_start(torch.stack(rows), start)
    return RepeatedTokens(tokens, length, repeats=2, first=int(start is not None))
