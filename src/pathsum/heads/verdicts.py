"""The kind of a head: named where what it does on tokens and what its weights say agree."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pathsum.heads.kinds import KINDS
from pathsum.heads.kinds.kind import HeadEvidence, Kind, text_name
from pathsum.heads.score import Part
from pathsum.model import HeadId, Model

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


@dataclass(frozen=True)
class _Shown:
    """A score that suggests a kind, as text, and the part of the context if it holds only there."""

    text: str
    part: Part | None = None


def judge(known: HeadEvidence) -> Verdict:
    """The most specific kind on which data and weights agree, else mixed or unknown."""
    suggestions = list(_suggestions(known))
    kinds = tuple(each.kind for each in suggestions if each.agrees)
    evidence = tuple(each.text for each in suggestions)
    kind = kinds[0] if kinds else MIXED if suggestions else UNKNOWN
    against = tuple(each.text for each in suggestions if not each.agrees)
    return Verdict(kind, kinds, evidence, against)


def _suggestions(known: HeadEvidence) -> Iterator[_Suggestion]:
    """Every kind that the data suggests, and whether the weights agree."""
    for kind in KINDS:
        shown = list(_shown(known, kind))
        if shown:
            # A part of the context is the claim only if nothing holds over all of it.
            part = shown[0].part if all(each.part for each in shown) else None
            finding = kind.check(replace(known, part=part))
            word = "agree" if finding.agrees else "do not agree"
            text = f"{kind.name}: {', '.join(each.text for each in shown)}"
            text += f"; weights {word}: {finding.because}"
            yield _Suggestion(kind.name, finding.agrees, text)


def _shown(known: HeadEvidence, kind: Kind) -> Iterator[_Shown]:
    """What suggests a kind: its score on random tokens or on text, over all or part of them."""
    for name, where in ((kind.score.name, ""), (text_name(kind.score.name), " on text")):
        score = known.scores.get(name)
        if score is None:
            continue
        threshold = known.thresholds[name]
        if score.passes(max(threshold, kind.times_chance * (score.null or 0.0)), known.alpha):
            yield _Shown(f"{score}{where}")
        elif score.part is not None and score.part_passes(threshold, known.alpha):
            whole = f"{score.value:.2f} over the whole context"
            yield _Shown(f"{score.part}{where} ({whole})", score.part)


def no_verdict(model: Model) -> dict[HeadId, Verdict]:
    """Heads that get no kind, whatever they attend to, and why: they write nothing, or are copies.

    Heads with identical weights cannot be told apart, so none of them is named.
    """
    reasons: dict[HeadId, str] = {}
    same: dict[tuple[bytes, ...], list[HeadId]] = {}
    for head in model.heads:
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
    return {head: Verdict(UNKNOWN, (), (why,), ()) for head, why in reasons.items()}


def why_silent(model: Model, name: HeadId) -> str:
    """Why a head moves nothing from source to destination; empty if it moves something."""
    head = model.head(name)
    for matrix, weight in (("W_O", head.W_O), ("W_V", head.W_V)):
        if not bool(weight.any()):
            return f"its {matrix} is zero"
    return "" if bool((head.W_V @ head.W_O).any()) else "its OV = W_V W_O is zero"
