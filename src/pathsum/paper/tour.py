"""`paper` and `claim`: the paper's claims in its order, and one of them measured.

`paper` answers at once, with words, rules and what other seeds gave; each claim is measured by a
question of its own, so that a page shows the first ones while others are computed.
"""

from dataclasses import dataclass

from pathsum.base import Record
from pathsum.base.errors import InputError, near_misses
from pathsum.explorer.params import ModelParams
from pathsum.explorer.session import Session
from pathsum.paper.claim import Claim, Outline, Section, Statement, measure, outline
from pathsum.paper.one_layer import ONE
from pathsum.paper.residual_stream import STREAM
from pathsum.paper.rule import OVER_SEEDS
from pathsum.paper.two_layers import TWO
from pathsum.paper.zero_layers import ZERO


@dataclass(frozen=True, kw_only=True)
class ClaimParams(ModelParams):
    """One claim, by its id."""

    claim: str


@dataclass(frozen=True, eq=False)
class Tour(Record, kind="page-paper"):
    """The claims in the paper's order, before they are measured; `over_seeds` is a rule too."""

    claims: tuple[Outline, ...]
    over_seeds: str


SECTIONS = (
    Section("the residual stream", STREAM, lambda _: True, "any number of layers"),
    Section("zero layers", ZERO, lambda depth: depth == 0, "no layers"),
    Section("one layer", ONE, lambda depth: depth == 1, "one layer"),
    Section("two layers", TWO, lambda depth: depth >= 2, "two layers or more"),
)


def tour(bench: Session, params: ModelParams) -> Tour:
    """Every claim in words, with its rule and what other seeds gave."""
    every = tuple(
        outline(section, one, bench, params) for section in SECTIONS for one in section.statements
    )
    return Tour(every, OVER_SEEDS)


def claim(bench: Session, params: ClaimParams) -> Claim:
    """Measure one claim."""
    section, statement = find_statement(params.claim)
    about = ModelParams(model=params.model, step=params.step)
    # Kept, since a report asks again what its picture is drawn from.
    return bench.result(
        about,
        f"claim {statement.id}",
        lambda _, report: measure(section, statement, bench.reporting(report), about),
    )


def find_statement(name: str) -> tuple[Section, Statement]:
    """A claim by its id, and its section."""
    for section in SECTIONS:
        for one in section.statements:
            if one.id == name:
                return section, one
    known = [one.id for section in SECTIONS for one in section.statements]
    raise InputError(
        f"there is no claim {name[:60]!r}{near_misses(name, known)}; the claims are "
        f"{', '.join(known)}"
    )
