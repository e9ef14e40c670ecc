"""The atlas: every head of a model with every score, and a kind where the evidence agrees."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from pathsum.circuits.composition.composition import composition
from pathsum.circuits.positional import OffsetProfile, positional
from pathsum.circuits.tokens.token import joined
from pathsum.circuits.tokens.token_basis import logit_cap_note, require_heads, score_cap_note
from pathsum.errors import InputError, near_misses
from pathsum.heads.atlas_views import atlas_html, heat_map
from pathsum.heads.kinds import (
    ALL_SCORES,
    DATA_SCORES,
    MATCHING_THROUGH_PREVIOUS,
    PREVIOUS_TOKEN,
    WEIGHT_SCORES,
    WORD_PIECE,
    WORD_PIECE_BY_WEIGHTS,
    previous_token,
)
from pathsum.heads.kinds.kind import ALPHA, HeadEvidence, ScoreInfo
from pathsum.heads.kinds.matching_through_previous import ThroughPrevious, through_previous
from pathsum.heads.kinds.word_piece import TOO_FEW_WORDS, word_piece_scores
from pathsum.heads.layer_view import (
    NULL_SEQUENCES,
    RandomFrames,
    compare_with_random_heads,
    in_full_precision,
    layer_view,
)
from pathsum.heads.probe import SEQUENCES, repeats_probe
from pathsum.heads.score import Score
from pathsum.heads.verdicts import MIXED, UNKNOWN, Verdict, judge
from pathsum.model import Config, HeadId, HeadName, Model
from pathsum.model.folding import centered_unembedding
from pathsum.model.processes import shared_map
from pathsum.names import find_head
from pathsum.result import Column, Progress, Record, Table, silent, text_column
from pathsum.result.p_value import LEAST_IN_WORDS, ProbabilityColumn

# Random heads for each head, so p can be as small as 1/201.
NULL_HEADS = 200


@dataclass(frozen=True, eq=False)
class HeadEntry(Record, kind="atlas-head"):
    """One head: its scores by name, its kind, every kind that it is, and the evidence.

    `against` are the lines of the evidence in which the weights disagree with the data.
    """

    head: HeadId
    kind: str
    kinds: tuple[str, ...]
    scores: dict[str, Score]
    evidence: tuple[str, ...]
    against: tuple[str, ...]

    def value(self, score: str) -> float | None:
        """A score's value; None where this head has no such score."""
        found = self.scores.get(score)
        return None if found is None else found.value

    def to_table(self) -> Table:
        """One row per score, and the evidence below."""
        columns = (
            text_column("score"),
            Column("value", "+.3f"),
            Column("± error"),
            Column("chance", "+.3f"),
            ProbabilityColumn(format=".2g", least=LEAST_IN_WORDS),
        )
        titles = {info.name: info.title for info in ALL_SCORES}
        rows = tuple(
            (titles[name], score.value, score.stderr, score.null, score.p)
            for name, score in self.scores.items()
        )
        return Table(columns, rows, f"{self.head}: {self.kind}", "\n".join(self.evidence))


