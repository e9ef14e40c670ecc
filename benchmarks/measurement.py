"""The result of a benchmark: our cost and another's, on the same machine in the same run."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """One line of the table of results.

    A measurement is a cost, so less is better in every line: seconds per token, not tokens per
    second. The other may be a peer, a textbook method, or a bound such
    as the time of the matrix products alone; None if there is nothing to compare with.

    >>> Measurement("composition, 144 heads", ours=0.5, unit="s", other="dense", theirs=4.0).ratio
    0.125
    """

    what: str
    ours: float
    unit: str
    other: str | None = None
    theirs: float | None = None

    @property
    def ratio(self) -> float | None:
        """Our cost as a share of theirs."""
        return None if self.theirs is None else self.ours / self.theirs

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
