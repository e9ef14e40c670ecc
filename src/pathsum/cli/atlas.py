"""`pathsum atlas`: every score of every head against chance, and the kinds of heads."""

from typing import Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Device,
    Draws,
    Dtype,
    ModelName,
    Page,
    ProbeSequences,
    Seed,
    open_model,
)
from pathsum.cli.view import progress, show, write_page


def atlas(
    model: ModelName,
    head: Annotated[
        str | None, typer.Option("--head", help="Show all scores and the evidence of one head.")
    ] = None,
    sequences: ProbeSequences = 10,
    draws: Draws = 200,
    seed: Seed = 0,
    page: Page = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Score every head against chance and name its kind where data and weights agree."""
    from pathsum.heads import atlas as make_atlas
    from pathsum.model.processes import join_world

    loaded = open_model(model, device, dtype, as_json)
    if head is not None:
        loaded.head(head)  # an unknown head is an error before the work, not after it
    with join_world() as world:
        with progress(as_json or not world.is_first) as advance:
            found = make_atlas(
                loaded, sequences=sequences, draws=draws, seed=seed, progress=advance
            )
        if world.is_first:
            if page is not None:
                write_page(page, f"heads of {found.model}", found.to_html())
            show(found if head is None else found[head], as_json)
