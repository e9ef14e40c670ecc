"""The `pathsum` command: the list of commands, errors and exit codes."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from pathsum._version import __version__
from pathsum.cli.atlas import atlas
from pathsum.cli.bandwidth import bandwidth
from pathsum.cli.bigram import bigram
from pathsum.cli.composition import composition
from pathsum.cli.corpus import corpus
from pathsum.cli.demo import demo
from pathsum.cli.dynamics import dynamics
from pathsum.cli.explore import explore
from pathsum.cli.head import head
from pathsum.cli.induction import induction
from pathsum.cli.models import models
from pathsum.cli.patch import patch
from pathsum.cli.paths import paths
from pathsum.cli.precision import precision
from pathsum.cli.replace import replace
from pathsum.cli.report import report
from pathsum.cli.scores import scores
from pathsum.cli.terms import terms
from pathsum.cli.train import train
from pathsum.cli.trigrams import trigrams
from pathsum.cli.why import why
from pathsum.errors import PathsumError

app = typer.Typer(
    name="pathsum",
    help="A transformer is a sum over paths: write the sum down, and see which paths matter.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (
    demo,
    models,
    corpus,
    train,
    bigram,
    head,
    trigrams,
    composition,
    bandwidth,
    paths,
    scores,
    why,
    terms,
    precision,
    replace,
    patch,
    atlas,
    induction,
    dynamics,
    report,
    explore,
):
    app.command()(command)


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
    """A transformer is a sum over paths: write the sum down, and see which paths matter."""


def main(arguments: list[str]) -> int:
    """Run one command line and return its exit code: 0, 2 for bad input, 1 for failure."""
    try:
        app(arguments, prog_name="pathsum")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0
    except PathsumError as error:
        if "--debug" in arguments:
            raise
        text = Text(f"error: {error}", style="red")
        Console(file=sys.stderr, highlight=False).print(text, soft_wrap=True)
        return error.exit_code
    return 0


def run() -> None:
    """The entry point of the installed command."""
    sys.exit(main(sys.argv[1:]))
