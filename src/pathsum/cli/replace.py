"""`pathsum replace`: a head replaced by a description of it."""

from typing import TYPE_CHECKING, Annotated

import typer

from pathsum.base.errors import InputError
from pathsum.cli.inputs import measured_sequences, parse_targets
from pathsum.cli.options import (
    Length,
    MetricOption,
    Repeats,
    Seed,
    Sequences,
    Session,
    Targets,
    TextFile,
    TokenIds,
    analysis,
)

if TYPE_CHECKING:
    from pathsum.paths import CopyingPart, ScoreTerm, TopTokens


@analysis
def replace(
    session: Session,
    head: Annotated[str, typer.Argument(metavar="HEAD", help="The head, for example L1H4.")],
    pattern: Annotated[
        str | None,
        typer.Option(help="Ideal pattern: previous, induction, duplicate, first or uniform."),
    ] = None,
    term: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="QUERY KEY",
            help="Or the softmax of one term of the scores, for example embed 'embed>L0H7'.",
        ),
    ] = None,
    copying: Annotated[
        bool, typer.Option("--copying", help="Keep only the copying part of its OV.")
    ] = False,
    top_tokens: Annotated[
        int | None, typer.Option(help="Keep only the N tokens that each source token raises most.")
    ] = None,
    knockout: Annotated[
        str,
        typer.Option(
            help="What an ablated head is replaced by: zero, mean, resample or first_token."
        ),
    ] = "zero",
    patterns_preserved: Annotated[
        bool,
        typer.Option("--patterns-preserved", help="Freeze the patterns of later heads."),
    ] = False,
    from_position: Annotated[
        int, typer.Option(help="Count predictions from this position on.")
    ] = 0,
    text: TextFile = None,
    tokens: TokenIds = None,
    targets: Targets = None,
    metric: MetricOption = "loss",
    sequences: Sequences = 10,
    length: Length = None,
    repeats: Repeats = 4,
    seed: Seed = 0,
) -> None:
    """Replace a head by a description of it.

    What share of its ablation cost does the description recover?
    """
    from pathsum.paths import replace as put_in_place

    if pattern is None and term is None and not copying and top_tokens is None:
        raise InputError(
            "there is no description to replace the head by; give --pattern or --term for where it "
            "attends, --copying or --top-tokens for what it moves, or both"
        )
    loaded = session.open()
    measured = measured_sequences(loaded, text, tokens, sequences, length, repeats, seed)
    with session.progress() as advance:
        found = put_in_place(
            loaded,
            head,
            measured,
            pattern=_pattern(pattern, term),
            ov=_ov(copying, top_tokens),
            knockout=knockout,
            after="freeze_patterns" if patterns_preserved else "recomputed",
            from_position=from_position,
            targets=parse_targets(targets, tokens),
            metric=metric,
            seed=seed,
            progress=advance,
        )
    session.show(found)


def _pattern(pattern: str | None, term: tuple[str, str] | None) -> "str | ScoreTerm | None":
    from pathsum.paths import ScoreTerm

    if pattern is not None and term is not None:
        raise InputError("--pattern and --term both set the pattern; give one of them")
    return pattern if term is None else ScoreTerm(*term)


def _ov(copying: bool, top_tokens: int | None) -> "CopyingPart | TopTokens | None":
    from pathsum.paths import CopyingPart, TopTokens

    if copying and top_tokens is not None:
        raise InputError("--copying and --top-tokens both set the OV; give one of them")
    if copying:
        return CopyingPart()
    return None if top_tokens is None else TopTokens(top_tokens)
