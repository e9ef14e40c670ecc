"""Norms, eigenvalues and singular values against dense linear algebra."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algebra.factors import badly_scaled, distance, factored, gaussian, rounding, seeds

from pathsum.algebra import Factored, eigenvectors, singular_values
from pathsum.algebra.spectrum import balanced

# Relative to the Frobenius norm of the matrix.
CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4}
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def check_spectrum(f: Factored) -> None:
    dense = f.dense()
    q = min(f.rank_bound, *f.shape[-2:])
    norms = torch.linalg.matrix_norm(dense)
    allowed = CLOSE[f.dtype] * norms
    assert bool(((f.norm() - norms).abs() <= allowed).all())

    values = torch.linalg.svdvals(dense)[..., :q]
    assert bool(((singular_values(f) - values).abs() <= allowed[..., None]).all())
    svd = f.svd()
    assert svd.U.shape == (*f.shape[:-1], q)
    assert svd.Vh.shape == (*f.batch_shape, q, f.shape[-1])
    assert bool(((svd.S - values).abs() <= allowed[..., None]).all())
    rebuilt = (svd.U * svd.S[..., None, :]) @ svd.Vh
    assert bool((torch.linalg.matrix_norm(rebuilt - dense) <= allowed).all())
    eye = torch.eye(q, dtype=f.dtype).expand(*f.batch_shape, q, q)
    torch.testing.assert_close(svd.U.mT @ svd.U, eye, rtol=0, atol=CLOSE[f.dtype])
    torch.testing.assert_close(svd.Vh @ svd.Vh.mT, eye, rtol=0, atol=CLOSE[f.dtype])
    assert bool((svd.U.amax(-2) >= -svd.U.amin(-2)).all())


@dtypes
@given(data=st.data())
@settings(max_examples=50)
def test_norm_and_singular_values_agree_with_dense(data: st.DataObject, dtype: torch.dtype) -> None:
    check_spectrum(data.draw(factored(dtype=dtype)))


@given(f=badly_scaled())
@settings(max_examples=50)
def test_norm_and_singular_values_of_badly_scaled_factors(f: Factored) -> None:
    check_spectrum(f)


@dtypes
@given(data=st.data())
@settings(max_examples=50)
def test_eigenvalues_agree_with_dense(data: st.DataObject, dtype: torch.dtype) -> None:
    f = data.draw(factored(square=True, dtype=dtype))
    q = min(f.rank_bound, f.shape[-1])
    found = f.eigenvalues()
    assert found.shape == (*f.batch_shape, q)
    assert bool((found.abs().diff(dim=-1) <= 0).all())
    # In double, where eigenvalues that are close to each other are not a matter of rounding.
    dense = f.dense().double()
    missing = torch.zeros(*f.batch_shape, f.shape[-1] - q, dtype=found.dtype)
    every = torch.cat([found, missing], dim=-1)
    scale = float(torch.linalg.matrix_norm(dense).amax()) if dense.numel() else 1.0
    close = 1e-8 if dtype == torch.float64 else 1e-2
    assert distance(every, torch.linalg.eigvals(dense)) <= close * scale
    # A sum is insensitive to eigenvalues that nearly coincide.
    trace = f.trace()
    torch.testing.assert_close(
        found.sum(-1).real, trace, rtol=CLOSE[dtype], atol=CLOSE[dtype] * scale
    )
    assert bool((found.sum(-1).imag.abs() <= CLOSE[dtype] * scale).all())


@given(f=badly_scaled())
@settings(max_examples=50)
def test_eigenvalues_of_badly_scaled_factors(f: Factored) -> None:
    dense = f.dense()
    found = f.eigenvalues()
    missing = torch.zeros(f.shape[-1] - len(found), dtype=found.dtype)
    expected = torch.linalg.eigvals(dense)
    assert distance(torch.cat([found, missing]), expected) <= 1e-10 * float(dense.norm())


@given(f=factored(square=True), power=st.integers(-40, 40))
@settings(max_examples=30)
def test_eigenvectors_are_eigenvectors(f: Factored, power: int) -> None:
    scale = 2.0**power  # which eigenvectors do not have
    found = eigenvectors(f * scale)
    values = found.values / scale
    torch.testing.assert_close(values, f.eigenvalues(), rtol=1e-8, atol=1e-8)
    dense = f.dense().to(found.vectors.dtype)
    torch.testing.assert_close(
        dense @ found.vectors, found.vectors * values[..., None, :], rtol=0, atol=1e-8
    )
    lengths = torch.linalg.vector_norm(found.vectors, dim=-2)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    peak = found.vectors.gather(-2, found.vectors.abs().argmax(-2, keepdim=True))
    torch.testing.assert_close(peak, peak.abs().to(peak.dtype))


@given(f=factored())
@settings(max_examples=30)
def test_balancing_keeps_the_product_and_matches_the_scales(f: Factored) -> None:
    skewed = Factored(f.A * 2.0**40, f.B)
    found = balanced(skewed)
    assert bool(((found.dense() - skewed.dense()).abs() <= rounding(skewed)).all())
    sides = torch.broadcast_tensors(found.A.abs().amax(-2), found.B.abs().amax(-1))
    assert bool((torch.maximum(*sides) <= 4 * torch.minimum(*sides)).all())


@given(seed=seeds, rank=st.integers(1, 6))
@settings(max_examples=30)
def test_a_norm_is_not_cyclic(seed: int, rank: int) -> None:
    """tr(X Y Z) = tr(Z X Y), and ‖X Y Z‖ ≠ ‖Z X Y‖: whoever permutes inside a norm fails here."""
    size = 8
    x = Factored(gaussian(seed, size, rank), gaussian(seed + 1, rank, size))
    y = Factored(gaussian(seed + 2, size, rank), gaussian(seed + 3, rank, size))
    # One direction that the middle matrix stretches: order matters, by a wide margin.
    z = Factored(y.A[:, :1], x.B[:1] * 3)
    first, permuted = x @ y @ z, z @ x @ y
    torch.testing.assert_close(first.trace(), permuted.trace(), rtol=1e-10, atol=1e-10)
    for product in (first, permuted):
        assert abs(product.norm() / product.dense().norm() - 1) < 1e-10
    dense = x.dense() @ y.dense() @ z.dense()
    assert abs(first.norm() / dense.norm() - 1) < 1e-10
    # The cyclic trick on the factors of one product, where it would be most tempting.
    inner = Factored(first.B, first.A)
    assert abs(inner.trace() - first.trace()) < 1e-9 * first.norm()
    assert min(permuted.norm() / dense.norm(), dense.norm() / permuted.norm()) < 0.99
