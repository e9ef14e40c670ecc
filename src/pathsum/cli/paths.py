"""`pathsum paths`: which paths made a prediction."""

from typing import Annotated

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.view import progress, show


def paths(
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text that the model reads.")],
    position: Annotated[
        int, typer.Option(help="Where the prediction is made; negative counts from the end.")
    ] = -1,
    token: Annotated[
        str | None,
        typer.Option(help="The predicted token, as text; by default what the model predicts."),
    ] = None,
    versus: Annotated[
        str,
        typer.Option(
            help="What its logit is compared with: `mean` (of the vocabulary), `none` (nothing), "
            "or another token's text."
        ),
    ] = "mean",
    top: Annotated[int, typer.Option(help="How many single paths to list.")] = 10,
    budget: Annotated[
        int, typer.Option(help="How many paths to look at before giving up the proof.")
    ] = 50_000,
    as_json: AsJson = False,
) -> None:
    """Explain a prediction: the exact sum over paths, by order, head, edge and source token."""
    from pathsum.paths.explain.answer import answer
    from pathsum.sources import load

    loaded = load(model)
    with progress(as_json) as advance:
        found = answer(
            loaded.trace(text),
            position,
            token,
            None if versus == "none" else versus,
            top,
            budget,
            advance,
        )
    show(found, as_json)
