"""Composition by singular directions, of all pairs of heads.

With OV¹ = Σ σᵢ uᵢ vᵢᵀ and M = Σ τⱼ aⱼ bⱼᵀ the composition score is a sum over pairs of directions,

    score² = Σᵢⱼ wᵢ rⱼ (vᵢ·aⱼ)²      with shares wᵢ = σᵢ² / Σσ², rⱼ = τⱼ² / Στ²

`composition_by` has other measures than this score, with the same record as `composition`:

    kernel     equal shares for every direction: the overlap of the two subspaces
    direction  the written direction v with the largest ‖v M‖ / ‖M‖ (Merullo et al.), because the
               other directions of a head may mask it
    permuted   the score itself, compared with the directions of other heads of the two layers,
               which keep what a whole layer shares
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import thin_svd
from pathsum.algebra.nulls import UnitMoments, unit_null
from pathsum.algebra.spectrum import numerical_rank
from pathsum.base import Progress, silent
from pathsum.base.options import parse_choice
from pathsum.circuits.composition import Composition, PairScores, composition
from pathsum.circuits.reads_and_writes import (
    KINDS,
    Center,
    CompositionKind,
    read_factor,
    write_factor,
)
from pathsum.model import Model

Measure: TypeAlias = Literal["kernel", "direction", "permuted"]

_TIE = 1e-12
"""Squared scores closer than this are equal."""
_LINE = UnitMoments.of_rank(torch.ones(1, dtype=torch.float64))
_NULLS: dict[Measure, str] = {
    "kernel": (
        "Score: Σ cos² of the principal angles over the smaller dimension; p: against random "
        "rotations of the stream."
    ),
    "direction": (
        "Score: the best written direction alone; p: against random rotations of the stream, times "
        "the number of directions tried."
    ),
    "permuted": (
        "p: share of the pairs of heads of the two layers whose directions, in place of these "
        "heads' own, score at least as much."
    ),
}


@dataclass(frozen=True, eq=False)
class Directions:
    """Shares of the squared singular values, strongest first, and directions in the stream.

    Shares of a zero matrix are NaN. Directions from number `ranks` on are rounding.
    """

    shares: Float[Tensor, "head r"]
    basis: Float[Tensor, "head r d"]
    ranks: Float[Tensor, " head"]

    @classmethod
    def of(cls, factors: Sequence[Float[Tensor, "r d"]], dtype: torch.dtype) -> "Directions":
        """The singular directions of write or read factors of weights stored in `dtype`."""
        _, values, basis = thin_svd(torch.stack(list(factors)).cpu())
        shares = values.square() / values.square().sum(-1, keepdim=True)
        ranks = [numerical_rank(each, dtype) for each in values]
        return cls(shares, basis, torch.tensor(ranks, dtype=torch.float64))

    @property
    def uniform(self) -> Float[Tensor, "head r"]:
        """Equal shares of the directions above rounding."""
        return (torch.arange(self.shares.shape[-1]) < self.ranks[:, None]) / self.ranks[:, None]


@dataclass(frozen=True, eq=False)
class CompositionBy(Composition, kind="composition-by"):
    """Another measure of composition between all heads; see `composition_by`."""

    measure: Measure

    @property
    def null_notes(self) -> tuple[str, ...]:
        """What score and p are."""
        return (_NULLS[self.measure],)


@torch.no_grad()
def composition_by(
    model: Model, measure: Measure, *, center: Center = "auto", progress: Progress = silent
) -> CompositionBy:
    """Composition of all pairs of heads by subspaces, by single directions or against other heads.

    >>> import pathsum as ps
    >>> found = composition_by(ps.construct.induction(), "permuted")
    >>> found["L0H0", "L1H0", "k"].p  # the best of 2 × 2 pairs of directions
    0.25

    `kernel` has the score Σ cos² of the principal angles over the smaller dimension: 1 where one
    subspace lies in the other. The subspace that queries read is that of W_Q, whatever the rotary
    offset. For `direction`, p is multiplied by the number of directions tried, and `component` is
    the number of the best one. For `permuted`, p is at least 1/H² with H heads in each layer, and
    NaN where all pairs give the same score; it costs H⁴ sums of d_head² numbers per pair of layers.
    """
    measure = parse_choice(get_args(Measure), measure, "measure")
    of_layers = {"kernel": _kernel, "direction": _best_direction, "permuted": _permuted}[measure]
    whole, n = composition(model, center=center), model.config.n_heads
    offset = 0 if measure == "kernel" and model.config.positions == "rotary" else None
    layers: list[dict[str, Directions]] = []
    for layer in range(model.config.n_layers):
        progress(layer, model.config.n_layers, "singular directions")
        heads = model.heads[layer * n : (layer + 1) * n]
        factors = {"w": [write_factor(head, whole.centered) for head in heads]}
        for kind in KINDS:
            factors[kind] = [read_factor(head, kind, whole.centered, offset) for head in heads]
        dtype = model.weights.dtype
        layers.append({name: Directions.of(each, dtype) for name, each in factors.items()})
    # All but p_axes, which these measures do not have.
    shape = len(fields(PairScores)) - 1, len(model.heads), len(model.heads)
    q, k, v = (PairScores(*torch.full(shape, torch.nan, dtype=torch.float64)) for _ in KINDS)
    tables: dict[CompositionKind, PairScores] = {"q": q, "k": k, "v": v}
    for kind, table in tables.items():
        for writer, reader in combinations(range(len(layers)), 2):
            scores = of_layers(layers[writer]["w"], layers[reader][kind], whole.dimension)
            block = slice(writer * n, writer * n + n), slice(reader * n, reader * n + n)
            for name, part in vars(scores).items():
                if part is not None:
                    getattr(table, name)[block] = part
    notes = list(whole.notes)
    for kind, table in tables.items() if measure == "permuted" else ():
        if alike := int((~whole.scores(kind).p.isnan() & table.p.isnan()).sum()):
            notes.append(
                f"{alike} {kind.upper()} edges have no permuted p: the heads of their layers have "
                "the same directions, so permuting them has no effect."
            )
    parts = (*(whole.dimension, whole.centered, offset), tuple(notes), measure)
    return CompositionBy(model.name, whole.heads, q, k, v, *parts)


def _kernel(own: Directions, read: Directions, d: int) -> PairScores:
    """Squared cosines with equal weights: the projection kernel."""
    written, seen = own.uniform, read.uniform
    square = torch.einsum("ai,acij,cj->ac", written, _squared_cosines(own, read), seen)
    P, G = UnitMoments.of_shares(written), UnitMoments.of_shares(seen)
    found = PairScores.from_rotations(square, unit_null(P[:, None], G[None, :], d))
    larger = torch.maximum(own.ranks[:, None], read.ranks)
    score = found.score.square() * larger
    return replace(found, score=score, excess=score - larger / d)


def _best_direction(own: Directions, read: Directions, d: int) -> PairScores:
    """The written direction that is read most."""
    squares = torch.einsum("acij,cj->aci", _squared_cosines(own, read), read.shares)
    rounding = torch.arange(squares.shape[-1]) >= own.ranks[:, None, None]
    best = squares.masked_fill(rounding, -1.0).max(-1)
    square = torch.where(best.values >= 0, best.values, torch.nan)
    null = unit_null(_LINE, UnitMoments.of_shares(read.shares), d)
    scores, tried = PairScores.from_rotations(square, null), own.ranks[:, None].expand_as(square)
    component = torch.where(square.isnan(), torch.nan, best.indices.double())
    return replace(scores, p=(scores.p * tried).clamp(max=1), component=component, tried=tried)


def _permuted(own: Directions, read: Directions, _: int) -> PairScores:
    """The spectra of two heads with the directions of every two heads of their layers."""
    # [basis of the writer, its spectrum, basis of the reader, its spectrum]
    every = torch.stack(
        [
            torch.einsum("ai,cij,bj->acb", own.shares, cosines, read.shares)
            for cosines in _squared_cosines(own, read)
        ]
    )
    there = [~each.shares.isnan().any(1) for each in (own, read)]
    square = torch.einsum("aacc->ac", every)
    drawn = every[there[0]][:, :, there[1]].permute(1, 3, 0, 2).flatten(2)
    mean, sd = drawn.mean(-1), drawn.std(-1, correction=0)
    skewness = ((drawn - mean[..., None]) / sd[..., None]).pow(3).mean(-1)
    p = (drawn >= square[..., None] - _TIE).double().mean(-1)
    differ = (sd > _TIE) & ~square.isnan()
    against = (torch.where(differ, x, torch.nan) for x in ((square - mean) / sd, p, sd, skewness))
    return PairScores(square.sqrt(), square.sqrt() - drawn.sqrt().mean(-1), *against)


def _squared_cosines(own: Directions, read: Directions) -> Float[Tensor, "writer reader i j"]:
    return torch.einsum("aid,cjd->acij", own.basis, read.basis).square()
