"""The `pathsum` command: the list of commands, errors and exit codes."""

import gc
import io
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from pathsum._version import __version__
from pathsum.base.errors import FileError, PathsumError, first_line
from pathsum.base.sentence import MAX_MESSAGE_LENGTH, SafeConsole, printable, shorten
from pathsum.cli import interventions, pages, paper, prediction, start, training
from pathsum.cli.options import in_terms_of_options
from pathsum.cli.view import INTERRUPTED

_LISTED = {
    "Start": (start, "demo models"),
    "The paper": (
        paper,
        "bigram head neurons trigrams composition bandwidth terms atlas induction paper",
    ),
    "A prediction": (prediction, "why paths attention scores lens"),
    "Interventions": (interventions, "patch replace curve rules"),
    "Training": (training, "corpus train dynamics"),
    "Explore and export": (pages, "explore report mcp decompile"),
}
GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    title: tuple(getattr(module, f"{name}_command") for name in names.split())
    for title, (module, names) in _LISTED.items()
}
"""The commands, grouped by the question they answer, in the order of `--help`."""


class GroupedCommands(TyperGroup):
    """A list of commands with one section per group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of `--help`."""
        for title, functions in GROUPS.items():
            names = [function.__name__ for function in functions]
            commands: list[Any] = [self.get_command(ctx, name) for name in names]
            with formatter.section(title):
                formatter.write_dl([(each.name, each.get_short_help_str(80)) for each in commands])


app = typer.Typer(
    name="pathsum",
    help="Reverse-engineer transformers by expanding them into sums over paths.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=GroupedCommands,
)

for group in GROUPS.values():
    for function in group:
        app.command()(function)


def _print_version(requested: bool) -> bool:
    if requested:
        print(f"pathsum {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def pathsum(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Reverse-engineer transformers by expanding them into sums over paths."""


def main(arguments: list[str]) -> int:
    """Run one command line and return its exit code: 0, 2 for bad input, 1 for failure.

    `--debug`, anywhere before `--`, shows tracebacks. Otherwise, an expected error prints one line,
    and an unexpected error prints one line with the path of a log.
    """
    arguments, debug = _take_debug(arguments)
    warnings.showwarning = _show_warning
    try:
        _check_working_folder()
        code = app(arguments, prog_name="pathsum", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BaseException as error:  # a panic of compiled code is not an Exception
        if debug and not hasattr(error, "format_message"):
            raise
        return _report(error, arguments)


def _check_working_folder() -> None:
    """Raise FileError if the working folder is gone: libraries loaded later would abort."""
    try:
        Path.cwd()
    except OSError as error:
        raise FileError(
            f"the working folder cannot be read ({error.strerror}): it may have been removed; "
            "change to another folder"
        ) from error


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without `--debug`, which may precede or follow the command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [each for each in arguments[:end] if each != "--debug"]
    return options + arguments[end:], len(options) < end


def _report(error: BaseException, arguments: list[str]) -> int:
    """Print the error on one line; returns the exit code."""
    if hasattr(error, "format_message"):
        return _usage(error)
    if isinstance(error, PathsumError):
        _say(f"error: {in_terms_of_options(str(error), arguments[0] if arguments else '')}")
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return 1  # the reader of a pipe, such as head, closed it
    if isinstance(error, OverflowError):
        _say(f"error: a number is out of range ({error}); use a smaller number")
        return 2
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        _say("error: not enough memory; shorten the text, or use a smaller model")
        return 1
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        _say(f"error: {where}{error.strerror or error}")
        return 1
    log = _write_log(error, arguments)
    _say(
        f"unexpected error ({type(error).__name__}: {shorten(first_line(error), 150)}); please "
        f"report it with {log or 'the traceback that --debug shows'}"
    )
    return 1


def _usage(error: Any) -> int:
    """Print an error of the command line's parser with the usage of the command."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return error.exit_code
    if context is not None:
        _say(context.get_usage(), longest=None)
        _say(f"Try '{context.command_path} --help' for help.\n", longest=None)
    _say(f"Error: {error.format_message()}")
    return error.exit_code


def _say(text: str, longest: int | None = MAX_MESSAGE_LENGTH) -> None:
    line = text if longest is None else shorten(printable(text), longest)
    style = "red" if text.lower().startswith(("error", "unexpected")) else ""
    with suppress(OSError):  # stderr may be closed or full
        SafeConsole(file=sys.stderr, highlight=False).print(Text(line, style), soft_wrap=True)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(f"warning: {message}")


def _write_log(error: BaseException, arguments: list[str]) -> Path | None:
    """The traceback in a file of the cache folder, or of the temporary folder; its path."""
    folders = [Path(tempfile.gettempdir())]
    with suppress(ImportError, PathsumError):  # torch cannot be imported, or there is no home
        from pathsum.base.files import cache_folder

        folders.insert(0, cache_folder() / "logs")
    text = f"pathsum {__version__}, Python {sys.version}\n{arguments!r}\n\n"
    text += "".join(traceback.format_exception(error))
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"pathsum-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
            return file
    return None


def run_command() -> None:
    """The entry point of the installed command."""
    # Python has no stream for a closed descriptor; output to it is discarded.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that a terminal cannot show are escaped instead of raising an error.
            stream.reconfigure(errors="backslashreplace")
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # Reported by main; Python would flush again at exit and print another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = code or 1
    # The process frees all memory at exit; collecting garbage first takes half a second.
    gc.freeze()
    sys.exit(code)
