"""`pathsum scores`: the attention scores of a head as a sum of terms."""

from typing import Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Device,
    Dtype,
    InputText,
    ModelName,
    Revision,
    TokenIds,
    open_model,
)
from pathsum.cli.sequences import read_input
from pathsum.cli.view import show
from pathsum.errors import InputError


def scores(
    model: ModelName,
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
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Decompose a head's attention scores into (query part, key part) terms, exactly."""

    expanded = (
        open_model(model, device, dtype, as_json, revision)
        .trace(read_input(text, tokens))
        .scores(head)
    )
    if cell is None:
        show(expanded.summary(k), as_json)
    else:
        show(expanded.cell(*_pair(cell), k), as_json)


def _pair(cell: str) -> tuple[int, int]:
    try:
        destination, source = (int(number) for number in cell.split(","))
    except ValueError:
        raise InputError(
            f"--cell is {cell!r}; give a destination and a source position, for example 4,2"
        ) from None
    return destination, source
