"""`pathsum trigrams`: the strongest skip-trigrams of a model."""

from typing import Annotated

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.view import progress, show


def trigrams(
    model: ModelName,
    head: Annotated[
        str | None, typer.Option("--head", help="One head, as in L0H3; all heads if left out.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", help="The paper's table for one source token."),
    ] = None,
    k: Annotated[
        int | None, typer.Option("-k", help="How many (50), or tokens a list with --source (5).")
    ] = None,
    rare: Annotated[
        int, typer.Option("--rare", help="Hide tokens that training saw fewer times than this.")
    ] = 100,
    offset: Annotated[
        int | None,
        typer.Option("--offset", help="Rotary models: QK at this offset, not averaged over all."),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", help="Check them in a text: a corpus name, a file or a folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the strongest [source] … [destination] → [out], their patterns and their bugs."""
    from pathsum.circuits import open_text, skip_trigrams, source_table
    from pathsum.result import Record
    from pathsum.sources import load

    loaded = load(model)
    found: Record
    with progress(as_json) as told:
        if source is not None:
            found = source_table(loaded, source, head, k, rare=rare, offset=offset, progress=told)
        else:
            text = None if corpus is None else open_text(loaded, corpus, progress=told)
            found = skip_trigrams(
                *(loaded, head, k), corpus=text, rare=rare, offset=offset, progress=told
            )
    show(found, as_json)
