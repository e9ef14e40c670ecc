"""Word-piece heads predict a word's second piece from its first: `[ab] … [a] → [b]`.

" Ralph" is one token and "Ralph" is "R" + "alph", so a head that has seen the whole word earlier
knows what follows the first piece. It attends from the piece to the whole word, and its OV turns
the whole word into the second piece.

Score from data: mean over split words of A[last, position of ab], the last token being a, on random
tokens with the word among them. Threshold 0.3, because attention without matching gives the word
about 1/n. Score from weights: 2 · (mean rank of b in the full OV row of ab) − 1, ranks in [0, 1],
of a large vocabulary among tokens drawn from it; the weights agree if it is positive beyond chance.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.seeds import seeded
from pathsum.base import Progress, silent
from pathsum.heads.kinds.kind import (
    PAPER,
    RANDOM_HEADS,
    Kind,
    ScoreInfo,
    positive_score,
    score_layers,
    weight_info,
)
from pathsum.heads.layer_view import (
    LayerOV,
    LayerView,
    RandomFrames,
    by_draw,
    compare_with_random_heads,
    in_own_basis,
    layer_view,
    rotated_ovs,
    unfolded_read,
)
from pathsum.heads.probe import attention_trace
from pathsum.heads.score import Score, against_null
from pathsum.model import HeadId, Model
from pathsum.model.folding import centered_unembedding, embeddings_as_read
from pathsum.text.probes import RepeatedTokens, with_start

# Random heads run on a few words, and p compares heads on the same few.
MOST_WORDS, WORDS_FOR_NULL = 64, 16
# p ranks the second piece among RIVALS tokens, the value among at most MOST_RANKED. The error of a
# rank among 8,192 tokens is below .006, a tenth of that of a mean over 64 words.
RIVALS, MOST_RANKED = 256, 8192
FEWEST_WORDS = 5
LENGTH = 24
TOO_FEW_WORDS = "the tokenizer splits too few words into two pieces"

WORD_PIECE = ScoreInfo(
    name="word_piece",
    title="word piece",
    about="How much the first piece of a split word attends to the whole word earlier in the text.",
    evidence="data",
    formula="mean over split words of A[last, position of ab], the last token being a",
    probe="random tokens with a whole word ab somewhere and its first piece a at the end",
    ceiling=1.0,
    null=RANDOM_HEADS,
    threshold=0.3,
    reason="attention without matching gives the word about 1/n",
    citation=PAPER,
)
WORD_PIECE_BY_WEIGHTS = weight_info(
    name="word_piece_weights",
    title="word piece (weights)",
    about="Whether attending to a whole word raises the second piece of the word when it is split.",
    formula="2 · mean over split words of the rank of b in the full OV row of ab, in [0, 1], − 1",
    null="this head's reads and writes, rotated at random between this model's embeddings",
    reason="any excess over the middle rank that chance does not explain",
)
KIND = Kind(
    "word piece", WORD_PIECE, positive_score(WORD_PIECE_BY_WEIGHTS, "OV raises the second piece")
)


@dataclass(frozen=True, eq=False)
class SplitWords:
    """Words that are one token after a space and two tokens without it."""

    whole: Int[Tensor, " word"]
    first: Int[Tensor, " word"]
    second: Int[Tensor, " word"]

    def __len__(self) -> int:
        return len(self.whole)


def split_words(model: Model) -> SplitWords:
    """Split words among the common tokens, the most common first."""
    found: list[tuple[int, int, int]] = []
    tokenizer = model.tokenizer
    if tokenizer is not None:
        pool = model.token_pool()
        for token in pool.by_count[pool.common[pool.by_count]].tolist():
            text = tokenizer.text(token)
            if not text.startswith(" ") or len(text) < 3:
                continue
            pieces = tokenizer.encode(text[1:])
            if len(pieces) == 2 and all(bool(pool.common[piece]) for piece in pieces):
                found.append((token, pieces[0], pieces[1]))
            if len(found) == MOST_WORDS:
                break
    whole, first, second = torch.tensor(found, dtype=torch.long).reshape(-1, 3).T
    return SplitWords(whole, first, second)


@torch.no_grad()
def word_piece_scores(
    model: Model, frames: RandomFrames, seed: int = 0, progress: Progress = silent
) -> dict[HeadId, dict[str, Score]]:
    """Both scores of every head; empty if the tokenizer splits too few words."""
    progress(0, model.config.n_layers, "finding split words")
    words = split_words(model)
    if len(words) < FEWEST_WORDS:
        return {}
    generator = seeded(seed)
    probe, positions = _probe(model, words, generator)
    trace = attention_trace(model, probe.tokens, progress, "split words")

    def attention_to_word(view: LayerView) -> Float[Tensor, "sequence head"]:
        rows = torch.arange(len(view.pattern))
        return view.pattern[rows, :, -1, positions[: len(view.pattern)]]

    W_U = centered_unembedding(model.weights)
    rivals = model.token_pool().draw(1, RIVALS, generator)[0]
    every = torch.randperm(model.config.d_vocab, generator=generator)[:MOST_RANKED]

    def layer_scores(layer: int) -> list[dict[str, Score]]:
        view = layer_view(trace, probe, layer, W_U)
        [attends] = compare_with_random_heads(
            model, layer, view, frames, [attention_to_word], WORDS_FOR_NULL, last=1
        )
        raises = _by_weights(model, layer, view.ov, words, (rivals, every), frames)
        return [
            {WORD_PIECE.name: data, WORD_PIECE_BY_WEIGHTS.name: weights}
            for data, weights in zip(attends, raises, strict=True)
        ]

    return score_layers(model, layer_scores, progress, "heads on split words")


def _probe(
    model: Model, words: SplitWords, generator: torch.Generator
) -> tuple[RepeatedTokens, Int[Tensor, " word"]]:
    """One sequence per word: random tokens, the whole word among them, its first piece last."""
    config = model.config
    first = int(config.start_token is not None)
    length = min(LENGTH, config.n_ctx - first)
    tokens = model.token_pool().draw(len(words), length, generator)
    positions = torch.randint(length - 1, (len(words),), generator=generator)
    tokens[torch.arange(len(words)), positions] = words.whole
    tokens[:, -1] = words.first
    tokens = with_start(tokens, config.start_token)
    return RepeatedTokens(tokens, length, repeats=1, first=first), positions + first


def _by_weights(
    model: Model,
    layer: int,
    own: LayerOV,
    words: SplitWords,
    among: tuple[Int[Tensor, " rival"], Int[Tensor, " token"]],
    frames: RandomFrames,
) -> list[Score]:
    """How high OV ranks the second piece; p by ranks among rivals, the value among more tokens."""
    read = embeddings_as_read(model.weights, layer, words.whole)[None]
    tokens, more = (torch.cat((words.second, others)) for others in among)

    def rank(
        ov: LayerOV, read: Float[Tensor, "1 word q"], tokens: Int[Tensor, " n"] = tokens
    ) -> Float[Tensor, "word heads"]:
        logits = ov.logits(ov.values(read), tokens[None])[0]
        second = logits.diagonal(dim1=-2, dim2=-1)
        below = logits[..., len(words) :] < second[..., None]
        return (2 * below.to(read.dtype).mean(-1) - 1).T

    rotated = in_own_basis(unfolded_read(model, layer, read))
    null = [list[Tensor]() for _ in range(model.config.n_heads)]
    for _, ovs in rotated_ovs(model, layer, frames, len(words) * len(tokens)):
        for head, ov in enumerate(ovs):
            null[head].append(rank(ov, rotated).mean(0))
    return against_null(rank(own, read, more), by_draw(null), rank(own, read).mean(0))
