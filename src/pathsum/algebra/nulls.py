"""The rotation null: the distribution of `tr(P Q G Qᵀ)` over random rotations Q, in closed form.

Two matrices X and Y that meet in R^d have ‖X Y‖² = tr(P G) with P = XᵀX and G = Y Yᵀ. How large is
that by accident? Rotate one against the other at random. Let P₀ = P − (tr P / d) I and G₀ likewise;
then the first three moments are

    mean                  tr P tr G / d
    variance              2 / ((d − 1)(d + 2)) · tr P₀² tr G₀²
    third central moment  8 d / ((d − 2)(d − 1)(d + 2)(d + 4)) · tr P₀³ tr G₀³

(the third follows from zonal polynomials, into which averages over rotations factor). A
score is ‖X Y‖² / (‖X‖² ‖Y‖²), so P and G are divided by their traces, and the mean is 1/d. Then the
moments need only tr P² and tr P³ of each matrix (`UnitMoments`), so all pairs of many X with many Y
cost little:

    null = unit_null(writes[:, None], reads[None, :], d)     # UnitMoments of n and of m matrices
    null.p(scores_squared)                                   # [n, m]

The distribution is skewed, the more so the fewer directions P and G have. A shifted gamma with the
same three moments follows its tail; a normal does not, and neither does a gamma that starts at zero
and has the same mean and variance. With singular values ∝ 1/k, d = 64 and rank 16:

                             simulated   shifted gamma   gamma from zero   normal
    P(z > 3)                 0.0195      0.0192          0.0119            0.0013
    P(z > 6)                 0.0013      0.0011          0.0002            10⁻⁹

A rotation is the wrong comparison for matrices that prefer some axes, as in real models:
if few axes hold most of P and of G, these meet more often than random directions. `axis_null` is
the distribution over permutations of the axes with random signs, which keep such a preference. Its
moments are in closed form too, and `AxisMoments` holds the statistics that they need.

If vectors are centered before they are read, the ones-vector is never in play, and rotations that
fix it are the right null: use the centered matrices in d − 1 dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import svdvals
from pathsum.algebra.factored import BatchIndex
from pathsum.base.estimate import P_FLOOR

ALPHA = 0.01
"""The level of every test: one in a hundred random heads is significant."""
LEAST_SKEWNESS = 0.01
"""A gamma tail needs some skewness; smaller values are raised to this."""


@dataclass(frozen=True, eq=False)
class UnitMoments:
    """tr P² and tr P³ of positive semidefinite matrices P of trace 1, one number for each P."""

    square: Tensor
    cube: Tensor

    @classmethod
    def of_shares(cls, shares: Float[Tensor, "*batch q"]) -> UnitMoments:
        """Of eigenvalues that add up to 1."""
        return cls(shares.square().sum(-1), shares.pow(3).sum(-1))

    @classmethod
    def of_factor(cls, factor: Float[Tensor, "r d"]) -> UnitMoments:
        """Of FᵀF for a factor of norm 1."""
        return cls.of_shares(svdvals(factor).square())

    @classmethod
    def of_gram(cls, gram: Float[Tensor, "n n"]) -> UnitMoments:
        """The moments of a Gram matrix of trace 1, FᵀF or F Fᵀ, without its eigenvalues."""
        return cls(gram.square().sum(), (gram @ gram * gram).sum())

    @classmethod
    def of_rank(cls, rank: Float[Tensor, "*batch"]) -> UnitMoments:
        """Moments of projections onto subspaces, each divided by its dimension."""
        return cls(1 / rank, 1 / rank.square())

    def __getitem__(self, index: BatchIndex | tuple[BatchIndex, ...]) -> UnitMoments:
        """Index the batch: `writes[:, None]` against `reads[None, :]` gives all pairs."""
        return UnitMoments(self.square[index], self.cube[index])

    def variance(self, d: int) -> Float[Tensor, "*batch"]:
        """tr P₀² = tr P² − 1/d: the spread of the d eigenvalues.

        Exactly zero where it does not exceed rounding, as for I/d, which no rotation changes.
        """
        square = self.square.double()
        # Factors may be float32: a difference below its rounding error is noise.
        noise = torch.finfo(torch.float32).eps * square
        return torch.where(square - 1 / d > noise, square - 1 / d, torch.zeros_like(square))

    def third_moment(self, d: int) -> Float[Tensor, "*batch"]:
        """tr P₀³ = tr P³ − 3 tr P²/d + 2/d², positive if few eigenvalues are large."""
        return self.cube.double() - 3 / d * self.square.double() + 2 / d**2


@dataclass(frozen=True, eq=False)
class RotationNull:
    """The distribution of `tr(P Q G Qᵀ)` over random rotations Q, by its first three moments.

    Where the variance is zero (P or G is zero or a multiple of the identity) every rotation gives
    the same value, so z is NaN and p is 1.
    """

    mean: Tensor
    variance: Tensor
    skewness: Tensor

    @classmethod
    def of(cls, variance: Tensor, third: Tensor, d: int, least: float) -> RotationNull:
        """From central moments, with the mean 1/d; variances up to `least` are rounding."""
        moves = variance > least
        skewness = torch.where(moves, third / torch.where(moves, variance, 1.0) ** 1.5, 0.0)
        mean = torch.full_like(variance, 1 / max(d, 1))
        return cls(mean, torch.where(moves, variance, 0.0), skewness)

    def z(self, value: Float[Tensor, "*#batch"]) -> Float[Tensor, "*batch"]:
        """(value − mean) / standard deviation; NaN where the variance is zero.

        z is not normally distributed: z = 3 can have a probability of 1 in 50. Use `p` instead.
        """
        deviation = torch.where(self.variance > 0, self.variance.sqrt(), torch.nan)
        return (value.double() - self.mean) / deviation

    def p(self, value: Float[Tensor, "*#batch"]) -> Float[Tensor, "*batch"]:
        """The probability of a value at least as large, never less than 10⁻⁶.

        Down to 10⁻⁶ the approximation was compared with exact tails and is conservative. To rank
        values further out, use `z`.
        """
        return self.tail(value).clamp(min=P_FLOOR)

    def tail(self, value: Float[Tensor, "*#batch"]) -> Float[Tensor, "*batch"]:
        """The probability of a value at least as large, without a floor.

        The tail is taken from the shifted gamma distribution with the same mean, variance and
        skewness γ (Pearson's type III): shape 4/γ², at 4/γ² + 2z/γ. If γ is negative, the tail of
        γ = 0.01 is used instead, which is almost normal and conservative.

        This is an approximation. Where the tail is known exactly (a direction against a subspace,
        a beta distribution), the result is 0.91 to 1.2 times the true probability at 0.05 and 0.01
        for d ≥ 32. Further out it is too large: by a factor of 1.2 at 10⁻⁶ for d = 768, 3 for
        d = 128 and more for smaller d. Beyond 10⁻³, use it as a bound and for ranking.
        """
        z = self.z(value)
        skewness = self.skewness.clamp(min=LEAST_SKEWNESS).expand(z.shape)
        shape = 4.0 / skewness.square()
        x = (shape + 2.0 * z / skewness).clamp(min=0.0)
        # gammaincc takes 40 times as long for NaN as for a number.
        is_number = ~x.isnan()
        tail = x.masked_scatter(is_number, torch.special.gammaincc(shape[is_number], x[is_number]))
        return torch.where((self.variance > 0).expand(z.shape), tail, 1.0)


def unit_null(P: UnitMoments, G: UnitMoments, d: int) -> RotationNull:
    """The null of `tr(P Q G Qᵀ)` for P and G of trace 1 in d dimensions; batches broadcast.

    >>> line = UnitMoments.of_rank(torch.tensor(1.0))  # P = u uᵀ with ‖u‖ = 1
    >>> null = unit_null(line, line, d=4)  # the squared cosine of two random directions
    >>> null.mean, null.variance
    (tensor(0.2500, dtype=torch.float64), tensor(0.0625, dtype=torch.float64))

    Below three dimensions the variance is set to 0, so z is NaN and p is 1. The null tests whether
    directions meet more than at random. It does not account for directions that a whole family
    shares: center them away first, or draw a null that keeps them.
    """
    variance = P.variance(max(d, 1)) * G.variance(max(d, 1))
    if d < 3:
        return RotationNull.of(0 * variance, variance, d, 0.0)
    third = P.third_moment(d) * G.third_moment(d)
    third = 8.0 * d / ((d - 2) * (d - 1) * (d + 2) * (d + 4)) * third
    return RotationNull.of(2.0 / ((d - 1) * (d + 2)) * variance, third, d, 0.0)


@dataclass(frozen=True, eq=False)
class AxisMoments:
    """Statistics of positive semidefinite matrices P of trace 1 that depend on their axes.

    With p the diagonal minus its mean: Σ p_a², Σ p_a³, Σ P_ab², Σ p_a P_ab², Σ P_ab P_bc P_ca, the
    last three over indices that all differ.
    """

    square: Tensor
    cube: Tensor
    off_square: Tensor
    mixed: Tensor
    triangles: Tensor

    @classmethod
    def of(
        cls,
        diagonal: Float[Tensor, "*batch d"],
        squares: Float[Tensor, "*batch d"],
        moments: UnitMoments,
    ) -> AxisMoments:
        """From the diagonals of P and of P², and tr P² and tr P³."""
        off = squares - diagonal.square()
        p = diagonal - diagonal.mean(-1, keepdim=True)
        triangles = moments.cube - (diagonal * (3 * squares - 2 * diagonal.square())).sum(-1)
        powers = (p.square().sum(-1), p.pow(3).sum(-1))
        return cls(*powers, off.sum(-1).clamp(min=0), (p * off).sum(-1), triangles)

    def __getitem__(self, index: BatchIndex | tuple[BatchIndex, ...]) -> AxisMoments:
        """Index the batch, as `UnitMoments`."""
        return AxisMoments(*(getattr(self, each.name)[index] for each in fields(self)))


def axis_null(P: AxisMoments, G: AxisMoments, d: int) -> RotationNull:
    """The null of `tr(P S G Sᵀ)` over signed permutations S of the d axes; batches broadcast.

    Signs make the diagonal part Σ p_a g_π(a) and the off-diagonal part uncorrelated, so the
    variances of a permutation statistic and of a sum over pairs add up:

        variance              Σp² Σg² / (d − 1) + 2 ΣP_ab² ΣG_ab² / (d (d − 1))
        third central moment  (d Σp³ Σg³ + 12 Σp_a P_ab² Σg_a G_ab²
                               + 8 ΣP_ab P_bc P_ca ΣG_ab G_bc G_ca / d) / ((d − 1)(d − 2))
    """
    variance = P.square * G.square / max(d - 1, 1)
    variance = variance + 2 * P.off_square * G.off_square / max(d * (d - 1), 1)
    if d < 3:
        return RotationNull.of(0 * variance, variance, d, 0.0)
    third = d * P.cube * G.cube + 12 * P.mixed * G.mixed + 8 / d * P.triangles * G.triangles
    # Equal diagonals and no other entries, up to rounding: every permutation gives the same.
    least = torch.finfo(torch.float32).eps ** 2
    return RotationNull.of(variance, third / ((d - 1) * (d - 2)), d, least)
