"""Kinds of heads, one row each, and `judge`, which decides the kind of a head.

A kind is assigned if two sources of evidence agree: a score from data that suggests it, and a check
of the weights. The first kind that holds names the head, so the most specific come first.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.nulls import ALPHA
from pathsum.base import Column, Progress, Record, Table, interval_columns, silent, text_column
from pathsum.base.errors import InputError, near_misses
from pathsum.base.estimate import P_FLOOR, BoundedP, ProbabilityColumn, format_p
from pathsum.base.table import Cell
from pathsum.circuits.composition import Composition
from pathsum.circuits.positional import OffsetProfile, position_rows
from pathsum.heads.circuit_scores import MATCHING_THROUGH_PREVIOUS, WEIGHT_SCORES
from pathsum.heads.probe import HALF, WINDOW
from pathsum.heads.probe_scores import PROBE_SCORES, WORD_PIECE_BY_WEIGHTS
from pathsum.heads.score import ContextPart, HeadScore, Score, ScoreInfo, text_name
from pathsum.model import Head, HeadId, Model, Trace
from pathsum.model.transformer import attend, attention_read, queries_and_keys

ALL_SCORES: tuple[HeadScore, ...] = (
    *(*PROBE_SCORES, *WEIGHT_SCORES, MATCHING_THROUGH_PREVIOUS, WORD_PIECE_BY_WEIGHTS),
)
"""Every score of the atlas, in the order of its tables."""

UNKNOWN, MIXED = "unknown", "mixed"
TITLES = {score.name: score.info.title for score in ALL_SCORES}
SCORE_COLUMNS = (
    text_column("score"),
    *interval_columns("value", "+.3f"),
    *(Column("null", "+.3f"), ProbabilityColumn(format=".2g")),
    *(Column("best part", ".3f"), text_column("at positions")),
)
# Offsets among which the position part of a head is compared in a part of the context.
NEAREST = 8


@dataclass(frozen=True, eq=False)
class HeadEvidence:
    """The evidence about one head, from which `judge` decides its kind.

    `first` is its attention to position 0 at every position, from its weights on the probe's tokens
    (`first_by_weights`). `part` is set for the check of a kind that holds only in that part of the
    context.
    """

    head: Head
    scores: dict[str, Score]
    profile: OffsetProfile | None
    composition: Composition
    first: Float[Tensor, " dest"]
    thresholds: Mapping[str, float]
    alpha: float = ALPHA
    part: ContextPart | None = None


Check: TypeAlias = Callable[[HeadEvidence], tuple[bool, str]]
"""Whether the weights agree with a kind, and why."""
NO_POSITIONS = False, "its scores have no position part"


def position_peak(offset: int) -> Check:
    """The position part of the head's QK is largest at this offset."""

    def check(evidence: HeadEvidence) -> tuple[bool, str]:
        if evidence.profile is None:
            return NO_POSITIONS
        peak, suffix, config = evidence.profile.peak, "", evidence.head.model.config
        if evidence.part is not None and config.positions != "rotary":
            # Among the nearest few offsets, in this part of the context.
            window = min(NEAREST, config.n_ctx)
            first, last = evidence.part.first - window + 1, evidence.part.last - window + 1
            inside = position_rows(evidence.head, window)[max(0, first) : max(1, last + 1)]
            peak, suffix = int(inside.mean(0).argmax()), " there"
        return peak == offset, f"its position part peaks at offset {peak}{suffix}"

    return check


def positive_score(name: str, description: str) -> Check:
    """A score from weights is positive beyond its null."""

    def check(evidence: HeadEvidence) -> tuple[bool, str]:
        score = evidence.scores.get(name)
        if score is None:
            return False, f"there is no score {TITLES[name]}"
        agrees = score.value > 0 and score.passes(0.0, evidence.alpha)
        return agrees, f"{description} {score.value:+.2f}, {score.p_text}"

    return check


_copies = positive_score("copying_weights", "OV eigenvalue ratio")


def _copies_and_reads_a_lower_head(evidence: HeadEvidence) -> tuple[bool, str]:
    copies, because = _copies(evidence)
    column = evidence.composition.heads.index(evidence.head.id)
    edges: list[tuple[float, float, str]] = []
    for kind in ("k", "q"):
        scores = evidence.composition.scores(kind)
        p, z = scores.p[:, column].tolist(), scores.z[:, column].tolist()
        edges += [
            (p_value, -size, f"{kind.upper()}-composition with {writer}")
            for p_value, size, writer in zip(p, z, evidence.composition.heads, strict=True)
            if p_value == p_value
        ]
    if not edges:
        return False, f"no head is below it; {because}"
    # The best of many edges, so p is corrected for their number. Beyond the reach of p, z decides.
    least, _, edge = min((max(p_value, P_FLOOR), *rest) for p_value, *rest in edges)
    corrected = min(1.0, least * len(edges))
    agrees = copies and corrected <= evidence.alpha
    return agrees, f"{edge}, {format_p(corrected)}; {because}"


