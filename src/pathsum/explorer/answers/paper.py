"""`paper` and `claim`: the paper's claims in its order, and one of them measured.

`paper` answers at once, with words, rules and the results over other seeds. Each claim is measured
by a separate question, so that a page shows the first ones while others are computed.
"""

from dataclasses import dataclass
from pathlib import Path

from pathsum.base import Record
from pathsum.claims.claim import Claim, Outline, Results, Subject, measure, outline
from pathsum.claims.paper import STATEMENTS, find_statement
from pathsum.claims.picture import (
    GraphPicture,
    LossPicture,
    OffsetsPicture,
    PatternPicture,
    Picture,
)
from pathsum.claims.verdict import OVER_SEEDS
from pathsum.explorer.params import ModelParams, PlainParams
from pathsum.explorer.session import Session
from pathsum.sources.named import BUNDLED, bundled_names

# URL keys of the page by the names that claims use.


@dataclass(frozen=True, kw_only=True)
class ClaimParams(ModelParams):
    """One claim, by its id."""

    claim: str


@dataclass(frozen=True, eq=False)
class Tour(Record, kind="page-paper"):
    """The claims in the paper's order, before they are measured; `over_seeds` is a rule too."""

    claims: tuple[Outline, ...]
    over_seeds: str


def tour(session: Session, params: ModelParams) -> Tour:
    """Every claim in words, with its rule and its results over other seeds."""
    subject = claim_subject(session, params)
    return Tour(tuple(outline(*each, subject) for each in STATEMENTS), OVER_SEEDS)


def claim(session: Session, params: ClaimParams) -> Claim:
    """Measure one claim."""
    section, one = find_statement(params.claim)
    about = ModelParams(model=params.model, step=params.step)
    # Cached, because a report asks again for the questions of its picture.
    return session.result(
        about,
        f"claim {one.id}",
        lambda _, report: measure(
            *(section, one, claim_subject(session.reporting(report), about)),
            lambda name: claim_subject(session.reporting(report), ModelParams(model=name)),
        ),
    )


def claim_subject(session: Session, params: ModelParams) -> Subject:
    """A model of the page to measure claims on, with links to its views and shared results."""
    opened = session.open_model(params)
    chosen: dict[str, str | int] = (
        {} if opened.name == session.models[0].name else {"model": opened.name}
    )
    chosen |= {} if params.step is None else {"step": params.step}

    result: Results = lambda name, compute: session.result(params, name, compute)  # noqa: E731
    return Subject(
        model=session.model(params),
        name=opened.name,
        examples=session.examples(params),
        result=result,
        step=params.step,
        folder=BUNDLED / opened.path if opened.path in bundled_names() else Path(opened.path),
        is_own=opened in session.models,
        address=chosen,
    )


def picture_questions(picture: Picture) -> tuple[tuple[str, PlainParams], ...]:
    """The questions that a picture is drawn from: names and parameters, without the model."""
    match picture:
        case PatternPicture(head, example):
            text: PlainParams = {"example": example}
            return (("run", text), ("attention", {**text, "head": head}))
        case LossPicture(example):
            return (("run", {"example": example}),)
        case OffsetsPicture(head):
            return (("head", {"head": head}),)
        case GraphPicture():
            return (("composition", {}),)
        case _:
            return ()
