"""`atlas`, `terms`, `training`, `compare`, `paper` and `claim`: analyses of whole models."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from pathsum.base import Progress, Record
from pathsum.base.errors import InputError
from pathsum.circuits import align_heads
from pathsum.circuits.align_heads import HeadAlignment
from pathsum.circuits.copying import layer_eigenvalues
from pathsum.circuits.token_basis import token_product
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
from pathsum.heads.atlas import Atlas
from pathsum.heads.atlas import atlas as make_atlas
from pathsum.model import Model
from pathsum.model.storage import HELD_OUT
from pathsum.paths import TermImportance, by_head, by_layer, term_importance
from pathsum.sources.named import BUNDLED, bundled_names
from pathsum.training import Dynamics, dynamics
from pathsum.training.run_folder import RUN


@dataclass(frozen=True, eq=False)
class AtlasAnswer(Record, kind="page-atlas"):
    """The atlas of a model; `eigenvalues` [head, n, 2] of full OV, divided by the largest."""

    atlas: Atlas
    eigenvalues: Tensor


# Eigenvalues per thumbnail, the largest first.
MAX_EIGENVALUES = 64


def atlas(session: Session, params: ModelParams) -> AtlasAnswer:
    """Every head's scores with their null distributions, its kind, and its eigenvalues."""
    return AtlasAnswer(
        whole_atlas(session, params),
        _thumbnail_eigenvalues(session.model(params), session.progress),
    )


def whole_atlas(session: Session, params: ModelParams) -> Atlas:
    """The library's atlas of a model, cached."""
    return session.result(params, "atlas", lambda model, to: make_atlas(model, progress=to))


def _thumbnail_eigenvalues(model: Model, progress: Progress) -> Tensor:
    """Eigenvalues of full OV, each head's divided by its largest, [head, n, 2]."""
    weights = model.weights
    rows: list[Tensor] = []
    product = None
    for layer in range(model.config.n_layers):
        progress(layer, model.config.n_layers, "eigenvalues")
        if product is None or layer == 1:
            product = token_product(weights, layer)
        values = layer_eigenvalues(weights, layer, product)
        order = values.abs().argsort(-1, descending=True)
        values = values.gather(-1, order)[:, :MAX_EIGENVALUES]
        largest = values.abs().amax(-1, keepdim=True)
        rows.append(torch.where(largest > 0, values / largest, values))
    return torch.view_as_real(torch.cat(rows)).float()


@dataclass(frozen=True, kw_only=True)
class CompareParams(ModelParams):
    """The other model, and its training step if it has snapshots."""

    other: str
    other_step: int | None = None


# Fewer held-out sequences and null draws than the defaults of `dynamics` and `align_heads`, so that
# the page appears soon; standard errors and p-values account for it.
TRAINING_SEQUENCES = 24
COMPARE_DRAWS = 100
# Every head takes two runs, which would take minutes for a larger model.
MAX_TERM_HEADS = 48


def terms(session: Session, params: ModelParams) -> TermImportance:
    """Term importance on held-out text, or the example texts, by order, by layer and by head."""
    texts, model = session.text_pieces(params), session.model(params)
    single = by_head(model) if len(model.heads) <= MAX_TERM_HEADS else ()
    sets = [*by_layer(model), *single]
    found = term_importance(model, texts.tokens, sets=sets, progress=session.progress)
    notes = [f"on {texts.name}", *found.note.split("\n")]
    if len(model.heads) > MAX_TERM_HEADS:
        notes.append(f"single heads are omitted in models with more than {MAX_TERM_HEADS}")
    return replace(found, note="; ".join(filter(None, notes)))


def training(session: Session, params: ModelParams) -> Dynamics:
    """Losses and scores over the snapshots of a training run."""
    one = session.open_model(params)
    if one.run is None:
        raise InputError(
            f"{one.name!r} has no snapshots of its training; open the folder of a run that kept "
            "some (pathsum train … --set watching.snapshots=20)"
        )
    # On the run's own held-out text, or on the example texts if that is not known.
    known = (one.run / HELD_OUT).exists() or (one.run / RUN).exists()
    tokens = None if known else session.text_pieces(params).tokens
    return dynamics(one.run, tokens=tokens, sequences=TRAINING_SEQUENCES, progress=session.progress)


def compare(session: Session, params: CompareParams) -> HeadAlignment:
    """The heads of two models, or of two steps of one, aligned."""
    other = ModelParams(model=params.other, step=params.other_step)
    found = align_heads(
        session.model(params), session.model(other), draws=COMPARE_DRAWS, progress=session.progress
    )
    return replace(found, left=_named(session, params), right=_named(session, other))


def _named(session: Session, params: ModelParams) -> str:
    name = session.open_model(params).name
    return name if params.step is None else f"{name} at step {params.step}"


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
