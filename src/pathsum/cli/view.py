"""Output of commands: tables or JSON, progress and messages."""

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pathsum.base.sentence import SafeConsole, printable, printable_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pathsum.base import Progress, Record

# Width of tables in a file or a pipe.
PIPE_WIDTH = 120

# What a shell reports for a command that Ctrl-C ended.
INTERRUPTED = 130


def console() -> SafeConsole:
    """The console for results, made at each use so that tests can capture stdout."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return SafeConsole(file=sys.stdout, highlight=False, width=None if has_width else PIPE_WIDTH)


def show(record: "Record", as_json: bool, printed: "RenderableType | None" = None) -> None:
    """Print a result as JSON or as a table, or `printed` instead of the table."""
    if as_json:
        print(printable_json(record.dumps()))
    else:
        console().print(record if printed is None else printed)


@contextmanager
def progress(as_json: bool = False, at_once: bool = True) -> "Generator[Progress]":
    """A progress bar on stderr if that is a terminal; otherwise a callback that does nothing.

    With `at_once=False`, it appears at the first call, so that it does not disturb the progress bar
    of huggingface_hub.
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
    with ExitStack() as stack:
        if at_once:
            stack.enter_context(bar)

        def advance(done: int, total: int, what: str) -> None:
            if not bar.live.is_started:
                stack.enter_context(bar)
            bar.update(task, completed=done, total=total, description=what)

        yield advance


def say(text: str) -> None:
    """Print a line on stderr."""
    print(printable(text), file=sys.stderr, flush=True)