@dataclass(frozen=True, eq=False)
class Atlas(Record, kind="atlas"):
    """Every head of a model; `atlas["L1H4"]` is one of them.

    A head has a kind where what it does on the probe and what its weights say agree. It is "mixed"
    where the probe suggests a kind that the weights do not support, and otherwise "unknown".
    `absent` says, per score that no head has, why.
    """

    model: str
    heads: tuple[HeadEntry, ...]
    infos: tuple[ScoreInfo, ...]
    absent: dict[str, str]
    note: str

    def __getitem__(self, name: HeadName) -> HeadEntry:
        last = self.heads[-1].head
        found = find_head(name, last.layer + 1, last.head + 1)
        return self.heads[found.layer * (last.head + 1) + found.head]

    def __iter__(self) -> Iterator[HeadEntry]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def values(self, score: str) -> dict[HeadId, float]:
        """One score of every head that has it."""
        known = [info.name for info in self.infos]
        if score not in known:
            raise InputError(
                f"there is no score {score!r}{near_misses(score, known)}; the scores are "
                f"{', '.join(known)}"
            )
        return {
            entry.head: entry.scores[score].value for entry in self.heads if score in entry.scores
        }

    def by_layer(self) -> tuple[dict[str, int], ...]:
        """The number of heads of each kind, per layer."""
        layers = 1 + self.heads[-1].head.layer
        kinds = [Counter[str]() for _ in range(layers)]
        for entry in self.heads:
            kinds[entry.head.layer][entry.kind] += 1
        return tuple(dict(kind.most_common()) for kind in kinds)

    def to_table(self) -> Table:
        """One row per head, with the scores that name most heads."""
        shown = ("previous_token", "first_token", "induction", "prefix_matching")
        # Both axes of the paper's scatter, from weights, where a previous-token head exists.
        matching = MATCHING_THROUGH_PREVIOUS.name
        shown += ("copying" if matching in self.absent else matching, "copying_weights")
        titles = {info.name: info.title for info in self.infos}
        columns = (text_column("head"), text_column("kind"))
        columns += tuple(Column(titles[name], "+.2f") for name in shown)
        rows = tuple(
            (entry.head, entry.kind, *(entry.value(name) for name in shown)) for entry in self.heads
        )
        return Table(columns, rows, f"heads of {self.model}", self.note)

    def __rich__(self) -> RenderableType:
        maps: list[RenderableType] = []
        for name in ("previous_token", "induction", "copying"):
            title = next(info.title for info in self.infos if info.name == name)
            maps += [heat_map(title, self.values(name)), Text()]
        kinds = [
            Text(f"L{layer}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
            for layer, counts in enumerate(self.by_layer())
        ]
        return Group(*maps, self.to_table(), Text(), *kinds)

    def to_html(self) -> str:
        """Every head and score as a heat map: one element, nothing loaded from anywhere."""
        return atlas_html(self)

    def _repr_html_(self) -> str:
        return self.to_html()


@torch.no_grad()
def atlas(
    model: Model,
    *,
    sequences: int = SEQUENCES,
    draws: int = NULL_HEADS,
    seed: int = 0,
    progress: Progress = silent,
) -> Atlas:
    """Every head against every score, with what chance gives, and its kind.

    The probe is random tokens, repeated (25 tokens, 4 times, in `sequences` sequences; shorter
    where the context is). Chance is each head itself, `draws` times, with what it reads and writes
    rotated at random: the same scale and singular values, the same stream, in no particular
    direction. Half-precision models are computed in float32.

    >>> from pathsum.model import construct
    >>> found = atlas(construct.induction())
    >>> found["L0H0"].kind, found["L1H0"].kind
    ('previous token', 'induction')

    An atlas does not prove a mechanism: `induction(model)` tests the one claim that matters most by
    cutting edges and by putting ideal patterns in place.
    """
    require_heads(model)
    check_draws(draws)
    model = in_full_precision(model)
    frames = RandomFrames(model, draws, seed)
    scores = _data_scores(model, sequences, seed, frames, progress)
    for head, named in word_piece_scores(model, frames, seed, progress).items():
        scores[head] |= named
    for score in WEIGHT_SCORES:
        for head, found in score.measure(model, draws, seed).items():
            scores[head][score.info.name] = found
    verdicts = _verdicts(model, scores, progress)
    matching = _add_matching(model, scores, verdicts, seed)
    entries = tuple(
        HeadEntry(head, it.kind, it.kinds, scores[head], it.evidence, it.against)
        for head, it in verdicts.items()
    )
    absent = {MATCHING_THROUGH_PREVIOUS.name: matching.absent} if matching.absent else {}
    if WORD_PIECE.name not in entries[0].scores:
        absent |= dict.fromkeys((WORD_PIECE.name, WORD_PIECE_BY_WEIGHTS.name), TOO_FEW_WORDS)
    return Atlas(
        model.name, entries, ALL_SCORES, absent, _note(model.config, sequences, draws, matching)
    )


def check_draws(draws: int) -> None:
    """Raise an error if there are too few random heads for p to reach ALPHA."""
    if draws + 1 < 1 / ALPHA:
        raise InputError(
            f"draws={draws} random heads are too few: p could not fall below "
            f"{1 / (1 + max(draws, 0)):.2g}, and a kind needs p ≤ {ALPHA}; use at least "
            f"{round(1 / ALPHA) - 1} (the number of probe sequences is `sequences`)"
        )


def _data_scores(
    model: Model, sequences: int, seed: int, frames: RandomFrames, progress: Progress
) -> dict[HeadId, dict[str, Score]]:
    probe = repeats_probe(model, sequences, seed)
    trace = model.trace(probe.tokens)
    W_U = centered_unembedding(model.weights)
    measures = [score.measure for score in DATA_SCORES]

    def layer_scores(layer: int) -> dict[HeadId, dict[str, Score]]:
        view = layer_view(trace, probe, layer, W_U)
        found: dict[HeadId, dict[str, Score]] = {
            HeadId(layer, head): {} for head in range(model.config.n_heads)
        }
        compared = compare_with_random_heads(model, layer, view, frames, measures)
        for score, results in zip(DATA_SCORES, compared, strict=True):
            for head, result in enumerate(results):
                found[HeadId(layer, head)][score.info.name] = result
        return found

    layers = range(model.config.n_layers)
    every = shared_map(layers, layer_scores, progress, "heads on the probe")
    return {head: scores for part in every for head, scores in part.items()}


def _verdicts(
    model: Model, scores: dict[HeadId, dict[str, Score]], progress: Progress
) -> dict[HeadId, Verdict]:
    composed = composition(model, progress=progress)
    profiles: dict[str, OffsetProfile] = {}
    if model.config.positions != "none":
        profiles = {each.head: each for each in positional(model, progress=progress).heads}
    return {
        head: judge(HeadEvidence(head, named, profiles.get(head), composed))
        for head, named in scores.items()
    }


def _add_matching(
    model: Model,
    scores: dict[HeadId, dict[str, Score]],
    verdicts: dict[HeadId, Verdict],
    seed: int,
) -> ThroughPrevious:
    """Add the score that is read through a previous-token head, once those are known."""
    previous = {
        head: scores[head][PREVIOUS_TOKEN.info.name].value
        for head, verdict in verdicts.items()
        if previous_token.KIND.name in verdict.kinds
    }
    matching = through_previous(model, previous, seed)
    for head, score in matching.scores.items():
        scores[head][MATCHING_THROUGH_PREVIOUS.name] = score
        if score.passes(MATCHING_THROUGH_PREVIOUS.threshold, ALPHA):
            line = f"{MATCHING_THROUGH_PREVIOUS.title}: {score}"
            verdicts[head] = replace(verdicts[head], evidence=(*verdicts[head].evidence, line))
    return matching


def _note(config: Config, sequences: int, draws: int, matching: ThroughPrevious) -> str:
    heads = ", ".join(dict.fromkeys(score.through or "" for score in matching.scores.values()))
    read = f"Matching is read through {heads}."
    capped = joined((score_cap_note(config), logit_cap_note(config)))
    why_not = f"No score of matching through a previous-token head: {matching.absent}."
    return (
        f"A kind is named where data and weights agree; {MIXED}: only data; {UNKNOWN}: neither. "
        f"{sequences} sequences of repeated random tokens; p: of {draws} random rotations of the "
        f"same head the share that scores as much, on {min(sequences, NULL_SEQUENCES)} of them. "
        + (read if heads else why_not)
        + (f" From weights: {capped}." if capped else "")
    )
