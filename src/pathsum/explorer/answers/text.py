"""`run`, `attention` and `scores`: a text through the model, where its heads attend, and why."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Progress, Record
from pathsum.base.errors import NotExactError
from pathsum.base.shapes import Pattern
from pathsum.explorer.answers.model import shown_piece
from pathsum.explorer.params import TextParams
from pathsum.explorer.session import Run, Session
from pathsum.model import Trace
from pathsum.paths import effects_by_layer, expand_scores, moved_by_layer
from pathsum.paths.path_sum import PartialRemainder
from pathsum.paths.score_sum import SideSum


@dataclass(frozen=True, eq=False)
class TextRun(Record, kind="page-run"):
    """A run: its tokens, the top predictions at each position, and how the next token ranks.

    `given` counts tokens before truncation to the context. `next_rank` is 1 where the next token is
    the top prediction, and 0 at the last position, which has no next token; there `next_prob` and
    `loss` are NaN. `remainder` is the relative error of the sum over paths, None if the model has
    no exact one. `highlight` is the most interesting prediction: where the text repeats
    itself for the first time and the model gains most, else the last; `highlight_source` is the
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
    highlight: int
    highlight_source: int | None


# Predictions per position.
TOP_PREDICTIONS = 10


def answer_run(session: Session, params: TextParams) -> TextRun:
    """Run a text: predictions and losses at every position."""
    found = session.run(params)
    key = ("predictions", found.ids, found.given)
    return session.result(params, key, lambda _, report: _predict(found, report))


def _predict(found: Run, progress: Progress) -> TextRun:
    """Some positions at a time: the logits of a long text may take more memory than its run."""
    trace, following = found.trace, found.trace.tokens[0].roll(-1)
    remainder = None
    with suppress(NotExactError):
        remainder = PartialRemainder(trace.paths())
    parts: list[tuple[Tensor, ...]] = []
    for at, logits in trace.logits_in_parts():
        progress(at.start, len(following), "predicting the next token")
        if remainder is not None:
            remainder.add(at, logits)
        parts.append(_rank_next(logits[0], following[at]))
    top_ids, top_logits, top_log_probs, rank, log_prob = map(torch.cat, zip(*parts, strict=True))
    rank[-1], log_prob[-1] = 0, torch.nan
    highlight, source = rank_by_interest(found.ids, log_prob.exp().tolist())[0]
    return TextRun(
        ids=found.ids,
        pieces=tuple(shown_piece(trace.model, token) for token in found.ids),
        given=found.given,
        truncated=found.given > len(found.ids),
        n_ctx=trace.model.config.n_ctx,
        top_ids=top_ids,
        top_probs=top_log_probs.exp(),
        top_logits=top_logits,
        next_rank=rank,
        next_prob=log_prob.exp(),
        loss=-log_prob,
        remainder=None if remainder is None else remainder.value,
        highlight=highlight,
        highlight_source=source,
    )


def _rank_next(
    logits: Float[Tensor, "pos vocab"], following: Int[Tensor, " pos"]
) -> tuple[Tensor, ...]:
    total = logits.logsumexp(-1, keepdim=True)
    best = logits.topk(min(TOP_PREDICTIONS, logits.shape[-1]))
    own = logits.gather(-1, following[:, None])
    rank = (logits > own).sum(-1) + 1
    return best.indices, best.values, best.values - total, rank, (own - total)[:, 0]


# A pair that returns counts as learned from the text from this probability on, and this many times
# the probability that it had at first.
LEAST_LEARNED, LEAST_GROWTH = 0.1, 1.5


