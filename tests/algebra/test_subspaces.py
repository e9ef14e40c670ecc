"""Angles between spans."""

import math

import pytest
import torch
from tests.algebra.factors import gaussian, powers

from pathsum.algebra import orthonormal, principal_angles
from pathsum.algebra.spectrum import numerical_rank, row_basis
from pathsum.base.errors import InputError


def test_angles_of_planes_that_are_known() -> None:
    eye = torch.eye(5, dtype=torch.float64)
    for angle in (0.0, 1e-9, 1e-3, 0.5, 1.5, math.pi / 2):
        tilted = math.cos(angle) * eye[:, 1] + math.sin(angle) * eye[:, 2]
        plane = torch.stack([eye[:, 0] + tilted, eye[:, 0] - tilted], dim=1)
        expected = torch.tensor([0.0, angle], dtype=torch.float64)
        found = principal_angles(eye[:, :2], plane)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-15)


def test_angles_do_not_depend_on_the_basis_or_on_who_comes_first() -> None:
    x, y = gaussian(0, 3, 8, 2), gaussian(1, 8, 4)
    found = principal_angles(x, y)
    assert found.shape == (3, 2)
    assert bool((found.diff(dim=-1) >= 0).all())
    torch.testing.assert_close(principal_angles(y, x), found)
    mixed = y @ gaussian(2, 4, 4) * powers(3, 4)
    torch.testing.assert_close(principal_angles(x, mixed), found)
    shared = (orthonormal(x).mT @ orthonormal(y)).square().sum((-2, -1))
    torch.testing.assert_close(shared, found.cos().square().sum(-1))


def test_half_precision_is_read_as_float32() -> None:
    assert orthonormal(gaussian(0, 4, 2).half()).dtype == torch.float32


def test_spans_that_are_none() -> None:
    with pytest.raises(
        InputError, match="3 vectors in 2 dimensions cannot be linearly independent"
    ):
        orthonormal(torch.ones(2, 3))
    with pytest.raises(InputError, match="a spanning vector is zero or not finite"):
        orthonormal(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))


def test_a_rank_counts_what_is_above_the_rounding_of_the_largest() -> None:
    eps = torch.finfo(torch.float32).eps
    # Rounding is that of ten singular values, or of all if there are more.
    values = torch.tensor([2.0, 1.0, 21 * eps, 19 * eps, 0.0], dtype=torch.float64)
    assert numerical_rank(values, torch.float32) == 3
    assert numerical_rank(values, torch.float64) == 4
    many = torch.cat((values, torch.zeros(15, dtype=torch.float64)))
    assert numerical_rank(many, torch.float32) == 2


def test_a_row_basis_spans_the_rows_and_no_more() -> None:
    rows = gaussian(0, 5, 2) @ gaussian(1, 2, 7)
    basis = row_basis(rows, torch.float64)
    assert basis.shape == (2, 7)
    torch.testing.assert_close(basis @ basis.T, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(rows @ basis.T @ basis, rows)
    assert row_basis(torch.zeros(5, 7), torch.float32).shape == (0, 7)
