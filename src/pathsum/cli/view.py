"""Output of commands: tables or JSON on stdout, progress and messages on stderr."""

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pathsum.base.terminal import SafeConsole, printable, printable_json

if TYPE_CHECKING:
    from pathsum.base import Progress, Record
    from pathsum.model import Model

# Width of tables in a file or a pipe.
PIPE_WIDTH = 120

# What a shell reports for a command that Ctrl-C ended.
INTERRUPTED = 130

# Models below this many parameters run on one thread.
SMALL_MODEL = 20_000_000


def console() -> SafeConsole:
    """The console for results, made at each use so that tests can capture stdout."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return SafeConsole(file=sys.stdout, highlight=False, width=None if known else PIPE_WIDTH)


def show(record: "Record", as_json: bool) -> None:
    """Print a result."""
    if as_json:
        print(printable_json(record.dumps()))
    else:
        console().print(record)


@contextmanager
def progress(as_json: bool = False, at_once: bool = True) -> "Generator[Progress]":
    """A progress bar on stderr if that is a terminal; otherwise a callback that does nothing.

    With `at_once=False` it appears at the first call, so that it does not disturb the bar that
    huggingface_hub draws.
    """
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar_console = SafeConsole(file=sys.stderr)
    if as_json or not bar_console.is_terminal:
        from pathsum.base import silent

        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    bar = Bar(*columns, console=bar_console, transient=True)
    task = bar.add_task("", total=None)
    with ExitStack() as shown:
        if at_once:
            shown.enter_context(bar)

        def advance(done: int, total: int, what: str) -> None:
            if not bar.live.is_started:
                shown.enter_context(bar)
            bar.update(task, completed=done, total=total, description=what)

        yield advance


def say(text: str) -> None:
    """Print a line on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def use_one_thread_if_small(model: "Model") -> None:
    """Run torch on one thread for a small model.

    Questions about a small model are thousands of tiny products. Threads that synchronize at each
    of them make a page several times slower on a busy machine.
    """
    import torch

    if model.weights.n_parameters < SMALL_MODEL:
        torch.set_num_threads(1)
