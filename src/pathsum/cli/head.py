"""`pathsum head`: one head, or a virtual head, from weights alone."""

from typing import Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Device,
    Dtype,
    ModelName,
    Offset,
    open_model,
)
from pathsum.cli.view import progress, show


def head(
    model: ModelName,
    name: Annotated[
        str,
        typer.Argument(metavar="HEAD", help="A head (L1H4), or a virtual head (L0H7,L1H4)."),
    ],
    token: Annotated[
        str | None,
        typer.Option("--token", help="Show what attends to this token, what it raises and lowers."),
    ] = None,
    offset: Offset = None,
    k: Annotated[
        int | None, typer.Option("--k", "-k", help="How many tokens to show with --token (10).")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Show what a head does: copying, token clusters, offsets; or its effect on one token."""
    from pathsum.circuits import head_card, token_card
    from pathsum.errors import InputError
    from pathsum.model import Path

    circuit = Path("embed", [part.strip() for part in name.replace("→", ",").split(",")])
    loaded = open_model(model, device, dtype, as_json)
    if token is not None:
        show(token_card(loaded, circuit, token, k, offset=offset), as_json)
        return
    if offset is not None:
        raise InputError("--offset applies to the attention of one token; give --token with it")
    with progress(as_json) as advance:
        found = head_card(loaded, circuit, progress=advance)
    show(found, as_json)
