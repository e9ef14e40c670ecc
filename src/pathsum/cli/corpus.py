"""`pathsum corpus`: build a corpus and describe it."""

from typing import Annotated

import typer

from pathsum.cli.options import AsJson
from pathsum.cli.view import progress, show


def corpus(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|PATH",
            help="A named corpus, a file, a folder, or a dataset on the hub (owner/name); "
            "without it the named ones are listed.",
        ),
    ] = None,
    vocab: Annotated[int, typer.Option("--vocab", help="Vocabulary size to train.")] = 1024,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of documents to hold out.")
    ] = 0.05,
    field: Annotated[
        str, typer.Option("--field", help="Field with the text in .jsonl, Parquet and datasets.")
    ] = "text",
    as_json: AsJson = False,
) -> None:
    """Build a corpus, keep it in the cache folder, and describe it."""
    from pathsum.text import Corpus, named_corpora

    if name is None:
        show(named_corpora(), as_json)
        return
    with progress(as_json) as advance:
        built = Corpus.open(
            name, vocabulary=vocab, held_out=held_out, field=field, progress=advance
        )
    show(built.info, as_json)
