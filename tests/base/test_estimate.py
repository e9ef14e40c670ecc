import math

import pytest

from pathsum.base import Estimate, jsonable


def test_absent_numbers_are_null_in_json() -> None:
    assert jsonable(Estimate(1.0)) == {
        "value": 1.0,
        "stderr": None,
        "low": None,
        "high": None,
        "null": None,
        "p": None,
        "draws": None,
    }


def test_absent_numbers_are_never_nan() -> None:
    with pytest.raises(AssertionError, match="stderr of an Estimate is NaN"):
        Estimate(1.0, stderr=math.nan)


def test_text_has_the_parts_that_are_known() -> None:
    full = Estimate(0.5, 0.1, 0.3, 0.7, null=0.02, p=1 / 401, draws=400)
    assert str(full) == "0.5 [0.3, 0.7] (null 0.02, p < 0.0025)"
    assert str(Estimate(0.5)) == "0.5"
    assert str(Estimate(0.5, p=1e-9)) == "0.5 (p < 0.001)"
    assert Estimate(0.5, null=-0.001).format(".2f") == "0.50 (null 0.00)"


def test_intervals() -> None:
    mean = Estimate.around(2.0, 0.5)
    assert mean.low == pytest.approx(1.02, abs=1e-3)
    assert mean.clear_of_zero
    assert not Estimate.around(2.0, math.nan).clear_of_zero
    assert Estimate.around(0.0, 0.1).below(mean)
    assert not Estimate(0.0).below(mean)
