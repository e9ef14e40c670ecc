"""The result of a benchmark: our cost and another's, on the same machine in the same run."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """One line of the table of results.

    A measurement is a cost, so less is better in every line: seconds per token, not tokens per
    second. The other may be a peer, a textbook method, or a bound such as the time of the matrix
    products alone; None if there is nothing to compare with.

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


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Wall time of one call, or its time by another clock."""
    start = clock()
    work()
    return clock() - start


def best_seconds(rounds: int, *works: Callable[[], object]) -> list[float]:
    """The best time of each call over some rounds, in turn, so that load affects all of them."""
    times = [[seconds(work) for work in works] for _ in range(rounds)]
    return [min(each) for each in zip(*times, strict=True)]


def within_budget(
    what: str,
    work: Callable[[], object],
    budget: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """The time of one call against its budget in seconds."""
    taken = seconds(work, clock)
    print(f"{what:<44} {taken:8.2f} s of {budget:g}", flush=True)
    return Measurement(what, taken, "s", "may take", budget)


def run_peer(name: str, program: str, *arguments: object) -> Any:
    """What a program prints, as JSON, in a peer's environment (`make peers`); None without it."""
    python = Path(__file__).resolve().parent.parent / f".venv-peers-{name}" / "bin" / "python"
    if not python.exists():
        return None
    command = [str(python), "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        raise RuntimeError("transformer-lens failed on its own benchmark")
    return json.loads(done.stdout.strip().splitlines()[-1])


def peak_memory(reset: bool = False) -> float:
    """The largest resident size of this process, in MB; on Linux since the last reset."""
    if not Path("/proc/self/status").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return status("VmHWM")


def status(name: str) -> float:
    """A line of /proc/self/status, in MB (Linux)."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return int(next(row for row in rows if row.startswith(name)).split()[1]) / 1024
