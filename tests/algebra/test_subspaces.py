"""Angles between spans."""

import math

import pytest
import torch
from tests.algebra.factors import gaussian, powers

from pathsum.algebra import orthonormal, principal_angles
from pathsum.errors import InputError


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
