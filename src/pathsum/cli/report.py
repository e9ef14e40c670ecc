"""`pathsum report`: the explorer of a model as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from pathsum.cli.options import AsJson, ModelName, OtherModels
from pathsum.cli.view import progress, show, use_one_thread_if_small
from pathsum.files import check_output


def report(
    model: ModelName,
    others: OtherModels = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; default: MODEL.html.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the explorer of a model to one HTML file that opens from disk, without a server."""
    from pathsum.explorer.open_models import open_model
    from pathsum.explorer.report import report as write

    target = check_output(out or Path(f"{Path(model).name}.html"))
    use_one_thread_if_small(open_model(model).model)
    with progress(as_json) as advance:
        written = write(model, target, others=others or [], progress=advance)
    show(written, as_json)
