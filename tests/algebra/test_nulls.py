"""The rotation null against rotations drawn at random."""

from itertools import permutations, product

import pytest
import torch
from tests.algebra.factors import gaussian
from torch import Tensor

from pathsum.algebra import (
    AxisMoments,
    Factored,
    RotationNull,
    UnitMoments,
    axis_null,
    center_rows,
    unit_null,
)
from pathsum.algebra.nulls import LEAST_SKEWNESS


def rotations(seed: int, count: int, d: int, columns: int | None = None) -> Tensor:
    """The first columns of uniformly random rotations (QR, with the signs that make it uniform)."""
    Q, R = torch.linalg.qr(gaussian(seed, count, d, columns or d))
    return Q * R.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]


def overlaps(seed: int, count: int, d: int, left: Tensor, right: Tensor) -> Tensor:
    """tr(P Q G Qᵀ) / (tr P tr G), P and G with eigenvalues `left` and `right`, Q random."""
    left, right = left / left.sum(), right / right.sum()
    Q = rotations(seed, count, d, len(right))[:, : len(left)]
    return torch.einsum("i,nij,j->n", left, Q.square(), right)


def null_of(d: int, left: Tensor, right: Tensor) -> RotationNull:
    P, G = (UnitMoments.of_shares(values / values.sum()) for values in (left, right))
    return unit_null(P, G, d)


def moments(f: Factored) -> UnitMoments:
    """Of MᵀM, or of M Mᵀ, divided by its trace."""
    squares = f.svd().S.square()
    return UnitMoments.of_shares(squares / squares.sum(-1, keepdim=True))


def harmonic(rank: int) -> Tensor:
    """Eigenvalues of P for singular values 1/k."""
    return torch.arange(1, rank + 1, dtype=torch.float64) ** -2


@pytest.mark.parametrize(
    ("d", "left", "right"),
    [
        (24, harmonic(6), harmonic(9)),
        (24, torch.ones(6).double(), harmonic(6)),
        (9, torch.ones(5).double(), torch.arange(9).double()),
        (3, torch.ones(1).double(), torch.ones(1).double()),
    ],
)
def test_moments_are_those_of_random_rotations(d: int, left: Tensor, right: Tensor) -> None:
    null = null_of(d, left, right)
    drawn = overlaps(0, 40_000, d, left, right)
    assert abs(drawn.mean() / null.mean - 1) < 0.01
    assert abs(drawn.var() / null.variance - 1) < 0.04
    assert abs(null.z(drawn).pow(3).mean() - null.skewness) < 0.1 + 0.05 * null.skewness


@pytest.mark.parametrize(("power", "chances"), [(1.0, (0.0195, 0.0080)), (0.5, (0.0107, 0.0027))])
def test_the_tail_is_that_of_random_rotations(power: float, chances: tuple[float, ...]) -> None:
    values = harmonic(16) ** power
    null = null_of(64, values, values)
    drawn = null.z(overlaps(1, 20_000, 64, values, values))
    for z, known in zip((3.0, 4.0), chances, strict=True):
        simulated = float((drawn > z).double().mean())
        predicted = float(null.p(null.mean + z * null.variance.sqrt()))
        # What 20,000 draws find and what 40,000 others found agree; so does the closed form, and
        # the normal tail (0.00135 and 0.00003) is far off.
        assert abs(simulated / known - 1) < 0.25
        assert abs(predicted / known - 1) < 0.3


def test_chances_of_random_matrices_are_uniform() -> None:
    d, r, count = 32, 4, 70
    X = Factored(gaussian(0, count, d, r), gaussian(1, count, r, d))
    Y = Factored(gaussian(2, count, d, r), gaussian(3, count, r, d))
    score = (X[:, None] @ Y[None, :]).norm() / (X.norm()[:, None] * Y.norm()[None, :])
    p = unit_null(moments(X)[:, None], moments(Y)[None, :], d).p(score.square())
    assert p.shape == (count, count)
    for level in (0.5, 0.1, 0.02):
        assert abs(float((p < level).double().mean()) / level - 1) < 0.2
    # The squared score is 1/d on average, whatever the rank.
    assert abs(float(score.square().mean()) * d - 1) < 0.02


def test_the_centered_null_is_that_of_rotations_that_fix_the_ones_vector() -> None:
    d = 10
    # A large common direction, which centering has to remove.
    X = Factored(gaussian(0, d, 3), gaussian(1, 3, d) + 5)
    Y = Factored(gaussian(2, d, 2) + 5, gaussian(3, 2, d))
    X, Y = center_rows(X), center_rows(Y.T).T
    null = unit_null(moments(X), moments(Y), d - 1)
    first = torch.cat([torch.ones(d, 1).double(), gaussian(4, d, d - 1)], dim=1)
    basis = torch.linalg.qr(first).Q[:, 1:]  # of what is orthogonal to the ones-vector
    turned = basis @ rotations(5, 20_000, d - 1) @ basis.T
    drawn = torch.linalg.matrix_norm(X.dense() @ turned @ Y.dense()) / (X.norm() * Y.norm())
    drawn = drawn.square()
    assert abs(drawn.mean() / null.mean - 1) < 0.02
    assert abs(drawn.var() / null.variance - 1) < 0.06
    assert abs((null.p(drawn) < 0.05).double().mean() - 0.05) < 0.01


