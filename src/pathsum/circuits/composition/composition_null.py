"""What composition scores chance gives: the stream turned at random between write and read.

The formulas are those of `pathsum.algebra.nulls`, here for forms of trace 1, where the mean of
tr(P Q G Qᵀ) is 1/d whatever the forms are. z is skewed, the more so the fewer directions carry a
form: with singular values ∝ 1/k, P(z > 3) is near 2 % and not the 0.13 % of a normal variable.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.nulls import GramTraces, RotationNull, rotation_null


@dataclass(frozen=True, eq=False)
class Moments:
    """tr P² and tr P³ of forms P of trace 1, all that the null asks of them."""

    square: Tensor
    cube: Tensor

    @classmethod
    def of_shares(cls, shares: Float[Tensor, "*batch q"]) -> "Moments":
        """Of eigenvalues that add up to 1."""
        return cls(shares.square().sum(-1), shares.pow(3).sum(-1))

    @classmethod
    def of_factor(cls, factor: Float[Tensor, "r d"]) -> "Moments":
        """Of FᵀF for a factor of norm 1."""
        return cls.of_shares(torch.linalg.svdvals(factor).square())

    @classmethod
    def of_rank(cls, rank: Float[Tensor, "*batch"]) -> "Moments":
        """Of projections onto subspaces, divided by their dimension."""
        return cls(1 / rank, 1 / rank.square())

    def __getitem__(self, index: tuple[slice | None, ...]) -> "Moments":
        return Moments(self.square[index], self.cube[index])


def chance(P: Moments, G: Moments, d: int) -> RotationNull:
    """The null of tr(P G) for forms of trace 1 in d dimensions; batches broadcast.

    Below three dimensions there is too little to turn: the variance is 0, z is NaN and p is 1.
    """
    if d < 3:
        zero = torch.zeros_like(P.square * G.square)
        return RotationNull(zero + 1 / max(d, 1), zero, zero)
    traces = [GramTraces(torch.ones_like(m.square), m.square, m.cube, d) for m in (P, G)]
    return rotation_null(*traces)


def chance_of(
    spread: Float[Tensor, "*batch"], skewness: Float[Tensor, "*batch"], d: int
) -> RotationNull:
    """The same null from the standard deviation and the skewness that were kept of it."""
    return RotationNull(torch.full_like(spread, 1 / max(d, 1)), spread.square(), skewness)
