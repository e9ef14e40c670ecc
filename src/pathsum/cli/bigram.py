"""`pathsum bigram`: the direct path of a model."""

from typing import Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Corpus,
    Device,
    Dtype,
    ModelName,
    Revision,
    open_model,
)
from pathsum.cli.view import progress, show


def bigram(
    model: ModelName,
    token: Annotated[
        str | None, typer.Option("--token", help="Show what is predicted after this token.")
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", "-k", help="How many rows (20), or tokens (10).")
    ] = None,
    corpus: Corpus = None,
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Show the direct path W_E W_U: what each token predicts next without any head."""
    from pathsum.circuits import bigram as direct_path
    from pathsum.circuits import continuations, open_text

    loaded = open_model(model, device, dtype, as_json, revision)
    if token is not None:
        show(continuations(loaded, token, k), as_json)
        return
    with progress(as_json) as advance:
        text = None if corpus is None else open_text(loaded, corpus, progress=advance)
        found = direct_path(loaded, text, k, progress=advance)
    show(found, as_json)
