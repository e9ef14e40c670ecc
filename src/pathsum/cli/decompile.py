"""`pathsum decompile`: a model as readable rules."""

from pathlib import Path
from typing import Annotated

import typer

from pathsum.cli.options import LARGEST, Position, Seed, Session, TargetToken, analysis
from pathsum.files import check_output


@analysis
def decompile(
    session: Session,
    budget: Annotated[
        int,
        typer.Option("--budget", min=1, max=LARGEST, help="Numbers that the program may hold."),
    ] = 10_000,
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus",
            help="Fit and compare on this text: a corpus name, a file or a folder; default: the "
            "model's held-out text.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Save the program to this file (JSON).")
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="TEXT", help="Explain a prediction on this text."),
    ] = None,
    position: Position = -1,
    token: TargetToken = None,
    seed: Seed = 0,
) -> None:
    """Rewrite a model as readable rules, and measure how close they come.

    The rules run without the model. With --explain, show which rules act on a text instead.
    """
    from pathsum.cli.view import say
    from pathsum.model.sequences import open_text
    from pathsum.program import decompile as rewrite

    target = None if out is None else check_output(out)
    loaded = session.open()
    with session.progress() as advance:
        text = None if corpus is None else open_text(loaded, corpus, progress=advance)
        program = rewrite(loaded, text, budget=budget, seed=seed, progress=advance)
    if target is not None:
        say(f"written to {program.save(target)}")
    if explain is None:
        session.show(program)
    else:
        session.show(program.explain(explain, position, token))
