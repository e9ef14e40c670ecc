"""Composition by singular directions, of all pairs of heads.

With OV¹ = Σ σᵢ uᵢ vᵢᵀ and M = Σ τⱼ aⱼ bⱼᵀ the composition score is a sum over pairs of directions,

    score² = Σᵢⱼ wᵢ rⱼ (vᵢ·aⱼ)²      with shares wᵢ = σᵢ² / Σσ², rⱼ = τⱼ² / Στ²

`composition_by` offers other measures, in the same record as `composition`:

    kernel     equal shares for every direction: the overlap of the two subspaces
    direction  the written direction v with the largest ‖v M‖ / ‖M‖ (Merullo et al.), because the
               head's other directions may mask it
    permuted   the score, compared with the directions of other heads of the two layers, which
               preserve structure that a whole layer shares
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
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
        ranks = [numerical_rank(of_head, dtype) for of_head in values]
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
        """The definitions of the score and of p."""
        return (_NULLS[self.measure],)


@torch.no_grad()
def composition_by(
    model: Model, measure: Measure, *, center: Center = "auto", progress: Progress = silent
) -> CompositionBy:
    """Composition of all pairs of heads by subspaces, by single directions or against other heads.

    >>> import pathsum as ps
    >>> scores = composition_by(ps.construct.induction(), "permuted")
    >>> scores["L0H0", "L1H0", "k"].p  # the best of 2 × 2 pairs of directions
    0.25

    `kernel` has the score Σ cos² of the principal angles over the smaller dimension: 1 where one
    subspace contains the other. The subspace that queries read is that of W_Q, whatever the rotary
    offset. For `direction`, p is multiplied by the number of directions tried, and `component` is
    the number of the best one. For `permuted`, p is at least 1/H² with H heads in each layer, and
    NaN where all pairs give the same score; it costs H⁴ sums of d_head² numbers per pair of layers.
    """
    measure = parse_choice(get_args(Measure), measure, "measure")
    score_layers = {"kernel": _kernel, "direction": _best_direction, "permuted": _permuted}[measure]
    base, n, L = composition(model, center=center), model.config.n_heads, model.config.n_layers
    offset = 0 if measure == "kernel" and model.config.positions == "rotary" else None
    writes: list[Directions] = []
    # All fields of PairScores but p_axes, which these measures lack.
    shape = len(KINDS), len(fields(PairScores)) - 1, L * n, L * n
    values = torch.full(shape, torch.nan, dtype=torch.float64)
    for layer in range(L):
        progress(layer, L, "singular directions")
        heads, dtype = model.heads[layer * n : (layer + 1) * n], model.weights.dtype
        for kind, table in zip(KINDS, values, strict=True):
            factors = [read_factor(head, kind, base.centered, offset) for head in heads]
            read = Directions.of(factors, dtype)
            for below, write in enumerate(writes):
                scores = score_layers(write, read, base.dimension)
                for part, block in zip(table, vars(scores).values(), strict=False):
                    if block is not None:
                        part[below * n : (below + 1) * n, layer * n : (layer + 1) * n] = block
        writes.append(Directions.of([write_factor(head, base.centered) for head in heads], dtype))
    q, k, v = (PairScores(*table) for table in values)
    notes = list(base.notes)
    for kind, table in zip(KINDS, (q, k, v), strict=True):
        missing = int((~base.scores(kind).p.isnan() & table.p.isnan()).sum())
        if measure == "permuted" and missing:
            notes.append(
                f"{missing} {kind.upper()} edges have no permuted p: the heads of their layers "
                "have the same directions, so permuting them has no effect."
            )
    details = (base.dimension, base.centered, offset, tuple(notes), measure)
    return CompositionBy(model.name, base.heads, q, k, v, *details)


def _kernel(write: Directions, read: Directions, d: int) -> PairScores:
    """Squared cosines with equal weights: the projection kernel."""
    square = torch.einsum(
        "ai,acij,cj->ac", write.uniform, _squared_cosines(write, read), read.uniform
    )
    P, G = (UnitMoments.of_shares(of.uniform) for of in (write, read))
    scores = PairScores.from_rotations(square, unit_null(P[:, None], G[None, :], d))
    larger = torch.maximum(write.ranks[:, None], read.ranks)
    score = scores.score.square() * larger
    return replace(scores, score=score, excess=score - larger / d)


def _best_direction(write: Directions, read: Directions, d: int) -> PairScores:
    """The written direction with the largest share of the reads."""
    squares = torch.einsum("acij,cj->aci", _squared_cosines(write, read), read.shares)
    rounding = torch.arange(squares.shape[-1]) >= write.ranks[:, None, None]
    square, component = squares.masked_fill(rounding, -1.0).max(-1)
    square = torch.where(square >= 0, square, torch.nan)
    null = unit_null(_LINE, UnitMoments.of_shares(read.shares), d)
    scores, tried = PairScores.from_rotations(square, null), write.ranks[:, None].expand_as(square)
    component = torch.where(square.isnan(), torch.nan, component.double())
    return replace(scores, p=(scores.p * tried).clamp(max=1), component=component, tried=tried)


def _permuted(write: Directions, read: Directions, _: int) -> PairScores:
    """The spectra of two heads with the directions of every two heads of their layers."""
    # [basis of the writer, its spectrum, basis of the reader, its spectrum]
    squares = torch.stack(
        [
            torch.einsum("ai,cij,bj->acb", write.shares, cosines, read.shares)
            for cosines in _squared_cosines(write, read)
        ]
    )
    square = torch.einsum("aacc->ac", squares)
    writers, readers = (~of.shares.isnan().any(1) for of in (write, read))
    null = squares[writers][:, :, readers].permute(1, 3, 0, 2).flatten(2)
    mean, sd = null.mean(-1), null.std(-1, correction=0)
    skewness = ((null - mean[..., None]) / sd[..., None]).pow(3).mean(-1)
    p = (null >= square[..., None] - _TIE).double().mean(-1)
    varies = (sd > _TIE) & ~square.isnan()
    tests = (torch.where(varies, x, torch.nan) for x in ((square - mean) / sd, p, sd, skewness))
    return PairScores(square.sqrt(), square.sqrt() - null.sqrt().mean(-1), *tests)


def _squared_cosines(write: Directions, read: Directions) -> Float[Tensor, "writer reader i j"]:
    return torch.einsum("aid,cjd->acij", write.basis, read.basis).square()
