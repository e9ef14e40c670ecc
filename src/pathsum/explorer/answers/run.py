"""`run`: a text through the model, with what it predicts at every position."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.errors import NotExactError
from pathsum.explorer.answers.model import shown_piece
from pathsum.explorer.params import TextParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Trace
from pathsum.result import Record


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
    trace, model = found.trace, found.trace.model
    logits = trace.logits[0]
    best = logits.topk(min(TOP_PREDICTIONS, logits.shape[-1]))
    log_probs = logits.log_softmax(-1)
    rank, log_prob = _next_tokens(logits, log_probs, trace.tokens[0])
    telling, source = rank_telling(found.ids, log_prob.exp().tolist())[0]
    return TextRun(
        ids=found.ids,
        pieces=tuple(shown_piece(model, token) for token in found.ids),
        given=found.given,
        truncated=found.truncated,
        n_ctx=model.config.n_ctx,
        top_ids=best.indices,
        top_probs=log_probs.gather(-1, best.indices).exp(),
        top_logits=best.values,
        next_rank=rank,
        next_prob=log_prob.exp(),
        loss=-log_prob,
        remainder=_remainder(trace),
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


def _next_tokens(
    logits: Float[Tensor, "pos vocab"],
    log_probs: Float[Tensor, "pos vocab"],
    tokens: Int[Tensor, " pos"],
) -> tuple[Int[Tensor, " pos"], Float[Tensor, " pos"]]:
    """Rank and log-probability of the next token; 0 and NaN at the last position."""
    after = tokens.roll(-1)[:, None]
    own = logits.gather(-1, after)
    rank = (logits > own).sum(-1) + 1
    log_prob = log_probs.gather(-1, after)[:, 0].clone()
    rank[-1] = 0
    log_prob[-1] = torch.nan
    return rank, log_prob


def _remainder(trace: Trace) -> float | None:
    try:
        return trace.paths().remainder()
    except NotExactError:
        return None
