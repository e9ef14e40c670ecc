"""What a kind of head is: a score, its ceiling, its null, and why its threshold is where it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from jaxtyping import Float
from torch import Tensor

from pathsum.heads.layer_view import LayerView
from pathsum.result import Record, Table, prose_column

Measure: TypeAlias = Callable[[LayerView], Float[Tensor, "draw head"]]

PAPER = "Elhage et al. 2021, A Mathematical Framework for Transformer Circuits"
PAPER_2022 = "Olsson et al. 2022, In-context Learning and Induction Heads"


SHOWN = ("about", "formula", "probe", "ceiling", "null", "threshold", "reason", "citation")


@dataclass(frozen=True)
class ScoreInfo(Record, kind="head-score-info"):
    """What a score says, in words: shown wherever its numbers are.

    `about` is one plain sentence: what a head with a high score does.
    """

    name: str
    title: str
    about: str
    evidence: Literal["data", "weights"]
    formula: str
    probe: str
    ceiling: float
    null: str
    threshold: float
    reason: str
    citation: str

    def to_table(self) -> Table:
        """One line a field."""
        rows = tuple((name, str(getattr(self, name))) for name in SHOWN)
        return Table((prose_column(""), prose_column("")), rows, title=self.title)


@dataclass(frozen=True)
class DataScore:
    """A score that is read off a run of the probe."""

    info: ScoreInfo
    measure: Measure


REPEATS = "random tokens that training has seen, repeated, after the start token"
RANDOM_HEADS = "heads of the same singular values, rotated at random, on the same stream"


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
    ceiling: float = 1.0,
) -> DataScore:
    """A score on repeated random tokens against heads drawn at random."""
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
