"""`paper`: the paper's claims in its order, each measured here."""

from dataclasses import dataclass

from pathsum.pages.asking import AboutModel
from pathsum.pages.tour.claim import Claim, Section, state
from pathsum.pages.tour.one import ONE
from pathsum.pages.tour.stream import STREAM
from pathsum.pages.tour.two import TWO
from pathsum.pages.tour.zero import ZERO
from pathsum.pages.workbench import Workbench
from pathsum.result import Record


@dataclass(frozen=True, eq=False)
class Tour(Record, kind="page-paper"):
    """The claims, in the paper's order."""

    claims: tuple[Claim, ...]


SECTIONS = (
    Section("the residual stream", STREAM, lambda _: True, "any number of layers"),
    Section("zero layers", ZERO, lambda depth: depth == 0, "no layers"),
    Section("one layer", ONE, lambda depth: depth == 1, "one layer"),
    Section("two layers", TWO, lambda depth: depth >= 2, "two layers or more"),
)


def paper(bench: Workbench, asked: AboutModel) -> Tour:
    """Measure every claim."""
    return Tour(tuple(claim for section in SECTIONS for claim in state(section, bench, asked)))
