"""`pathsum trigrams`: the strongest skip-trigrams of a model."""

from typing import Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Corpus,
    Device,
    Dtype,
    ModelName,
    Offset,
    Revision,
    open_model,
)
from pathsum.cli.view import progress, show


def trigrams(
    model: ModelName,
    head: Annotated[
        str | None, typer.Option("--head", help="One head, for example L0H3; default: all heads.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", help="Show the paper's table for this source token."),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("--k", "-k", help="How many (50), or tokens per list with --source (5)."),
    ] = None,
    rare: Annotated[
        int, typer.Option("--rare", help="Hide tokens seen fewer times than this in training.")
    ] = 100,
    rank: Annotated[
        str | None,
        typer.Option(
            "--rank",
            help="text (what they are worth on it) or weights; default: text if there is some.",
        ),
    ] = None,
    offset: Offset = None,
    corpus: Corpus = None,
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """List the strongest skip-trigrams [source] … [destination] → [out], and their bugs."""
    from pathsum.circuits import open_text, skip_trigrams, source_table
    from pathsum.result import Record

    loaded = open_model(model, device, dtype, as_json, revision)
    found: Record
    with progress(as_json) as advance:
        if source is not None:
            found = source_table(
                *(loaded, source, head, k), rare=rare, offset=offset, progress=advance
            )
        else:
            text = None if corpus is None else open_text(loaded, corpus, progress=advance)
            found = skip_trigrams(
                *(loaded, head, k),
                corpus=text,
                rank=rank,
                rare=rare,
                offset=offset,
                progress=advance,
            )
    show(found, as_json)
