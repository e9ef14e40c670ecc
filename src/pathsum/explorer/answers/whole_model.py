"""`first_scores`, `atlas`, `terms`, `training`, `compare`, `paper`, `claim`, `program`, `rules`."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from pathsum.algebra.nulls import ALPHA
from pathsum.base import Estimate, Progress, Record
from pathsum.base.errors import InputError
from pathsum.circuits import align_heads
from pathsum.circuits.align_heads import HeadAlignment
from pathsum.circuits.copying import layer_eigenvalues
from pathsum.circuits.token_basis import require_heads, token_product
from pathsum.claims.claim import (
    Claim,
    GraphPicture,
    LossPicture,
    OffsetsPicture,
    Outline,
    PatternPicture,
    Picture,
    Results,
    Subject,
    measure,
    outline,
)
from pathsum.claims.paper import STATEMENTS, find_statement
from pathsum.claims.verdict import OVER_SEEDS
from pathsum.explorer.answers.prediction import find_position
from pathsum.explorer.params import ModelParams, PlainParams, TextParams
from pathsum.explorer.session import Session
from pathsum.heads.atlas import Atlas
from pathsum.heads.atlas import atlas as make_atlas
from pathsum.heads.kinds import KINDS, UNKNOWN, HeadEntry, Kind
from pathsum.heads.probe import PATTERN_SCORES
from pathsum.heads.probe_scores import attention_on_repeats
from pathsum.heads.score import text_name
from pathsum.model import Model
from pathsum.model.storage import HELD_OUT
from pathsum.paths import TermImportance, by_head, by_layer, term_importance
from pathsum.program import Explanation, Program, decompile
from pathsum.program.program import CurvePoint
from pathsum.sources.named import BUNDLED, bundled_names
from pathsum.training import Dynamics, dynamics
from pathsum.training.checkpoint import RUN


@dataclass(frozen=True, eq=False)
class AtlasAnswer(Record, kind="page-atlas"):
    """The atlas of a model; `eigenvalues` [head, n, 2] of full OV, divided by the largest.

    `by_chance` limits the number of heads of each kind that would be expected if every head were
    one of its random heads: α for each test that a head can pass. That the weights must agree too
    makes it smaller still.
    """

    atlas: Atlas
    eigenvalues: Tensor
    by_chance: dict[str, float]


# Eigenvalues per thumbnail, the largest first.
MAX_EIGENVALUES = 64


def atlas(session: Session, params: ModelParams) -> AtlasAnswer:
    """Every head's scores with their null distributions, its kind, and its eigenvalues."""
    found = whole_atlas(session, params)
    return AtlasAnswer(
        found,
        _thumbnail_eigenvalues(session.model(params), session.progress),
        {kind.name: _by_chance(found, kind) for kind in KINDS},
    )


def _by_chance(found: Atlas, kind: Kind) -> float:
    names = (kind.score, text_name(kind.on_text or kind.score))
    scores = [entry.scores.get(name) for entry in found.heads for name in names]
    tests = [1 + (score.part is not None) for score in scores if score and score.p is not None]
    return found.alpha * sum(tests)


def first_scores(session: Session, params: ModelParams) -> AtlasAnswer:
    """Attention scores of the atlas, which take seconds; nulls, kinds and the rest take longer."""
    model = session.model(params)
    require_heads(model)
    scores = attention_on_repeats(model, session.progress)
    entries = tuple(HeadEntry(head, UNKNOWN, (), named, (), ()) for head, named in scores.items())
    infos = tuple(score.info for score in PATTERN_SCORES)
    found = Atlas(model.name, entries, infos, {}, ALPHA, "Values alone, without nulls and kinds.")
    return AtlasAnswer(found, torch.zeros(len(entries), 0, 2), {})


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
    address: dict[str, str | int] = {} if params.step is None else {"step": params.step}
    if opened != session.models[0]:
        address["model"] = opened.name
    result: Results = lambda name, compute: session.result(params, name, compute)  # noqa: E731
    return Subject(
        model=session.model(params),
        name=opened.name,
        examples=session.examples(params),
        result=result,
        step=params.step,
        folder=BUNDLED / opened.path if opened.path in bundled_names() else Path(opened.path),
        is_own=opened in session.models,
        address=address,
    )


def picture_questions(picture: Picture | None) -> tuple[tuple[str, PlainParams], ...]:
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


# Values in a program: few enough to read, and what one run can be asked for.
BUDGET, MAX_BUDGET = 400, 10_000


@dataclass(frozen=True, kw_only=True)
class ProgramParams(ModelParams):
    """The most values that the program may have."""

    budget: int = BUDGET


@dataclass(frozen=True, kw_only=True)
class RulesParams(TextParams):
    """The position of the prediction; the token is the program's own, unless one is given."""

    position: int
    token: int | None = None
    budget: int = BUDGET


@dataclass(frozen=True)
class RuleLine:
    """A rule in words; `head` is empty for the direct path, and `gain` in nats per prediction."""

    text: str
    head: str
    size: int
    gain: float | None


@dataclass(frozen=True, eq=False)
class ProgramAnswer(Record, kind="page-program"):
    """The rules by their gain; `share` is the part of KL(model ‖ unigram) that they close.

    `curve` has the share while the program grew to its `size`.
    """

    size: int
    share: Estimate
    agreement: Estimate
    loss: float
    curve: tuple[CurvePoint, ...]
    rules: tuple[RuleLine, ...]


def program(session: Session, params: ProgramParams) -> ProgramAnswer:
    """The program of a model, ranked by what its rules gain on held-out text."""
    found = _program(session, params, params.budget)
    return ProgramAnswer(
        size=found.size,
        share=found.fidelity.share,
        agreement=found.fidelity.agreement,
        loss=found.fidelity.loss.value,
        curve=found.curve,
        rules=tuple(
            RuleLine(str(rule), rule.head, rule.size, rule.gain and rule.gain.value)
            for rule in found.rules
        ),
    )


def rules(session: Session, params: RulesParams) -> Explanation:
    """The rules that act at a position of a text, with their terms in a logit of the program."""
    ids = session.run(params).ids
    position = find_position(len(ids), params.position)
    found = _program(session, params, params.budget)
    return found.explain(list(ids), position, params.token)


def _program(session: Session, params: ModelParams, budget: int) -> Program:
    if not 1 <= budget <= MAX_BUDGET:
        raise InputError(f"budget is {budget}; choose 1 to {MAX_BUDGET:,} values")
    about = ModelParams(model=params.model, step=params.step)
    # As `pathsum decompile` does, on the model's held-out text; else on the example texts.
    known = session.model(about).held_out is not None
    texts = None if known else session.text_pieces(about).tokens
    return session.result(
        about,
        f"program {budget}",
        lambda model, progress: decompile(model, texts, budget=budget, progress=progress),
    )
