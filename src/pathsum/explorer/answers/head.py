"""`head`: the page of one head, from weights."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsum.algebra.spectrum import positivity
from pathsum.circuits import OffsetProfile, ScoredEdge, positional, token_ov, token_qk
from pathsum.circuits.copying import HeadCopying, head_copying, null_spectra
from pathsum.circuits.tokens.token import joined
from pathsum.circuits.tokens.token_basis import as_path, require_uncapped_logits, token_product
from pathsum.explorer.answers.atlas import head_kind
from pathsum.explorer.answers.composition import all_composition
from pathsum.explorer.answers.head_parts import CopyingScore, TokenRow
from pathsum.explorer.numbers import finite
from pathsum.explorer.parameters import AboutHead
from pathsum.explorer.token_rows import as_pairs, rows_note, scaled_like, strongest_rows
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.result import Record


@dataclass(frozen=True, eq=False)
class HeadPage(Record, kind="page-head"):
    """What a head is; its spectra with the null's cloud; its offsets, neighbors and tokens.

    `offset_profile` is the attention that position alone gives to each of `offsets` back, on
    average (NaN where a scale that it depends on is not known from weights); `offset_scores` is
    the score it comes from, relative to its mean, and `offset_spread` how much that differs between
    destinations. `position_sd` and `content_sd` say how much position and content move scores: the
    larger of the two decides where the head looks.
    """

    head: str
    kind: str
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...]
    ov_eigenvalues: Tensor
    null_eigenvalues: Tensor
    copying: tuple[CopyingScore, ...]
    offsets: Tensor
    offset_profile: Tensor
    offset_scores: Tensor
    offset_spread: Tensor
    position_sd: float | None
    content_sd: float | None
    composition: tuple[ScoredEdge, ...]
    ov_rows: tuple[TokenRow, ...]
    qk_rows: tuple[TokenRow, ...]
    note: str


# Edges in and out that a page shows, and random heads whose eigenvalues make the null's cloud.
EDGES = 12
CLOUD = 20


def head(bench: Workbench, asked: AboutHead) -> HeadPage:
    """Everything about one head that its weights say."""
    model = bench.model(asked)
    name = model.head(asked.head).label
    kind = head_kind(bench, asked, name)
    chance = bench.result(asked, f"copying null {model.head(name).id.layer == 0}", _chance(name))
    copies = _copies(model, name, chance)
    values = copies.eigenvalues
    profile = _profile(model, name)
    window = 0 if profile is None else len(profile.score)
    return HeadPage(
        head=name,
        kind=kind.kind,
        evidence_for=kind.evidence_for,
        evidence_against=kind.evidence_against,
        ov_eigenvalues=as_pairs(values),
        null_eigenvalues=as_pairs(scaled_like(chance.cloud, values)),
        copying=_copying_scores(copies),
        offsets=torch.arange(window),
        offset_profile=_attention(profile),
        offset_scores=torch.zeros(0) if profile is None else profile.score,
        offset_spread=torch.zeros(0) if profile is None else profile.sd,
        position_sd=None if profile is None else profile.position,
        content_sd=None if profile is None else profile.content,
        composition=_edges(bench, asked, name),
        ov_rows=strongest_rows(model, token_ov(model, name)),
        qk_rows=strongest_rows(model, token_qk(model, name)),
        note=joined((copies.note, "" if profile is None else profile.note, rows_note(model))),
    )


@dataclass(frozen=True, eq=False)
class _CopyingNull:
    """What copying of all heads of a depth shares; layer 0 may read normed embeddings."""

    product: Tensor
    ratios: Tensor
    cloud: Tensor


def _chance(name: str) -> Callable[[Model], _CopyingNull]:
    def compute(model: Model) -> _CopyingNull:
        product = token_product(model.weights, model.head(name).id.layer)
        spectra = null_spectra(product, model.config.d_head)
        return _CopyingNull(product, positivity(spectra), spectra[:CLOUD].flatten())

    return compute


def _copies(model: Model, name: str, chance: _CopyingNull) -> HeadCopying:
    require_uncapped_logits(model, "copying")
    return head_copying(model, as_path(model, name), chance.product, chance.ratios)


def _profile(model: Model, name: str) -> OffsetProfile | None:
    return None if model.config.positions == "none" else positional(model, name).heads[0]


def _attention(profile: OffsetProfile | None) -> Tensor:
    if profile is None:
        return torch.zeros(0)
    if profile.attention is None:
        return torch.full_like(profile.score, torch.nan)
    return profile.attention


def _copying_scores(found: HeadCopying) -> tuple[CopyingScore, ...]:
    return (
        CopyingScore("Σλ / Σ|λ|", finite(found.ratio), 0.0, finite(found.p)),
        CopyingScore("tokens whose own logit rises", found.positive_diagonal, 0.5, None),
        CopyingScore("tokens whose own logit rises most", found.top_1, None, None),
        CopyingScore("tokens whose own logit is among the five", found.top_5, None, None),
    )


def _edges(bench: Workbench, asked: AboutHead, name: str) -> tuple[ScoredEdge, ...]:
    found = all_composition(bench, asked).edges()
    return tuple(edge for edge in found if name in (edge.writer, edge.reader))[:EDGES]
