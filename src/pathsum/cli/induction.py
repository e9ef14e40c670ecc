"""`pathsum induction`: induction heads, their partners and mechanism, tested."""

from typing import Annotated

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.view import console, progress, show


def induction(
    model: ModelName,
    sequences: Annotated[int, typer.Option(min=2, help="Number of probe sequences.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random draws.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Find induction heads and test how they work: edges cut, ideal patterns put in place."""
    from pathsum.heads import induction as find_induction
    from pathsum.sources import load

    with progress(as_json) as advance:
        found = find_induction(load(model), sequences=sequences, seed=seed, progress=advance)
    show(found, as_json)
    if not as_json:
        for head in found.heads:
            console().print()
            console().print(head)
