"""Training: `corpus` builds a corpus, `train` trains on it, `dynamics` follows a run.

Training reports to a live panel in a terminal and as plain lines elsewhere (`watching`).
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pathsum.base.errors import InputError
from pathsum.base.sentence import SafeConsole, printable, sparkline
from pathsum.cli.inputs import is_first, write_figure
from pathsum.cli.options import OptionGroup, command
from pathsum.cli.view import INTERRUPTED, progress, say, show

if TYPE_CHECKING:
    from pathsum.training import Metrics
    from pathsum.training.metrics import ProbeResult


_WIDE = 40


@contextmanager
def watching(quiet: bool) -> "Generator[_Lines | _Panel]":
    """The view of a training run, on stderr because results go to stdout."""
    stderr = SafeConsole(file=sys.stderr, highlight=False)
    if quiet or not stderr.is_terminal:
        yield _Lines(quiet)
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


class _Lines:
    """One line per report; none if `quiet`."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def begin(self, title: str) -> None:
        if not self.quiet:
            say(title)

    def report(self, metrics: "Metrics") -> None:
        if not self.quiet:
            say(line(metrics))

    def advance(self, done: int, total: int, what: str) -> None:
        """The corpus is built without lines."""


class _Panel:
    """A live table of current values with their history."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.begin("")

    def begin(self, title: str) -> None:
        self.title = title
        self.losses: list[float] = []
        self.probes: list[ProbeResult] = []

    def advance(self, done: int, total: int, what: str) -> None:
        count = f" {done:,} of {total:,}" if total else f" {done:,}" if done else ""
        self.live.update(Text(f"corpus: {what}{count}"), refresh=True)

    def report(self, metrics: "Metrics") -> None:
        self.losses.append(metrics.loss)
        if metrics.probe is not None:
            self.probes.append(metrics.probe)
        self.live.update(self.view(metrics), refresh=True)

    def view(self, metrics: "Metrics") -> RenderableType:
        table = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=metrics.steps, completed=metrics.step, width=_WIDE)
        table.add_row("step", f"{metrics.step:,} of {metrics.steps:,}", bar)
        losses = sparkline(self.losses[-_WIDE:], min(self.losses), max(self.losses))
        table.add_row("loss", f"{metrics.loss:.3f} nats", losses)
        probes = self.probes[-_WIDE:]
        if probes:
            table.add_row("held out", f"{probes[-1].held_out_loss:.3f} nats", "")
        if probes and probes[-1].induction_head:
            for name in ("previous_token", "induction"):
                values = [getattr(each, name) for each in probes]
                last = f"{values[-1]:.2f} {getattr(probes[-1], f'{name}_head')}"
                table.add_row(name.replace("_", " "), last, sparkline(values, 0.0, 1.0))
        speed = f"{metrics.tokens_per_second:,.0f} tokens/s"
        table.add_row("speed", speed, f"{metrics.gemm_share:.0%} of the GEMM rate")
        table.add_row("time left", duration(metrics.seconds_left), "Ctrl-C saves and stops")
        return Group(Text(self.title), table)


@command()
def corpus_command(
    name: str | None = None,
    *,
    vocab: int = 1024,
    held_out: float = 0.05,
    field: str = "text",
    json: bool = False,
) -> None:
    """Build a corpus, store it in the cache folder, and describe it.

    Options:
        NAME NAME|PATH: A named corpus, a file, a folder, or a dataset on the hub (owner/name);
            without it, the named corpora are listed.
        --vocab: Vocabulary size to train.
        --held-out: Share of documents to hold out.
        --field: Field with the text in .jsonl, Parquet and datasets.
    """
    from pathsum.text import Corpus, named_corpora

    if name is None:
        show(named_corpora(), json)
        return
    with progress(json) as advance:
        built = Corpus.open(
            name, vocabulary=vocab, held_out=held_out, field=field, progress=advance
        )
    show(built.info, json)


@dataclass(frozen=True, kw_only=True)
class RecipeChanges(OptionGroup):
    """Settings of a recipe that a command changes.

    Options:
        --seed: Seed of the weights and batches.
        --steps: Number of steps.
        --batch: Sequences per step.
        --layers: Number of layers.
        --corpus: Training text: a corpus name, a file or a folder.
        --vocab: Vocabulary size.
        --set NAME=VALUE: Change any setting, for example optimizer.clip=1.0.
    """

    seed: int | None = None
    steps: int | None = None
    batch: int | None = None
    layers: int | None = None
    corpus: str | None = None
    vocab: int | None = None
    set_: list[str] | None = None

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `recipe`."""
        values = {"seed": self.seed, "steps": self.steps, "batch": self.batch}
        values |= {"model__n_layers": self.layers, "data__vocabulary": self.vocab}
        values |= {"data__corpus": self.corpus}
        changes = {name: value for name, value in values.items() if value is not None}
        return changes | dict(map(_setting, self.set_ or []))


