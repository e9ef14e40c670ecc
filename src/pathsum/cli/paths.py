"""`pathsum paths`: one prediction as a sum over paths."""

from typing import Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Device,
    Dtype,
    InputText,
    ModelName,
    Position,
    Revision,
    TargetToken,
    TokenIds,
    Versus,
    open_model,
    parse_versus,
)
from pathsum.cli.sequences import read_input
from pathsum.cli.view import progress, show


def paths(
    model: ModelName,
    text: InputText = None,
    tokens: TokenIds = None,
    position: Position = -1,
    token: TargetToken = None,
    versus: Versus = "mean",
    k: Annotated[int, typer.Option("--k", "-k", help="How many paths to list.")] = 10,
    budget: Annotated[
        int,
        typer.Option("--budget", help="How many paths to search before giving up the proof."),
    ] = 50_000,
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Explain a prediction: the exact sum over paths, by order, head, edge and source token."""
    from pathsum.paths.explain.answer import answer

    loaded = open_model(model, device, dtype, as_json, revision)
    compared = parse_versus(versus)
    with progress(as_json) as advance:
        found = answer(
            loaded.trace(read_input(text, tokens)), position, token, compared, k, budget, advance
        )
    show(found, as_json)
