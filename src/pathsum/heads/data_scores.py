"""Scores measured on runs: on repeated random tokens, and on text."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Progress
from pathsum.heads.kinds import COPYING_BY_DATA, DATA_SCORES, TEXT_SCORES
from pathsum.heads.kinds.first_token import first_by_weights
from pathsum.heads.kinds.kind import DataScore
from pathsum.heads.layer_view import (
    NULL_SEQUENCES,
    LayerView,
    RandomFrames,
    by_draw,
    layer_view,
    random_views,
)
from pathsum.heads.probe import attention_trace, repeats_probe
from pathsum.heads.score import Score, against_null, best_parts, largest_parts
from pathsum.model import HeadId, Model, Trace
from pathsum.model.folding import centered_unembedding
from pathsum.model.processes import stop_if_closed, threaded_map
from pathsum.model.sequences import TextOrTokens, token_batches
from pathsum.text.probes import RepeatedTokens
from pathsum.text.shards import spaced

TEXT_SEQUENCES, TEXT_LENGTH, TEXT_NULL_SEQUENCES = 16, 128, 1
# Entries of a run's patterns held at a time.
_NUMBERS_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class DataScores:
    """Scores of every head by name, why scores are absent, and a description of the data."""

    scores: dict[HeadId, dict[str, Score]]
    absent: dict[str, str]
    measured_on: str = ""


def probe_scores(
    model: Model,
    sequences: int,
    seed: int,
    frames: RandomFrames,
    progress: Progress,
    names: Collection[str],
) -> tuple[DataScores, dict[HeadId, Float[Tensor, " dest"]]]:
    """Scores on repeated random tokens, and attention to the first token by weights alone."""
    probe = repeats_probe(model, sequences, seed)
    trace = attention_trace(model, probe.tokens, progress, "random tokens")
    wanted = [score for score in DATA_SCORES if score.info.name in names]
    if not model.config.predicts_tokens:
        wanted = [score for score in wanted if score is not COPYING_BY_DATA]
    gathered = _Gathered(model, wanted, frames, NULL_SEQUENCES, "random tokens")
    gathered.add(trace, probe, progress)
    return gathered.result(), first_by_weights(trace, progress)


def text_scores(
    model: Model,
    given: TextOrTokens | None,
    frames: RandomFrames,
    progress: Progress,
    names: Collection[str],
) -> DataScores:
    """Scores on text: the model's held-out text, or what was given."""
    whose = "held-out text" if given is None else "the given tokens"
    wanted = [score for score in TEXT_SCORES if score.info.name in names]
    if not wanted:
        return DataScores({}, {})
    if given is None:
        if model.held_out is None:
            why = "the model comes with no held-out text; give some, tokens=…"
            return DataScores({}, {score.info.name: why for score in wanted})
        given = model.held_out[spaced(len(model.held_out), TEXT_SEQUENCES)]
    # Nothing is predicted here, so outputs need not be tokens.
    batches = token_batches(model, given, targets_given=True)
    cut = [batch[:, :TEXT_LENGTH] for batch in batches]
    gathered = _Gathered(model, wanted, frames, TEXT_NULL_SEQUENCES, "text")
    start = int(model.config.start_token is not None)
    for batch in cut:
        length = batch.shape[1]
        at_once = _NUMBERS_AT_ONCE // (len(model.heads) * length**2)
        for part in batch.split(max(TEXT_NULL_SEQUENCES, at_once)):
            # Text as a probe whose first copy is all of it.
            probe = RepeatedTokens(part.cpu(), length - start, repeats=1, first=start)
            gathered.add(attention_trace(model, part, progress, "text"), probe, progress)
    count, longest = sum(map(len, cut)), max(batch.shape[1] for batch in cut)
    first = "the first " if any(batch.shape[1] > TEXT_LENGTH for batch in batches) else ""
    measured_on = f"{count} sequences of {whose} ({first}{longest} tokens)"
    return replace(gathered.result(), measured_on=measured_on)


@dataclass(frozen=True, eq=False)
class _Measured:
    """One score of a layer's heads on a run; by position where it has that."""

    values: Float[Tensor, "sequence head"]
    profile: Float[Tensor, "sequence head dest"] | None


