"""`pathsum report`: the explorer of a model as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from pathsum.base.errors import FileError
from pathsum.base.files import check_output, parse_json, read_text
from pathsum.cli.options import AsJson, ModelName, OtherModels, fetch_models
from pathsum.cli.view import progress, show, use_one_thread_if_small


def report(
    model: ModelName,
    others: OtherModels = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; default: MODEL.html.")
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            "--texts",
            help="Your own texts instead of the examples: a file with one text per line, or a "
            "JSON list of texts and lists of token ids.",
        ),
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(
            "--views",
            help="The views to include, for example text,why; default: every view with content.",
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            "--position", help="Explain only the prediction at this position of each text."
        ),
    ] = None,
    fragment: Annotated[
        bool,
        typer.Option(
            "--fragment",
            help="Write a single view as HTML (at most 300 kB) to embed in your own page.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the explorer to one HTML file that opens from disk.

    It holds its data and needs no server.
    """
    target = check_output(out or Path(f"{Path(model).name}.html"))
    given = [] if texts is None else read_texts(texts)
    names = None if views is None else [view.strip() for view in views.split(",") if view.strip()]
    from pathsum.explorer.report import report as write
    from pathsum.explorer.session import open_model

    fetch_models([model, *(others or [])], as_json)
    use_one_thread_if_small(open_model(model).model)
    with progress(as_json) as advance:
        written = write(
            model,
            target,
            others=others or [],
            texts=given,
            views=names,
            position=position,
            fragment=fragment,
            progress=advance,
        )
    show(written, as_json)


def read_texts(file: Path) -> list[str | list[int]]:
    """The texts of a file: one per line, or a JSON list of texts and lists of token ids."""
    text = read_text(file)
    if not text.lstrip().startswith("["):
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            raise FileError(f"{file} holds no text; write one per line, or a JSON list")
        return [*lines]
    advice = "write one text per line, or a JSON list of texts and lists of token ids"
    found = parse_json(text, file, advice)
    for number, one in enumerate(found, start=1):
        is_ids = isinstance(one, list) and all(type(token) is int for token in one)
        if not (isinstance(one, str) or is_ids):
            raise FileError(f"entry {number} of {file} is {str(one)[:60]!r}; {advice}")
    if not found:
        raise FileError(f"{file} holds no text; {advice}")
    return found
