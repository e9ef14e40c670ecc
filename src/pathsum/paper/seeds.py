"""Measurements of the claims on models trained from other seeds, which do not ship.

`scripts/measure_claims.py` makes seeds.json from the folders of training runs.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pathsum.base.estimate import Estimate
from pathsum.paper.rule import Rule, Verdict, verdict_over

SEEDS = Path(__file__).parent / "seeds.json"
FORMAT, VERSION = "pathsum-claims-over-seeds", 1


@dataclass(frozen=True)
class SeedValue:
    """A claim measured on one training run; `value` is None where it does not apply (`note`)."""

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
    """A claim over seeds: each one's value, the mean with its interval, one verdict.

    `mean` is None with fewer than two values, `verdict` None with no seed at all; `note` says how
    many seeds there are and how long each was trained.
    """

    seeds: tuple[SeedValue, ...]
    mean: Estimate | None
    verdict: Verdict | None
    note: str


def over_seeds(claim: str, rule: Rule, layers: int | None = None) -> OverSeeds:
    """A claim's measurements over seeds of models with `layers` layers; of any, if that is None."""
    found = [one for one in _stored().get(claim, ()) if layers is None or one.layers == layers]
    return summarize(rule, found)


def summarize(rule: Rule, seeds: Sequence[SeedValue]) -> OverSeeds:
    """Mean, interval and verdict of some seeds, by the rule as it is here."""
    seeds = sorted(seeds, key=lambda one: one.seed)
    if not seeds:
        return OverSeeds((), None, None, "not measured on other seeds")
    values = [one.value for one in seeds if one.value is not None]
    verdicts: list[Verdict] = [
        "not applicable" if one.value is None else rule.verdict(one.value) for one in seeds
    ]
    return OverSeeds(
        tuple(seeds), _mean(rule, values), verdict_over(verdicts), _note(seeds, verdicts)
    )


def _mean(rule: Rule, values: Sequence[float]) -> Estimate | None:
    """The mean with Student's interval over seeds, cut to what the quantity can be."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return rule.bounded(Estimate.around(mean, math.sqrt(variance / count), count))


_OF_SEVERAL: dict[Verdict, str] = {
    "holds": "hold",
    "partly": "hold partly",
    "does not hold": "do not hold",
    "not applicable": "are not applicable",
}


def _note(seeds: Sequence[SeedValue], verdicts: Sequence[Verdict]) -> str:
    by_tokens = Counter(one.tokens for one in seeds)
    trained = ", ".join(
        f"{count} on {tokens / 1e6:.3g} M" for tokens, count in sorted(by_tokens.items())[::-1]
    )
    noun = "seed" if len(seeds) == 1 else "seeds"
    counted = ", ".join(
        f"{count} {name if count == 1 else _OF_SEVERAL[name]}"
        for name, count in Counter(verdicts).most_common()
    )
    return f"{len(seeds)} {noun} (tokens trained: {trained}): {counted}"


@cache
def _stored(file: Path = SEEDS) -> dict[str, tuple[SeedValue, ...]]:
    """Every claim's measurements by its id; none if there is no file."""
    if not file.exists():
        return {}
    stored = json.loads(file.read_text(encoding="utf-8"))
    return {
        claim: tuple(SeedValue(**one) for one in values)
        for claim, values in stored["claims"].items()
    }


def write_seeds(claims: dict[str, list[dict[str, Any]]], file: Path = SEEDS) -> None:
    """Write the file that `over_seeds` reads."""
    stored = {"format": FORMAT, "version": VERSION, "claims": claims}
    file.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _stored.cache_clear()
