"""`pathsum atlas`: every score of every head against chance, and the kinds of heads."""

from typing import Annotated

import typer

from pathsum.base.errors import InputError
from pathsum.base.files import check_output
from pathsum.cli.inputs import given_sequences
from pathsum.cli.options import (
    Draws,
    MeasuredText,
    Page,
    ProbeSequences,
    Seed,
    Session,
    TokenIds,
    analysis,
)
from pathsum.cli.view import write_page


@analysis
def atlas(
    session: Session,
    head: Annotated[
        str | None, typer.Option("--head", help="Show every score of one head, with the evidence.")
    ] = None,
    text: MeasuredText = None,
    tokens: TokenIds = None,
    score: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure only this score; may be repeated."),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(metavar="SCORE=VALUE", help="Override a threshold; may be repeated."),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Largest p at which a score counts.")] = 0.01,
    sequences: ProbeSequences = 10,
    draws: Draws = 200,
    seed: Seed = 0,
    page: Page = None,
) -> None:
    """Score every head against chance and name its kind.

    A kind is named where data and weights agree.
    """
    from pathsum.heads import atlas as make_atlas
    from pathsum.model.processes import join_world

    if page is not None:
        check_output(page)
    loaded = session.open()
    if head is not None:
        loaded.head(head)  # an unknown head fails before the computation, not after it
    with join_world() as world:
        with session.progress(quiet=not world.is_first) as advance:
            found = make_atlas(
                loaded,
                tokens=given_sequences(loaded, text, tokens),
                scores=score,
                thresholds=_thresholds(threshold or []),
                alpha=alpha,
                sequences=sequences,
                draws=draws,
                seed=seed,
                progress=advance,
            )
        if world.is_first:
            if page is not None:
                write_page(page, f"heads of {found.model}", found.to_html())
            session.show(found if head is None else found[head])


def _thresholds(given: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in given:
        name, _, value = each.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise InputError(
                f"--threshold {each!r} is not a score and a number; write previous_token=0.4"
            ) from None
    return found
