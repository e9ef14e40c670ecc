"""What `Factored` is, and what it refuses."""

import numpy as np
import pytest
import torch
from tests.algebra.factors import gaussian

from pathsum.algebra import Factored
from pathsum.algebra.factored import _check_factors
from pathsum.base.errors import InputError


def test_describes_itself() -> None:
    f = Factored(torch.zeros(50_257, 64), torch.zeros(64, 50_257))
    assert repr(f) == "Factored(50257 × 64 × 50257, float32)"
    batched = Factored(gaussian(0, 12, 12, 8, 2), gaussian(0, 2, 8))
    assert repr(batched) == "Factored([12, 12] of 8 × 2 × 8, float64)"
    assert batched.batch_shape == (12, 12)
    assert batched.shape == (12, 12, 8, 8)
    assert batched.rank_bound == 2
    assert batched.dtype == torch.float64
    assert batched.device == torch.device("cpu")
    elsewhere = Factored(torch.empty(2, 1, device="meta"), torch.empty(1, 2, device="meta"))
    assert repr(elsewhere) == "Factored(2 × 1 × 2, float32, meta)"


def test_converts_both_factors() -> None:
    f = Factored(gaussian(0, 3, 2), gaussian(1, 2, 3))
    assert f.to(torch.float32).B.dtype == torch.float32
    assert f.to(device="meta").A.device.type == "meta"


def test_scaling_leaves_the_larger_factor_alone() -> None:
    f = Factored(gaussian(0, 3, 2), gaussian(1, 2, 30))
    assert (f * 2).B is f.B
    assert (f.T * 2).A.data_ptr() == f.B.data_ptr()


def test_is_frozen() -> None:
    f = Factored(gaussian(0, 3, 2), gaussian(1, 2, 3))
    with pytest.raises(AttributeError):
        f.A = f.A  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("A", "B", "message"),
    [
        (torch.zeros(3), torch.zeros(3, 3), r"a factor has shape \[3\]: factors are matrices"),
        (torch.zeros(3, 2), torch.zeros(3, 3), "last dimension of A is 2 .* of B is 3"),
        (torch.zeros(3, 0), torch.zeros(0, 3), "are empty: m, r and n must be at least 1"),
        (torch.zeros(3, 2), torch.zeros(2, 3).double(), "float32 and torch.float64: .*one real"),
        (torch.zeros(3, 2).int(), torch.zeros(2, 3).int(), "one real floating-point dtype"),
        (torch.zeros(3, 2), torch.zeros(2, 3, device="meta"), "on cpu and meta: .*one device"),
        (torch.zeros(4, 3, 2), torch.zeros(5, 2, 3), r"dimensions \[4\] and \[5\] do not fit"),
    ],
)
def test_refuses_factors_that_do_not_fit(A: torch.Tensor, B: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Factored(A, B)


def test_refuses_what_is_no_tensor() -> None:
    with pytest.raises(InputError, match="are ndarray and list: both must be torch tensors"):
        _check_factors(np.zeros((2, 2)), [[1.0]])


def test_refuses_operations_that_do_not_fit() -> None:
    f = Factored(gaussian(0, 2, 4, 2), gaussian(1, 2, 2, 5))
    with pytest.raises(InputError, match="the inner dimensions are 5 and 4"):
        f @ f
    with pytest.raises(InputError, match="the inner dimensions are 4 and 5"):
        torch.zeros(3, 5, dtype=torch.float64) @ f
    with pytest.raises(InputError, match=r"a vector with @: .* write \(x @ f.A\) @ f.B"):
        f @ torch.zeros(5, dtype=torch.float64)
    with pytest.raises(InputError, match="torch.float32 tensor on cpu do not multiply"):
        f @ torch.zeros(5, 5)
    with pytest.raises(InputError, match=r"batch dimensions \[2\] and \[3\] do not fit"):
        f @ torch.zeros(3, 5, 5, dtype=torch.float64)
    with pytest.raises(InputError, match="needs matrices of one shape, .* 4 × 5 and 5 × 4"):
        f + f.T
    with pytest.raises(InputError, match=r"batch dimensions \[2\] and \[3\] do not fit"):
        f * torch.ones(3, dtype=torch.float64)
    with pytest.raises(InputError, match="a trace was requested of a 4 × 5 matrix"):
        f.trace()
    with pytest.raises(InputError, match="addresses 2 batch dimensions and there are 1"):
        f[0, 1]
    with pytest.raises(IndexError):
        f[2]


def test_refuses_operands_of_other_types() -> None:
    f = Factored(gaussian(0, 4, 2), gaussian(1, 2, 4))
    for operation in (lambda: f * f, lambda: f + 1, lambda: f - 1, lambda: f @ 2, lambda: f / "x"):
        with pytest.raises(TypeError):
            operation()


def test_refuses_rows_and_columns_that_do_not_exist() -> None:
    f = Factored(gaussian(0, 4, 2), gaussian(1, 2, 5))
    with pytest.raises(InputError, match="row 4 does not exist: the matrix has 4 rows"):
        f.row(4)
    with pytest.raises(InputError, match="column -6 does not exist: the matrix has 5 columns"):
        f.column(-6)
    with pytest.raises(InputError, match="row 7 does not exist"):
        f.entries(torch.tensor([0, 7]), torch.tensor(0))
    with pytest.raises(InputError, match="column -9 does not exist"):
        f.entries(torch.tensor(0), torch.tensor([-9, 1]))
