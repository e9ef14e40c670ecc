"""The gamma tail against closed forms."""

import math

import pytest
import torch

from pathsum.algebra.gamma import log_upper_gamma


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_exponential_tail() -> None:
    x = double(0.0, 1e-3, 1.0, 100.0, 229.0, 231.0, 700.0, 1e4, 1e6)
    torch.testing.assert_close(log_upper_gamma(torch.ones_like(x), x), -x, rtol=1e-13, atol=1e-15)


def test_the_normal_tail() -> None:
    # Q(1/2, x) = erfc(√x), whose logarithm is that of the normal tail plus log 2.
    x = double(0.1, 1.0, 30.0, 300.0, 1e4)
    expected = torch.special.log_ndtr(-(2 * x).sqrt()) + math.log(2)
    torch.testing.assert_close(
        log_upper_gamma(torch.full_like(x, 0.5), x), expected, rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("shape", [3, 40, 1000])
def test_whole_shapes_are_poisson_sums(shape: int) -> None:
    # Q(n, x) = Σ_{k<n} xᵏ e⁻ˣ / k!
    x = shape + math.sqrt(shape) * double(-1.0, 0.0, 2.0, 6.0, 25.0, 60.0, 300.0)
    k = torch.arange(shape, dtype=torch.float64)
    expected = (k * x[:, None].log() - x[:, None] - torch.lgamma(k + 1)).logsumexp(1)
    found = log_upper_gamma(torch.full_like(x, float(shape)), x)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
