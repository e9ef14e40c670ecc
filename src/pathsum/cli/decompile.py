"""`pathsum decompile`: a model as readable rules."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pathsum.base.errors import InputError
from pathsum.base.files import check_output
from pathsum.cli.inputs import repeated_sequences, text_sequences
from pathsum.cli.options import (
    LARGEST,
    MeasuredText,
    Position,
    Seed,
    Session,
    TargetToken,
    analysis,
)

if TYPE_CHECKING:
    from pathsum.base import Progress
    from pathsum.model import Model
    from pathsum.model.sequences import TextOrTokens

# Random tokens for a model that comes with no text, repeated after different lengths: if all were
# the same, a match and a distance would be the same feature.
SEQUENCES, REPEATS, LENGTHS = 15, 3, (5, 8, 12, 17)


@analysis
def decompile(
    session: Session,
    budget: Annotated[
        int,
        typer.Option("--budget", min=1, max=LARGEST, help="Numbers that the program may hold."),
    ] = 10_000,
    text: MeasuredText = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus",
            help="Or on a corpus: its name, a file or a folder, whose held-out part is kept apart.",
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
    """Rewrite a model as readable rules that run without it.

    How close they come is measured on held-out text. With --explain, show which rules act on a
    text instead.
    """
    from pathsum.cli.view import say
    from pathsum.program import decompile as rewrite

    target = None if out is None else check_output(out)
    loaded = session.open()
    with session.progress() as advance:
        given = _text(loaded, text, corpus, seed, advance)
        program = rewrite(loaded, given, budget=budget, seed=seed, progress=advance)
    if target is not None:
        say(f"written to {program.save(target)}")
    if explain is None:
        session.show(program)
    else:
        session.show(program.explain(explain, position, token))


def _text(
    model: "Model", text: Path | None, corpus: str | None, seed: int, progress: "Progress"
) -> "TextOrTokens":
    """The text to fit and compare on; random tokens, repeated, if there is none."""
    from pathsum.cli.view import say
    from pathsum.model.sequences import open_text

    if text is not None and corpus is not None:
        raise InputError("--text and --corpus were both given; give one of them")
    if text is not None:
        return text_sequences(model, text)
    if corpus is not None:
        return open_text(model, corpus, progress=progress)
    if model.held_out is not None:
        return model.held_out
    say(
        f"no text comes with {model.name}, so rules are fitted to repeated random tokens; "
        "--text or --corpus gives it text"
    )
    config = model.config
    room = config.n_ctx - (config.start_token is not None)
    most = max(1, min(room // REPEATS, len(model.token_pool().ids())))
    lengths = sorted({min(length, most) for length in LENGTHS})
    return [repeated_sequences(model, length, REPEATS, SEQUENCES, seed) for length in lengths]
