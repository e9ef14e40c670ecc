"""From measured numbers to verdicts: the rule of a claim, and one verdict over several seeds.

Rules are fixed before measuring. A number in the paper always satisfies its rule. Thresholds for
heads are the thresholds of their kinds; the others are round numbers. `seeds.json` has the claims
measured on models trained from other seeds, which do not ship; `scripts/measure_claims.py` writes
it from the folders of training runs.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, mean_estimate

Verdict: TypeAlias = Literal["holds", "partly", "does not hold", "not applicable"]
VERDICTS: tuple[Verdict, ...] = ("holds", "partly", "does not hold", "not applicable")
_OF_SEVERAL = dict(
    zip(VERDICTS, ("hold", "hold partly", "do not hold", "are not applicable"), strict=True)
)

OVER_SEEDS = (
    "Over seeds a claim holds if it holds in every seed, does not hold if it fails in more than "
    "half of them, and holds partly otherwise; seeds to which it does not apply are not counted."
)

SEEDS = Path(__file__).parent / "seeds.json"
FORMAT, VERSION = "pathsum-claims-over-seeds", 1


@dataclass(frozen=True)
class ClaimRule:
    """A claim holds if `quantity` is `sense` the threshold `holds`, partly if it is `partly`.

    `unit` follows the number: "nats", "of the heads". `lowest` and `highest` bound the quantity (an
    error is never negative, a share never above 1), and therefore its interval.

    >>> rule = ClaimRule("the share of heads that copy", "at least", 0.6, 0.3, "of the heads")
    >>> rule.verdict(0.75), rule.verdict(0.5), rule.verdict(0.0)
    ('holds', 'partly', 'does not hold')
    >>> print(rule)
    holds if the share of heads that copy is at least 0.6, partly if it is at least 0.3
    """

    quantity: str
    sense: Literal["at least", "at most"]
    holds: float
    partly: float
    unit: str = ""
    lowest: float | None = None
    highest: float | None = None

    def bounded(self, estimate: Estimate) -> Estimate:
        """An estimate with its interval clipped to the bounds of the quantity."""
        if estimate.low is None or estimate.high is None:
            return estimate
        low = estimate.low if self.lowest is None else max(estimate.low, self.lowest)
        high = estimate.high if self.highest is None else min(estimate.high, self.highest)
        return replace(estimate, low=low, high=high)

    def verdict(self, value: float) -> Verdict:
        """The verdict for a measured value."""
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
    """One verdict from the verdicts over several seeds (`OVER_SEEDS`).

    >>> verdict_over(["holds", "holds", "not applicable"]), verdict_over(["holds", "does not hold"])
    ('holds', 'partly')
    >>> verdict_over(["holds", "partly", "does not hold", "does not hold", "does not hold"])
    'does not hold'
    """
    applied = [verdict for verdict in verdicts if verdict != "not applicable"]
    if not applied:
        return "not applicable"
    if 2 * applied.count("does not hold") > len(applied):
        return "does not hold"
    return "holds" if set(applied) == {"holds"} else "partly"


@dataclass(frozen=True)
class SeedValue:
    """A claim measured on one training run; `value` is None if it does not apply (`note`)."""

    run: str
    seed: int
    layers: int
    tokens: int
    value: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    note: str


@dataclass(frozen=True)
class OverSeeds:
    """A claim over seeds: the value for each seed, the mean with its interval, one verdict.

    `mean` is None with fewer than two values, `verdict` None without any seed. `note` states the
    number of seeds and their training tokens.
    """

    seeds: tuple[SeedValue, ...]
    mean: Estimate | None
    verdict: Verdict | None
    note: str


def over_seeds(claim: str, rule: ClaimRule, layers: int | None = None) -> OverSeeds:
    """A claim measured on seeds of models with `layers` layers, by default of any depth."""
    seeds = [seed for seed in _stored().get(claim, ()) if layers is None or seed.layers == layers]
    return summarize_seeds(rule, seeds)


def summarize_seeds(rule: ClaimRule, seeds: Sequence[SeedValue]) -> OverSeeds:
    """Mean, interval and verdict over seeds, by the current rule."""
    seeds = sorted(seeds, key=lambda seed: seed.seed)
    if not seeds:
        return OverSeeds((), None, None, "not measured on other seeds")
    values = [seed.value for seed in seeds if seed.value is not None]
    verdicts: list[Verdict] = [
        "not applicable" if seed.value is None else rule.verdict(seed.value) for seed in seeds
    ]
    measured = torch.tensor(values, dtype=torch.float64)
    mean = rule.bounded(mean_estimate(measured)) if len(values) > 1 else None
    by_tokens = Counter(seed.tokens for seed in seeds)
    trained = ", ".join(
        f"{count} on {tokens / 1e6:.3g} M" for tokens, count in sorted(by_tokens.items())[::-1]
    )
    tally = ", ".join(
        f"{count} {name if count == 1 else _OF_SEVERAL[name]}"
        for name, count in Counter(verdicts).most_common()
    )
    count = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    note = f"{count} (tokens trained: {trained}): {tally}"
    return OverSeeds(tuple(seeds), mean, verdict_over(verdicts), note)


@cache
def _stored(file: Path = SEEDS) -> dict[str, tuple[SeedValue, ...]]:
    """The measurements of every claim by its id; empty if there is no file."""
    if not file.exists():
        return {}
    claims = json.loads(file.read_text(encoding="utf-8"))["claims"]
    return {name: tuple(SeedValue(**value) for value in values) for name, values in claims.items()}


def write_seeds(claims: dict[str, list[dict[str, Any]]], file: Path = SEEDS) -> None:
    """Write the file that `over_seeds` reads."""
    stored = {"format": FORMAT, "version": VERSION, "claims": claims}
    file.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _stored.cache_clear()
