"""The best pairing, against all pairings; and with other values in one row, against a new one."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsum.base.errors import InputError
from pathsum.circuits.align_heads import best_assignment, displacement


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


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**16))
@settings(max_examples=100)
def test_a_row_with_other_values_takes_what_displacement_says(m: int, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(m, n, generator=generator, dtype=torch.float64)
    lost = displacement(values)
    assert lost.shape == (m, max(m, n))
    for row in range(m):
        changed = values.clone()
        changed[row] = torch.randn(n, generator=generator, dtype=torch.float64)
        rows, columns = (part.tolist() for part in best_assignment(changed))
        alone = torch.zeros(max(m, n) - n, dtype=torch.float64)
        taken = int((torch.cat((changed[row], alone)) - lost[row]).argmax())
        assert dict(zip(rows, columns, strict=True)).get(row) == (taken if taken < n else None)


def test_a_value_that_is_not_finite() -> None:
    with pytest.raises(InputError, match="not finite"):
        best_assignment(torch.tensor([[float("nan")]]))