def _position_window(evidence: HeadEvidence) -> tuple[bool, str]:
    profile = evidence.profile
    if profile is None or profile.attention is None:
        return NO_POSITIONS
    share = float(profile.attention[1 : WINDOW + 1].sum())
    return share >= HALF, f"attention to the last {WINDOW} by position alone {share:.2f}"


def _position_variance(evidence: HeadEvidence) -> tuple[bool, str]:
    if evidence.profile is None:
        return NO_POSITIONS
    share = evidence.profile.share
    return share >= HALF, f"position explains {share:.2f} of its score's variance"


def _first_by_tokens_and_positions(evidence: HeadEvidence) -> tuple[bool, str]:
    inside = evidence.first[1:]
    if evidence.part is not None:
        end = min(
            evidence.part.last + 1, len(evidence.first)
        )  # a text can be longer than the probe
        inside = evidence.first[min(evidence.part.first, end - 1) : end]
    share = float(inside.mean())
    return share >= HALF, f"first-position attention by tokens and positions alone {share:.2f}"


def first_by_weights(
    trace: Trace, progress: Progress = silent
) -> dict[HeadId, Float[Tensor, " dest"]]:
    """Attention to position 0 if every later position contains only its token's embedding.

    The first position contains its vector in the run, which is the same in every text that begins
    with the start token.
    """
    config, result = trace.model.config, dict[HeadId, Tensor]()
    for layer, raw in enumerate(trace.model.weights.layers):
        progress(layer, config.n_layers, "attention to the first token")
        stream = trace.streams[0].clone()
        stream[:, 0] = trace.streams[layer][:, 0]
        query, key, _, _ = queries_and_keys(config, raw, attention_read(config, raw, stream)[0])
        first = attend(config, raw, query, key)[..., 0].mean(0)
        result |= {HeadId(layer, head): values for head, values in enumerate(first)}
    return result


@dataclass(frozen=True)
class Kind:
    """A kind of head: the score from data that suggests it, and the check of its weights.

    The score must reach its threshold and `times_null` times its null. `times_null` is above 1
    where data and weights depend on the same matrix, because their agreement is then weaker
    evidence. On text the same score may suggest the kind or, if that needs repeats, `on_text`.
    """

    name: str
    score: str
    check: Check
    times_null: float = 1.0
    on_text: str = ""


KINDS: tuple[Kind, ...] = (
    Kind("induction", "induction", _copies_and_reads_a_lower_head, on_text="prefix_matching"),
    Kind("previous token", "previous_token", position_peak(1)),
    Kind(
        *("duplicate token", "duplicate_token"),
        positive_score("matching_weights", "QK eigenvalue ratio"),
    ),
    Kind(
        *("word piece", "word_piece"),
        positive_score("word_piece_weights", "OV raises the second piece"),
    ),
    Kind("current token", "current_token", position_peak(0)),
    Kind("local window", "local_window", _position_window),
    Kind("copying", "copying", _copies, times_null=2.0),
    Kind(
        *("deleting", "deleting"),
        positive_score("deleting_weights", "OV eigenvalue ratio, negated,"),
    ),
    Kind("positional", "positional", _position_variance),
    Kind("first token", "first_token", _first_by_tokens_and_positions),
)
"""Every kind, the most specific first; heads of all kinds attend to the first token, the last."""


@dataclass(frozen=True, eq=False)
class HeadEntry(Record, kind="atlas-head"):
    """One head: its scores by name, its kind, every kind that fits it, and the evidence.

    `against` are the lines of the evidence in which the weights disagree with the data.
    """

    head: HeadId
    kind: str
    kinds: tuple[str, ...]
    scores: dict[str, Score]
    evidence: tuple[str, ...]
    against: tuple[str, ...]

    def value(self, score: str) -> float | None:
        """A score's value; None if this head has no such score."""
        result = self.scores.get(score)
        return None if result is None else result.value

    def to_table(self) -> Table:
        """One row per score, and the evidence below."""
        meaning = "p: share of random rotations of this head that score at least as much"
        note = "\n".join((*self.evidence, meaning))
        return Table(SCORE_COLUMNS, self.score_rows(), f"{self.head}: {self.kind}", note)

    def score_rows(self) -> tuple[tuple[Cell, ...], ...]:
        """One row per score: value, 95% interval, null, p, best part of the context."""
        rows: list[tuple[Cell, ...]] = []
        for name, score in self.scores.items():
            part, p = score.part, BoundedP.of_draws(score.p, score.draws)
            best = (part.value, f"{part.first}–{part.last}") if part else (None, None)
            rows.append((TITLES[name], *score.with_interval, score.null, p, *best))
        return tuple(rows)


