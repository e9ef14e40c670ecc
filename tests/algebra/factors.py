"""Factored matrices to test with."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from pathsum.algebra import Factored

sizes = st.integers(1, 9)
seeds = st.integers(0, 2**32 - 1)
batches = st.sampled_from([(), (3,), (2, 3), (1,), (0,)])


def gaussian(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def integers(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers from −2 to 2: their products are exact and full of ties."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def powers(seed: int, *shape: int) -> Tensor:
    """Scales spread evenly over sixteen orders of magnitude, 10⁻⁸ … 10⁸."""
    generator = torch.Generator().manual_seed(seed)
    return 10 ** (16 * torch.rand(shape, generator=generator, dtype=torch.float64) - 8)


@st.composite
def factored(draw: st.DrawFn, square: bool = False, dtype: torch.dtype = torch.float64) -> Factored:
    """Gaussian factors; batch dimensions of one of them may be left to broadcasting."""
    m, r = draw(sizes), draw(sizes)
    n = m if square else draw(sizes)
    batch, seed = draw(batches), draw(seeds)
    left, right = draw(st.sampled_from([(batch, batch), (batch, ()), ((), batch)]))
    return Factored(
        gaussian(seed, *left, m, r, dtype=dtype), gaussian(seed + 1, *right, r, n, dtype=dtype)
    )


@st.composite
def badly_scaled(draw: st.DrawFn) -> Factored:
    """A square product whose inner terms, rows or columns differ by up to 10¹⁶ in scale."""
    n, r, seed = draw(st.integers(2, 12)), draw(st.integers(1, 14)), draw(seeds)
    A, B = gaussian(seed, n, r), gaussian(seed + 1, r, n)
    inner, outer = powers(seed + 2, r), powers(seed + 3, n)
    return draw(
        st.sampled_from(
            [
                Factored(A * inner, B / inner[:, None]),
                Factored(A * inner, B),
                Factored(A * inner, B * inner[:, None]),
                Factored(A * outer[:, None], B),
                Factored(A * inner, B / inner[:, None] * outer),
            ]
        )
    )


def distance(found: Tensor, expected: Tensor) -> float:
    """How far the farthest of `found` is from what is nearest to it in `expected`, and back."""
    gaps = (found[..., :, None] - expected[..., None, :]).abs()
    if not gaps.numel():
        return 0.0
    return float(torch.maximum(gaps.amin(-1).amax(), gaps.amin(-2).amax()))


def rounding(f: Factored) -> Tensor:
    """How far two computed values of each entry of `A @ B` may differ: k eps Σ|terms|.

    Summing r products in any order, fused or not, is off by at most r/2 eps Σ|terms|.
    """
    size = f.A.abs() @ f.B.abs()
    return (f.rank_bound + 1) * torch.finfo(f.dtype).eps * size
