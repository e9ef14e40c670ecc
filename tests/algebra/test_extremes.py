"""Streaming extremes: what they skip, what they refuse, what they hold."""

import pytest
import torch
from tests.algebra.factors import gaussian, integers

from pathsum.algebra import Factored, argmax_rows, extremes, row_ranks, topk
from pathsum.algebra.extremes import block_shape, length_bounds
from pathsum.base.errors import InputError


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes of the blocks that were computed."""
    seen: list[tuple[int, int]] = []
    product = extremes._product

    def counting(left: torch.Tensor, right: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        seen.append((left.shape[0], right.shape[1]))
        return product(left, right, buffer)

    monkeypatch.setattr(extremes, "_product", counting)
    return seen


def decaying(size: int = 300, rank: int = 4) -> Factored:
    """Lengths that fall off fast, in an order that is not that of the index."""
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(size, generator=generator)
    lengths = torch.logspace(0, -6, size, dtype=torch.float64)[shuffled]
    A, B = gaussian(1, size, rank), gaussian(2, rank, size)
    return Factored(A * lengths[:, None], B * lengths)


def test_blocks_that_cannot_matter_are_not_computed(products: list[tuple[int, int]]) -> None:
    f = decaying()
    found = topk(f, 5, block_bytes=30 * 30 * 8)
    assert len(products) < 10  # of 100
    expected = f.dense().flatten().topk(5)
    assert torch.equal(found.rows * 300 + found.columns, expected.indices)


def test_rows_that_are_settled_are_not_computed(products: list[tuple[int, int]]) -> None:
    f = decaying()
    assert torch.equal(argmax_rows(f, block_bytes=30 * 30 * 8).columns, f.dense().argmax(1))
    assert sum(high * wide for high, wide in products) < 300 * 300 / 2


def test_nothing_is_skipped_on_a_bound_that_only_rounding_makes_small() -> None:
    # Squares of 1e-25 underflow in float32, so the computed length of the first row is 0.
    A = torch.tensor([[1e-25, 1e-25, 0.0], [0.0, 0.0, 1.0]])
    f = Factored(A, torch.tensor([[1e18], [1e18], [1e-9]]))
    assert torch.linalg.vector_norm(f.A[0]) == 0
    assert length_bounds(f.A)[0] >= 1.5e-25
    assert topk(f, 1, block_bytes=4).rows.item() == 0
    # A vector along (1, 1, …) has the largest product its length allows, rounded up.
    for r in range(1, 200, 7):
        ones = torch.full((1, r), 0.1)
        bound = length_bounds(ones).item() ** 2
        assert (ones @ ones.T).item() <= bound <= (ones @ ones.T).item() * 1.001


def test_lengths_that_overflow_bound_nothing() -> None:
    # Squares of 1e25 overflow in float32, and the other length is zero.
    f = Factored(torch.tensor([[0.0], [1e-10]]), torch.tensor([[1e25, -1e25]]))
    assert bool((length_bounds(f.A) > 0).all())
    found = topk(f, 4, block_bytes=4)
    assert found.rows.tolist() == [1, 0, 0, 1]
    assert found.columns.tolist() == [0, 0, 1, 1]
    assert argmax_rows(f, block_bytes=4).columns.tolist() == [0, 0]


@pytest.mark.parametrize("largest", [True, False])
def test_a_wall_of_ties(largest: bool) -> None:
    f = Factored(torch.zeros(60, 2), torch.ones(2, 50))
    found = topk(f, 70, largest=largest, block_bytes=1000)
    assert torch.equal(found.rows * 50 + found.columns, torch.arange(70))
    assert not bool(torch.signbit(found.values).any())
    assert bool((argmax_rows(f, block_bytes=1000).columns == 0).all())


def test_a_tie_in_a_later_block_can_come_first() -> None:
    # Every entry is 1; columns 1, 2 and 9 are long for other reasons and are seen first.
    B = torch.ones(2, 10)
    B[1, [1, 2, 9]] = 5.0
    found = topk(Factored(torch.tensor([[1.0, 0.0]]), B), 2, block_bytes=3 * 4)
    assert found.columns.tolist() == [0, 1]


def test_a_wide_row_of_ties_gives_its_first_column() -> None:
    B = integers(0, 1, 5000, dtype=torch.float32)
    first = int((B[0] == 2).nonzero()[0])
    assert argmax_rows(Factored(torch.ones(3, 1), B)).columns.tolist() == [first] * 3


@pytest.mark.parametrize("k", [0, -1, 13])
def test_k_must_fit(k: int) -> None:
    f = Factored(gaussian(0, 3, 2), gaussian(1, 2, 4))
    with pytest.raises(InputError, match=f"the top {k} entries of a 3 × 4 .*between 1 and 12"):
        f.topk(k)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("side", ["A", "B"])
def test_factors_that_are_not_finite_are_rejected(bad: float, side: str) -> None:
    A, B = gaussian(0, 4, 2), gaussian(1, 2, 5)
    (A if side == "A" else B)[1, 1] = bad
    f = Factored(A, B)
    for call in (
        lambda: topk(f, 1),
        lambda: argmax_rows(f),
        lambda: row_ranks(f, torch.zeros(4, dtype=torch.long)),
    ):
        with pytest.raises(InputError, match="contain NaN or infinity, so .* cannot be ordered"):
            call()


# Finite in float32; their product is inf − inf, which is NaN, or with fused multiply-add inf.
CANCELING = ([[1e30, 1e30]], [[1.0, 1e30], [1.0, -1e30]])
TO_INFINITY = ([[1e30, 1.0]], [[1.0, 1e30], [1.0, 1.0]])
TO_MINUS_INFINITY = ([[1e30, 1.0]], [[1.0, -1e30], [1.0, 1.0]])


@pytest.mark.parametrize("values", [CANCELING, TO_INFINITY, TO_MINUS_INFINITY])
def test_products_that_overflow_are_rejected(values: tuple[list[list[float]], ...]) -> None:
    f = Factored(*map(torch.tensor, values))
    for call in (
        lambda: topk(f, 1),
        lambda: topk(f, 1, largest=False),
        lambda: argmax_rows(f),
        lambda: row_ranks(f, torch.zeros(1, dtype=torch.long)),
    ):
        with pytest.raises(InputError, match=r"overflow torch.float32: .* or use float64"):
            call()
    double = f.to(torch.float64)
    assert double.topk(1).columns.item() == int(double.dense().argmax())
    # Larger by far than any entry of a model, and still allowed.
    assert Factored(f.A[:, :1] * 1e4, f.B[:1, :1]).topk(1).values.item() == pytest.approx(1e34)


def test_ranks_need_a_column_for_each_row() -> None:
    f = Factored(gaussian(0, 3, 2), gaussian(1, 2, 4))
    with pytest.raises(InputError, match=r"shape \[2\] and the matrix has 3 rows: .* shape \[3\]"):
        row_ranks(f, torch.tensor([0, 1]))
    outside = "columns go from {} to {} and the matrix has 4 columns: each must be between 0 and 3"
    with pytest.raises(InputError, match=outside.format(0, 4)):
        row_ranks(f, torch.tensor([0, 1, 4]))
    with pytest.raises(InputError, match=outside.format(-1, 3)):
        row_ranks(f, torch.tensor([3, 1, -1]))


def test_no_gradient_is_needed_or_given() -> None:
    f = Factored(gaussian(0, 3, 2).requires_grad_(), gaussian(1, 2, 4))
    assert not f.topk(2).values.requires_grad
    assert not f.argmax_rows().values.requires_grad


def test_an_empty_batch() -> None:
    f = Factored(torch.zeros(0, 3, 2), torch.zeros(2, 4))
    assert f.topk(2).rows.shape == (0, 2)
    assert f.topk(2).rows.dtype == torch.long
    assert f.argmax_rows().columns.shape == (0, 3)
    assert row_ranks(f, torch.zeros(3, dtype=torch.long)).shape == (0, 3)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 10_000), (10_000, 1), (50, 50), (300, 20)])
@pytest.mark.parametrize("size", [1, 8, 1000, 10**6])
def test_blocks_keep_to_their_size(m: int, n: int, size: int) -> None:
    f = Factored(torch.zeros(m, 1).double(), torch.zeros(1, n).double())
    high, wide = block_shape(f, size)
    assert 1 <= high <= m
    assert 1 <= wide <= n
    assert high * wide <= max(1, size // 8)
    assert high * wide == m * n or high * wide >= size // 8 / 3
