"""What a kind of head is made of: scores with a formula and a threshold, and a check of weights.

A kind is named where two sources of evidence agree: what a head does on a probe (a `DataScore`) and
what its weights say (a `Check`, often of a `WeightScore`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pathsum.circuits.composition.composition import Composition
from pathsum.circuits.positional import OffsetProfile
from pathsum.heads.layer_view import Measure
from pathsum.heads.score import Score
from pathsum.model import HeadId, Model
from pathsum.result import Record, Table, prose_column

PAPER = "Elhage et al. 2021, A Mathematical Framework for Transformer Circuits"
PAPER_2022 = "Olsson et al. 2022, In-context Learning and Induction Heads"

REPEATS = "random tokens that training has seen, repeated, after the start token"
RANDOM_HEADS = "this head's own reads and writes, rotated at random, on the same stream"

ALPHA = 0.01
"""One in a hundred random heads may pass a score by chance; a kind needs two that agree."""


@dataclass(frozen=True)
class ScoreInfo(Record, kind="head-score-info"):
    """What a score means, in words: shown wherever its numbers are.

    `about` is one plain sentence that says what a head with a high score does.
    """

    name: str
    title: str
    about: str
    evidence: Literal["data", "weights"]
    formula: str
    probe: str
    ceiling: float | None
    null: str
    threshold: float
    reason: str
    citation: str

    def to_table(self) -> Table:
        """One row per field."""
        shown = ("about", "formula", "probe", "ceiling", "null", "threshold", "reason", "citation")
        rows = tuple((name, str(getattr(self, name))) for name in shown)
        return Table((prose_column(""), prose_column("")), rows, title=self.title)


MeasureWeights: TypeAlias = Callable[[Model, int, int], Mapping[HeadId, Score]]
"""Scores every head of a model from its weights, with a number of null draws and their seed."""


@dataclass(frozen=True)
class DataScore:
    """A score that is read off a run of the probe."""

    info: ScoreInfo
    measure: Measure


@dataclass(frozen=True)
class WeightScore:
    """A score that is computed from weights alone."""

    info: ScoreInfo
    measure: MeasureWeights


def data_score(
    measure: Measure,
    *,
    name: str,
    title: str,
    about: str,
    formula: str,
    threshold: float,
    reason: str,
    citation: str,
    ceiling: float | None = 1.0,
) -> DataScore:
    """A score on repeated random tokens, compared with random heads."""
    info = ScoreInfo(
        name=name,
        title=title,
        about=about,
        evidence="data",
        formula=formula,
        probe=REPEATS,
        ceiling=ceiling,
        null=RANDOM_HEADS,
        threshold=threshold,
        reason=reason,
        citation=citation,
    )
    return DataScore(info, measure)


def weight_info(
    *, name: str, title: str, about: str, formula: str, null: str, reason: str
) -> ScoreInfo:
    """A score from weights whose null is symmetric around 0, which is its threshold."""
    return ScoreInfo(
        name=name,
        title=title,
        about=about,
        evidence="weights",
        formula=formula,
        probe="none: weights alone",
        ceiling=1.0,
        null=null,
        threshold=0.0,
        reason=reason,
        citation=PAPER,
    )


@dataclass(frozen=True, eq=False)
class HeadEvidence:
    """Everything known about one head when its kind is decided."""

    head: HeadId
    scores: Mapping[str, Score]
    profile: OffsetProfile | None
    composition: Composition


@dataclass(frozen=True)
class Finding:
    """Whether the weights agree with a kind, and why."""

    agrees: bool
    because: str


Check: TypeAlias = Callable[[HeadEvidence], Finding]


@dataclass(frozen=True)
class Kind:
    """A kind of head: the score from data that suggests it, and the check of its weights.

    The score must reach its threshold and `times_chance` times what chance gives. That is above 1
    where data and weights depend on the same matrix, so that their agreement is weaker evidence.
    """

    name: str
    score: ScoreInfo
    check: Check
    times_chance: float = 1.0


NO_POSITIONS = Finding(False, "its weights have no position part to attend by")


def position_peak(offset: int) -> Check:
    """The position part of the head's QK is largest at this offset."""

    def check(known: HeadEvidence) -> Finding:
        if known.profile is None:
            return NO_POSITIONS
        peak = known.profile.peak
        return Finding(peak == offset, f"its position part peaks at offset {peak}")

    return check


def positive_score(info: ScoreInfo, description: str) -> Check:
    """A score from weights is positive and chance does not explain it."""

    def check(known: HeadEvidence) -> Finding:
        score = known.scores[info.name]
        agrees = score.value > 0 and score.passes(0.0, ALPHA)
        return Finding(agrees, f"{description} {score.value:+.2f}, {score.p_text}")

    return check
