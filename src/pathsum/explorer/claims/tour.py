"""`paper`: the paper's claims in its order, each measured on a model it is about."""

from dataclasses import dataclass

from pathsum.explorer.claims.claim import Claim, Section, measure_section
from pathsum.explorer.claims.one_layer import ONE
from pathsum.explorer.claims.residual_stream import STREAM
from pathsum.explorer.claims.two_layers import TWO
from pathsum.explorer.claims.zero_layers import ZERO
from pathsum.explorer.params import ModelParams
from pathsum.explorer.workbench import Workbench
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


def paper(bench: Workbench, params: ModelParams) -> Tour:
    """Measure every claim."""
    return Tour(
        tuple(claim for section in SECTIONS for claim in measure_section(section, bench, params))
    )
