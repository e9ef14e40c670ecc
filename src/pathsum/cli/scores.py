"""`pathsum scores`: what a head's attention scores are made of."""

from typing import Annotated

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.view import show
from pathsum.errors import InputError


def scores(
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text that the model reads.")],
    head: Annotated[str, typer.Option(help="The head, as in L1H4.")],
    cell: Annotated[
        str | None,
        typer.Option(
            metavar="D,S",
            help="One cell: destination and source position, as in 4,2 or -1,2; "
            "without it, the whole matrix is summarized.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="How many terms to list.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Take a head's attention scores apart into (query part, key part) terms, exactly."""
    from pathsum.sources import load

    expanded = load(model).trace(text).scores(head)
    if cell is None:
        show(expanded.summary(top), as_json)
    else:
        show(expanded.cell(*_pair(cell), top), as_json)


def _pair(cell: str) -> tuple[int, int]:
    try:
        destination, source = (int(number) for number in cell.split(","))
    except ValueError:
        raise InputError(
            f"--cell {cell!r} is not a destination and a source; two positions, as in 4,2, "
            "would be right"
        ) from None
    return destination, source
