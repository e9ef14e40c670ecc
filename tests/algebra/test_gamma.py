"""The gamma tail against closed forms."""

import math

import pytest
import torch

from pathsum.algebra.nulls import log_upper_gamma


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def check(shape: float, x: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to 32 roundings of the terms of log Q = a log x − x − log Γ(a) + log(fraction).

    The incomplete gamma function, used near, has the same terms in an exponent.
    """
    a = torch.full_like(x, shape)
    terms = 1 + (a * x.clamp(min=1e-300).log()).abs() + x + torch.lgamma(a).abs() + expected.abs()
    gap = (log_upper_gamma(a, x) - expected).abs()
    assert bool((gap <= 32 * torch.finfo(torch.float64).eps * terms).all()), gap / terms


def test_the_exponential_tail() -> None:
    x = double(0.0, 1e-3, 1.0, 100.0, 229.0, 231.0, 700.0, 1e4, 1e6)
    check(1.0, x, -x)


def test_the_normal_tail() -> None:
    # Q(1/2, x) = erfc(√x), whose logarithm is that of the normal tail plus log 2.
    x = double(0.1, 1.0, 30.0, 300.0, 1e4)
    expected = torch.special.log_ndtr(-(2 * x).sqrt()) + math.log(2)
    check(0.5, x, expected)


@pytest.mark.parametrize("shape", [3, 40, 1000])
def test_whole_shapes_are_poisson_sums(shape: int) -> None:
    # Q(n, x) = Σ_{k<n} xᵏ e⁻ˣ / k!
    x = shape + math.sqrt(shape) * double(-1.0, 0.0, 2.0, 6.0, 25.0, 60.0, 300.0)
    k = torch.arange(shape, dtype=torch.float64)
    expected = (k * x[:, None].log() - x[:, None] - torch.lgamma(k + 1)).logsumexp(1)
    found = log_upper_gamma(torch.full_like(x, float(shape)), x)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
