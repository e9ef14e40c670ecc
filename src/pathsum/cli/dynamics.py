"""`pathsum dynamics`: how heads form over the snapshots of a training run."""

from typing import Annotated

import typer

from pathsum.base.files import check_output
from pathsum.cli.options import MOST_SEQUENCES, AsJson, Page, Seed
from pathsum.cli.view import progress, show, write_page


def dynamics(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Folder of a run with snapshots, or the name of a bundled run."
        ),
    ],
    sequences: Annotated[
        int,
        typer.Option(
            "--sequences", min=2, max=MOST_SEQUENCES, help="Held-out sequences for the losses."
        ),
    ] = 64,
    probe_sequences: Annotated[
        int,
        typer.Option(
            "--probe-sequences",
            min=2,
            max=MOST_SEQUENCES,
            help="Sequences of repeated random tokens.",
        ),
    ] = 10,
    seed: Seed = 0,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Follow loss, heads and composition over a training run.

    Measured at every snapshot, with the step of the phase change.
    """
    from pathsum.training import dynamics as measure

    if page is not None:
        check_output(page)
    with progress(as_json) as advance:
        found = measure(
            run,
            sequences=sequences,
            probe_sequences=probe_sequences,
            seed=seed,
            progress=advance,
        )
    if page is not None:
        write_page(page, f"dynamics of {found.run}", found.to_html())
    show(found, as_json)
