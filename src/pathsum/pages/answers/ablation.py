"""`ablation`: what is lost without a head, and how much of that a description wins back."""

from dataclasses import dataclass

from pathsum.circuits.tokens import joined
from pathsum.model import Model
from pathsum.pages.asking import AboutHead
from pathsum.pages.numbers import finite
from pathsum.pages.probes import Sequences, sequences
from pathsum.pages.workbench import Workbench
from pathsum.paths import (
    After,
    CopyingPart,
    IdealPattern,
    Knockout,
    Replacement,
    ablate,
    replace,
)
from pathsum.result import Record


@dataclass(frozen=True)
class AblationRow:
    """The cost in nats a prediction of knocking the head out, with a 95 % interval."""

    intervention: str
    on: str
    cost: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class DescriptionRow:
    """The share of the cost that the head's description wins back, with a 95 % interval."""

    description: str
    on: str
    recovered: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class HeadAblation(Record, kind="page-ablation"):
    """A head knocked out, and replaced by what it is said to do."""

    head: str
    rows: tuple[AblationRow, ...]
    descriptions: tuple[DescriptionRow, ...]
    note: str


def ablation(bench: Workbench, asked: AboutHead) -> HeadAblation:
    """Knock the head out in three ways and put ideal patterns in its place, on every probe."""
    model = bench.model(asked)
    name = model.head(asked.head).label
    rows: list[AblationRow] = []
    described: list[DescriptionRow] = []
    why: dict[str, None] = {}
    for on in sequences(bench, asked):
        rows += [_ablated(model, name, on, *how) for how in INTERVENTIONS]
        for pattern in IdealPattern:
            found = replace(model, name, on.tokens, pattern=pattern, from_position=on.first)
            described.append(_described(found, on))
            why[f"{on.name}: {found.why_no_share}" if found.why_no_share else ""] = None
        if model.config.logit_cap is None:
            copies = replace(model, name, on.tokens, ov=CopyingPart(), from_position=on.first)
            described.append(_described(copies, on))
    return HeadAblation(name, tuple(rows), tuple(described), joined(tuple(why)))


INTERVENTIONS = (
    ("writes nothing", Knockout.ZERO, After.RECOMPUTED),
    ("writes nothing, later patterns kept", Knockout.ZERO, After.PATTERNS_PRESERVED),
    ("writes its mean", Knockout.MEAN, After.RECOMPUTED),
    ("attends to the first token", Knockout.FIRST, After.RECOMPUTED),
)


def _ablated(
    model: Model, head: str, on: Sequences, what: str, knockout: Knockout, after: After
) -> AblationRow:
    cost = ablate(
        model, head, on.tokens, knockout=knockout, after=after, from_position=on.first
    ).cost
    return AblationRow(what, on.name, cost.value, finite(cost.low), finite(cost.high))


def _described(found: Replacement, on: Sequences) -> DescriptionRow:
    share = found.share
    if share is None:
        return DescriptionRow(found.description, on.name, None, None, None)
    low, high = finite(share.low), finite(share.high)
    return DescriptionRow(found.description, on.name, finite(share.value), low, high)
