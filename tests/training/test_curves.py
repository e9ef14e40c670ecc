"""The fit that places a change: curves whose change is known."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsum.base import schema
from pathsum.training.curves import NoChange, PhaseChange, find_change

STEPS = (0, *(round(2**power) for power in range(13)))
LOG = torch.tensor(STEPS[1:], dtype=torch.float64).log()


def logistic(middle: float, width: float, before: float, after: float) -> Tensor:
    rise = torch.sigmoid((LOG - math.log(middle)) / width)
    return torch.cat((torch.tensor([before]).double(), before + (after - before) * rise))


def found(values: Tensor, error: float = 0.0, least: float = 0.1) -> PhaseChange | NoChange:
    errors = torch.full_like(values, error)
    return find_change(STEPS, values, errors, curve="a curve", head="L1H0", least=least)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    middle=st.floats(8, 1000),
    width=st.floats(0.2, 0.6),
    before=st.floats(-1, 1),
    rise=st.floats(0.3, 2).flatmap(lambda size: st.sampled_from([size, -size])),
)
def test_a_planted_logistic_is_found(
    middle: float, width: float, before: float, rise: float
) -> None:
    change = found(logistic(middle, width, before, before + rise))
    assert isinstance(change, PhaseChange)
    assert change.step == pytest.approx(middle, rel=0.03)
    assert change.low <= change.step <= change.high
    assert change.low / 1.01 <= middle <= change.high * 1.01
    assert (change.before, change.after) == pytest.approx((before, before + rise), abs=0.03)
    assert change.end / change.begin == pytest.approx(math.exp(2 * math.log(9) * width), rel=0.2)
    assert change.explained > 0.999


def test_the_interval_covers_what_was_planted_as_often_as_it_says() -> None:
    generator = torch.Generator().manual_seed(0)
    covered, wide = 0, []
    for _ in range(60):
        middle = float(torch.empty(1).uniform_(30, 400, generator=generator))
        clean = logistic(middle, 0.3, 0.03, 0.7)
        noise = 0.03 * torch.randn(len(clean), generator=generator, dtype=torch.float64)
        change = found(clean + noise, error=0.005)
        assert isinstance(change, PhaseChange)
        covered += change.low <= middle <= change.high
        wide.append(change.high / change.low)
    assert covered >= 55  # 95% of 60 less one standard deviation
    assert sorted(wide)[30] < 2


def test_a_step_between_two_snapshots_is_located_no_closer_than_those() -> None:
    sharp = torch.tensor([0.0] * 7 + [1.0] * 7).double()
    change = found(sharp)
    assert isinstance(change, PhaseChange)
    assert STEPS[6] < change.step < STEPS[7]
    assert change.low < STEPS[6] * 1.1
    assert change.high > STEPS[7] / 1.1


def test_a_change_that_is_not_over_says_so() -> None:
    change = found(logistic(3500, 0.4, 0.0, 1.0))
    assert isinstance(change, PhaseChange)
    assert change.step == pytest.approx(3500, rel=0.05)
    assert "may not be complete" in change.about
    complete = found(logistic(100, 0.3, 0.0, 1.0))
    assert isinstance(complete, PhaseChange)
    assert "may not be complete" not in complete.about


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (torch.full((14,), 0.5), "stays between 0.500 and 0.500 from step 1 to 4096"),
        (torch.linspace(0, 0.05, 14), "stays between"),
        (torch.cat((torch.zeros(1), LOG)) / 10, "about as evenly in log(step) as a straight line"),
        (torch.full((14,), torch.nan), "0 snapshots after step 0 are too few"),
    ],
)
def test_curves_without_a_change(values: Tensor, why: str) -> None:
    none = found(values.double())
    assert isinstance(none, NoChange)
    assert why in none.why


def test_noise_is_not_a_change() -> None:
    generator = torch.Generator().manual_seed(1)
    noisy = [0.05 * torch.randn(14, generator=generator).double() for _ in range(40)]
    assert sum(isinstance(found(one, 0.05), PhaseChange) for one in noisy) <= 1


def test_the_record_has_a_table_and_a_schema() -> None:
    change = found(logistic(100, 0.3, 0.0, 1.0))
    assert isinstance(change, PhaseChange)
    assert set(schema(PhaseChange)["properties"]) == set(change.to_dict())
    assert "95% interval" in change.to_table().to_text()
