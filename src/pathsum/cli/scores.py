"""`pathsum scores`: the attention scores of a head as a sum of terms."""

from typing import Annotated

import typer

from pathsum.base.errors import InputError
from pathsum.cli.inputs import read_input
from pathsum.cli.options import InputText, Session, TokenIds, analysis


@analysis
def scores(
    session: Session,
    text: InputText = None,
    *,
    head: Annotated[str, typer.Option("--head", help="The head, for example L1H4.")],
    tokens: TokenIds = None,
    cell: Annotated[
        str | None,
        typer.Option(
            "--cell",
            metavar="D,S",
            help="One cell: destination and source position, for example 4,2 or -1,2; "
            "default: a summary of the whole matrix.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", help="How many terms to list.")] = 10,
) -> None:
    """Explain a head's attention scores as an exact sum.

    Over pairs of a query part and a key part.
    """
    expanded = session.open().trace(read_input(text, tokens)).scores(head)
    if cell is None:
        session.show(expanded.summary(k))
    else:
        session.show(expanded.cell(*_pair(cell), k))


def _pair(cell: str) -> tuple[int, int]:
    try:
        destination, source = (int(number) for number in cell.split(","))
    except ValueError:
        raise InputError(
            f"--cell is {cell!r}; give a destination and a source position, for example 4,2"
        ) from None
    return destination, source
