"""`run`, `attention` and `scores`: the predictions, patterns and attention scores of a text."""

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
    """A run: its tokens, and at each position the top predictions and the rank of the next token.

    `given` is the number of tokens before truncation. `next_rank` is 1 if the next token is the top
    prediction, and 0 at the last position, where `next_prob` and `loss` are NaN. `remainder` is the
    relative error of the sum over paths, None if the model has no exact sum. `highlight` is the
    most interesting prediction (`rank_by_interest`), and `highlight_source` the position that it
    repeats, if any.
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
    """The predictions and losses of a text at every position."""
    run = session.run(params)
    key = ("predictions", run.ids, run.n_tokens)
    return session.result(params, key, lambda _, report: _predict(run, report))


def _predict(run: Run, progress: Progress) -> TextRun:
    """The predictions of a run, in parts, because logits may take more memory than the run."""
    trace, following = run.trace, run.trace.tokens[0].roll(-1)
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
    highlight, source = rank_by_interest(run.ids, log_prob.exp().tolist())[0]
    return TextRun(
        ids=run.ids,
        pieces=tuple(shown_piece(trace.model, token) for token in run.ids),
        given=run.n_tokens,
        truncated=run.n_tokens > len(run.ids),
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


# A repeated pair counts as learned from the text if its probability is at least MIN_LEARNED and has
# grown by at least the factor MIN_GROWTH.
MIN_LEARNED, MIN_GROWTH = 0.1, 1.5


def rank_by_interest(
    ids: Sequence[int], probabilities: Sequence[float]
) -> list[tuple[int, int | None]]:
    """All positions, the most interesting predictions first, each with the position it repeats.

    The order is:

    1. Pairs of tokens at their first repetition, by the gain in the second token's probability.
    2. Pairs at later repetitions, likewise; they have several earlier copies to attend to.
    3. The last position, which has no next token. If no repeated pair is learned, it comes after
       the first of the following.
    4. All other positions, by the probability of the next token.

    >>> rank_by_interest([5, 1, 2, 5, 1], [0.1, 0.2, 0.3, 0.9, float("nan")])
    [(3, 0), (4, None), (2, None), (1, None), (0, None)]
    """
    positions: dict[tuple[int, int], list[int]] = {}
    for position, pair in enumerate(pairwise(ids)):
        positions.setdefault(pair, []).append(position)
    repeats = {
        position: (first, earlier)
        for first, *rest in positions.values()
        for earlier, position in zip([first, *rest], rest, strict=False)
    }

    def is_learned(position: int) -> bool:
        new, first = probabilities[position], probabilities[repeats[position][0]]
        return new >= MIN_LEARNED and new > MIN_GROWTH * first

    learned = {position for position in repeats if is_learned(position)}

    def order(position: int) -> tuple[int, float, int]:
        # Among equally interesting positions, later ones have more context.
        if position not in learned:
            return 2, -probabilities[position], -position
        first, earlier = repeats[position]
        return int(first != earlier), probabilities[first] - probabilities[position], -position

    last = len(ids) - 1
    ranked = sorted(range(last), key=order)
    ranked.insert(max(len(learned), min(1, len(repeats))), last)
    return [
        (position, repeats[position][1] if position in repeats else None) for position in ranked
    ]


@dataclass(frozen=True, kw_only=True)
class AttentionParams(TextParams):
    """The weighting; `head` selects a single head, whose pattern is always dense.

    Half precision is enough for drawing; exported files need full precision.
    """

    weighting: Literal["attention", "information", "effect"] = "attention"
    head: str | None = None
    precision: Literal["half", "full"] = "half"


@dataclass(frozen=True, eq=False)
class AttentionAnswer(Record, kind="page-attention"):
    """Patterns [head, dest, src]: dense, or for long texts the k largest entries of each row.

    `kept` is the smallest share of a row's absolute sum in its k largest entries. `activity[head,
    pos]` is a head's activity at each destination, and `source_activity[head, pos]` the part from
    each source: attention to other tokens than the first, or the sum of absolute weights.
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


# Above this many cells or tokens, patterns are sparse: the largest entries of each row.
MAX_CELLS = 8_000_000
MAX_DENSE_TOKENS = 512
# The number of entries in sparse patterns, and bounds on the number per row.
KEPT_ENTRIES = 4_000_000
MIN_KEPT, MAX_KEPT = 8, 64


def answer_attention(session: Session, params: AttentionParams) -> AttentionAnswer:
    """Patterns of every head, or of one, by the given weighting."""
    trace, weighting = session.run(params).trace, params.weighting
    model, tokens = trace.model, trace.tokens.shape[1]
    selected = None if params.head is None else model.head(params.head).id
    heads = model.config.every_head if selected is None else (str(selected),)
    is_long = tokens > MAX_DENSE_TOKENS or len(heads) * tokens**2 > MAX_CELLS
    is_sparse = is_long and selected is None
    k = max(MIN_KEPT, min(MAX_KEPT, KEPT_ENTRIES // (len(heads) * tokens or 1)))
    empty = torch.zeros(0, tokens)
    dense, columns, values = [empty[:, None].expand(0, tokens, tokens)], [], []
    activity, source_activity, extent, coverage = [empty], [empty], 0.0, 1.0
    for layer, patterns in enumerate(_weights(trace, weighting)):
        if selected is not None and selected.layer != layer:
            continue
        rows = patterns[0] if selected is None else patterns[0, selected.head][None]
        size = rows.abs()
        extent = max(extent, float(size.max()))
        is_plain = weighting == "attention"
        activity.append(1 - rows[..., 0] if is_plain else size.sum(-1))
        source_activity.append(size.amax(1) if is_plain else size.sum(1))
        if not is_sparse:
            dense.append(rows)
            continue
        largest, total = size.topk(min(k, tokens)), size.sum(-1)
        share = torch.where(total > 0, largest.values.sum(-1) / total, 1.0)
        coverage = min(coverage, float(share.min()))
        columns.append(largest.indices.to(torch.uint16))
        values.append(rows.gather(-1, largest.indices))
    # Moved information has no natural unit, so its maximum is 1.
    scale = 1 / extent if weighting == "information" and extent else 1.0
    dtype = torch.float16 if params.precision == "half" else trace.weights.dtype
    return AttentionAnswer(
        weighting=weighting,
        heads=heads,
        tokens=tokens,
        dense=None if is_sparse else (torch.cat(dense) * scale).to(dtype),
        columns=torch.cat(columns) if columns else None,
        values=(torch.cat(values) * scale).to(dtype) if values else None,
        kept=coverage,
        extent=extent * scale,
        activity=torch.cat(activity) * scale,
        source_activity=torch.cat(source_activity) * scale,
    )


def _weights(trace: Trace, weighting: str) -> Iterator[Pattern]:
    if weighting == "attention":
        return iter(trace.patterns)
    if weighting == "information":
        return moved_by_layer(trace)
    # At the last position, the target is the prediction, because there is no next token.
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


# Above this many numbers per side, the heads of a layer are merged into one part.
MAX_NUMBERS = 8_000_000


def scores(session: Session, params: ScoresParams) -> ScoreParts:
    """The parts of a head's queries and keys on a run."""
    trace = session.run(params).trace
    expansion = expand_scores(trace, params.head)
    config = trace.model.config
    heads = expansion.head.layer * config.n_heads
    coarse = heads * trace.tokens.shape[1] * config.d_head > MAX_NUMBERS
    query_names, query = _side(expansion.query, coarse)
    key_names, key = _side(expansion.key, coarse)
    return ScoreParts(
        head=str(expansion.head),
        query_parts=query_names,
        key_parts=key_names,
        query=query * config.score_scale,
        key=key,
        remainder=expansion.remainder(),
        total_max=float(expansion.model_scores.abs().max()),
    )


def _side(side: SideSum, coarse: bool) -> tuple[tuple[str, ...], Float[Tensor, "part pos k"]]:
    """The parts of one side by name; if coarse, the heads of a layer are one part."""
    parts: dict[str, Tensor] = {}
    for part, vectors in side.writers():
        is_merged = coarse and part.kind == "writer"
        name = f"heads of layer {part.heads[0].layer}" if is_merged else str(part)
        parts[name] = parts[name] + vectors[0] if name in parts else vectors[0]
    return tuple(parts), torch.stack(list(parts.values()))
