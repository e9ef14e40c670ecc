"""Metrics: what a run reports while it goes, to whoever watches and to files."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pathsum.model.storage import write_together
from pathsum.training.monitor import ProbeResult

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Metrics:
    """The state of a run at a step. `sight` is there when the run has just looked at itself.

    `gemm_share` is the floating-point work of the matrix products and attention of a step, per
    second, as a share of what one large matrix product reaches on the same device.
    """

    step: int
    steps: int
    tokens: int
    loss: float
    rate: float
    tokens_per_second: float
    gemm_share: float
    seconds: float
    seconds_left: float
    sight: ProbeResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values in one level, as a line of metrics.jsonl."""
        values = dataclasses.asdict(self)
        sight = values.pop("sight")
        return values | (sight or {})


Watch: TypeAlias = Callable[[Metrics], None]
"""Called with every new `Metrics`."""


def unwatched(metrics: Metrics) -> None:
    """Nobody watches."""


class MetricsFile:
    """metrics.jsonl, a line a report, and TensorBoard's format where that is installed."""

    def __init__(self, folder: Path, step: int) -> None:
        """Open for a run at a step; lines that a killed run wrote after its checkpoint go."""
        file = folder / METRICS
        kept = [line for line in _lines(file) if json.loads(line)["step"] <= step]
        text = "".join(line + "\n" for line in kept)
        write_together(folder, {METRICS: lambda part: part.write_text(text, encoding="utf-8")})
        self._file = file.open("a", encoding="utf-8")
        self._board = _board(folder / "tensorboard", step)

    def write(self, metrics: Metrics) -> None:
        """Add a line."""
        values = metrics.to_dict()
        self._file.write(json.dumps(_finite(values)) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, metrics.step)

    def close(self) -> None:
        """No more lines."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in _lines(folder / METRICS)]


def _lines(file: Path) -> list[str]:
    if not file.exists():
        return []
    # A kill can cut the last line short: it has no end then.
    *whole, _ = file.read_text(encoding="utf-8").split("\n")
    return whole


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    # NaN is not JSON; it means "no such number here".
    return {key: None if value != value else value for key, value in values.items()}


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None  # TensorBoard is an extra view of the same numbers
    return SummaryWriter(str(folder), purge_step=step + 1)
