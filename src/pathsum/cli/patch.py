"""`pathsum patch`: take an edge or a node from another run and recompute everything after it."""

from typing import Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Device,
    Dtype,
    InputText,
    ModelName,
    Position,
    TargetToken,
    TokenIds,
    Versus,
    open_model,
    parse_versus,
)
from pathsum.cli.sequences import parse_ids, read_input
from pathsum.cli.view import progress, show


def patch(
    model: ModelName,
    text: InputText = None,
    *,
    other_text: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="OTHER_TEXT",
            help="Text of the other run, or its ids with --tokens; same length.",
        ),
    ],
    tokens: TokenIds = None,
    edge: Annotated[
        list[str] | None,
        typer.Option(help="Patch this edge, for example 'L0H0->L1H0.k'; may be repeated."),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(help="Patch all that a head, embed or mlp0 writes; may be repeated."),
    ] = None,
    into: Annotated[
        list[str] | None,
        typer.Option(help="Without --edge and --node: only edges into this head; may be repeated."),
    ] = None,
    position: Position = -1,
    token: TargetToken = None,
    versus: Versus = "mean",
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Measure what an edge does for a prediction by patching it; without one, rank all edges."""
    from pathsum.errors import InputError
    from pathsum.paths import causal_effects, patch_effect

    loaded = open_model(model, device, dtype, as_json)
    trace = loaded.trace(read_input(text, tokens))
    other = loaded.trace(other_text if tokens is None else parse_ids([other_text])[0])
    names = [*(edge or []), *(node or [])]
    if names and into:
        raise InputError("--into ranks edges, and --edge and --node patch named ones; give one")
    if names:
        edits = dict.fromkeys(names, other)
        found = patch_effect(trace, edits, position, token, parse_versus(versus))
        show(found, as_json)
        return
    with progress(as_json) as advance:
        ranked = causal_effects(
            *(trace, other, position, token, parse_versus(versus)),
            into=into or None,
            progress=advance,
        )
    show(ranked, as_json)
