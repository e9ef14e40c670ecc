"""`pathsum report`: the explorer of a model as one file."""

from pathlib import Path
from typing import Annotated

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.threads import one_thread_if_small
from pathsum.cli.view import progress, show


def report(
    model: ModelName,
    others: Annotated[
        list[str] | None,
        typer.Argument(metavar="OTHER", help="More models, to compare with."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; by default MODEL.html.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the explorer of a model to one HTML file that opens from disk, without a server."""
    from pathsum.explorer.open_models import serve
    from pathsum.explorer.report import report as write

    one_thread_if_small(serve(model))
    target = out or Path(f"{Path(model).name}.html")
    with progress(as_json) as advance:
        written = write(model, target, others=others or [], progress=advance)
    show(written, as_json)
