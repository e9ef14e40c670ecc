"""`pathsum paths`: one prediction as a sum over paths."""

from typing import Annotated

import typer

from pathsum.cli.inputs import read_input
from pathsum.cli.options import (
    InputText,
    Position,
    Session,
    TargetToken,
    TokenIds,
    Versus,
    analysis,
    parse_versus,
)


@analysis
def paths(
    session: Session,
    text: InputText = None,
    tokens: TokenIds = None,
    position: Position = -1,
    token: TargetToken = None,
    versus: Versus = "mean",
    k: Annotated[int, typer.Option("--k", "-k", help="How many paths to list.")] = 10,
    budget: Annotated[
        int,
        typer.Option("--budget", help="Paths to search before stopping without a proof."),
    ] = 50_000,
) -> None:
    """Explain a prediction as an exact sum over paths.

    By order, head, edge and source token, and the strongest single paths.
    """
    from pathsum.paths.explanation import explain_prediction

    loaded = session.open()
    compared = parse_versus(versus)
    with session.progress() as advance:
        found = explain_prediction(
            loaded.trace(read_input(text, tokens)), position, token, compared, k, budget, advance
        )
    session.show(found)
