"""Run-time type checks: on in `make test-types`, for the first calls of each function."""

import jaxtyping
import pytest
import torch

from pathsum.algebra.factored import Factored
from pathsum.algebra.spectrum import principal_angles
from pathsum.base.estimate import format_p

ONE, OTHER = torch.eye(4)[:, :2], torch.eye(5)[:, :2]


@pytest.fixture(autouse=True)
def _only_with_type_checks(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--jaxtyping-packages", default=None):
        pytest.skip("this run has no type checks")


def test_shapes_that_do_not_agree_are_an_error() -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="principal_angles"):
        principal_angles(ONE, OTHER)


def test_functions_without_shapes_are_checked_too() -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="format_p"):
        format_p("0.02")  # pyright: ignore[reportArgumentType]


def test_fields_of_another_type_are_an_error() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Factored("A", ONE)  # pyright: ignore[reportArgumentType]


def test_later_calls_are_not_checked() -> None:
    for _ in range(20):
        principal_angles(ONE, ONE)
    with pytest.raises(RuntimeError):  # the product itself fails
        principal_angles(ONE, OTHER)
