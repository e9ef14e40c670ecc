"""`pathsum patch`: one message of a run taken from another, everything after recomputed."""

from typing import Annotated, Any

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.view import progress, show


def patch(
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text that the model reads.")],
    other_text: Annotated[
        str,
        typer.Option("--with", metavar="OTHER_TEXT", help="The text of the other run, as long."),
    ],
    edge: Annotated[
        tuple[str, str, str] | None,
        typer.Option(
            metavar="WRITER READER SIDE",
            help="Take one edge from the other run, as L0H0 L1H0 k.",
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(help="Take all that a head, embed or mlp0 writes; may be repeated."),
    ] = None,
    into: Annotated[
        list[str] | None,
        typer.Option(
            help="Without an edge or node: measure edges into this head; may be repeated."
        ),
    ] = None,
    position: Annotated[
        int, typer.Option(help="Where the prediction is made; negative counts from the end.")
    ] = -1,
    token: Annotated[
        str | None, typer.Option(help="The token, as text; by default what TEXT predicts.")
    ] = None,
    versus: Annotated[
        str,
        typer.Option(
            help="What its logit is compared with: `mean` (of the vocabulary), `none` (nothing), "
            "or another token's text."
        ),
    ] = "mean",
    as_json: AsJson = False,
) -> None:
    """What an edge does for a prediction, by patching it; without one, every edge, ranked."""
    from pathsum.errors import InputError
    from pathsum.paths import causal_effects, patch_effect
    from pathsum.sources import load

    loaded = load(model)
    trace, other = loaded.trace(text), loaded.trace(other_text)
    compared = None if versus == "none" else versus
    names: list[Any] = [*([edge] if edge is not None else []), *(node or [])]
    if names:
        if into:
            raise InputError("--into ranks all edges, and an edge or node is named; give one")
        edits = dict.fromkeys(names, other)
        show(patch_effect(trace, edits, position, token, compared), as_json)
        return
    with progress(as_json) as advance:
        found = causal_effects(
            trace, other, position, token, compared, into=into or None, progress=advance
        )
    show(found, as_json)
