"""`pathsum replace`: a head's description in its place."""

from typing import TYPE_CHECKING, Annotated

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.sequences import Block, Copies, Draws, Seed, TextFile, sequences
from pathsum.cli.view import progress, show

if TYPE_CHECKING:
    from pathsum.paths import CopyingPart, IdealPattern, ScoreTerm, TopTokens


def replace(
    model: ModelName,
    head: Annotated[str, typer.Argument(metavar="HEAD", help="The head, as L1H4.")],
    pattern: Annotated[
        str | None,
        typer.Option(
            help="How it is said to attend: previous, induction, duplicate, first or uniform."
        ),
    ] = None,
    term: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="QUERY KEY",
            help="Or: the one term of its scores that is said to matter, as embed 'embed>L0H7'.",
        ),
    ] = None,
    copying: Annotated[
        bool, typer.Option("--copying", help="Keep the copying part of its OV only.")
    ] = False,
    top_tokens: Annotated[
        int | None, typer.Option(help="Keep the N most raised tokens of each source token only.")
    ] = None,
    knockout: Annotated[
        str, typer.Option(help="What its absence is: zero, mean, resample or first.")
    ] = "zero",
    patterns_preserved: Annotated[
        bool,
        typer.Option("--patterns-preserved", help="Force later patterns to the model's own."),
    ] = False,
    from_position: Annotated[
        int, typer.Option(help="Count predictions from this position on.")
    ] = 0,
    text: TextFile = None,
    draws: Draws = 10,
    block: Block = None,
    copies: Copies = 4,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Put a head's description in its place: which share of its ablation cost is recovered?"""
    from pathsum.paths import After, Knockout
    from pathsum.paths import replace as put_in_place
    from pathsum.sources import load

    loaded = load(model)
    tokens = sequences(loaded, text, block, copies, draws, seed)
    with progress(as_json) as advance:
        found = put_in_place(
            loaded,
            head,
            tokens,
            pattern=_pattern(pattern, term),
            ov=_ov(copying, top_tokens),
            knockout=Knockout.parse(knockout),
            after=After.PATTERNS_PRESERVED if patterns_preserved else After.RECOMPUTED,
            from_position=from_position,
            seed=seed,
            progress=advance,
        )
    show(found, as_json)


def _pattern(
    pattern: str | None, term: tuple[str, str] | None
) -> "IdealPattern | ScoreTerm | None":
    from pathsum.errors import InputError
    from pathsum.paths import IdealPattern, ScoreTerm

    if pattern is not None and term is not None:
        raise InputError("--pattern and --term both say how the head attends; give one of them")
    if term is not None:
        return ScoreTerm(*term)
    return None if pattern is None else IdealPattern.parse(pattern)


def _ov(copying: bool, top_tokens: int | None) -> "CopyingPart | TopTokens | None":
    from pathsum.errors import InputError
    from pathsum.paths import CopyingPart, TopTokens

    if copying and top_tokens is not None:
        raise InputError(
            "--copying and --top-tokens both say what the head moves; give one of them"
        )
    if copying:
        return CopyingPart()
    return None if top_tokens is None else TopTokens(top_tokens)
