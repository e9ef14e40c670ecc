"""`run`: a text through the model, with what it predicts at every position."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Progress, Record
from pathsum.base.errors import NotExactError
from pathsum.explorer.answers.model import shown_piece
from pathsum.explorer.params import TextParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Trace
from pathsum.paths.path_sum import PartialRemainder


@dataclass(frozen=True, eq=False)
class TextRun(Record, kind="page-run"):
    """A run: its tokens, the top predictions at each position, and how the next token ranks.

    `given` counts tokens before truncation to the context. `next_rank` is 1 where the next token is
    the top prediction, and 0 at the last position, which has no next token; there `next_prob` and
    `loss` are NaN. `remainder` is the relative error of the sum over paths, None if the model has
    no exact one. `telling` is the position whose prediction tells most: where the text repeats
    itself for the first time and the model gains most, else the last; `telling_source` is the
    position of the same token the time before, None if nothing is repeated.
    """

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    given: int
    truncated: bool
    n_ctx: int
    top_ids: Tensor
    top_probs: Tensor
    top_logits: Tensor
    next_rank: Tensor
    next_prob: Tensor
    loss: Tensor
    remainder: float | None
    telling: int
    telling_source: int | None


# Predictions per position.
TOP_PREDICTIONS = 10


def run(bench: Workbench, params: TextParams) -> TextRun:
    """Run a text: predictions and losses at every position."""
    found = bench.run(params)
    model = found.trace.model
    predicted = predictions(bench, params)
    next_prob = predicted.next_log_prob.exp()
    telling, source = rank_telling(found.ids, next_prob.tolist())[0]
    return TextRun(
        ids=found.ids,
        pieces=tuple(shown_piece(model, token) for token in found.ids),
        given=found.given,
        truncated=found.truncated,
        n_ctx=model.config.n_ctx,
        top_ids=predicted.top_ids,
        top_probs=predicted.top_log_probs.exp(),
        top_logits=predicted.top_logits,
        next_rank=predicted.next_rank,
        next_prob=next_prob,
        loss=-predicted.next_log_prob,
        remainder=predicted.remainder,
        telling=telling,
        telling_source=source,
    )


def rank_telling(
    ids: Sequence[int], probabilities: Sequence[float]
) -> list[tuple[int, int | None]]:
    """All positions, those whose predictions tell most first, each with what it repeats.

    First the pairs of tokens that return for the first time, by how much the probability of the
    second token has grown since; then those that return again, which have several earlier copies to
    attend to, likewise; then the last position, which has no next token to be compared with; then
    the others, by the probability of the next token.

    >>> rank_telling([5, 1, 2, 5, 1], [0.1, 0.2, 0.3, 0.9, float("nan")])
    [(3, 0), (4, None), (2, None), (1, None), (0, None)]
    """
    before: dict[tuple[int, int], list[int]] = {}
    for place, pair in enumerate(pairwise(ids)):
        before.setdefault(pair, []).append(place)
    repeats = {
        here: (first, known)
        for first, *rest in before.values()
        for known, here in zip([first, *rest], rest, strict=False)
    }

    def order(place: int) -> tuple[int, float, int]:
        # Of two that are equally telling, the later one has more to go by.
        if place not in repeats:
            return 2, -probabilities[place], -place
        first, known = repeats[place]
        return int(first != known), probabilities[first] - probabilities[place], -place

    last = len(ids) - 1
    ranked = sorted(range(last), key=order)
    ranked.insert(len(repeats), last)
    return [(place, repeats[place][1] if place in repeats else None) for place in ranked]


@dataclass(frozen=True, eq=False)
class Predictions:
    """The strongest predictions at every position, and how the next token ranks there.

    At the last position, which has no next token, `next_rank` is 0 and `next_log_prob` NaN.
    `remainder` is that of the sum over paths, None if the model has no exact one.
    """

    top_ids: Int[Tensor, "pos k"]
    top_logits: Float[Tensor, "pos k"]
    top_log_probs: Float[Tensor, "pos k"]
    next_rank: Int[Tensor, " pos"]
    next_log_prob: Float[Tensor, " pos"]
    remainder: float | None


def predictions(bench: Workbench, params: TextParams) -> Predictions:
    """What a text predicts, computed once for all answers about it."""
    found = bench.run(params)
    key = ("predictions", bench.open_model(params).name, params.step, found.ids)
    return bench.slow_cached(key, lambda report: _predict(found.trace, report))


def _predict(trace: Trace, progress: Progress) -> Predictions:
    """Some positions at a time: the logits of a long text may take more memory than its run."""
    length, following = trace.tokens.shape[1], trace.tokens[0].roll(-1)
    remainder = _partial_remainder(trace)
    parts: list[tuple[Tensor, ...]] = []
    for at, logits in trace.logits_in_parts():
        progress(at.start, length, "predicting the next token")
        if remainder is not None:
            remainder.add(at, logits)
        parts.append(_part(logits[0], following[at]))
    ids, values, log_probs, rank, log_prob = map(torch.cat, zip(*parts, strict=True))
    rank[-1], log_prob[-1] = 0, torch.nan
    exact = None if remainder is None else remainder.value
    return Predictions(ids, values, log_probs, rank, log_prob, exact)


def _part(logits: Float[Tensor, "pos vocab"], following: Int[Tensor, " pos"]) -> tuple[Tensor, ...]:
    total = logits.logsumexp(-1, keepdim=True)
    best = logits.topk(min(TOP_PREDICTIONS, logits.shape[-1]))
    own = logits.gather(-1, following[:, None])
    rank = (logits > own).sum(-1) + 1
    return best.indices, best.values, best.values - total, rank, (own - total)[:, 0]


def _partial_remainder(trace: Trace) -> PartialRemainder | None:
    try:
        return PartialRemainder(trace.paths())
    except NotExactError:
        return None
