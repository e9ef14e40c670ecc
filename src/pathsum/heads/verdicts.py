"""The kind of a head: named where what it does on the probe and what its weights say agree."""

from collections.abc import Iterator
from dataclasses import dataclass

from pathsum.heads.kinds import FIRST_TOKEN, KINDS
from pathsum.heads.kinds.kind import ALPHA, HeadEvidence

UNKNOWN, MIXED = "unknown", "mixed"


@dataclass(frozen=True)
class Verdict:
    """What a head is called, every kind that it is, and the evidence.

    `against` are the lines of evidence in which the weights disagree with the data.
    """

    kind: str
    kinds: tuple[str, ...]
    evidence: tuple[str, ...]
    against: tuple[str, ...]


@dataclass(frozen=True)
class _Suggestion:
    kind: str
    agrees: bool
    text: str


def judge(known: HeadEvidence) -> Verdict:
    """The most specific kind on which data and weights agree, else mixed or unknown."""
    suggestions = list(_suggestions(known))
    kinds = tuple(each.kind for each in suggestions if each.agrees)
    evidence = [each.text for each in suggestions]
    resting = known.scores[FIRST_TOKEN.info.name]
    if resting.passes(FIRST_TOKEN.info.threshold, ALPHA):
        evidence.append(f"rests on the first token: {resting}")
    kind = kinds[0] if kinds else MIXED if suggestions else UNKNOWN
    against = tuple(each.text for each in suggestions if not each.agrees)
    return Verdict(kind, kinds, tuple(evidence), against)


def _suggestions(known: HeadEvidence) -> Iterator[_Suggestion]:
    """Every kind that the data suggests, and whether the weights agree."""
    for kind in KINDS:
        score = known.scores.get(kind.score.name)
        if score is None:
            continue
        least = max(kind.score.threshold, kind.times_chance * (score.null or 0.0))
        if score.passes(least, ALPHA):
            finding = kind.check(known)
            word = "agree" if finding.agrees else "do not agree"
            text = f"{kind.name}: {score}; weights {word}: {finding.because}"
            yield _Suggestion(kind.name, finding.agrees, text)