@dataclass(frozen=True, eq=False)
class _Chance:
    """One score of random heads, and of the heads themselves, on the same few sequences.

    `part` and `part_compared` are its largest means over a part of the context.
    """

    null: Float[Tensor, "drawn head"]
    compared: Float[Tensor, " head"]
    part: Float[Tensor, "drawn head"] | None
    part_compared: Float[Tensor, " head"] | None


class _Gathered:
    """Scores accumulated over runs; the null is measured on a few sequences of the first run."""

    def __init__(
        self,
        model: Model,
        wanted: Sequence[DataScore],
        frames: RandomFrames,
        null_sequences: int,
        what: str,
    ) -> None:
        self.model, self.wanted, self.frames = model, wanted, frames
        self.null_sequences, self.what = null_sequences, what
        self.measured: dict[tuple[int, str], list[_Measured]] = {}
        self.chance: dict[tuple[int, str], _Chance] = {}

    def add(self, trace: Trace, probe: RepeatedTokens, progress: Progress) -> None:
        """Measure one more run."""
        W_U = centered_unembedding(self.model.weights)
        first = not self.chance

        def measure(layer: int) -> tuple[list[_Measured], list[_Chance]]:
            view = layer_view(trace, probe, layer, W_U)
            found = [_measure(score, view) for score in self.wanted]
            return found, self._chance(layer, view) if first else []

        layers = range(self.model.config.n_layers)
        every = threaded_map(layers, measure, progress, f"heads on {self.what}")
        names = [score.info.name for score in self.wanted]
        for layer, (found, chance) in zip(layers, every, strict=True):
            for name, one in zip(names, found, strict=True):
                self.measured.setdefault((layer, name), []).append(one)
            for name, one in zip(names, chance, strict=first):
                self.chance[layer, name] = one

    def _chance(self, layer: int, view: LayerView) -> list[_Chance]:
        """Every score of random heads, on a few sequences."""
        few = view.first(self.null_sequences)
        heads = range(self.model.config.n_heads)
        nulls = [[list[Tensor]() for _ in heads] for _ in self.wanted]
        parts = [[list[Tensor]() for _ in heads] for _ in self.wanted]
        for head, drawn in random_views(self.model, layer, few, self.frames):
            stop_if_closed()
            for place, score in enumerate(self.wanted):
                one = _measure(score, drawn)
                nulls[place][head].append(one.values.nanmean(0))
                part = None if one.profile is None else largest_parts(one.profile.nanmean(0))
                parts[place][head] += [] if part is None else [part]
        own = [_measure(score, few) for score in self.wanted]
        return [
            _Chance(
                null=by_draw(null),
                compared=one.values.nanmean(0),
                part=by_draw(part) if part[0] else None,
                part_compared=None
                if one.profile is None
                else largest_parts(one.profile.nanmean(0)),
            )
            for null, part, one in zip(nulls, parts, own, strict=True)
        ]

    def result(self) -> DataScores:
        """Every score of every head; a score for which no position counts is absent."""
        found: dict[HeadId, dict[str, Score]] = {head.id: {} for head in self.model.heads}
        absent: dict[str, str] = {}
        for layer, name in self.measured:
            scores = self._against(layer, name)
            if scores is None:
                needs = next(score.needs for score in self.wanted if score.info.name == name)
                absent[name] = f"no position of the {self.what} has {needs}"
                continue
            for head, one in enumerate(scores):
                found[HeadId(layer, head)][name] = one
        return DataScores(found, absent)

    def _against(self, layer: int, name: str) -> list[Score] | None:
        measured, chance = self.measured[layer, name], self.chance[layer, name]
        values = torch.cat([one.values for one in measured])
        values = values[~values.isnan().all(-1)]  # sequences with a position that counts
        if len(values) == 0:
            return None
        scores = against_null(values, chance.null, chance.compared)
        profiles = [one.profile for one in measured if one.profile is not None]
        same_length = len({profile.shape[-1] for profile in profiles}) == 1
        if not same_length or chance.part is None or chance.part_compared is None:
            return scores
        parts = best_parts(torch.cat(profiles).nanmean(0), chance.part_compared, chance.part)
        return [replace(one, part=part) for one, part in zip(scores, parts, strict=True)]


def _measure(score: DataScore, view: LayerView) -> _Measured:
    """A score of every head, and the same by position where it has that."""
    if score.by_position is None:
        return _Measured(score.measure(view), None)
    profile = score.by_position(view)
    return _Measured(profile.nanmean(-1), profile)
