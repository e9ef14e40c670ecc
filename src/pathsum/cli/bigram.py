"""`pathsum bigram`: the direct path of a model."""

from typing import Annotated

import typer

from pathsum.cli.options import Corpus, Session, analysis


@analysis
def bigram(
    session: Session,
    token: Annotated[
        str | None, typer.Option("--token", help="Show what is predicted after this token.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("--k", "-k", help="How many rows (default 20), or tokens with --token (10)."),
    ] = None,
    corpus: Corpus = None,
) -> None:
    """Show what each token predicts without any head (W_E W_U)."""
    from pathsum.circuits import bigram as direct_path
    from pathsum.circuits import continuations, open_text

    loaded = session.open()
    if token is not None:
        session.show(continuations(loaded, token, k))
        return
    with session.progress() as advance:
        text = None if corpus is None else open_text(loaded, corpus, progress=advance)
        found = direct_path(loaded, text, k, progress=advance)
    session.show(found)
