"""`pathsum head`: one head, or a virtual head, from weights alone; and where it does most."""

from typing import Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Device,
    Dtype,
    ModelName,
    Offset,
    Revision,
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
    places: Annotated[
        bool,
        typer.Option(
            "--places", help="Show the places of the model's held-out text where it does most."
        ),
    ] = False,
    k: Annotated[
        int | None,
        typer.Option("--k", "-k", help="How many tokens to show with --token, or places (10)."),
    ] = None,
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Show what a head does: copying, clusters, offsets; on one token; or where in a text."""
    from pathsum.circuits import head_card, token_card
    from pathsum.errors import InputError
    from pathsum.model import Path

    circuit = Path("embed", [part.strip() for part in name.replace("→", ",").split(",")])
    loaded = open_model(model, device, dtype, as_json, revision)
    if token is not None and places:
        raise InputError("--token is about weights and --places about a text; give one of them")
    if token is not None:
        show(token_card(loaded, circuit, token, k, offset=offset), as_json)
        return
    if places:
        from pathsum.heads.places import K, head_places

        with progress(as_json) as advance:
            strongest = head_places(loaded, name, k=K if k is None else k, progress=advance)
        show(strongest, as_json)
        return
    if offset is not None:
        raise InputError("--offset applies to the attention of one token; give --token with it")
    with progress(as_json) as advance:
        found = head_card(loaded, circuit, progress=advance)
    show(found, as_json)
