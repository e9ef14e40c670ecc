"""Streaming extremes against a stable sort of the dense product."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.algebra.factors import gaussian, integers, powers, rounding, seeds

from pathsum.algebra import Factored, argmax_rows, row_ranks, topk

lengths = st.integers(1, 11)
# From a few entries to more than the whole matrix.
block_bytes = st.sampled_from([40, 100, 250, 1000, 10_000])


def sorted_entries(dense: torch.Tensor, k: int, largest: bool) -> tuple[torch.Tensor, ...]:
    n = dense.shape[-1]
    found = dense.flatten(-2).sort(descending=largest, stable=True, dim=-1)
    where = found.indices[..., :k]
    return found.values[..., :k], where // n, where % n


@st.composite
def tied(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> Factored:
    """Integer factors with rows and columns of very different lengths, many of them zero."""
    m, r, n, seed = draw(lengths), draw(st.integers(1, 4)), draw(lengths), draw(seeds)
    A, B = integers(seed, m, r, dtype=dtype), integers(seed + 1, r, n, dtype=dtype)
    stretch = 1 + 9 * (integers(seed + 2, m, 1, dtype=dtype) > 1).to(dtype)
    return Factored(A * stretch, B)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@given(data=st.data(), largest=st.booleans(), size=block_bytes)
@settings(max_examples=60)
def test_topk_is_a_stable_sort(
    dtype: torch.dtype, data: st.DataObject, largest: bool, size: int
) -> None:
    f = data.draw(tied(dtype=dtype))
    k = data.draw(st.integers(1, f.shape[0] * f.shape[1]))
    found = topk(f, k, largest=largest, block_bytes=size)
    values, rows, columns = sorted_entries(f.dense().double(), k, largest)
    assert torch.equal(found.values.double(), values)
    assert torch.equal(found.rows, rows)
    assert torch.equal(found.columns, columns)


@given(f=tied(), size=block_bytes, seed=seeds)
@settings(max_examples=70)
def test_rows_agree_with_dense(f: Factored, size: int, seed: int) -> None:
    dense = f.dense()
    found = argmax_rows(f, block_bytes=size)
    values, _, _ = sorted_entries(dense[:, None, :], 1, True)
    assert torch.equal(found.values, values.squeeze(-1))
    assert torch.equal(found.columns, dense.sort(descending=True, stable=True).indices[:, 0])

    m, n = f.shape
    columns = torch.randint(n, (m,), generator=torch.Generator().manual_seed(seed))
    own = dense.gather(1, columns[:, None])
    assert torch.equal(row_ranks(f, columns, block_bytes=size), (dense > own).sum(1))


@given(m=lengths, r=st.integers(1, 5), n=lengths, seed=seeds, size=block_bytes)
@settings(max_examples=50)
def test_real_numbers_of_all_scales(m: int, r: int, n: int, seed: int, size: int) -> None:
    f = Factored(gaussian(seed, m, r) * powers(seed, m, 1), gaussian(seed + 1, r, n))
    k = min(7, m * n)
    dense, allowed = f.dense(), rounding(f)
    # Entries that rounding alone can tell apart may come in either order.
    order = dense.flatten().argsort()
    gaps, noise = dense.flatten()[order].diff(), allowed.flatten()[order]
    assume(bool((gaps > noise[1:] + noise[:-1]).all()))
    for largest in (True, False):
        found = topk(f, k, largest=largest, block_bytes=size)
        values, rows, columns = sorted_entries(dense, k, largest)
        assert bool(((found.values - values).abs() <= allowed[rows, columns]).all())
        assert torch.equal(found.rows, rows)
        assert torch.equal(found.columns, columns)
    best = argmax_rows(f, block_bytes=size)
    assert torch.equal(best.columns, dense.argmax(1))
    assert bool((row_ranks(f, best.columns, block_bytes=size) == 0).all())


@given(seed=seeds, k=st.integers(1, 12), largest=st.booleans())
@settings(max_examples=6)
def test_a_batch_is_answered_one_by_one(seed: int, k: int, largest: bool) -> None:
    f = Factored(integers(seed, 2, 3, 4, 2), integers(seed + 1, 3, 2, 3))
    found, best = f.topk(k, largest=largest), f.argmax_rows()
    ranks = row_ranks(f, torch.tensor([0, 1, 2, 0]))
    values, rows, columns = sorted_entries(f.dense(), k, largest)
    assert torch.equal(found.values, values)
    assert torch.equal(found.rows, rows)
    assert torch.equal(found.columns, columns)
    assert torch.equal(best.columns[1, 2], f[1, 2].argmax_rows().columns)
    assert torch.equal(ranks[1, 0], row_ranks(f[1, 0], torch.tensor([0, 1, 2, 0])))
