"""A number measured on sequences, with how far it could be off.

Positions of one sequence are not independent, sequences are; so a sequence is the unit that
intervals are made of. Every mean here is a ratio of sums, Σaᵢ/Σbᵢ over sequences i: a loss is
summed nats over counted predictions, a share is one summed cost over another.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

# The two-sided 95 % quantile of the normal distribution.
_Z = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error and 95 % interval; NaN (null in JSON) for one sequence."""

    value: float
    stderr: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if math.isnan(self.stderr):
            return f"{self.value:.4g}"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"

    @property
    def clear_of_zero(self) -> bool:
        """Whether the interval leaves zero out. One sequence has no interval, and says nothing."""
        return self.low > 0 or self.high < 0


def ratio(
    numerators: Float[Tensor, " sequence"], denominators: Float[Tensor, " sequence"]
) -> Estimate:
    """Σ numerators / Σ denominators, with an interval over sequences.

    The residuals aᵢ − r bᵢ give the standard error, √(n/(n−1) Σ residual²) / |Σ bᵢ|, which for
    equal denominators is the usual one of a mean; the interval takes Student's t with n − 1 degrees
    of freedom. It is an approximation where denominators vary much or sequences are few.

    >>> import torch
    >>> print(ratio(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)))
    2 [-0.4841, 4.484]
    """
    a, b = numerators.double(), denominators.double()
    count = len(a)
    value = float(a.sum() / b.sum())
    if count < 2:
        return Estimate(value, math.nan, math.nan, math.nan)
    residual = a - value * b
    spread = math.sqrt(count / (count - 1) * float(residual.square().sum()))
    stderr = spread / abs(float(b.sum()))
    reach = student(count - 1) * stderr
    return Estimate(value, stderr, value - reach, value + reach)


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
