"""The quick recipe, run for real: minutes, from nothing to an induction head."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pathsum.training import read_snapshots, train


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_the_quick_recipe_forms_induction(tmp_path: Path) -> None:
    run = train("two-layer", "quick", out=tmp_path / "run")
    assert run.previous_token >= 0.9
    assert run.previous_token_head.startswith("L0")
    assert run.induction >= 0.5
    assert run.induction_head.startswith("L1")
    assert run.repeat_first - run.repeat_second >= 3
    assert run.held_out_loss < 3.0
    assert len(read_snapshots(tmp_path / "run")) >= 16
