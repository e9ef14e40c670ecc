"""`atlas`: every head, every score against chance, and a kind where the evidence agrees."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pathsum.circuits.copying import layer_eigenvalues
from pathsum.circuits.tokens.token_basis import token_product
from pathsum.explorer.numbers import finite
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.workbench import Workbench
from pathsum.heads.atlas import Atlas, HeadEntry
from pathsum.heads.atlas import atlas as make_atlas
from pathsum.heads.kinds.kind import ScoreInfo
from pathsum.model import Model
from pathsum.result import Record


@dataclass(frozen=True, eq=False)
class AtlasScore:
    """One score of all heads [head], with standard errors, nulls and p; NaN where there is none."""

    name: str
    title: str
    formula: str
    about: str
    ceiling: float | None
    threshold: float | None
    reason: str
    measured_from: Literal["data", "weights"]
    value: Tensor
    stderr: Tensor
    null: Tensor
    p: Tensor


@dataclass(frozen=True)
class HeadKind:
    """What a head is, and what speaks for and against it."""

    head: str
    kind: str
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class AtlasAnswer(Record, kind="page-atlas"):
    """All scores of all heads; `eigenvalues` [head, n, 2] of full OV, scaled by the largest."""

    heads: tuple[str, ...]
    layers: tuple[int, ...]
    scores: tuple[AtlasScore, ...]
    kinds: tuple[HeadKind, ...]
    eigenvalues: Tensor


# Eigenvalues of a head that a thumbnail shows.
MOST_EIGENVALUES = 64
# What the evidence says where weights and data do not agree (`pathsum.heads.verdicts`).
_AGAINST = "weights do not agree"


def atlas(bench: Workbench, asked: AboutModel) -> AtlasAnswer:
    """Every head's scores against chance, its kind, and its eigenvalues for a thumbnail."""
    found = whole_atlas(bench, asked)
    model = bench.model(asked)
    return AtlasAnswer(
        heads=tuple(head.label for head in model.heads),
        layers=tuple(head.id.layer for head in model.heads),
        scores=tuple(_score(found, info) for info in found.infos if info.name not in found.absent),
        kinds=tuple(_kind(entry) for entry in found),
        eigenvalues=bench.result(asked, "thumbnails", _thumbnails),
    )


def whole_atlas(bench: Workbench, asked: AboutModel) -> Atlas:
    """The library's atlas of a model, computed once."""
    return bench.result(asked, "atlas", make_atlas)


def head_kind(bench: Workbench, asked: AboutModel, head: str) -> HeadKind:
    """What one head is."""
    return _kind(whole_atlas(bench, asked)[head])


def _kind(entry: HeadEntry) -> HeadKind:
    against = tuple(said for said in entry.evidence if _AGAINST in said)
    speaks_for = tuple(said for said in entry.evidence if _AGAINST not in said)
    return HeadKind(str(entry.head), entry.kind, speaks_for, against)


def _score(found: Atlas, info: ScoreInfo) -> AtlasScore:
    scores = [entry.scores.get(info.name) for entry in found]

    def column(field: str) -> Tensor:
        values = (None if score is None else getattr(score, field) for score in scores)
        return torch.tensor([math.nan if value is None else value for value in values])

    return AtlasScore(
        name=info.name,
        title=info.title,
        formula=info.formula,
        about=_about(found, info),
        ceiling=finite(info.ceiling),
        threshold=finite(info.threshold),
        reason=info.reason,
        measured_from=info.evidence,
        value=column("value"),
        stderr=column("stderr"),
        null=column("null"),
        p=column("p"),
    )


def _about(found: Atlas, info: ScoreInfo) -> str:
    """What a score means, what it was read through and measured on, and what it is held against."""
    scores = [entry.scores[info.name] for entry in found if info.name in entry.scores]
    through = ", ".join(dict.fromkeys(score.through for score in scores if score.through))
    parts = (
        info.about,
        f"Read through {through}." if through else "",
        f"Measured on {info.probe}." if info.evidence == "data" else "From weights alone.",
        f"Chance: {info.null}.",
        f"{info.citation}.",
    )
    return " ".join(filter(None, parts))


def _thumbnails(model: Model) -> Tensor:
    """Eigenvalues of full OV, each head's divided by its largest, [head, n, 2]."""
    weights = model.weights
    rows: list[Tensor] = []
    product = None
    for layer in range(model.config.n_layers):
        if product is None or layer == 1:
            product = token_product(weights, layer)
        values = layer_eigenvalues(weights, layer, product)
        order = values.abs().argsort(-1, descending=True)
        values = values.gather(-1, order)[:, :MOST_EIGENVALUES]
        largest = values.abs().amax(-1, keepdim=True)
        rows.append(torch.where(largest > 0, values / largest, values))
    return torch.view_as_real(torch.cat(rows)).float()
