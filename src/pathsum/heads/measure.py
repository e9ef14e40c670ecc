"""Scores measured on runs, with p-values among random heads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.heads.layer_view import LayerView, layer_view
from pathsum.heads.null import RandomHeads
from pathsum.heads.score import (
    DataScore,
    HeadScores,
    Score,
    against_null,
    best_parts,
    largest_parts,
)
from pathsum.model import HeadId, Trace
from pathsum.model.folding import centered_unembedding
from pathsum.model.processes import shared_map
from pathsum.text.token_pool import RepeatedTokens

# Random heads run on a few sequences, and p compares heads on the same few.
NULL_SEQUENCES = 4


@dataclass(frozen=True, eq=False)
class _Measured:
    """One score of a layer's heads on a run; by position where it has that."""

    values: Float[Tensor, "sequence head"]
    profile: Float[Tensor, "sequence head dest"] | None

    @classmethod
    def of(cls, score: DataScore, view: LayerView) -> "_Measured":
        if score.by_position is None:
            return cls(score.measure(view), None)
        profile = score.by_position(view)
        return cls(profile.nanmean(-1), profile)

    def mean(self) -> Float[Tensor, " head"]:
        """Over sequences that have a position that counts."""
        return self.values.nanmean(0)

    def largest_parts(self) -> Float[Tensor, " head"] | None:
        """The largest mean over a part of the context, if the score has positions."""
        return None if self.profile is None else largest_parts(self.profile.nanmean(0))


@dataclass(frozen=True, eq=False)
class _Null:
    """One score of random heads, and of the heads themselves, on the same few sequences.

    `part` and `own_part` are its largest means over a part of the context.
    """

    drawn: Float[Tensor, "drawn head"]
    own: Float[Tensor, " head"]
    part: Float[Tensor, "drawn head"] | None
    own_part: Float[Tensor, " head"] | None


def score_on_runs(
    runs: Iterable[tuple[Trace, RepeatedTokens]],
    scores: Sequence[DataScore],
    null: RandomHeads,
    *,
    what: str,
    phase: str | None = None,
    null_sequences: int = NULL_SEQUENCES,
    last: int | None = None,
    heads: Sequence[HeadId] | None = None,
    progress: Progress = silent,
) -> HeadScores:
    """Scores of heads, all or these, on some runs; random heads run on the start of the first run.

    p compares a head with its random heads on the sequences that both have run, so p is exact; the
    value is over all sequences. Random heads have patterns of the `last` destinations, by default
    of all. A score for which no position of the runs counts is absent.
    """
    every = [head.id for head in null.model.heads] if heads is None else sorted(heads)
    layers = sorted({head.layer for head in every})
    own = {layer: [head.head for head in every if head.layer == layer] for layer in layers}
    W_U = centered_unembedding(null.model.weights)
    measured: dict[tuple[int, str], list[_Measured]] = {}
    nulls: dict[tuple[int, str], _Null] = {}

    def measure(
        run: tuple[Trace, RepeatedTokens], layer: int
    ) -> tuple[list[_Measured], list[_Null] | None]:
        # Another process may call this, so results are returned, not stored.
        view = layer_view(*run, layer, W_U)
        here = [_Measured.of(score, view) for score in scores]
        if nulls:
            return here, None
        few = view.first(null_sequences)
        return here, _null_scores(null, layer, few, scores, last, own[layer])

    for run in runs:
        found = shared_map(layers, partial(measure, run), progress, phase or f"heads on {what}")
        for layer, (here, drawn) in zip(layers, found, strict=True):
            for number, score in enumerate(scores):
                measured.setdefault((layer, score.name), []).append(here[number])
                if drawn is not None:
                    nulls[layer, score.name] = drawn[number]
    result: dict[HeadId, dict[str, Score]] = {head: {} for head in every}
    absent: dict[str, str] = {}
    for score in scores:
        for layer in layers:
            key = layer, score.name
            compared = _compare(measured[key], nulls[key], own[layer])
            if compared is None:
                absent[score.name] = f"no position of the {what} has {score.needs}"
                continue
            for head, one in zip(own[layer], compared, strict=True):
                result[HeadId(layer, head)][score.name] = one
    return HeadScores(result, absent)


def _null_scores(
    null: RandomHeads,
    layer: int,
    view: LayerView,
    scores: Sequence[DataScore],
    last: int | None,
    heads: Sequence[int],
) -> list[_Null]:
    """Every score of the random versions of some heads of a layer."""
    drawn = [{head: list[Tensor]() for head in heads} for _ in scores]
    parts = [{head: list[Tensor]() for head in heads} for _ in scores]
    for head, random in null.views(layer, view, last, heads):
        for number, score in enumerate(scores):
            one = _Measured.of(score, random)
            drawn[number][head].append(one.mean())
            part = one.largest_parts()
            parts[number][head] += [] if part is None else [part]
    own = [_Measured.of(score, view) for score in scores]
    own_parts = [one.largest_parts() for one in own]
    return [
        _Null(
            drawn=by_draw(drawn[number].values()),
            own=one.mean()[list(heads)],
            part=None if part is None else by_draw(parts[number].values()),
            own_part=None if part is None else part[list(heads)],
        )
        for number, (one, part) in enumerate(zip(own, own_parts, strict=True))
    ]


def by_draw(heads: Iterable[Sequence[Float[Tensor, " _"]]]) -> Float[Tensor, "drawn head"]:
    """Measurements of each head's draws, made some draws at a time, as one table."""
    return torch.stack([torch.cat(tuple(parts)) for parts in heads], 1)


def _compare(measured: Sequence[_Measured], null: _Null, heads: list[int]) -> list[Score] | None:
    """One score of some heads of a layer with its p-values; None if no position counts."""
    values = torch.cat([one.values for one in measured])[:, heads]
    values = values[~values.isnan().all(-1)]  # sequences with a position that counts
    if len(values) == 0:
        return None
    scores = against_null(values, null.drawn, null.own)
    profiles = [one.profile[:, heads] for one in measured if one.profile is not None]
    same_length = len({profile.shape[-1] for profile in profiles}) == 1
    if not same_length or null.part is None or null.own_part is None:
        return scores
    parts = best_parts(torch.cat(profiles).nanmean(0), null.own_part, null.part)
    return [replace(one, part=part) for one, part in zip(scores, parts, strict=True)]
