"""The best pairing, against all pairings."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsum.algebra.assignment import best_assignment
from pathsum.errors import InputError


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**16), st.booleans())
@settings(max_examples=150)
def test_no_pairing_has_a_larger_sum(m: int, n: int, seed: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(m, n, generator=generator, dtype=torch.float64)
    values = values.round() if ties else values
    rows, columns = best_assignment(values)
    assert len(rows) == len(set(rows.tolist())) == len(set(columns.tolist())) == min(m, n)
    assert rows.tolist() == sorted(rows.tolist())
    wide = values if m <= n else values.T
    sums = [
        float(sum(wide[row, column] for row, column in enumerate(chosen)))
        for chosen in permutations(range(wide.shape[1]), wide.shape[0])
    ]
    assert float(values[rows, columns].sum()) == pytest.approx(max(sums), abs=1e-9)


def test_a_value_that_is_not_finite() -> None:
    with pytest.raises(InputError, match="not finite"):
        best_assignment(torch.tensor([[float("nan")]]))
