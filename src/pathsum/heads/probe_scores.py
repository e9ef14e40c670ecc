"""Probes and the scores measured on them: repeats, text, similar tokens and split words.

Fuzzy induction is attention to the token after a *similar* token. Induction heads of larger models
also complete [a*][b*] … [a] → [b] with a* like a. Two tokens are similar if one is the other's
nearest neighbor by the cosine of their embeddings, W_E minus its mean over the vocabulary, and that
cosine is at least 0.3.

Word-piece heads predict a word's second piece from its first: `[ab] … [a] → [b]`. " Ralph" is one
token and "Ralph" is "R" + "alph", so an earlier whole word determines the token after the first
piece. Such a head attends from the piece to the whole word, and its OV raises the second piece.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import Progress
from pathsum.base.errors import InputError
from pathsum.base.options import batch_size
from pathsum.heads.circuit_scores import COPYING_BY_DATA, DELETING, score_layers
from pathsum.heads.null import RandomHeads, by_draw, score_on_runs
from pathsum.heads.probe import INDUCTION_STRIPE, PATTERN_SCORES, attention_trace, repeats_probe
from pathsum.heads.score import (
    DataScore,
    HeadScore,
    HeadScores,
    LayerOV,
    LayerView,
    Score,
    against_null,
    layer_view,
    layer_views,
    on_text,
    score_info,
)
from pathsum.model import HeadId, Model, Trace
from pathsum.model.folding import centered_unembedding, embeddings_as_read
from pathsum.model.sequences import TextOrTokens, token_batches
from pathsum.text.shards import spaced
from pathsum.text.token_pool import RepeatedTokens, prepend_start

REPEATS_SCORES: tuple[DataScore, ...] = (*PATTERN_SCORES, COPYING_BY_DATA, DELETING)
"""Scores on repeated random tokens."""

TEXT_SCORES: tuple[DataScore, ...] = tuple(
    on_text(score)
    for score in REPEATS_SCORES
    if score not in (INDUCTION_STRIPE, COPYING_BY_DATA)  # which need repeats
)
"""The same on text, for those that need no repeats."""

TEXT_SEQUENCES, TEXT_LENGTH, TEXT_NULL_SEQUENCES = 16, 128, 1
# Bytes of the patterns of one run.
_PATTERN_BYTES = 1 << 28


def attention_on_repeats(model: Model, progress: Progress) -> dict[HeadId, dict[str, Score]]:
    """Attention scores on repeated random tokens without their nulls, to save time."""
    probe = repeats_probe(model)
    trace = attention_trace(model, probe.tokens, progress, "random tokens")
    result: dict[HeadId, dict[str, Score]] = {head.id: {} for head in model.heads}
    for layer, view in enumerate(layer_views(trace, probe)):
        for score in PATTERN_SCORES:
            values = score.measure(view)
            values = values[~values.isnan().all(-1)]
            for head, value in enumerate(against_null(values, values[:0])):
                result[HeadId(layer, head)][score.name] = value
    return result


def score_on_text(
    null: RandomHeads, names: Collection[str], text: TextOrTokens | None, progress: Progress
) -> HeadScores:
    """Scores on `text`, or on the model's held-out text."""
    model, name = null.model, "held-out text" if text is None else "the given tokens"
    requested = [score for score in TEXT_SCORES if score.name in names]
    if not requested:
        return HeadScores({}, {})
    if text is None:
        if model.held_out is None:
            why = "the model has no held-out text (Python: tokens=…; command line: --text FILE)"
            return HeadScores({}, {score.name: why for score in requested})
        text = model.held_out[spaced(len(model.held_out), TEXT_SEQUENCES)]
    # Nothing is predicted here, so outputs need not be tokens.
    batches = token_batches(model, text, targets_given=True)
    truncated = [batch[:, :TEXT_LENGTH] for batch in batches]

    def runs() -> Iterator[tuple[Trace, RepeatedTokens]]:
        start = int(model.config.start_token is not None)
        for batch in truncated:
            length = batch.shape[1]
            size = batch_size(len(model.heads) * length**2 * 4, _PATTERN_BYTES)
            for piece in batch.split(max(TEXT_NULL_SEQUENCES, size)):
                # Text as a probe whose first copy is all of it.
                probe = RepeatedTokens(piece.cpu(), length - start, repeats=1, first=start)
                yield attention_trace(model, piece, progress, "text"), probe

    count, longest = sum(map(len, truncated)), max(batch.shape[1] for batch in truncated)
    first = "the first " if any(batch.shape[1] > TEXT_LENGTH for batch in batches) else ""
    null_sequences = TEXT_NULL_SEQUENCES
    measured = score_on_runs(
        runs(), requested, null, what="text", null_sequences=null_sequences, progress=progress
    )
    return replace(measured, measured_on=f"{count} sequences of {name} ({first}{longest} tokens)")


