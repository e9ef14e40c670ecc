"""Word-piece heads predict a word's second piece from its first: `[ab] … [a] → [b]`.

" Ralph" is one token and "Ralph" is "R" + "alph", so a head that has seen the whole word earlier
knows what follows the first piece. It attends from the piece to the whole word, and its OV turns
the whole word into the second piece.

Score from data: mean over split words of A[last, position of ab], the last token being a, on random
tokens with the word among them. Threshold 0.3, because attention without matching gives the word
about 1/n. Score from weights: 2 · (mean rank of b in the full OV row of ab) − 1, ranks in [0, 1];
the weights agree if it is positive beyond chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.circuits.tokens.ov import token_ov
from pathsum.heads.kinds.kind import (
    PAPER,
    RANDOM_HEADS,
    Kind,
    ScoreInfo,
    positive_score,
    weight_info,
)
from pathsum.heads.layer_view import RandomFrames, layer_view, random_heads
from pathsum.heads.score import Score, against_null
from pathsum.model import HeadId, Model
from pathsum.model.folding import centered_unembedding
from pathsum.model.processes import shared_map
from pathsum.result import Progress, silent
from pathsum.result.estimate import Estimate
from pathsum.text.probes import RepeatedTokens

# Random heads are many, so a few words show what they do; the null is then wider, and p errs on the
# safe side.
MOST_WORDS, WORDS_FOR_NULL = 64, 16
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
    null="ranks drawn at random",
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


def split_words(model: Model, most: int = MOST_WORDS) -> SplitWords:
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
            if len(found) == most:
                break
    whole, first, second = torch.tensor(found, dtype=torch.long).reshape(-1, 3).T
    return SplitWords(whole, first, second)


@torch.no_grad()
def word_piece_scores(
    model: Model, frames: RandomFrames, seed: int = 0, progress: Progress = silent
) -> dict[HeadId, Mapping[str, Score]]:
    """Both scores of every head; empty where the tokenizer splits too few words."""
    words = split_words(model)
    if len(words) < FEWEST_WORDS:
        return {}
    generator = torch.Generator().manual_seed(seed)
    probe, positions = _probe(model, words, generator)
    trace = model.trace(probe.tokens)

    def attention_to_word(
        pattern: Float[Tensor, "sequence head dest src"],
    ) -> Float[Tensor, "sequence head"]:
        rows = torch.arange(len(pattern))
        return pattern[rows, :, -1, positions[: len(pattern)]]

    W_U = centered_unembedding(model.weights)

    def layer_scores(layer: int) -> dict[HeadId, Mapping[str, Score]]:
        view = layer_view(trace, probe, layer, W_U)
        drawn = random_heads(model, layer, view.first(WORDS_FOR_NULL), frames)
        null = attention_to_word(drawn.pattern).mean(0)
        scores = against_null(attention_to_word(view.pattern), null)
        return {
            HeadId(layer, head): {
                WORD_PIECE.name: score,
                WORD_PIECE_BY_WEIGHTS.name: _by_weights(model, HeadId(layer, head), words),
            }
            for head, score in enumerate(scores)
        }

    layers = range(model.config.n_layers)
    every = shared_map(layers, layer_scores, progress, "heads on split words")
    return {head: scores for part in every for head, scores in part.items()}


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
    if config.start_token is not None:
        tokens = torch.cat((torch.full((len(words), 1), config.start_token), tokens), 1)
    return RepeatedTokens(tokens, length, repeats=1, first=first), positions + first


def _by_weights(model: Model, head: HeadId, words: SplitWords) -> Score:
    full = token_ov(model, head)
    rows = full.A[words.whole] @ full.B
    own = rows.gather(1, words.second[:, None])
    scores = 2 * (rows < own).double().mean(1) - 1
    value = float(scores.mean())
    sampled = Estimate.around(value, float(scores.std() / len(words) ** 0.5), len(words))
    # Ranks of unrelated tokens are uniform on [0, 1]: variance 1/12 each.
    null_deviation = 2 * (1 / 12 / len(words)) ** 0.5
    p = 0.5 * float(torch.special.erfc(torch.tensor(value / null_deviation / 2**0.5)))
    return Score(value, sampled.stderr, sampled.low, sampled.high, null=0.0, p=p)
