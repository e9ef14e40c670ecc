"""`pathsum trigrams`: the strongest skip-trigrams of a model."""

from typing import Annotated

import typer

from pathsum.cli.options import Corpus, Offset, Session, analysis


@analysis
def trigrams(
    session: Session,
    head: Annotated[
        str | None, typer.Option("--head", help="One head, for example L0H3; default: all heads.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", help="Show the paper's table for this source token."),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k", "-k", help="How many (default 50), or tokens per list with --source (5)."
        ),
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(
            "--rank",
            help="Rank by text (their worth in loss) or by weights; default: text if there is any.",
        ),
    ] = None,
    offset: Offset = None,
    corpus: Corpus = None,
) -> None:
    """List the strongest skip-trigrams, and the bugs they force.

    A skip-trigram is [source] … [destination] → [out].
    """
    from pathsum.base import Record
    from pathsum.circuits import open_text, skip_trigrams, source_table

    loaded = session.open()
    found: Record
    with session.progress() as advance:
        if source is not None:
            found = source_table(loaded, source, head, k, offset=offset, progress=advance)
        else:
            text = None if corpus is None else open_text(loaded, corpus, progress=advance)
            found = skip_trigrams(
                loaded,
                head,
                k,
                corpus=text,
                rank=rank,
                offset=offset,
                progress=advance,
            )
    session.show(found)