LEAST_COSINE, FEWEST_PAIRS, COPY_LENGTH = 0.3, 4, 25
# A probe needs a few hundred pairs, and all pairs would take vocabulary² products. Of a large
# vocabulary, only a sample of at least FEWEST_DRAWN tokens is paired with nearest neighbors among
# all tokens, or more if they take at most PRODUCTS products.
PRODUCTS, FEWEST_DRAWN = 1 << 25, 1024


def _similar_stripe(view: LayerView) -> Float[Tensor, "sequence head 1"]:
    """The induction stripe in the last rows, which are the second block."""
    rows = view.pattern[:, :, -view.probe.length :, view.probe.first + 1 :]
    return rows.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)


FUZZY_INDUCTION = DataScore(score_info("fuzzy_induction"), _similar_stripe)


def score_on_similar_tokens(
    null: RandomHeads, names: Collection[str], sequences: int, seed: int, progress: Progress
) -> HeadScores:
    """Fuzzy induction of every head."""
    if FUZZY_INDUCTION.name not in names:
        return HeadScores({}, {})
    model, what = null.model, "similar tokens"
    progress(0, model.config.n_layers, f"finding {what}")
    try:
        probe = similar_tokens_probe(model, sequences, seed)
    except InputError as error:
        return HeadScores({}, {FUZZY_INDUCTION.name: str(error)})
    runs = [(attention_trace(model, probe.tokens, progress, what), probe)]
    return score_on_runs(
        runs, [FUZZY_INDUCTION], null, what=what, last=probe.length, progress=progress
    )


def similar_tokens_probe(model: Model, sequences: int, seed: int) -> RepeatedTokens:
    """Random pairs of similar tokens: a block of the first tokens, then a block of the second."""
    pairs = similar_pairs(model, seed)
    start = model.config.start_token
    room = (model.config.n_ctx - (start is not None)) // 2
    length = min(COPY_LENGTH, room, len(pairs))
    if len(pairs) < FEWEST_PAIRS:
        raise InputError(
            f"{len(pairs)} pairs of tokens have embeddings with a cosine of at least "
            f"{LEAST_COSINE}, and the probe needs {FEWEST_PAIRS}"
        )
    if length < 2:
        raise InputError(f"two blocks of 2 tokens do not fit into {room * 2} positions")
    generator = seeded(seed)
    rows: list[Tensor] = []
    for _ in range(sequences):
        sample = pairs[torch.randperm(len(pairs), generator=generator)[:length]]
        swap = torch.rand(length, generator=generator) < 0.5
        rows.append(torch.where(swap[:, None], sample.flip(1), sample).mT.flatten())
    tokens = prepend_start(torch.stack(rows), start)
    return RepeatedTokens(tokens, length, repeats=2, first=int(start is not None))


def similar_pairs(model: Model, seed: int = 0) -> Int[Tensor, "pair 2"]:
    """Tokens that may be drawn, each with its nearest neighbor among them, no token twice.

    The most similar pairs come first. In a large vocabulary, only a random sample of tokens is
    paired.
    """
    ids = model.token_pool().ids()
    W_E = model.weights.W_E
    vectors = (W_E[ids] - W_E.mean(0)).float()
    vectors = vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    count = max(FEWEST_DRAWN, PRODUCTS // max(1, len(ids)))
    sample = torch.randperm(len(ids), generator=seeded(seed))[:count].sort().values
    products = vectors[sample] @ vectors.mT
    products[torch.arange(len(sample)), sample] = -1.0
    nearest = products.max(-1)
    cosine, neighbor = nearest.values.cpu(), nearest.indices.cpu()
    used: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for row in cosine.argsort(descending=True, stable=True).tolist():
        token, other = int(sample[row]), int(neighbor[row])
        if float(cosine[row]) < LEAST_COSINE:
            break
        if token not in used and other not in used:
            used |= {token, other}
            pairs.append((int(ids[token]), int(ids[other])))
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)


# Random heads run on a few words, and p compares heads on the same words.
MOST_WORDS, WORDS_FOR_NULL, FEWEST_WORDS = 64, 16, 5
# p ranks the second piece among RIVALS tokens, the value among at most MOST_RANKED. The error of a
# rank among 8,192 tokens is below 0.006, a tenth of the error of a mean over 64 words.
RIVALS, MOST_RANKED = 256, 8192
WORD_PROBE_LENGTH = 24
TOO_FEW_WORDS = "the tokenizer splits too few words into two pieces"


def _attention_to_word(view: LayerView) -> Float[Tensor, "sequence head 1"]:
    probe = view.probe
    assert isinstance(probe, SplitWordsProbe)
    rows = torch.arange(len(view.pattern))
    return view.pattern[rows, :, -1, probe.positions[: len(view.pattern)]][..., None]


WORD_PIECE = DataScore(score_info("word_piece"), _attention_to_word, of_tokens_out=True)
WORD_PIECE_BY_WEIGHTS = HeadScore(score_info("word_piece_weights"), of_ov=True, of_tokens_out=True)


@dataclass(frozen=True, eq=False)
class SplitWordsProbe(RepeatedTokens):
    """One sequence per word; `positions` has the positions of the whole words."""

    positions: Int[Tensor, " word"]


