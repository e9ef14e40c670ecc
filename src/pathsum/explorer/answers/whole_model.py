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

    `by_chance` is an upper bound on the expected number of heads of each kind if all heads were
    random: α for each test of a head. Kinds also require agreement with the weights, so the true
    number is smaller.
    """

    atlas: Atlas
    eigenvalues: Tensor
    by_chance: dict[str, float]


# Eigenvalues per thumbnail, the largest first.
MAX_EIGENVALUES = 64


def atlas(session: Session, params: ModelParams) -> AtlasAnswer:
    """Every head's scores with their null distributions, its kind, and its eigenvalues."""
    result = whole_atlas(session, params)
    return AtlasAnswer(
        result,
        _thumbnail_eigenvalues(session.model(params), session.progress),
        {kind.name: _by_chance(result, kind) for kind in KINDS},
    )


def _by_chance(atlas: Atlas, kind: Kind) -> float:
    names = (kind.score, text_name(kind.on_text or kind.score))
    scores = [entry.scores.get(name) for entry in atlas.heads for name in names]
    tests = [1 + (score.part is not None) for score in scores if score and score.p is not None]
    return atlas.alpha * sum(tests)


def first_scores(session: Session, params: ModelParams) -> AtlasAnswer:
    """The attention scores of the atlas, which take seconds, without the slower nulls and kinds."""
    model = session.model(params)
    require_heads(model)
    scores = attention_on_repeats(model, session.progress)
    entries = tuple(HeadEntry(head, UNKNOWN, (), values, (), ()) for head, values in scores.items())
    infos = tuple(score.info for score in PATTERN_SCORES)
    atlas = Atlas(
        model.name, entries, infos, {}, ALPHA, "Scores without null distributions and kinds."
    )
    return AtlasAnswer(atlas, torch.zeros(len(entries), 0, 2), {})


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


# Fewer held-out sequences and null draws than the defaults of `dynamics` and `align_heads`, for the
# sake of speed; standard errors and p-values account for it.
TRAINING_SEQUENCES = 24
COMPARE_DRAWS = 100
# Single heads take two runs each, which takes minutes for larger models.
MAX_TERM_HEADS = 48


def terms(session: Session, params: ModelParams) -> TermImportance:
    """Term importance on held-out text, or the example texts, by order, by layer and by head."""
    texts, model = session.text_pieces(params), session.model(params)
    single = by_head(model) if len(model.heads) <= MAX_TERM_HEADS else ()
    sets = [*by_layer(model), *single]
    importance = term_importance(model, texts.tokens, sets=sets, progress=session.progress)
    notes = [f"on {texts.name}", *importance.note.split("\n")]
    if len(model.heads) > MAX_TERM_HEADS:
        notes.append(f"single heads are omitted for models with more than {MAX_TERM_HEADS} heads")
    return replace(importance, note="; ".join(filter(None, notes)))


def training(session: Session, params: ModelParams) -> Dynamics:
    """Losses and scores over the snapshots of a training run."""
    entry = session.open_model(params)
    if entry.run is None:
        raise InputError(
            f"{entry.name!r} has no snapshots of its training; open the folder of a run that kept "
            "some (pathsum train … --set watching.snapshots=20)"
        )
    # Measured on the held-out text of the run or, without one, on the example texts.
    has_text = (entry.run / HELD_OUT).exists() or (entry.run / RUN).exists()
    tokens = None if has_text else session.text_pieces(params).tokens
    return dynamics(
        entry.run, tokens=tokens, sequences=TRAINING_SEQUENCES, progress=session.progress
    )


def compare(session: Session, params: CompareParams) -> HeadAlignment:
    """The aligned heads of two models, or of two steps of one model."""
    other = ModelParams(model=params.other, step=params.other_step)
    alignment = align_heads(
        session.model(params), session.model(other), draws=COMPARE_DRAWS, progress=session.progress
    )
    return replace(alignment, left=_title(session, params), right=_title(session, other))


