"""How a command shows a result: tables for people on stdout, JSON for machines, progress aside."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pathsum.result import Progress, Record


def console() -> Console:
    """The terminal that results go to. Made when asked, so that tests can catch what it prints."""
    return Console(file=sys.stdout, highlight=False)


def show(record: "Record", as_json: bool) -> None:
    """Print a result."""
    if as_json:
        print(record.dumps())
    else:
        console().print(record)


@contextmanager
def progress(as_json: bool = False) -> "Generator[Progress]":
    """A bar on stderr while work goes on, if a person is watching; otherwise silence."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar_console = Console(file=sys.stderr)
    if as_json or not bar_console.is_terminal:
        from pathsum.result import silent

        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bar(*columns, console=bar_console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def advance(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield advance
