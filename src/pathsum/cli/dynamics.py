"""`pathsum dynamics`: how heads formed over the snapshots of a training run."""

from pathlib import Path
from typing import Annotated

import typer

from pathsum.cli.options import AsJson
from pathsum.cli.page import write_page
from pathsum.cli.view import progress, show


def dynamics(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The folder of a run with snapshots, or a run's name in pathsum."
        ),
    ],
    sequences: Annotated[
        int, typer.Option("--sequences", min=2, help="Held-out sequences for the losses.")
    ] = 64,
    probe_sequences: Annotated[int, typer.Option(min=2, help="Number of probe sequences.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random draws.")] = 0,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write plots and table to this page too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at every snapshot of a run: loss, heads, composition; and find the phase change."""
    from pathsum.training import dynamics as look

    with progress(as_json) as advance:
        found = look(
            run, sequences=sequences, probe_sequences=probe_sequences, seed=seed, progress=advance
        )
    if html is not None:
        write_page(html, f"dynamics of {found.run}", found.to_html())
    show(found, as_json)
