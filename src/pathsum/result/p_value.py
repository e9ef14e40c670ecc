"""How probabilities under chance are written: never as 0, which no null can show.

A p that is counted over n random draws cannot be known below 1/n, and one from a fitted law is not
to be trusted far out in its tail. So what is smaller than can be known is written as a bound.
"""

from dataclasses import dataclass

from pathsum.result import Column
from pathsum.result.table import MISSING, Cell

# A law that was fitted by its first moments says no more about its tail than this, in a sentence
# and in a table, where the order of magnitude still ranks.
LEAST_IN_WORDS = 1e-3
LEAST_IN_TABLES = 1e-12


def format_p(p: float, drawn: int = 0) -> str:
    """p in words: of `drawn` random heads, or, where there were none, of a law.

    >>> format_p(0.034), format_p(1 / 201, drawn=200), format_p(0.0)
    ('p 0.034', 'p < 0.005', 'p < 0.001')
    """
    if p != p:
        return f"p {MISSING}"
    bound = _least_counted(drawn) if drawn else LEAST_IN_WORDS
    if p < bound:
        return f"p < {bound:.2g}"
    return f"p {p:.2g}"


@dataclass(frozen=True)
class ProbabilityColumn(Column):
    """A column of p; what is below `least` is written as that bound, and kept in full in a file."""

    name: str = "p"
    format: str = ".1e"
    least: float = LEAST_IN_TABLES

    def write(self, cell: Cell) -> str:
        """A cell as text."""
        if isinstance(cell, float) and cell < self.least:
            return f"< {self.least:.2g}"
        return super().write(cell)


def counted_p(drawn: int) -> ProbabilityColumn:
    """A column of p that were counted over so many random draws."""
    return ProbabilityColumn(format=".2g", least=_least_counted(drawn))


def _least_counted(drawn: int) -> float:
    """Above (1 + 0) / (1 + drawn), what is counted where no draw comes near."""
    return 1 / drawn