def score_on_split_words(
    null: RandomHeads, names: Collection[str], seed: int, progress: Progress
) -> HeadScores:
    """Word-piece scores of every head; absent if the tokenizer splits too few words."""
    requested = {WORD_PIECE.name, WORD_PIECE_BY_WEIGHTS.name}.intersection(names)
    if not requested:
        return HeadScores({}, {})
    model, what = null.model, "split words"
    progress(0, model.config.n_layers, f"finding {what}")
    words = split_words(model)
    if len(words) < FEWEST_WORDS:
        return HeadScores({}, dict.fromkeys(sorted(requested), TOO_FEW_WORDS))
    generator = seeded(seed)
    probe = split_words_probe(model, words, generator)
    trace = attention_trace(model, probe.tokens, progress, what)
    measured = score_on_runs(
        [(trace, probe)],
        [WORD_PIECE] if WORD_PIECE.name in requested else [],
        null,
        what=what,
        null_sequences=WORDS_FOR_NULL,
        last=1,
        progress=progress,
    )
    if WORD_PIECE_BY_WEIGHTS.name in requested:
        rivals = model.token_pool().draw(1, RIVALS, generator)[0]
        ranked_among = torch.randperm(model.config.d_vocab, generator=generator)[:MOST_RANKED]
        W_U = centered_unembedding(model.weights)

        def rank(layer: int) -> Sequence[Score]:
            ov = layer_view(trace, probe, layer, W_U).ov
            return rank_second_pieces(null, layer, ov, words, (rivals, ranked_among))

        ranked = score_layers(model, rank, progress, "ranks of second pieces")
        for head, score in ranked.items():
            measured.scores[head][WORD_PIECE_BY_WEIGHTS.name] = score
    return measured


def split_words(model: Model) -> Int[Tensor, "word 3"]:
    """Words that are one token after a space and two without it: the token and the two pieces.

    Among the common tokens, the most common first.
    """
    words: list[tuple[int, int, int]] = []
    tokenizer = model.tokenizer
    if tokenizer is not None:
        pool = model.token_pool()
        for token in pool.by_count[pool.common[pool.by_count]].tolist():
            text = tokenizer.text(token)
            if not text.startswith(" ") or len(text) < 3:
                continue
            pieces = tokenizer.encode(text[1:])
            if len(pieces) == 2 and all(bool(pool.common[piece]) for piece in pieces):
                words.append((token, pieces[0], pieces[1]))
            if len(words) == MOST_WORDS:
                break
    return torch.tensor(words, dtype=torch.long).reshape(-1, 3)


def split_words_probe(
    model: Model, words: Int[Tensor, "word 3"], generator: torch.Generator
) -> SplitWordsProbe:
    """One sequence per word: random tokens, the whole word among them, its first piece last."""
    config = model.config
    first = int(config.start_token is not None)
    length = min(WORD_PROBE_LENGTH, config.n_ctx - first)
    tokens = model.token_pool().draw(len(words), length, generator)
    positions = torch.randint(length - 1, (len(words),), generator=generator)
    tokens[torch.arange(len(words)), positions] = words[:, 0]
    tokens[:, -1] = words[:, 1]
    tokens = prepend_start(tokens, config.start_token)
    return SplitWordsProbe(tokens, length, repeats=1, first=first, positions=positions + first)


def rank_second_pieces(
    null: RandomHeads,
    layer: int,
    ov_of_heads: LayerOV,
    words: Int[Tensor, "word 3"],
    among: tuple[Int[Tensor, " rival"], Int[Tensor, " token"]],
) -> list[Score]:
    """OV's rank of the second piece; p from ranks among rivals, the value among more tokens."""
    read = embeddings_as_read(null.model.weights, layer, words[:, 0])[None]
    tokens, many = (torch.cat((words[:, 2], tokens_of)) for tokens_of in among)

    def rank(
        ov: LayerOV, read: Float[Tensor, "1 word q"], tokens: Int[Tensor, " n"] = tokens
    ) -> Float[Tensor, "word heads"]:
        logits = ov.logits(ov.values(read), tokens[None])[0]
        second = logits.diagonal(dim1=-2, dim2=-1)
        below = logits[..., len(words) :] < second[..., None]
        return (2 * below.to(read.dtype).mean(-1) - 1).T

    rotated = null.random_read(layer, read)
    null_ranks = [list[Tensor]() for _ in range(null.model.config.n_heads)]
    for _, ovs in null.ovs(layer, len(words) * len(tokens) * 4):
        for head, ov in enumerate(ovs):
            null_ranks[head].append(rank(ov, rotated).mean(0))
    among_rivals = rank(ov_of_heads, read).mean(0)
    return against_null(rank(ov_of_heads, read, many), by_draw(null_ranks), among_rivals)


PROBE_SCORES: tuple[DataScore, ...] = (*REPEATS_SCORES, FUZZY_INDUCTION, WORD_PIECE, *TEXT_SCORES)
"""Every score that is measured on a probe."""
