"""Which kind a head is: where what it does and what its weights say agree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pathsum.circuits.composition.composition import Composition
from pathsum.circuits.positional import OffsetProfile
from pathsum.heads.kinds.kind import ScoreInfo
from pathsum.heads.kinds.local_window import WINDOW
from pathsum.heads.score import Score
from pathsum.model import HeadId
from pathsum.result.p_value import format_p

# One in a hundred heads drawn at random may pass a score; a kind needs two that agree.
ALPHA = 0.01
UNKNOWN, MIXED = "unknown", "mixed"


@dataclass(frozen=True, eq=False)
class HeadEvidence:
    """All that is known of one head when it is judged."""

    head: HeadId
    scores: Mapping[str, Score]
    profile: OffsetProfile | None
    composition: Composition


@dataclass(frozen=True)
class Finding:
    """What the weights say about a claim: whether they bear it out, and in which words."""

    holds: bool
    because: str


Check: TypeAlias = Callable[[HeadEvidence], Finding]


def _peaks_at(offset: int) -> Check:
    def check(known: HeadEvidence) -> Finding:
        if known.profile is None:
            return Finding(False, "its weights have no position part to look by")
        peak = known.profile.peak
        return Finding(peak == offset, f"its position part peaks at offset {peak}")

    return check


def _looks_back_a_little(known: HeadEvidence) -> Finding:
    profile = known.profile
    if profile is None or profile.attention is None:
        return Finding(False, "its weights have no position part to look by")
    mass = float(profile.attention[1 : WINDOW + 1].sum())
    return Finding(mass >= 0.5, f"by position alone it gives {mass:.2f} to the last {WINDOW}")


def _positive(name: str, what: str) -> Check:
    def check(known: HeadEvidence) -> Finding:
        score = known.scores[name]
        holds = score.value > 0 and score.p <= ALPHA
        return Finding(holds, f"{what} {score.value:+.2f}, {score.format_p}")

    return check


def _by_position(known: HeadEvidence) -> Finding:
    if known.profile is None:
        return Finding(False, "its weights have no position part to look by")
    share = known.profile.share
    return Finding(share >= 0.5, f"position makes {share:.2f} of its score's variance")


def _reads_a_lower_head(known: HeadEvidence) -> Finding:
    """Copying OV, and keys or queries that read some lower head more than chance would."""
    copies = _positive("copying_weights", "OV eigenvalue ratio")(known)
    column = known.composition.heads.index(str(known.head))
    best: list[tuple[float, str]] = []
    for kind in ("k", "q"):
        p = known.composition.scores(kind).p[:, column]
        best += [
            (float(value), f"{kind.upper()}-composition with {writer}")
            for value, writer in zip(p, known.composition.heads, strict=True)
            if value == value
        ]
    if not best:
        return Finding(False, f"no head lies below it; {copies.because}")
    # The best of many pairs: chance has as many tries.
    p, edge = min(best)
    p = min(1.0, p * len(best))
    return Finding(copies.holds and p <= ALPHA, f"{edge}, {format_p(p)}; {copies.because}")


@dataclass(frozen=True)
class Claim:
    """A kind of head: the score from data that suggests it, and the weights' word on it.

    The score must reach its threshold and, where both words depend on the same matrix and so are
    not two, so many times what chance gives.
    """

    kind: str
    score: str
    check: Check
    times_chance: float = 1.0


# The most specific first: it is the one that names the head.
CLAIMS: tuple[Claim, ...] = (
    Claim("induction", "induction", _reads_a_lower_head),
    Claim("previous token", "previous_token", _peaks_at(1)),
    Claim(
        "duplicate token",
        "duplicate_token",
        _positive("matching_weights", "QK eigenvalue ratio"),
    ),
    Claim(
        "word piece",
        "word_piece",
        _positive("word_piece_weights", "OV raises the second piece"),
    ),
    Claim("current token", "current_token", _peaks_at(0)),
    Claim("local window", "local_window", _looks_back_a_little),
    Claim("copying", "copying", _positive("copying_weights", "OV eigenvalue ratio"), 2.0),
    Claim("deleting", "deleting", _positive("deleting_weights", "OV eigenvalue ratio, negated,")),
    Claim("positional", "positional", _by_position),
)


@dataclass(frozen=True)
class Verdict:
    """What a head is called, all kinds that it is, and the evidence for and against.

    `against` repeats what speaks against a kind that data suggest; `evidence` holds it too.
    """

    kind: str
    kinds: tuple[str, ...]
    evidence: tuple[str, ...]
    against: tuple[str, ...]


def judge(known: HeadEvidence, infos: Mapping[str, ScoreInfo]) -> Verdict:
    """The kind of a head: named where data and weights agree, mixed where only data speaks."""
    kinds: list[str] = []
    doubtful: list[str] = []
    evidence: list[str] = []
    against: list[str] = []
    for claim in CLAIMS:
        score = known.scores.get(claim.score)
        if score is None:
            continue
        least = max(infos[claim.score].threshold, claim.times_chance * score.null)
        if not score.passes(least, ALPHA):
            continue
        finding = claim.check(known)
        (kinds if finding.holds else doubtful).append(claim.kind)
        word = "agree" if finding.holds else "do not agree"
        evidence.append(f"{claim.kind}: {score}; weights {word}: {finding.because}")
        against += [] if finding.holds else evidence[-1:]
    resting = known.scores["first_token"]
    if resting.passes(infos["first_token"].threshold, ALPHA):
        evidence.append(f"rests on the first token: {resting}")
    kind = kinds[0] if kinds else MIXED if doubtful else UNKNOWN
    return Verdict(kind, tuple(kinds), tuple(evidence), tuple(against))
