"""Word-piece movers: `[ab] … [a] → [b]`, a whole word's second piece predicted from its first.

" Ralph" is one token and "Ralph" is "R" + "alph": a head that sees the whole word earlier can tell
what follows the first piece. It attends from the piece to the whole, and its OV turns the whole
into the second piece.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.circuits.tokens.ov import token_ov
from pathsum.circuits.tokens.token import common_tokens
from pathsum.heads.kinds.kind import PAPER, ScoreInfo
from pathsum.heads.layer_view import RandomFrames, layer_views, random_heads
from pathsum.heads.probe import probe_tokens
from pathsum.heads.score import Score, against_null
from pathsum.model import HeadId, Model
from pathsum.text.probes import RepeatedTokens

# Random heads are many, so a few words tell what they do; p then errs on the safe side.
MOST_PAIRS, WORDS_FOR_CHANCE = 64, 16
FEWEST_PAIRS = 5
LENGTH = 24
NO_SPLIT_WORDS = "the tokenizer splits too few words in two to tell"

WORD_PIECE = ScoreInfo(
    name="word_piece",
    title="word piece",
    about="How much the first piece of a split word attends to the whole word standing earlier.",
    evidence="data",
    formula="mean over split words of A[last, place of ab], the last token being a",
    probe="random tokens with a whole word ab somewhere and its first piece a at the end",
    ceiling=1.0,
    null="heads of the same singular values, rotated at random, on the same stream",
    threshold=0.3,
    reason="a head that matched by chance would give the word about 1/n of its attention",
    citation=PAPER,
)
WORD_PIECE_BY_WEIGHTS = ScoreInfo(
    name="word_piece_weights",
    title="word piece (weights)",
    about="Whether attending to a whole word raises the second piece of the word when it is split.",
    evidence="weights",
    formula="2 · mean over split words of the rank of b in the full OV row of ab, in [0, 1], − 1",
    probe="none: weights alone",
    ceiling=1.0,
    null="ranks drawn at random",
    threshold=0.0,
    reason="any excess over the middle rank that chance does not explain",
    citation=PAPER,
)


@dataclass(frozen=True, eq=False)
class SplitWords:
    """Words that are one token with a space before them and two without."""

    whole: Int[Tensor, " pair"]
    first: Int[Tensor, " pair"]
    second: Int[Tensor, " pair"]

    def __len__(self) -> int:
        return len(self.whole)


def split_words(model: Model, most: int = MOST_PAIRS) -> SplitWords:
    """Such words among the tokens that training has seen often enough, the commonest first."""
    found: list[tuple[int, int, int]] = []
    tokenizer = model.tokenizer
    if tokenizer is not None:
        shown = common_tokens(model)
        counts = model.token_counts
        order = shown.nonzero()[:, 0]
        if counts is not None:
            order = order[counts.cpu()[order].argsort(descending=True, stable=True)]
        for token in order.tolist():
            text = tokenizer.text(token)
            if not text.startswith(" ") or len(text) < 3:
                continue
            pieces = tokenizer.encode(text[1:])
            if len(pieces) == 2 and all(bool(shown[piece]) for piece in pieces):
                found.append((token, pieces[0], pieces[1]))
            if len(found) == most:
                break
    whole, first, second = torch.tensor(found, dtype=torch.long).reshape(-1, 3).T
    return SplitWords(whole, first, second)


@torch.no_grad()
def word_piece_scores(
    model: Model, frames: RandomFrames, seed: int = 0
) -> dict[HeadId, dict[str, Score]]:
    """Both scores of every head; empty where the tokenizer splits too few words to tell."""
    words = split_words(model)
    if len(words) < FEWEST_PAIRS:
        return {}
    generator = torch.Generator().manual_seed(seed)
    probe, places = _probe(model, words, generator)
    trace = model.trace(probe.tokens)

    def attended(pattern: Float[Tensor, "draw head dest src"]) -> Float[Tensor, "draw head"]:
        rows = torch.arange(len(pattern))
        return pattern[rows, :, -1, places[: len(pattern)]]

    found: dict[HeadId, dict[str, Score]] = {}
    for layer, view in enumerate(layer_views(trace, probe)):
        chance = random_heads(model, layer, view.few(WORDS_FOR_CHANCE), frames)
        null = attended(chance.pattern).mean(0)
        for head, score in enumerate(against_null(attended(view.pattern), null)):
            place = HeadId(layer, head)
            found[place] = {
                "word_piece": score,
                "word_piece_weights": _by_weights(model, place, words),
            }
    return found


def _probe(
    model: Model, words: SplitWords, generator: torch.Generator
) -> tuple[RepeatedTokens, Int[Tensor, " pair"]]:
    """One sequence a word: random tokens, the whole word among them, its first piece last."""
    config = model.config
    start = int(config.start_token is not None)
    length = min(LENGTH, config.n_ctx - start)
    ids = probe_tokens(model)
    drawn = torch.randint(len(ids), (len(words), length), generator=generator)
    tokens = ids[drawn]
    places = torch.randint(length - 1, (len(words),), generator=generator)
    tokens[torch.arange(len(words)), places] = words.whole
    tokens[:, -1] = words.first
    if config.start_token is not None:
        tokens = torch.cat((torch.full((len(words), 1), config.start_token), tokens), 1)
    return RepeatedTokens(tokens, length, repeats=1, first=start), places + start


def _by_weights(model: Model, head: HeadId, words: SplitWords) -> Score:
    full = token_ov(model, head)
    rows = full.A[words.whole] @ full.B
    own = rows.gather(1, words.second[:, None])
    rank = (rows < own).double().mean(1)
    value = float(2 * rank.mean() - 1)
    # Ranks of unrelated tokens are uniform: variance 1/12 each.
    deviation = 2 * (1 / 12 / len(words)) ** 0.5
    p = 0.5 * float(torch.special.erfc(torch.tensor(value / deviation / 2**0.5)))
    return Score(value, deviation, 0.0, p)
