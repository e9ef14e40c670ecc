"""Inputs and output of commands: texts or token ids; tables or JSON, progress and messages."""

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pathsum.base import is_number
from pathsum.base.errors import InputError
from pathsum.base.sentence import SafeConsole, printable, printable_json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor

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


def show(record: "Record", as_json: bool, printed: "RenderableType | None" = None) -> None:
    """Print a result, or what stands for it in the terminal."""
    if as_json:
        print(printable_json(record.dumps()))
    else:
        console().print(record if printed is None else printed)


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


def read_input(text: str | None, tokens: list[str] | None) -> "str | list[int]":
    """The text argument, or the ids of --tokens."""
    if text is not None:
        return text
    if not tokens:
        raise InputError(
            "give the model something to read: a text, or token ids as in --tokens 3,5,7"
        )
    found = parse_ids(tokens)
    if len(found) != 1:
        raise InputError(f"{len(found)} sequences of --tokens were given; this command reads one")
    return found[0]


def given_sequences(
    model: "Model", text: Path | None, tokens: list[str] | None, count: int | None = None
) -> "Tensor | list[list[int]] | None":
    """The first windows of a text file, or sequences of ids; None if neither is given."""
    if tokens:
        return parse_ids(tokens)
    return None if text is None else text_sequences(model, text, count)


def parse_ids(given: list[str], option: str = "--tokens", least: int = 0) -> list[list[int]]:
    """Sequences of ids from `3,5,7`, one per use of the option."""
    found: list[list[int]] = []
    for each in given:
        parts = each.replace(",", " ").split()
        numbers = [part.removeprefix("-") for part in parts]
        if not parts or not all(map(is_number, numbers)) or min(map(int, parts)) < least:
            example = "3,5,7" if least == 0 else f"{least},{least},7"
            raise InputError(f"{option} {each!r} is not a list of token ids; write {example}")
        found.append([int(part) for part in parts])
    return found


def parse_targets(targets: list[str] | None, tokens: list[str] | None) -> "Tensor | None":
    """The target of each position of the sequences of ids, −1 for none."""
    import torch

    if not targets or not tokens:
        return None
    wanted = parse_ids(targets, "--targets", -1)
    entries, lengths = (list(map(len, each)) for each in (wanted, parse_ids(tokens)))
    if entries != lengths:
        raise InputError(
            f"--targets have {str(entries)[1:-1]} entries and --tokens {str(lengths)[1:-1]}; give "
            "one target per token, -1 where a position need not predict anything"
        )
    if len(set(lengths)) > 1:
        raise InputError(
            f"the sequences of --tokens have {str(lengths)[1:-1]} tokens; with --targets, give "
            "sequences of one length"
        )
    return torch.tensor(wanted)


def text_sequences(model: "Model", file: Path, count: int | None = None) -> "Tensor":
    """The first windows of a text file, or all."""
    from pathsum.base.files import read_text
    from pathsum.model.sequences import text_windows

    return text_windows(model, read_text(file))[:count]


def repeated_sequences(
    model: "Model", length: int | None, repeats: int, count: int, seed: int
) -> "Tensor":
    """Blocks of random tokens that are frequent in training, repeated after the start token."""
    from pathsum.heads.probe import LENGTH
    from pathsum.text.token_pool import random_repeats

    config, ids = model.config, model.token_pool().ids()
    room = config.n_ctx - (config.start_token is not None)
    length = max(1, min(LENGTH, room // repeats, len(ids))) if length is None else length
    return random_repeats(ids, length, repeats, count, seed, config.start_token).tokens