def _title(session: Session, params: ModelParams) -> str:
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
    """Every claim in words, with its rule and its results over seeds."""
    subject = claim_subject(session, params)
    return Tour(tuple(outline(*each, subject) for each in STATEMENTS), OVER_SEEDS)


def claim(session: Session, params: ClaimParams) -> Claim:
    """Measure one claim."""
    section, statement = find_statement(params.claim)
    about = ModelParams(model=params.model, step=params.step)
    # Cached, because a report needs it again for the questions of its picture.
    return session.result(
        about,
        f"claim {statement.id}",
        lambda _, report: measure(
            *(section, statement, claim_subject(session.reporting(report), about)),
            lambda name: claim_subject(session.reporting(report), ModelParams(model=name)),
        ),
    )


def claim_subject(session: Session, params: ModelParams) -> Subject:
    """A model of the page to measure claims on, with links to its views and shared results."""
    entry = session.open_model(params)
    address: dict[str, str | int] = {} if params.step is None else {"step": params.step}
    if entry != session.models[0]:
        address["model"] = entry.name
    result: Results = lambda name, compute: session.result(params, name, compute)  # noqa: E731
    return Subject(
        model=session.model(params),
        name=entry.name,
        examples=session.examples(params),
        result=result,
        step=params.step,
        folder=BUNDLED / entry.path if entry.path in bundled_names() else Path(entry.path),
        is_own=entry in session.models,
        address=address,
    )


def picture_questions(picture: Picture | None) -> tuple[tuple[str, PlainParams], ...]:
    """The questions whose answers a picture shows: names and parameters, without the model."""
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


# The default number of values in a program, few enough to read, and the maximum.
BUDGET, MAX_BUDGET = 400, 10_000


@dataclass(frozen=True, kw_only=True)
class ProgramParams(ModelParams):
    """The largest number of values in the program."""

    budget: int = BUDGET


@dataclass(frozen=True, kw_only=True)
class RulesParams(TextParams):
    """The position of the prediction, and a token, by default the program's prediction."""

    position: int
    token: int | None = None
    budget: int = BUDGET


@dataclass(frozen=True)
class RuleLine:
    """A rule in words; `head` is "" for the direct path, and `gain` is in nats per prediction."""

    text: str
    head: str
    size: int
    gain: float | None


@dataclass(frozen=True, eq=False)
class ProgramAnswer(Record, kind="page-program"):
    """The rules by gain; `share` is the share of KL(model ‖ unigram) that the program explains.

    `curve` has the share by size while the program grew.
    """

    size: int
    share: Estimate
    agreement: Estimate
    loss: float
    curve: tuple[CurvePoint, ...]
    rules: tuple[RuleLine, ...]


def program(session: Session, params: ProgramParams) -> ProgramAnswer:
    """The program of a model, with its rules ranked by their gain on held-out text."""
    program = _program(session, params, params.budget)
    return ProgramAnswer(
        size=program.size,
        share=program.fidelity.share,
        agreement=program.fidelity.agreement,
        loss=program.fidelity.loss.value,
        curve=program.curve,
        rules=tuple(
            RuleLine(str(rule), rule.head, rule.size, rule.gain and rule.gain.value)
            for rule in program.rules
        ),
    )


def rules(session: Session, params: RulesParams) -> Explanation:
    """The rules that act at a position of a text, with their contributions to a logit."""
    ids = session.run(params).ids
    position = find_position(len(ids), params.position)
    program = _program(session, params, params.budget)
    return program.explain(list(ids), position, params.token)


def _program(session: Session, params: ModelParams, budget: int) -> Program:
    if not 1 <= budget <= MAX_BUDGET:
        raise InputError(f"budget is {budget}; choose 1 to {MAX_BUDGET:,} values")
    about = ModelParams(model=params.model, step=params.step)
    # Fitted on held-out text, as by `pathsum decompile`, or else on the example texts.
    has_text = session.model(about).held_out is not None
    texts = None if has_text else session.text_pieces(about).tokens
    return session.result(
        about,
        f"program {budget}",
        lambda model, progress: decompile(model, texts, budget=budget, progress=progress),
    )
