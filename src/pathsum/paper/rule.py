"""Rule: from one measured number to a verdict, with thresholds written before measuring."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate

Verdict: TypeAlias = Literal["holds", "partly", "does not hold", "not applicable"]
VERDICTS: tuple[Verdict, ...] = ("holds", "partly", "does not hold", "not applicable")

OVER_SEEDS = (
    "Over seeds a claim holds if it holds in every seed, does not hold if it holds in none, not "
    "even partly, and holds partly otherwise; seeds to which it does not apply are not counted."
)


@dataclass(frozen=True)
class Rule:
    """A claim holds if `quantity` is `sense` the threshold `holds`, partly if it is `partly`.

    `unit` follows the number: "nats", "of the heads". `lowest` and `highest` bound what the
    quantity can be (an error is never negative, a share never above 1), and so its interval.

    >>> rule = Rule("the share of heads that copy", "of the heads", "at least", 0.6, 0.3)
    >>> rule.verdict(0.75), rule.verdict(0.5), rule.verdict(0.0)
    ('holds', 'partly', 'does not hold')
    >>> print(rule)
    holds if the share of heads that copy is at least 0.6, partly if it is at least 0.3
    """

    quantity: str
    unit: str
    sense: Literal["at least", "at most"]
    holds: float
    partly: float
    lowest: float | None = None
    highest: float | None = None

    def bounded(self, found: Estimate) -> Estimate:
        """An estimate whose interval is cut to what the quantity can be."""
        if found.low is None or found.high is None:
            return found
        low = found.low if self.lowest is None else max(found.low, self.lowest)
        high = found.high if self.highest is None else min(found.high, self.highest)
        return replace(found, low=low, high=high)

    def verdict(self, value: float) -> Verdict:
        """What a measured value says about the claim."""
        if math.isnan(value):
            raise InputError(f"{self.quantity} is not a number (NaN), so there is no verdict")
        if self._reaches(value, self.holds):
            return "holds"
        return "partly" if self._reaches(value, self.partly) else "does not hold"

    def _reaches(self, value: float, threshold: float) -> bool:
        return value >= threshold if self.sense == "at least" else value <= threshold

    def __str__(self) -> str:
        return (
            f"holds if {self.quantity} is {self.sense} {self.holds:g}, "
            f"partly if it is {self.sense} {self.partly:g}"
        )


def verdict_over(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict from those of several seeds (`OVER_SEEDS`).

    >>> verdict_over(["holds", "holds", "not applicable"]), verdict_over(["holds", "does not hold"])
    ('holds', 'partly')
    """
    applied: list[Verdict] = [one for one in verdicts if one != "not applicable"]
    if not applied:
        return "not applicable"
    return applied[0] if len(set(applied)) == 1 else "partly"
