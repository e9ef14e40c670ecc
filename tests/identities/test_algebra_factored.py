"""Operators of `Factored` against the dense matrices they stand for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algebra.factors import factored, gaussian, seeds, sizes

from pathsum.algebra import Factored, center_rows

CLOSE = {torch.float64: 1e-12, torch.float32: 1e-4}
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = CLOSE[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@dtypes
@given(data=st.data())
@settings(max_examples=40)
def test_operators_agree_with_dense(data: st.DataObject, dtype: torch.dtype) -> None:
    f = data.draw(factored(dtype=dtype))
    m, n = f.shape[-2:]
    dense = f.dense()
    assert f.shape == dense.shape
    seed, other_rank, width = data.draw(seeds), data.draw(sizes), data.draw(sizes)
    g = Factored(
        gaussian(seed, m, other_rank, dtype=dtype), gaussian(seed, other_rank, n, dtype=dtype)
    )
    right = gaussian(seed, n, width, dtype=dtype)
    same(f.T.dense(), dense.mT)
    same((f + g).dense(), dense + g.dense())
    same((f - g).dense(), dense - g.dense())
    same((-f).dense(), -dense)
    same((f * 2.5).dense(), 2.5 * dense)
    same((2 * f).dense(), 2 * dense)
    same((f / 4).dense(), dense / 4)
    same((f @ right).dense(), dense @ right)
    same((right.mT @ f.T).dense(), right.mT @ dense.mT)
    # A batch of matrices from either side.
    more = (4, *(1 for _ in f.batch_shape))
    before, after = gaussian(seed, *more, width, m, dtype=dtype), right.expand(*more, n, width)
    same((before @ f).dense(), before @ dense)
    same((f @ after).dense(), dense @ after)
    same((before @ f @ g.T).dense(), before @ dense @ g.dense().mT)
    product = f @ g.T
    same(product.dense(), dense @ g.dense().mT)
    assert product.rank_bound == min(f.rank_bound, g.rank_bound)
    same(center_rows(f).dense(), dense - dense.mean(-1, keepdim=True))
    same(center_rows(f.T).T.dense(), dense - dense.mean(-2, keepdim=True))


@dtypes
@given(data=st.data())
@settings(max_examples=40)
def test_parts_agree_with_dense(data: st.DataObject, dtype: torch.dtype) -> None:
    f = data.draw(factored(dtype=dtype))
    m, n = f.shape[-2:]
    dense = f.dense()
    i, j = data.draw(st.integers(-m, m - 1)), data.draw(st.integers(-n, n - 1))
    same(f.row(i), dense[..., i, :])
    same(f.column(j), dense[..., :, j])
    same(f.diagonal(), dense.diagonal(dim1=-2, dim2=-1))
    rows, columns = torch.tensor([[i], [0]]), torch.tensor([j, 0, -1])
    same(f.entries(rows, columns), dense[..., rows, columns])


@given(f=factored(square=True))
@settings(max_examples=40)
def test_trace_agrees_with_dense_and_is_cyclic(f: Factored) -> None:
    same(f.trace(), f.dense().diagonal(dim1=-2, dim2=-1).sum(-1))
    same(Factored(f.B, f.A).trace(), f.trace())


@given(f=factored(), seed=seeds)
@settings(max_examples=40)
def test_scaling_by_one_number_for_each_batch_element(f: Factored, seed: int) -> None:
    scale = gaussian(seed, *f.batch_shape)
    same((f * scale).dense(), f.dense() * scale[..., None, None])
    same((scale * f).dense(), f.dense() * scale[..., None, None])


@given(f=factored().filter(lambda f: len(f.batch_shape) == 2))
@settings(max_examples=30)
def test_indexing_picks_from_the_batch(f: Factored) -> None:
    dense = f.dense()
    mask = torch.tensor([True, False])
    both = torch.tensor([[True, False, True], [False, False, True]])
    for index in [0, -1, slice(1, None), (0, 2), (..., 1), (slice(None), None), ..., [1, 0], mask]:
        same(f[index].dense(), dense[index] if index != (..., 1) else dense[:, 1])
    same(f[both].dense(), dense[both])
    same(f[None, ..., torch.tensor([2, 0])].dense(), dense[None, :, torch.tensor([2, 0])])
