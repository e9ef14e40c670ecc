"""Ideal patterns, cell by cell."""

import pytest
import torch

from pathsum.base.errors import InputError
from pathsum.base.estimate import ratio, student
from pathsum.paths import Estimate, IdealPattern
from pathsum.paths.descriptions import parse_pattern

TOKENS = torch.tensor([[0, 5, 7, 5, 5, 7]])


@pytest.mark.parametrize(
    ("ideal", "rows"),
    [
        ("previous", [[0], [0], [1], [2], [3], [4]]),
        ("first", [[0]] * 6),
        ("uniform", [list(range(i + 1)) for i in range(6)]),
        ("duplicate", [[0], [0], [0], [1], [1, 3], [2]]),
        # At the second 5 in a row, 5 itself is one of those that followed a 5.
        ("induction", [[0], [0], [0], [2], [2, 4], [3]]),
    ],
)
def test_where_each_row_attends(ideal: str, rows: list[list[int]]) -> None:
    pattern = IdealPattern(ideal).of(TOKENS)[0]
    for row, sources in zip(pattern, rows, strict=True):
        assert row.nonzero().flatten().tolist() == sources
        torch.testing.assert_close(row[sources], torch.full((len(sources),), 1 / len(sources)))


def test_unknown_pattern() -> None:
    with pytest.raises(InputError, match="pattern is 'sideways'; choose 'previous'"):
        parse_pattern("sideways")


def test_ratio_of_equal_denominators_is_a_mean() -> None:
    values = torch.tensor([1.0, 4.0, 2.0, 3.0])
    found = ratio(values, torch.ones(4))
    assert found.value == 2.5
    assert found.stderr == pytest.approx(float(values.std()) / 2)
    assert found.high - found.value == pytest.approx(student(3) * found.stderr)


def test_estimate_prints_and_says_whether_it_is_clear_of_zero() -> None:
    assert str(Estimate(1.0, 0.1, 0.8, 1.2)) == "1 [0.8, 1.2]"
    assert Estimate(1.0, 0.1, 0.8, 1.2).clear_of_zero
    assert not ratio(torch.tensor([1.0]), torch.ones(1)).clear_of_zero
    assert float(ratio(torch.tensor([1.0]), torch.ones(1))) == 1.0


@pytest.mark.parametrize(
    ("degrees", "truth"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (30, 2.0423)]
)
def test_student_quantiles(degrees: int, truth: float) -> None:
    assert student(degrees) == pytest.approx(truth, rel=2e-3)
