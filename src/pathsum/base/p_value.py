"""Formatting of p-values: never as 0, which no null can establish.

A p counted over n random draws cannot resolve values below 1/n, and one from a fitted distribution
is unreliable far out in the tail. A p below such a floor is printed as a bound.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from pathsum.base.table import MISSING, Cell, Column

# Floors for a p from a distribution fitted by its moments: in sentences, and in tables and files.
# The fit was compared with exact tails down to the second; nothing below it is reported.
LEAST_IN_WORDS = 1e-3
LEAST_FITTED = 1e-6


def format_p(p: float | None, draws: int | None = None) -> str:
    """p as text; `draws` is how many random draws it was counted over, None for a closed form.

    >>> format_p(0.034), format_p(1 / 201, draws=200), format_p(0.0), format_p(None)
    ('p 0.034', 'p < 0.005', 'p < 0.001', 'p –')
    """
    if p is None or math.isnan(p):
        return f"p {MISSING}"
    floor = _counted_floor(draws) if draws else LEAST_IN_WORDS
    if p < floor:
        return f"p < {floor:.2g}"
    return f"p {p:.2g}"


class BoundedP(float):
    """A p with its resolution, `least`: at or below it, the bound is printed instead.

    >>> ProbabilityColumn(format=".2g").write(BoundedP.counted(1 / 201, 200))
    '< 0.005'
    """

    least: float

    def __new__(cls, p: float, least: float) -> "BoundedP":  # noqa: PYI034 (checked at run time)
        """A p and its bound."""
        made = super().__new__(cls, p)
        made.least = least
        return made

    @classmethod
    def counted(cls, p: float | None, draws: int | None) -> "BoundedP | float | None":
        """A p that was counted over this many draws; unchanged if the number is not known."""
        return p if p is None or not draws else cls(p, _counted_floor(draws))


@dataclass(frozen=True)
class ProbabilityColumn(Column):
    """A column of p; a p at or below `least`, or counted as 0, is printed as that bound.

    A `BoundedP` has a bound of its own. From 0.001 on a p has decimals, not an exponent.

    >>> ProbabilityColumn().write(0.054), ProbabilityColumn().write(2e-5)
    ('0.054', '2.0e-05')
    """

    name: str = "p"
    format: str = ".1e"
    part: Literal["value", "low", "high", "null", "p"] = "p"
    least: float = LEAST_FITTED

    def cell(self, value: Any) -> Cell:
        """The p of an estimate, with the resolution of its draws."""
        p, draws = super().cell(value), getattr(value, "draws", None)
        return BoundedP.counted(p, draws) if isinstance(p, float) else p

    def write(self, cell: Cell) -> str:
        """A cell as text."""
        if isinstance(cell, BoundedP) and cell <= cell.least:
            return f"< {cell.least:.2g}"
        if isinstance(cell, float) and (cell < self.least or cell <= LEAST_FITTED):
            return f"< {self.least:.2g}"
        if isinstance(cell, float) and cell >= LEAST_IN_WORDS and self.format.endswith("e"):
            return f"{cell:.3f}"
        return super().write(cell)


def counted_p(draws: int) -> ProbabilityColumn:
    """A column of p counted over this many random draws."""
    return ProbabilityColumn(format=".2g", least=_counted_floor(draws))


def _counted_floor(draws: int) -> float:
    """Just above (1 + 0) / (1 + draws), the count where no draw reaches the value."""
    return 1 / draws
