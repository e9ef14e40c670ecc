"""The uncertainty type: a number with its standard error, its interval, and its null.

Every measured number is an `Estimate`, whether it was averaged over sequences, compared with
random draws, both or neither. Averages are over sequences, because positions of one sequence are
not independent and sequences are: every mean is a ratio of sums Σaᵢ/Σbᵢ over sequences i (a loss is
summed nats over counted predictions, a share is one summed cost over another).
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.table import MISSING, Cell, Column, format_number

# The two-sided 95 % quantile of the normal distribution.
_Z = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A value with its uncertainty and its null, where known.

    Every field except `value` is None (null in JSON), never NaN, if it is unknown.

    >>> print(Estimate(0.5, stderr=0.1, low=0.3, high=0.7))
    0.5 [0.3, 0.7]
    >>> print(Estimate(0.5, null=0.02, p=1 / 401, draws=400))
    0.5 (null 0.02, p < 0.0025)
    """

    value: float
    stderr: float | None = None
    """Standard error of the value; None for a single sample or an exact value."""
    low: float | None = None
    """Lower end of the 95 % interval."""
    high: float | None = None
    """Upper end of the 95 % interval."""
    null: float | None = None
    """Mean of the value under the null."""
    p: float | None = None
    """p-value: the probability, under the null, of a value at least this large."""
    draws: int | None = None
    """The number of random draws behind `p`; None for a closed form."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "value" and isinstance(value, float) and math.isnan(value):
                raise AssertionError(f"{name} of an Estimate is NaN; use None if it is unknown")

    @classmethod
    def around(cls, value: float, stderr: float | None, samples: int | None = None) -> "Estimate":
        """A mean with its 95 % interval: Student's t over `samples`, or normal if None.

        A standard error that is None or NaN (one sample) gives no interval.

        >>> print(Estimate.around(2.0, 0.5), "/", Estimate.around(2.0, None))
        2 [1.02, 2.98] / 2
        """
        if stderr is None or math.isnan(stderr):
            return cls(value)
        half = (_Z if samples is None else student(samples - 1)) * stderr
        return cls(value, stderr, value - half, value + half)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return self.format(".4g")

    def format(self, spec: str) -> str:
        """The value, with its interval and null if known, each number formatted by `spec`.

        >>> Estimate(0.51234, null=0.021, p=0.2).format(".2f")
        '0.51 (null 0.02, p 0.2)'
        """
        text = format_number(self.value, spec)
        if self.low is not None and self.high is not None:
            text += f" [{format_number(self.low, spec)}, {format_number(self.high, spec)}]"
        notes = [] if self.null is None else [f"null {format_number(self.null, spec)}"]
        if self.p is not None:
            notes.append(self.p_text)
        return f"{text} ({', '.join(notes)})" if notes else text

    @property
    def with_interval(self) -> tuple[float, float | None, float | None]:
        """The value and both ends of its interval, as columns of a table."""
        return self.value, self.low, self.high

    @property
    def stderr_or_nan(self) -> float:
        """The standard error for an array; NaN if unknown."""
        return math.nan if self.stderr is None else self.stderr

    @property
    def p_text(self) -> str:
        """p as text, as a bound where it is smaller than the draws can show: 'p < 0.0025'."""
        return format_p(self.p, self.draws)

    @property
    def clear_of_zero(self) -> bool:
        """Whether the interval excludes zero; False where there is no interval."""
        return (self.low is not None and self.low > 0) or (self.high is not None and self.high < 0)

    def below(self, other: "Estimate") -> bool:
        """Whether the whole interval lies below the other's; False where one has no interval."""
        return self.high is not None and other.low is not None and self.high < other.low


def ratio(
    numerators: Float[Tensor, " sequence"], denominators: Float[Tensor, " sequence"]
) -> Estimate:
    """Σ numerators / Σ denominators, with a 95 % interval over sequences.

    The residuals aᵢ − r bᵢ give the standard error √(n/(n−1) Σ residual²) / |Σ bᵢ|, the usual
    one of a mean if all denominators are equal. The interval uses Student's t with n − 1 degrees of
    freedom. It is an approximation where denominators vary a lot or sequences are few.

    >>> print(ratio(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)))
    2 [-0.4841, 4.484]
    """
    a, b = numerators.double(), denominators.double()
    count = len(a)
    value = float(a.sum() / b.sum())
    if count < 2:
        return Estimate(value)
    residual = a - value * b
    deviation = math.sqrt(count / (count - 1) * float(residual.square().sum()))
    return Estimate.around(value, deviation / abs(float(b.sum())), count)


