"""The view of a training run: a live panel in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pathsum.base.terminal import SafeConsole
from pathsum.cli.view import say

if TYPE_CHECKING:
    from pathsum.training import Metrics

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 40


class View:
    """Receives the reports of a run; this one ignores them."""

    def begin(self, what: str) -> None:
        """One of several runs starts."""

    def report(self, metrics: "Metrics") -> None:
        """A step was reported."""

    def advance(self, done: int, total: int, what: str) -> None:
        """Progress of building the corpus."""


@contextmanager
def watching(quiet: bool) -> Generator[View]:
    """A view of a run on stderr; results go to stdout."""
    stderr = SafeConsole(file=sys.stderr, highlight=False)
    if quiet:
        yield View()
    elif not stderr.is_terminal:
        yield _Lines()
    else:
        with Live(console=stderr, auto_refresh=False) as live:
            yield _Panel(live)


def line(metrics: "Metrics") -> str:
    """A report as one line."""
    parts = [
        f"step {metrics.step}/{metrics.steps}",
        f"loss {metrics.loss:.3f}",
        f"{metrics.tokens_per_second:,.0f} tokens/s",
        f"{duration(metrics.seconds_left)} left",
    ]
    probe = metrics.probe
    if probe is not None:
        parts.append(f"held-out {probe.held_out_loss:.3f}")
        if probe.induction_head:
            parts.append(f"previous token {probe.previous_token:.2f} ({probe.previous_token_head})")
            parts.append(f"induction {probe.induction:.2f} ({probe.induction_head})")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as minutes or hours.

    >>> duration(75.0), duration(7300.0)
    ('1:15', '2:01:40')
    """
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def sparkline(values: list[float], low: float, high: float) -> str:
    """The last numbers as a row of bars.

    >>> sparkline([0.0, 0.5, 1.0], 0.0, 1.0)
    '▁▅█'
    """
    last = len(_BARS) - 1
    span = max(high - low, 1e-9)
    shares = (min(1.0, max(0.0, (value - low) / span)) for value in values[-_WIDE:])
    return "".join(_BARS[round(share * last)] for share in shares)


class _Lines(View):
    """One line per report."""

    def begin(self, what: str) -> None:
        say(what)

    def report(self, metrics: "Metrics") -> None:
        say(line(metrics))


class _Panel(View):
    """The live view: current values with their history."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.begin("")

    def begin(self, what: str) -> None:
        self.what = what
        self.losses: list[float] = []
        self.probed: list[Metrics] = []

    def advance(self, done: int, total: int, what: str) -> None:
        share = f" {done:,} of {total:,}" if total else f" {done:,}" if done else ""
        self.live.update(Text(f"corpus: {what}{share}"), refresh=True)

    def report(self, metrics: "Metrics") -> None:
        self.losses.append(metrics.loss)
        if metrics.probe is not None:
            self.probed.append(metrics)
        self.live.update(self.view(metrics), refresh=True)

    def view(self, metrics: "Metrics") -> RenderableType:
        table = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=metrics.steps, completed=metrics.step, width=_WIDE)
        table.add_row("step", f"{metrics.step:,} of {metrics.steps:,}", bar)
        low, high = min(self.losses), max(self.losses)
        table.add_row("loss", f"{metrics.loss:.3f} nats", sparkline(self.losses, low, high))
        probes = [found.probe for found in self.probed if found.probe is not None]
        if probes:
            now = probes[-1]
            table.add_row("held out", f"{now.held_out_loss:.3f} nats", "")
            if now.induction_head:
                previous = sparkline([probe.previous_token for probe in probes], 0.0, 1.0)
                shown = f"{now.previous_token:.2f} {now.previous_token_head}"
                table.add_row("previous token", shown, previous)
                stripe = sparkline([probe.induction for probe in probes], 0.0, 1.0)
                table.add_row("induction", f"{now.induction:.2f} {now.induction_head}", stripe)
        speed = f"{metrics.tokens_per_second:,.0f} tokens/s"
        table.add_row("speed", speed, f"{metrics.gemm_share:.0%} of the GEMM rate")
        table.add_row("time left", duration(metrics.seconds_left), "Ctrl-C saves and stops")
        return Group(Text(self.what), table)