@command()
def train_command(
    what: str,
    *,
    quick: bool = False,
    preset: str = "bundled",
    out: Path | None = None,
    resume: bool = False,
    seeds: int | None = None,
    changes: RecipeChanges,
    show_: bool = False,
    json: bool = False,
) -> None:
    """Train a model. Ctrl-C saves it and prints how to resume.

    Several processes: torchrun --nproc-per-node 2 -m pathsum train two-layer --preset paper

    Options:
        WHAT NAME|FILE.toml|RUN: zero-layer, one-layer or two-layer; a recipe file; a run to resume.
        --quick: Short for --preset quick.
        --preset: quick, bundled or paper (GPUs).
        --out: Folder of the run; default: runs/NAME.
        --resume: Continue from the last checkpoint of the run.
        --seeds: Train this many seeds in OUT/seed-0 … and compare them; resumes unfinished ones.
        --show: Print the recipe as TOML and exit.
    """
    # Threads that spin while waiting slow each other down on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from pathsum.training import recipe, to_toml, train, train_seeds

    preset = "quick" if quick else preset
    options = changes.options()
    if show_:
        print(printable(to_toml(recipe(what, preset, **options))), end="")
        return
    try:
        with watching(json or not is_first()) as view:
            options |= {"out": out, "watch": view.report, "progress": view.advance}
            if seeds is None:
                result: Any = train(what, preset, resume=resume, **options)
            else:
                result = train_seeds(what, preset, seeds=seeds, begin=view.begin, **options)
    except KeyboardInterrupt as interrupt:
        others = "" if seeds is None else "; to train the other seeds, repeat the same command"
        if is_first():
            say((str(interrupt) or "stopped before the first step") + others)
        raise typer.Exit(INTERRUPTED) from None
    if is_first():
        show(result, json)


def _setting(text: str) -> tuple[str, Any]:
    """A --set option as a keyword of `recipe`; its value is TOML or, failing that, text."""
    import tomllib

    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text!r} has no '='; give NAME=VALUE")
    name = name.replace(".", "__")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


@command()
def dynamics_command(
    run: str,
    *,
    sequences: int = 64,
    probe_sequences: int = 10,
    seed: int = 0,
    json: bool = False,
    figure: Path | None = None,
) -> None:
    """Follow loss, heads and composition over a training run.

    All of them are measured at every snapshot, and the step of the phase change is estimated.

    Options:
        RUN: Folder of a run with snapshots, or the name of a bundled run.
        --sequences: Held-out sequences for the losses.
        --probe-sequences: Sequences of repeated random tokens.
    """
    from pathsum.training import dynamics

    options: dict[str, Any] = {"probe_sequences": probe_sequences, "seed": seed}
    with progress(json) as advance:
        result = dynamics(run, sequences=sequences, **options, progress=advance)
    show(result, json)
    write_figure(result, figure)