def mean_estimate(values: Float[Tensor, " sequence"]) -> Estimate:
    """The mean of one number per sequence, with its 95 % interval."""
    return ratio(values, torch.ones_like(values))


def student(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t: exact for 1 and 2 degrees, else an expansion.

    The expansion in 1/degrees is off by 0.2 % at 3 degrees and by less above.

    >>> [round(student(n), 2) for n in (1, 2, 10, 1000)]
    [12.71, 4.3, 2.23, 1.96]
    """
    if degrees == 1:
        return math.tan(math.pi * 0.475)
    if degrees == 2:
        return 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    z, n = _Z, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


# Floors for p-values from a distribution fitted by its moments: in sentences, and in tables and
# files. The fit was compared with exact tails down to the second floor; smaller p-values are not
# reported.
P_FLOOR_IN_TEXT = 1e-3
P_FLOOR = 1e-6


def format_p(p: float | None, draws: int | None = None) -> str:
    """p as text; `draws` is the number of random draws behind it, None for a closed form.

    >>> format_p(0.034), format_p(1 / 201, draws=200), format_p(0.0), format_p(None)
    ('p 0.034', 'p < 0.005', 'p < 0.001', 'p –')
    """
    if p is None or math.isnan(p):
        return f"p {MISSING}"
    # Just above (1 + 0) / (1 + draws), the count where no draw reaches the value.
    floor = 1 / draws if draws else P_FLOOR_IN_TEXT
    return f"p < {floor:.2g}" if p < floor else f"p {p:.2g}"


class BoundedP(float):
    """A p-value with its resolution, `least`: at or below it, the bound is printed instead.

    >>> ProbabilityColumn(format=".2g").write(BoundedP.of_draws(1 / 201, 200))
    '< 0.005'
    """

    least: float

    def __new__(cls, p: float, least: float) -> "BoundedP":  # noqa: PYI034 (checked at run time)
        """A p-value and its bound."""
        self = super().__new__(cls, p)
        self.least = least
        return self

    @classmethod
    def of_draws(cls, p: float | None, draws: int | None) -> "BoundedP | float | None":
        """A p-value counted over this many draws; unchanged if the number is unknown."""
        return p if p is None or not draws else cls(p, 1 / draws)


@dataclass(frozen=True)
class ProbabilityColumn(Column):
    """A column of p-values; those at or below `least`, or 0, are printed as a bound.

    A `BoundedP` carries its own bound. p-values from 0.001 up have decimals, not an exponent.

    >>> ProbabilityColumn().write(0.054), ProbabilityColumn().write(2e-5)
    ('0.054', '2.0e-05')
    """

    name: str = "p"
    format: str = ".1e"
    part: Literal["value", "low", "high", "null", "p"] = "p"
    least: float = P_FLOOR

    def cell(self, value: Any) -> Cell:
        """The p-value of an estimate, with the resolution of its draws."""
        p, draws = super().cell(value), getattr(value, "draws", None)
        return BoundedP.of_draws(p, draws) if isinstance(p, float) else p

    def write(self, cell: Cell) -> str:
        """A cell as text."""
        if isinstance(cell, BoundedP) and cell <= cell.least:
            return f"< {cell.least:.2g}"
        if isinstance(cell, float) and (cell < self.least or cell <= P_FLOOR):
            return f"< {self.least:.2g}"
        if isinstance(cell, float) and cell >= P_FLOOR_IN_TEXT and self.format.endswith("e"):
            return f"{cell:.3f}"
        return super().write(cell)


def counted_p(draws: int) -> ProbabilityColumn:
    """A column of p-values counted over this many random draws."""
    return ProbabilityColumn(format=".2g", least=1 / draws)
