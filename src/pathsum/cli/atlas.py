"""`pathsum atlas`: every head of a model, every score, and a kind where the evidence agrees."""

from pathlib import Path
from typing import Annotated

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.page import write_page
from pathsum.cli.view import progress, show


def atlas(
    model: ModelName,
    head: Annotated[
        str | None, typer.Option("--head", help="Show one head, all its scores and its evidence.")
    ] = None,
    sequences: Annotated[int, typer.Option(min=2, help="Number of probe sequences.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random draws.")] = 0,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the heat map of all scores to this page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score every head against chance and name its kind, where data and weights agree."""
    from pathsum.heads import atlas as make_atlas
    from pathsum.sources import load

    loaded = load(model)
    if head is not None:
        loaded.head(head)  # a head that is not there is said before the work, not after it
    with progress(as_json) as advance:
        found = make_atlas(loaded, sequences=sequences, seed=seed, progress=advance)
    if html is not None:
        write_page(html, f"heads of {found.model}", found.to_html())
    show(found if head is None else found[head], as_json)
