"""`first_scores`, `atlas`, `terms`, `training`, `compare`, `paper`, `claim`, `weights`: models."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathsum.algebra.nulls import ALPHA
from pathsum.base import Progress, Record
from pathsum.base.errors import InputError, NotExactError
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
from pathsum.explorer.answers.prediction import MAX_PATHS
from pathsum.explorer.answers.text import MAX_CELLS, MAX_DENSE_TOKENS
from pathsum.explorer.params import ModelParams, PlainParams
from pathsum.explorer.session import Session
from pathsum.heads.atlas import Atlas
from pathsum.heads.atlas import atlas as make_atlas
from pathsum.heads.kinds import KINDS, UNKNOWN, HeadEntry, Kind
from pathsum.heads.pattern_scores import PATTERN_SCORES
from pathsum.heads.probe_scores import attention_on_repeats
from pathsum.model import Config, Model
from pathsum.model.storage import HELD_OUT
from pathsum.paths import TermImportance, by_head, by_layer, term_importance
from pathsum.sources.named import BUNDLED, bundled_names
from pathsum.text.tokenizer import Tokenizer
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
    suggesting = [
        entry.scores.get(name) for entry in found.heads for name in {kind.score, kind.text_score}
    ]
    tests = [1 + (score.part is not None) for score in suggesting if score and score.p is not None]
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


# A page loads and runs so many numbers without a noticeable delay.
MAX_PARAMETERS = 6_000_000
# Fields of a config that the page's forward pass does not know: it assumes their defaults.
_NOT_IN_PAGE = (
    *("norm", "mlp", "block", "qk_norm", "windows"),
    *("sinks", "score_cap", "logit_cap", "causal"),
)


@dataclass(frozen=True, eq=False)
class PageWeights(Record, kind="page-weights"):
    """The weights of a model, stacked by layer and head, and the JSON of its tokenizer.

    `name` is that of the model itself, which the page may list under another. Half floats where
    they hold the weights exactly, as those of the bundled models do.
    """

    name: str
    score_scale: float
    start_token: int | None
    tokenizer: str | None
    W_E: Tensor
    W_pos: Tensor | None
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    W_U: Tensor


def page_weights(session: Session, params: ModelParams) -> PageWeights:
    """The weights of a model that runs in the page; NotExactError if it does not."""
    model = session.model(params)
    reason = why_not_in_page(model)
    if reason:
        raise NotExactError(f"{model.name} does not run in the page: {reason}")
    weights, config = model.weights, model.config
    positions = _stacked_positions(model) if config.positions == "qk" else None
    stacked = (weights.W_E, weights.W_U, model.W_Q, model.W_K, model.W_V, model.W_O)
    every = stacked if positions is None else (*stacked, positions)
    is_half = all(bool((one.half() == one).all()) for one in every)
    dtype = torch.float16 if is_half else torch.float32
    W_E, W_U, W_Q, W_K, W_V, W_O = (one.to(dtype) for one in stacked)
    return PageWeights(
        name=model.name,
        score_scale=config.score_scale,
        start_token=config.start_token,
        tokenizer=None if model.tokenizer is None else model.tokenizer.to_json(),
        W_E=W_E,
        W_pos=None if positions is None else positions.to(dtype),
        W_Q=W_Q,
        W_K=W_K,
        W_V=W_V,
        W_O=W_O,
        W_U=W_U,
    )


def _stacked_positions(model: Model) -> Tensor:
    found = [layer.W_pos for layer in model.weights.layers]
    each = [one for one in found if one is not None]
    return torch.stack(each) if each else torch.zeros(0, model.config.n_ctx, model.config.d_model)


def why_not_in_page(model: Model) -> str:
    """Why the page cannot run a model itself; "" if it can.

    >>> from pathsum.model import construct
    >>> why_not_in_page(construct.induction())
    ''
    """
    config, weights = model.config, model.weights
    if weights.n_parameters > MAX_PARAMETERS:
        return f"it has {weights.n_parameters:,} parameters, and the page runs {MAX_PARAMETERS:,}"
    for name in _NOT_IN_PAGE:
        if getattr(config, name) != getattr(Config, name):
            return f"{name} is {getattr(config, name)!r}"
    if config.positions not in ("qk", "none"):
        return f"positions is {config.positions!r}"
    if config.n_kv_heads != config.n_heads or config.d_vocab_out != config.d_vocab:
        return "heads share keys and values, or outputs are not tokens"
    if weights.edits:
        return "it was edited"
    if weights.b_U is not None or any(_biases(model)):
        return "it has biases"
    return _too_large(config) or _unknown_tokenizer(model.tokenizer)


def _biases(model: Model) -> Sequence[bool]:
    return [
        one is not None
        for layer in model.weights.layers
        for one in (layer.b_Q, layer.b_K, layer.b_V, layer.b_O)
    ]


def _too_large(config: Config) -> str:
    if (1 + config.n_heads) ** config.n_layers > MAX_PATHS:
        return f"it has more than {MAX_PATHS} paths"
    heads, tokens = config.n_layers * config.n_heads, config.n_ctx
    if tokens > MAX_DENSE_TOKENS or heads * tokens**2 > MAX_CELLS:
        return f"its context of {tokens:,} tokens is too long"
    return ""


def _unknown_tokenizer(tokenizer: Tokenizer | None) -> str:
    """Why the page cannot split text as a tokenizer does; "" for byte-level BPE and for words."""
    if tokenizer is None:
        return ""
    rules: dict[str, Any] = json.loads(tokenizer.to_json())
    split, model = rules["pre_tokenizer"] or {}, rules["model"]
    words = model["type"] == "WordLevel" and split.get("type") == "WhitespaceSplit"
    plain = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    byte_pairs = (
        model["type"] == "BPE"
        and split.get("type") == "ByteLevel"
        and not split["add_prefix_space"]
        and split["use_regex"]
        and not any(model.get(name) for name in (*plain, "ignore_merges"))
    )
    stripped = any(one["lstrip"] or one["rstrip"] for one in rules["added_tokens"])
    if rules["normalizer"] is None and not stripped and (words or byte_pairs):
        return ""
    return "its tokenizer is neither byte-level BPE nor one token per word"