def rank_by_interest(
    ids: Sequence[int], probabilities: Sequence[float]
) -> list[tuple[int, int | None]]:
    """All positions, the most interesting predictions first, each with the position it repeats.

    First the pairs of tokens that return for the first time, by how much the probability of the
    second token has grown since; then those that return again, which have several earlier copies to
    attend to, likewise; then the others, by the probability of the next token, among them the pairs
    whose return the model hardly predicts. The last position, which has no next token to be
    compared with, comes before the others; if none that returns is learned, after the first.

    >>> rank_by_interest([5, 1, 2, 5, 1], [0.1, 0.2, 0.3, 0.9, float("nan")])
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

    def is_learned(place: int) -> bool:
        own, first = probabilities[place], probabilities[repeats[place][0]]
        return own >= LEAST_LEARNED and own > LEAST_GROWTH * first

    learned = {place for place in repeats if is_learned(place)}

    def order(place: int) -> tuple[int, float, int]:
        # Of two that are equally interesting, the later one has more to go by.
        if place not in learned:
            return 2, -probabilities[place], -place
        first, known = repeats[place]
        return int(first != known), probabilities[first] - probabilities[place], -place

    last = len(ids) - 1
    ranked = sorted(range(last), key=order)
    ranked.insert(max(len(learned), min(1, len(repeats))), last)
    return [(place, repeats[place][1] if place in repeats else None) for place in ranked]


@dataclass(frozen=True, kw_only=True)
class AttentionParams(TextParams):
    """The weighting; `head` selects a single head, whose pattern is always dense.

    Pages draw patterns, for which half precision is enough; files of numbers ask for full.
    """

    weighting: Literal["attention", "information", "effect"] = "attention"
    head: str | None = None
    precision: Literal["half", "full"] = "half"


@dataclass(frozen=True, eq=False)
class AttentionAnswer(Record, kind="page-attention"):
    """Patterns [head, dest, src]: dense, or for long texts the k largest entries of each row.

    `kept` is the smallest share of a row's absolute sum that its kept entries have. `activity[head,
    pos]` is how much a head does at each destination, `source_activity[head, pos]` how much of that
    came from each source: attention not on the first token, or the sum of absolute weights.
    """

    weighting: Literal["attention", "information", "effect"]
    heads: tuple[str, ...]
    tokens: int
    dense: Tensor | None
    columns: Tensor | None
    values: Tensor | None
    kept: float
    extent: float
    activity: Tensor
    source_activity: Tensor


# Beyond this many cells or tokens, rows keep only their largest entries.
MAX_CELLS = 8_000_000
MAX_DENSE_TOKENS = 512
# Entries that all rows keep together, and bounds on those of one row.
KEPT_ENTRIES = 4_000_000
MIN_KEPT, MAX_KEPT = 8, 64


def answer_attention(session: Session, params: AttentionParams) -> AttentionAnswer:
    """Patterns of every head, or of one, by the given weighting."""
    trace, weighting = session.run(params).trace, params.weighting
    model, tokens = trace.model, trace.tokens.shape[1]
    chosen = None if params.head is None else model.head(params.head).id
    heads = model.config.every_head if chosen is None else (str(chosen),)
    long = tokens > MAX_DENSE_TOKENS or len(heads) * tokens**2 > MAX_CELLS
    is_sparse = long and chosen is None
    k = max(MIN_KEPT, min(MAX_KEPT, KEPT_ENTRIES // (len(heads) * tokens or 1)))
    none = torch.zeros(0, tokens)
    dense, columns, values = [none[:, None].expand(0, tokens, tokens)], [], []
    activity, source_activity, extent, kept = [none], [none], 0.0, 1.0
    for layer, patterns in enumerate(_weights(trace, weighting)):
        if chosen is not None and chosen.layer != layer:
            continue
        rows = patterns[0] if chosen is None else patterns[0, chosen.head][None]
        size = rows.abs()
        extent = max(extent, float(size.max()))
        is_plain = weighting == "attention"
        activity.append(1 - rows[..., 0] if is_plain else size.sum(-1))
        source_activity.append(size.amax(1) if is_plain else size.sum(1))
        if not is_sparse:
            dense.append(rows)
            continue
        largest, whole = size.topk(min(k, tokens)), size.sum(-1)
        share = torch.where(whole > 0, largest.values.sum(-1) / whole, 1.0)
        kept = min(kept, float(share.min()))
        columns.append(largest.indices.to(torch.uint16))
        values.append(rows.gather(-1, largest.indices))
    # Moved information has no natural unit, so the largest is set to 1.
    scale = 1 / extent if weighting == "information" and extent else 1.0
    dtype = torch.float16 if params.precision == "half" else trace.weights.dtype
    return AttentionAnswer(
        weighting=weighting,
        heads=heads,
        tokens=tokens,
        dense=None if is_sparse else (torch.cat(dense) * scale).to(dtype),
        columns=torch.cat(columns) if columns else None,
        values=(torch.cat(values) * scale).to(dtype) if values else None,
        kept=kept,
        extent=extent * scale,
        activity=torch.cat(activity) * scale,
        source_activity=torch.cat(source_activity) * scale,
    )


def _weights(trace: Trace, weighting: str) -> Iterator[Pattern]:
    if weighting == "attention":
        return iter(trace.patterns)
    if weighting == "information":
        return moved_by_layer(trace)
    # The last position has no next token; its target is the predicted one.
    targets = trace.tokens.roll(-1, 1)
    targets[:, -1] = trace.logits_at(-1).argmax(-1)
    return effects_by_layer(trace, targets)


@dataclass(frozen=True, kw_only=True)
class ScoresParams(TextParams):
    """One head's scores on a text."""

    head: str


@dataclass(frozen=True, eq=False)
class ScoreParts(Record, kind="page-scores"):
    """Query parts and key parts [part, pos, width]; a term is the dot product of one of each.

    Scale and rotation are folded in, so the terms of a cell add up to its score before softmax.
    """

    head: str
    query_parts: tuple[str, ...]
    key_parts: tuple[str, ...]
    query: Tensor
    key: Tensor
    remainder: float
    total_max: float


# Beyond this many numbers per side, the heads of a layer are combined into one part.
MAX_NUMBERS = 8_000_000


def scores(session: Session, params: ScoresParams) -> ScoreParts:
    """A head's queries and keys on a run, in parts."""
    trace = session.run(params).trace
    found = expand_scores(trace, params.head)
    config = trace.model.config
    heads = found.head.layer * config.n_heads
    coarse = heads * trace.tokens.shape[1] * config.d_head > MAX_NUMBERS
    query_names, query = _side(found.query, coarse)
    key_names, key = _side(found.key, coarse)
    return ScoreParts(
        head=str(found.head),
        query_parts=query_names,
        key_parts=key_names,
        query=query * config.score_scale,
        key=key,
        remainder=found.remainder(),
        total_max=float(found.model_scores.abs().max()),
    )


def _side(side: SideSum, coarse: bool) -> tuple[tuple[str, ...], Float[Tensor, "part pos k"]]:
    """The parts of one side by name; the heads of a layer are combined if coarse."""
    parts: dict[str, Tensor] = {}
    for part, vectors in side.writers():
        is_joined = coarse and part.kind == "writer"
        name = f"heads of layer {part.heads[0].layer}" if is_joined else str(part)
        parts[name] = parts[name] + vectors[0] if name in parts else vectors[0]
    return tuple(parts), torch.stack(list(parts.values()))
