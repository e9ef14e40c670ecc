"""The parts of a kind of head: scores with a formula and a threshold, and a check of its weights.

A kind is assigned where two sources of evidence agree: what a head does on a probe (a `DataScore`)
and what its weights say (a `Check`, often of a `WeightScore`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeAlias, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.base import Progress, Record, Table, prose_column
from pathsum.circuits.composition import Composition
from pathsum.circuits.positional import OffsetProfile, position_rows
from pathsum.heads.layer_view import LayerView, Measure
from pathsum.heads.score import Part, Score
from pathsum.model import Head, HeadId, Model
from pathsum.model.processes import threaded_map

T = TypeVar("T")

PAPER = "Elhage et al. 2021, A Mathematical Framework for Transformer Circuits"
PAPER_2022 = "Olsson et al. 2022, In-context Learning and Induction Heads"

REPEATS = "random tokens that training has seen, repeated, after the start token"
TEXT = "text that training did not see, or the tokens that were given"
RANDOM_HEADS = "this head's own reads and writes, rotated at random, on the same stream"

ALPHA = 0.01
"""One in a hundred random heads may pass a score by chance; a kind needs two that agree."""


@dataclass(frozen=True)
class ScoreInfo(Record, kind="head-score-info"):
    """The description of a score, shown next to its numbers.

    `about` is one plain sentence on what a head with a high score does.
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


ByPosition: TypeAlias = Callable[[LayerView], Float[Tensor, "sequence head dest"]]
"""A score at every destination, NaN at those that do not count; `measure` is its mean."""
MeasureWeights: TypeAlias = Callable[[Model, int, int, Progress], Mapping[HeadId, Score]]
"""Scores every head of a model from its weights, given an even number of null draws and a seed."""


@dataclass(frozen=True)
class DataScore:
    """A score measured on a run, of the probe or of text.

    `needs` says what a destination must have to count, for scores that not every text allows.
    """

    info: ScoreInfo
    measure: Measure
    by_position: ByPosition | None = None
    needs: str = "a position before it"


@dataclass(frozen=True)
class WeightScore:
    """A score computed from weights alone."""

    info: ScoreInfo
    measure: MeasureWeights


def score_layers(
    model: Model, compute: Callable[[int], Sequence[T]], progress: Progress, what: str
) -> dict[HeadId, T]:
    """Scores of every head; `compute` scores the heads of one layer, and layers run in threads."""
    found = threaded_map(range(model.config.n_layers), compute, progress, what)
    scores = chain.from_iterable(found)
    return {head.id: score for head, score in zip(model.heads, scores, strict=True)}


def attention_to(
    pattern: Float[Tensor, "sequence head dest src"], wanted: Bool[Tensor, "sequence dest src"]
) -> Float[Tensor, "sequence head dest"]:
    """The sum of each row over the wanted sources, NaN at destinations without one.

    Reads only those entries: they are few, and the patterns of random heads are many.
    """
    found = pattern.new_zeros(pattern.shape[:-1])
    for sums, rows, places in zip(found, pattern, wanted.to(pattern.device), strict=True):
        dest, src = places.nonzero(as_tuple=True)
        sums.index_add_(-1, dest, rows[:, dest, src])
    return found.masked_fill_(~wanted.any(-1).to(found.device)[:, None], torch.nan)


def at_rows(
    values: Float[Tensor, "sequence head row"], before: int
) -> Float[Tensor, "sequence head dest"]:
    """Values of the last rows, with NaN for the `before` destinations ahead of them."""
    return torch.nn.functional.pad(values, (before, 0), value=torch.nan)


def on_text(score: DataScore) -> DataScore:
    """The same score measured on text: `previous_token` becomes `previous_token_text`."""
    info = score.info
    named = replace(
        info,
        name=text_name(info.name),
        title=f"{info.title.removesuffix(' (data)')} (text)",
        about=f"{info.about.removesuffix('.')}, on text.",
        probe=TEXT,
    )
    return replace(score, info=named)


def text_name(name: str) -> str:
    """The name of a score when it is measured on text."""
    return f"{name}_text"


def data_score(
    measure: Measure | None = None,
    *,
    name: str,
    title: str,
    about: str,
    formula: str,
    threshold: float,
    reason: str,
    citation: str,
    ceiling: float | None = 1.0,
    by_position: ByPosition | None = None,
    needs: str = "a position before it",
) -> DataScore:
    """A score on repeated random tokens, compared with random heads.

    `measure` is by default the mean of `by_position` over the destinations that count.
    """

    def mean_over_destinations(view: LayerView) -> Float[Tensor, "sequence head"]:
        assert by_position is not None
        return by_position(view).nanmean(-1)

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
    return DataScore(info, measure or mean_over_destinations, by_position, needs)


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
    """Everything known about one head when its kind is decided.

    `first` is its attention to position 0 at every position, by its weights on the probe's tokens
    (see `first_token`). `part` is set for the check of a kind that holds only in that part of the
    context.
    """

    head: Head
    scores: dict[str, Score]
    profile: OffsetProfile | None
    composition: Composition
    first: Float[Tensor, " dest"]
    thresholds: Mapping[str, float]
    alpha: float = ALPHA
    part: Part | None = None


@dataclass(frozen=True)
class Finding:
    """Whether the weights agree with a kind, and why."""

    agrees: bool
    because: str


Check: TypeAlias = Callable[[HeadEvidence], Finding]


@dataclass(frozen=True)
class Kind:
    """A kind of head: the score from data that suggests it, and the check of its weights.

    The score must reach its threshold and `times_chance` times its null, which is above 1 where
    data and weights depend on the same matrix, so that their agreement is weaker evidence.
    """

    name: str
    score: ScoreInfo
    check: Check
    times_chance: float = 1.0


NEAREST = 8
"""Offsets among which the position part of a head is compared in a part of the context."""
NO_POSITIONS = Finding(False, "its weights have no position part to attend by")


def position_peak(offset: int) -> Check:
    """The position part of the head's QK is largest at this offset."""

    def check(known: HeadEvidence) -> Finding:
        if known.profile is None:
            return NO_POSITIONS
        peak, where = known.profile.peak, ""
        if known.part is not None and known.head.model.config.positions != "rotary":
            peak, where = _peak_in(known.head, known.part), " there"
        return Finding(peak == offset, f"its position part peaks at offset {peak}{where}")

    return check


def _peak_in(head: Head, part: Part) -> int:
    """The offset among the nearest few at which the position part is largest in this part."""
    window = min(NEAREST, head.model.config.n_ctx)
    rows = position_rows(head, window)
    inside = rows[max(0, part.first - window + 1) : max(1, part.last - window + 2)]
    return int(inside.mean(0).argmax())


def positive_score(info: ScoreInfo, description: str) -> Check:
    """A score from weights is positive and chance does not explain it."""

    def check(known: HeadEvidence) -> Finding:
        score = known.scores.get(info.name)
        if score is None:
            return Finding(False, f"there is no score {info.title}")
        agrees = score.value > 0 and score.passes(0.0, known.alpha)
        return Finding(agrees, f"{description} {score.value:+.2f}, {score.p_text}")

    return check
