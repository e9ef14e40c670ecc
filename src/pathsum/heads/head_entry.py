"""One head of the atlas: its scores, and its kind where data and weights agree."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pathsum.base import Column, Progress, Record, Table, interval_columns, silent, text_column
from pathsum.base.p_value import BoundedP, ProbabilityColumn
from pathsum.base.table import Cell
from pathsum.heads.kinds import ALL_SCORES, KINDS
from pathsum.heads.kinds.kind import HeadEvidence, Kind, text_name
from pathsum.heads.score import Part, Score
from pathsum.model import HeadId, Model

UNKNOWN, MIXED = "unknown", "mixed"
TITLES = {info.name: info.title for info in ALL_SCORES}
SCORE_COLUMNS = (
    text_column("score"),
    *interval_columns("value", "+.3f"),
    *(Column("chance", "+.3f"), ProbabilityColumn(format=".2g")),
    *(Column("best part", ".3f"), text_column("at positions")),
)


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
        """A score's value; None where this head has no such score."""
        found = self.scores.get(score)
        return None if found is None else found.value

    def to_table(self) -> Table:
        """One row per score, and the evidence below."""
        meaning = "p: of random rotations of this head, the share that scores as much"
        note = "\n".join((*self.evidence, meaning))
        return Table(SCORE_COLUMNS, self.score_rows(), f"{self.head}: {self.kind}", note)

    def score_rows(self) -> tuple[tuple[Cell, ...], ...]:
        """One row per score: value, 95 % interval, chance, p, best part of the context."""
        return tuple(
            (
                *(TITLES[name], *score.with_interval, score.null),
                BoundedP.counted(score.p, score.draws),
                score.part.value if score.part else None,
                f"{score.part.first}–{score.part.last}" if score.part else None,
            )
            for name, score in self.scores.items()
        )


def judge(known: HeadEvidence) -> HeadEntry:
    """A head with the most specific kind on which data and weights agree, else mixed or unknown."""
    kinds: list[str] = []
    evidence: list[str] = []
    against: list[str] = []
    for kind in KINDS:
        passed = list(_passed(known, kind))
        if not passed:
            continue
        # The claim is about a part of the context only if no score holds over all of it.
        part = passed[0][1] if all(part for _, part in passed) else None
        finding = kind.check(replace(known, part=part))
        word = "agree" if finding.agrees else "do not agree"
        scores = ", ".join(text for text, _ in passed)
        evidence.append(f"{kind.name}: {scores}; weights {word}: {finding.because}")
        if finding.agrees:
            kinds.append(kind.name)
        else:
            against.append(evidence[-1])
    name = kinds[0] if kinds else MIXED if evidence else UNKNOWN
    return HeadEntry(
        head=known.head.id,
        kind=name,
        kinds=tuple(kinds),
        scores=known.scores,
        evidence=tuple(evidence),
        against=tuple(against),
    )


def _passed(known: HeadEvidence, kind: Kind) -> Iterator[tuple[str, Part | None]]:
    """Scores that suggest a kind, on random tokens or on text, as text.

    Each with the part of the context where it passes, or None if it passes over all of it.
    """
    for name, where in ((kind.score.name, ""), (text_name(kind.score.name), " on text")):
        score = known.scores.get(name)
        if score is None:
            continue
        threshold = known.thresholds[name]
        if score.passes(max(threshold, kind.times_chance * (score.null or 0.0)), known.alpha):
            yield f"{score}{where}", None
        elif score.part is not None and score.part.passes(threshold, known.alpha):
            whole = f"{score.value:.2f} over the whole context"
            yield f"{score.part}{where} ({whole})", score.part


def without_kind(
    model: Model, scores: Mapping[HeadId, dict[str, Score]], progress: Progress = silent
) -> dict[HeadId, HeadEntry]:
    """Heads that get no kind, whatever they attend to: they write nothing, or are duplicates.

    Heads with identical weights cannot be told apart, so none of them gets a kind.
    """
    reasons: dict[HeadId, str] = {}
    same: dict[tuple[bytes, ...], list[HeadId]] = {}
    for number, head in enumerate(model.heads):
        progress(number, len(model.heads), "comparing heads")
        if why := why_silent(model, head.id):
            reasons[head.id] = f"no kind: it writes nothing ({why})"
            continue
        factors = (head.W_Q, head.W_K, head.W_V, head.W_O)
        key = tuple(factor.double().cpu().numpy().tobytes() for factor in factors)
        same.setdefault((bytes([head.id.layer % 256]), *key), []).append(head.id)
    for group in same.values():
        for head in group if len(group) > 1 else ():
            others = ", ".join(other for other in group if other != head)
            reasons[head] = f"no kind: its weights are those of {others}, so they act as one head"
    return {
        head: HeadEntry(head, UNKNOWN, (), scores[head], (why,), ())
        for head, why in reasons.items()
    }


def why_silent(model: Model, name: HeadId) -> str:
    """Why a head moves nothing from source to destination; empty if it moves something."""
    head = model.head(name)
    for matrix, weight in (("W_O", head.W_O), ("W_V", head.W_V)):
        if not bool(weight.any()):
            return f"its {matrix} is zero"
    return "" if bool((head.W_V @ head.W_O).any()) else "its OV = W_V W_O is zero"