def test_far_tails_have_a_floor() -> None:
    null = null_of(64, harmonic(16), harmonic(16))
    values = null.mean + torch.tensor([10.0, 100.0, 1e4]).double() * null.variance.sqrt()
    tail = null.tail(values)
    assert 1e-6 < float(tail[0]) < 1e-3 and bool((tail[1:] < 1e-6).all())
    assert null.p(values).tolist() == pytest.approx([float(tail[0]), 1e-6, 1e-6])
    # Below everything the gamma reaches, a larger value is certain.
    assert null.p(null.mean * 0) == 1


def test_negative_skewness_uses_an_almost_normal_tail() -> None:
    few, most = torch.ones(1).double(), torch.ones(7).double()
    null = null_of(8, few, most)
    assert null.skewness < 0
    z = torch.tensor([-1.0, 0.0, 2.0]).double()
    found = null.p(null.mean + z * null.variance.sqrt())
    normal = torch.special.ndtr(-z)
    torch.testing.assert_close(found, normal, rtol=2 * LEAST_SKEWNESS, atol=0)


def test_a_spread_above_rounding_is_kept_and_below_it_is_none() -> None:
    d = 100
    for above, kept in ((1e-5, True), (1e-6, True), (1e-7, False), (0.0, False), (-1e-7, False)):
        square = torch.tensor((1 + above) / d, dtype=torch.float64)
        found = float(UnitMoments(square, square).variance(d))
        assert found == (pytest.approx(above / d, rel=1e-6) if kept else 0.0)


def test_what_no_rotation_moves_is_no_surprise() -> None:
    eye = Factored(rotations(0, 1, 6)[0].float() * 0.3, rotations(1, 1, 6)[0].float())
    some = Factored(gaussian(0, 6, 2).float(), gaussian(1, 2, 6).float())
    line = Factored(torch.ones(2, 1), torch.tensor([[1.0, 0.0]]))
    for still, other in ((eye, some), (line, line)):  # in two dimensions there is no null
        null = unit_null(moments(still), moments(other), still.shape[-1])
        value = ((still @ other).norm() / (still.norm() * other.norm())).square()
        torch.testing.assert_close(null.mean, value.double(), rtol=1e-5, atol=1e-12)
        assert null.variance == 0
        assert null.skewness == 0
        assert bool(null.z(value).isnan())
        assert null.p(value) == 1
        assert null.tail(value) == 1


def beta_tail(x: float, a: float, b: float, steps: int = 20_000) -> float:
    """The chance that a Beta(a, b) variable exceeds x, by the midpoint rule."""
    t = x + (1 - x) * (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    a_, b_ = torch.tensor([a, b], dtype=torch.float64)
    log_beta = torch.lgamma(a_) + torch.lgamma(b_) - torch.lgamma(a_ + b_)
    density = (a - 1) * t.log() + (b - 1) * torch.log1p(-t) - log_beta
    return float(density.exp().sum()) * (1 - x) / steps


@pytest.mark.parametrize("d", [32, 128, 768])
@pytest.mark.parametrize("r", [1, 4, 12])
def test_p_is_on_the_safe_side_of_exact_tails_down_to_its_floor(d: int, r: int) -> None:
    """A direction against a subspace of r: Σcos² is Beta(r/2, (d − r)/2)."""
    ones = torch.ones((), dtype=torch.float64)
    null = unit_null(UnitMoments.of_rank(ones), UnitMoments.of_rank(r * ones), d)
    for chance in (0.05, 0.01, 1e-3, 1e-4, 1e-6):
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if beta_tail(middle, r / 2, (d - r) / 2) > chance else (low, middle)
            )
        ratio = float(null.tail(torch.tensor(low / r))) / chance
        assert ratio > 0.9
        assert ratio < (1.2 if chance >= 0.01 else 3 if d >= 128 else 100)
    assert float(null.p(torch.tensor(2.0 / r))) == 1e-6


def axis_moments(P: Tensor) -> AxisMoments:
    P2 = P @ P
    return AxisMoments.of(P.diagonal(), P2.diagonal(), UnitMoments(P2.trace(), (P2 @ P).trace()))


@pytest.mark.parametrize("d", [3, 4, 6])
def test_moments_are_those_of_all_signed_permutations(d: int) -> None:
    draw = torch.Generator().manual_seed(d)
    P, G = (
        X.mT @ X / X.square().sum()
        for X in torch.randn(2, 2, d, generator=draw, dtype=torch.float64).pow(3)
    )
    signs = torch.tensor(list(product([1.0, -1.0], repeat=d))).double()
    orders = torch.tensor(list(permutations(range(d))))
    permuted = G[orders[:, :, None], orders[:, None, :]]
    values = torch.einsum("sa,nab,sb->ns", signs, P * permuted, signs).flatten()
    null = axis_null(axis_moments(P), axis_moments(G), d)
    z = null.z(values)
    torch.testing.assert_close(values.mean(), null.mean)
    torch.testing.assert_close(z.square().mean(), torch.ones(()).double())
    torch.testing.assert_close(z.pow(3).mean(), null.skewness, rtol=1e-6, atol=1e-9)


def test_matrices_that_no_permutation_moves() -> None:
    same = axis_moments(torch.eye(8).double() / 8)
    other = axis_moments(torch.diag(torch.arange(8).double()) / 28)
    null = axis_null(same, other, 8)
    assert null.variance == 0 and null.p(torch.tensor(0.5)) == 1
