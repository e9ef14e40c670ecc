"""Metrics of a run: losses and head scores on a probe, speed, and metrics.jsonl."""

import dataclasses
import json
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId
from pathsum.base.files import read_bytes, write_text
from pathsum.heads.probe import stripe as induction
from pathsum.model import Config, Model
from pathsum.model.losses import run_losses, token_losses
from pathsum.text import Corpus
from pathsum.text.token_pool import RepeatedTokens, random_repeats

METRICS = "metrics.jsonl"
# About ten million lines.
MAX_METRICS_BYTES = 1 << 32


@dataclass(frozen=True)
class ProbeResult:
    """The losses and the best heads of a model on a probe.

    `previous_token` is the mean attention to the previous position, and `induction` to the token
    after the first copy of the current token (the induction stripe), on repeated random tokens.
    """

    held_out_loss: float
    previous_token: float
    previous_token_head: str
    induction: float
    induction_head: str
    repeat_first: float
    repeat_second: float


class Probe:
    """A few sequences of repeated random tokens and of held-out text, fixed for a run."""

    def __init__(self, corpus: Corpus, n_ctx: int, sequences: int) -> None:
        length = max(1, min(64, (n_ctx - 1) // 2))
        self.repeats: RepeatedTokens = random_repeats(
            corpus.token_pool.ids(at_least=2 * length),
            length=length,
            repeats=2,
            sequences=8,
            start_token=corpus.start_token,
        )
        self.held_out = corpus.held_out_batch(sequences, n_ctx)

    def measure(self, model: Model) -> ProbeResult:
        """The losses and best heads of a model."""
        trace = model.trace(self.repeats.tokens.to(model.weights.device))
        previous_scores = [
            pattern.diagonal(-1, -2, -1)[..., 1:].mean((0, 2)) for pattern in trace.patterns
        ]
        stripes = [induction(pattern, self.repeats).mean(0) for pattern in trace.patterns]
        (previous, previous_head), (stripe, stripe_head) = (
            _best_head(previous_scores),
            _best_head(stripes),
        )
        losses = token_losses(trace.logits, trace.tokens)
        first, length = self.repeats.first, self.repeats.length
        return ProbeResult(
            held_out_loss=float(run_losses(model, self.held_out).mean()),
            previous_token=previous,
            previous_token_head=previous_head,
            induction=stripe,
            induction_head=stripe_head,
            repeat_first=float(losses[:, first : first + length - 1].mean()),
            repeat_second=float(losses[:, first + length :].mean()),
        )


def _best_head(scores: list[Float[Tensor, " head"]]) -> tuple[float, str]:
    if not scores:
        return float("nan"), ""
    table = torch.stack(scores)
    layer, head = divmod(int(table.argmax()), table.shape[1])
    return float(table.max()), str(HeadId(layer, head))


def flops_per_token(config: Config) -> float:
    """Floating-point operations of training on one token: matrix products and causal attention.

    A product with n weights costs 2 n forward and 4 n backward. Attention at a full context costs
    2 · n_ctx · n_heads · d_head forward (half of the square, for scores and for z), and twice as
    much backward.
    """
    c = config
    heads = 2 * c.d_model * (c.n_heads + c.n_kv_heads) * c.d_head
    mlp = (3 if c.gated else 2) * c.d_model * c.d_mlp
    per_layer = 6 * (heads + mlp) + 6 * c.n_ctx * c.n_heads * c.d_head
    return float(c.n_layers * per_layer + 6 * c.d_model * c.d_vocab)


@cache
def gemm_rate(device: str, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large matrix product, the best of several."""
    size = 1024
    a = torch.ones(size, size, device=device, dtype=dtype)
    torch.mm(a, a)
    best = float("inf")
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        begin = time.perf_counter()
        torch.mm(a, a)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best


def warn_of_slow_precision(precision: str, device: str) -> None:
    """Warn if products in bfloat16 are slower than in float32.

    Processors without bfloat16 instructions emulate them.
    """
    if precision != "bfloat16":
        return
    half, whole = gemm_rate(device, torch.bfloat16), gemm_rate(device, torch.float32)
    if half < whole:
        warnings.warn(
            f"products in bfloat16 are slower here ({half / 1e9:,.0f} GFLOP/s) than in float32 "
            f"({whole / 1e9:,.0f}): --set precision=float32 trains faster",
            stacklevel=2,
        )


@dataclass(frozen=True)
class Metrics:
    """The state of a run at a step; `probe` is None between probes.

    `rate` is the schedule's factor on the learning rates. `gemm_share` is the rate of
    floating-point operations in matrix products and attention, as a share of the rate of one large
    matrix product on the same device.
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
    probe: ProbeResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """A flat dictionary of plain values, as in a line of metrics.jsonl."""
        values = dataclasses.asdict(self)
        probe = values.pop("probe")
        return values | (probe or {})


Watch: TypeAlias = Callable[[Metrics], None]
"""Called with each `Metrics`."""


def ignore(report: object) -> None:
    """The default callback: does nothing."""


class MetricsFile:
    """metrics.jsonl, with one line per report, and TensorBoard's format if it is installed."""

    def __init__(self, folder: Path, step: int) -> None:
        """Open for a run at a step; removes lines written after a killed run's checkpoint."""
        file = folder / METRICS
        lines = [line for line in read_metrics(folder) if line["step"] <= step]
        write_text(file, "".join(json.dumps(line) + "\n" for line in lines))
        self._file = file.open("a", encoding="utf-8")
        self._board: Any = None
        with suppress(ImportError):  # TensorBoard is optional
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, metrics: Metrics) -> None:
        """Add a line."""
        values = metrics.to_dict()
        # JSON has no NaN, which stands for a missing number (without heads, there are no scores).
        line = {key: None if value != value else value for key, value in values.items()}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, metrics.step)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, with a warning if some cannot be read."""
    file = folder / METRICS
    if not file.exists():
        return []
    # A killed process can leave an incomplete last line, without a newline.
    *lines, _ = read_bytes(file, MAX_METRICS_BYTES).decode("utf-8", "replace").split("\n")
    rows: list[dict[str, Any]] = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            values = json.loads(line)
            if isinstance(values, dict) and type(values.get("step")) is int:
                rows.append(values)
    if len(rows) < len(lines):
        bad = f"{len(lines) - len(rows)} of {len(lines)}"
        warnings.warn(f"{bad} lines of {file} are not metrics and are ignored", stacklevel=2)
    return rows


def null_to_nan(values: dict[str, Any]) -> dict[str, Any]:
    """Values read from JSON, with null replaced by NaN."""
    return {key: float("nan") if value is None else value for key, value in values.items()}