def judge(evidence: HeadEvidence) -> HeadEntry:
    """A head with the most specific kind on which data and weights agree, else mixed or unknown."""
    kinds: list[str] = []
    lines: list[str] = []
    against: list[str] = []
    for kind in KINDS:
        passed = list(_passed(evidence, kind))
        if not passed:
            continue
        # The claim is about a part of the context only if no score holds over all of it.
        part = passed[0][1] if all(part for _, part in passed) else None
        agrees, because = kind.check(replace(evidence, part=part))
        word = "agree" if agrees else "do not agree"
        scores = ", ".join(text for text, _ in passed)
        lines.append(f"{kind.name}: {scores}; weights {word}: {because}")
        kinds += [kind.name] if agrees else []
        against += [] if agrees else lines[-1:]
    name = kinds[0] if kinds else MIXED if lines else UNKNOWN
    head = evidence.head.id
    return HeadEntry(head, name, tuple(kinds), evidence.scores, tuple(lines), tuple(against))


def _passed(evidence: HeadEvidence, kind: Kind) -> Iterator[tuple[str, ContextPart | None]]:
    """Scores on random tokens or on text that suggest a kind, as text.

    Each comes with the part of the context where it passes, or None for the whole context.
    """
    for name, where in ((kind.score, ""), (text_name(kind.on_text or kind.score), " on text")):
        score = evidence.scores.get(name)
        if score is None:
            continue
        threshold = evidence.thresholds[name]
        if score.passes(max(threshold, kind.times_null * (score.null or 0.0)), evidence.alpha):
            yield f"{score}{where}", None
        elif score.part is not None and score.part.passes(threshold, evidence.alpha):
            mean = f"{score.value:.2f} over the whole context"
            yield f"{score.part}{where} ({mean})", score.part


def without_kind(
    model: Model, scores: Mapping[HeadId, dict[str, Score]], progress: Progress = silent
) -> dict[HeadId, HeadEntry]:
    """Heads without a kind, whatever they attend to: their output is zero, or they are duplicates.

    Heads with identical weights cannot be distinguished, so none of them gets a kind.
    """
    reasons: dict[HeadId, str] = {}
    same: dict[tuple[int | bytes, ...], list[HeadId]] = {}
    for number, head in enumerate(model.heads):
        progress(number, len(model.heads), "comparing heads")
        if why := why_silent(model, head.id):
            reasons[head.id] = f"no kind: it writes nothing ({why})"
            continue
        factors = (head.W_Q, head.W_K, head.W_V, head.W_O)
        key = tuple(factor.double().cpu().numpy().tobytes() for factor in factors)
        same.setdefault((head.id.layer, *key), []).append(head.id)
    for group in same.values():
        for head in group if len(group) > 1 else ():
            others = ", ".join(other for other in group if other != head)
            reasons[head] = f"no kind: its weights equal those of {others}, so they act as one head"
    return {
        head: HeadEntry(head, UNKNOWN, (), scores[head], (why,), ())
        for head, why in reasons.items()
    }


def why_silent(model: Model, name: HeadId) -> str:
    """The reason why a head's output is always zero; empty if it is not."""
    head = model.head(name)
    for matrix, weight in (("W_O", head.W_O), ("W_V", head.W_V)):
        if not bool(weight.any()):
            return f"its {matrix} is zero"
    return "" if bool((head.W_V @ head.W_O).any()) else "its OV = W_V W_O is zero"


def parse_scores(scores: Sequence[str] | None) -> frozenset[str]:
    """The names of the scores to measure, by default all."""
    if scores is None:
        return frozenset(TITLES)
    if isinstance(scores, str) or not scores:
        raise InputError(
            f"scores is {scores!r}; give a list of names, such as ['copying', 'copying_weights']"
        )
    for name in scores:
        parse_name(name, TITLES, "score")
    return frozenset(scores)


def with_thresholds(thresholds: Mapping[str, float]) -> tuple[ScoreInfo, ...]:
    """Every score with its threshold; thresholds on random tokens also apply on text."""
    for name, value in thresholds.items():
        parse_name(name, TITLES, "score")
        if not math.isfinite(value):
            raise InputError(f"the threshold of {name!r} is {value}; use a finite number")
    by_name = {text_name(name): value for name, value in thresholds.items()} | dict(thresholds)
    changes = {name: {"threshold": value, "reason": "as given"} for name, value in by_name.items()}
    return tuple(replace(score.info, **changes.get(score.name, {})) for score in ALL_SCORES)


def parse_name(name: str, choices: Collection[str], what: str) -> None:
    """Raise an error if a name is not one of the choices."""
    if name not in choices:
        raise InputError(
            f"there is no {what} {name!r}{near_misses(name, choices)}; the {what}s are "
            f"{', '.join(choices)}"
        )
