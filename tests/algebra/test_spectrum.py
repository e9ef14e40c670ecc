"""What the decompositions promise beyond agreeing with dense ones."""

import pytest
import torch
from tests.algebra.factors import distance, gaussian

from pathsum.algebra import (
    Factored,
    eigenvalues,
    eigenvectors,
    norm,
    positivity,
    singular_values,
    svd,
)
from pathsum.algebra.decompositions import eigvals
from pathsum.algebra.spectrum import balanced
from pathsum.base.errors import InputError


def test_the_counter_example_to_reading_entries_from_eigenvalues() -> None:
    dense = torch.tensor([[-1.0, 2.0], [-4.0, 5.0]], dtype=torch.float64)
    f = Factored(dense, torch.eye(2, dtype=torch.float64))
    values = torch.tensor([3.0, 1.0], dtype=torch.complex128)
    torch.testing.assert_close(f.eigenvalues(), values)
    torch.testing.assert_close(positivity(f.eigenvalues()), torch.tensor(1.0).double())
    assert f.diagonal()[0] < 0


def test_eigenvalues_come_in_a_defined_order() -> None:
    # Magnitude, then real part, then imaginary part.
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    expected = torch.tensor([2, -2, 0.6 + 0.8j, 0.6 - 0.8j, 0.5], dtype=torch.complex64)
    dense = torch.block_diag(torch.tensor([-2.0]), turn, torch.tensor([0.5]), torch.tensor([2.0]))
    for order in ([0, 1, 2, 3, 4], [4, 2, 1, 0, 3], [3, 1, 0, 4, 2]):
        f = Factored(dense[order][:, order], torch.eye(5))
        torch.testing.assert_close(f.eigenvalues(), expected)


def test_eigenvalues_of_a_rectangle_raise() -> None:
    f = Factored(gaussian(0, 3, 2), gaussian(1, 2, 4))
    with pytest.raises(InputError, match="an eigenvalue was requested of a 3 × 4 matrix.* use svd"):
        f.eigenvalues()
    with pytest.raises(InputError, match="an eigenvector was requested of a 3 × 4 matrix"):
        eigenvectors(f)


def test_eigenvectors_have_a_defined_phase() -> None:
    f = Factored(gaussian(0, 6, 3), gaussian(1, 3, 6))
    peak = eigenvectors(f).vectors
    peak = peak.gather(0, peak.abs().argmax(0, keepdim=True))
    assert bool((peak.real > 0).all())
    torch.testing.assert_close(peak.imag, torch.zeros_like(peak.imag))
    # The null space of B A: the vector is zero, not NaN.
    nothing = eigenvectors(Factored(torch.zeros(3, 1), torch.ones(1, 3)))
    assert not bool(nothing.vectors.isnan().any())


@pytest.mark.parametrize("function", [norm, eigenvalues, singular_values, svd, eigenvectors])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_input_that_is_not_finite_is_rejected(function, bad: float) -> None:
    f = Factored(torch.tensor([[1.0, bad], [0.0, 1.0]]), torch.ones(2, 2))
    with pytest.raises(InputError, match="contains NaN or infinity.* no spectrum"):
        function(f)


@pytest.mark.parametrize("function", [norm, eigenvalues, singular_values, svd, eigenvectors])
@pytest.mark.parametrize("size", [2, 5])
def test_a_product_that_overflows_is_rejected(function, size: int) -> None:
    f = Factored(torch.full((size, 3), 1e30), torch.full((3, size), 1e30))
    with pytest.raises(InputError, match="overflows torch.float32, .*use float64"):
        function(f)
    function(f.to(torch.float64))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_float32(half: torch.dtype) -> None:
    f = Factored(gaussian(0, 9, 3).to(half), gaussian(1, 3, 9).to(half))
    wide = f.to(torch.float32)
    torch.testing.assert_close(f.norm(), wide.norm())
    torch.testing.assert_close(f.eigenvalues(), wide.eigenvalues())
    torch.testing.assert_close(f.svd().S, wide.svd().S)
    assert f.norm().dtype == f.svd().U.dtype == torch.float32
    assert eigenvectors(f).vectors.dtype == torch.complex64


def test_differences_that_cancel_keep_their_digits() -> None:
    f = Factored(gaussian(0, 40, 5), gaussian(1, 5, 30))
    small = Factored(gaussian(2, 40, 1), gaussian(3, 1, 30)) * 1e-9
    # By Gram matrices, Σ (AᵀA) ∘ (B Bᵀ), this would have no correct digit.
    assert abs((f + small - f).norm() / small.norm() - 1) < 1e-5
    # 2 r terms of each entry cancel: what is left is rounding of their size.
    eps = torch.finfo(torch.float64).eps
    assert (f - f).norm() < 2 * f.rank_bound * eps * f.A.norm() * f.B.norm()


def test_scales_that_would_overflow() -> None:
    scale = torch.tensor([1e25, 1e-25, 1.0])
    A, B = gaussian(0, 6, 3).float(), gaussian(1, 3, 6).float()
    f = Factored(A * scale, B / scale[:, None])
    plain = Factored(A, B)
    torch.testing.assert_close(f.eigenvalues(), plain.eigenvalues(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(f.svd().S, plain.svd().S, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(f.norm(), plain.norm(), rtol=1e-4, atol=0)
    # Squares of these overflow, and of those underflow to zero.
    for power in (1e20, 1e-30):
        scaled = Factored(A * power, B)
        torch.testing.assert_close(scaled.norm(), plain.norm() * power, rtol=1e-4, atol=0)
        torch.testing.assert_close(scaled.svd().S, plain.svd().S * power, rtol=1e-3, atol=0)


def test_balancing_the_extremes_of_a_dtype() -> None:
    f = Factored(torch.tensor([[1e-44, 3e38]]), torch.tensor([[3e38], [1e-44]]))
    found = balanced(f)
    assert bool(found.A.isfinite().all() & found.B.isfinite().all())
    torch.testing.assert_close(found.dense(), f.dense())
    # A term with a zero side is dropped: its other side must not set the scale of anything.
    term = balanced(Factored(torch.tensor([[0.0, 1.0]]), torch.tensor([[1e30], [1.0]])))
    assert term.B.abs().max() <= 2


def test_zero_has_norm_zero_and_no_positivity() -> None:
    zero = Factored(torch.zeros(4, 2), torch.ones(2, 4))
    assert zero.norm() == 0
    assert bool((zero.svd().S == 0).all())
    assert bool(positivity(zero.eigenvalues()).isnan())


def test_positivity_of_signs() -> None:
    values = torch.tensor([[3, -1], [1j, -1j], [-2, -3]], dtype=torch.complex128)
    torch.testing.assert_close(positivity(values), torch.tensor([0.5, 0.0, -1.0]).double())


@pytest.mark.parametrize("shape", [(3, 3), (5, 3, 3), (4, 9, 3, 3), (0, 3, 3), (40, 1, 1)])
def test_eigenvalues_of_a_batch_are_those_of_each_matrix(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = eigvals(matrices)
    finally:
        torch.set_num_threads(before)
    expected = torch.linalg.eigvals(matrices)
    assert found.shape == expected.shape
    # Backward stable: exact for a matrix that is off by rounding, which moves an eigenvalue by that
    # times its condition number, some tens in these small matrices.
    size = float(matrices.norm(dim=(-2, -1)).max()) if matrices.numel() else 0.0
    assert distance(found, expected) <= 1000 * torch.finfo(torch.float64).eps * size
