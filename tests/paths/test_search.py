from typing import Any

import pytest
import torch
from torch import Tensor

from pathsum.base.errors import InputError
from pathsum.model import Config, construct, random_model
from pathsum.paths import LogitAttribution, path_bounds
from pathsum.paths.path_bounds import spectral_norm_bound


@pytest.fixture(scope="module")
def why() -> LogitAttribution:
    config = Config(n_layers=4, n_heads=4, d_model=16, d_head=4, d_vocab=15, n_ctx=10, norm="rms")
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    return random_model(config, seed=2).trace(tokens).paths().toward(-1, 3, "mean")


@pytest.mark.parametrize("asked", [{"k": 0}, {"budget": 0}])
def test_a_search_for_nothing_is_refused(why: LogitAttribution, asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="=.* paths were requested; choose 1 or more"):
        why.top(**asked)


def test_the_proof_does_not_need_all_paths(why: LogitAttribution) -> None:
    top = why.top(1, budget=10**6)
    assert top.proven
    assert top.evaluated < top.count == 5**4
    assert 0 < top.bound <= abs(top[0].value)


def test_all_paths_can_be_listed(why: LogitAttribution) -> None:
    top = why.top(10**6, budget=10**6)
    assert len(top) == top.evaluated == top.count == 625
    assert top.proven
    assert top.bound == 0.0
    assert top.rest == pytest.approx(0.0, abs=1e-5)


def test_an_unproven_answer_says_so_in_its_table(why: LogitAttribution) -> None:
    top = why.top(3, budget=1)
    assert not top.proven
    assert "could be hidden" in top.to_table().note
    assert "proven: no other path" in why.top(1, budget=10**6).to_table().note


def test_progress_is_reported(why: LogitAttribution) -> None:
    reported: list[int] = []
    why.top(5, budget=400, progress=lambda done, total, what: reported.append(done))
    assert reported
    assert max(reported) <= 400


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_bound_of_a_norm_is_above_it_and_close(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(20, 5, 7, dtype=torch.float64, generator=generator) * scale
    exact = torch.linalg.matrix_norm(matrices, ord=2)
    bound = spectral_norm_bound(matrices)
    assert bool((bound >= exact).all())
    assert bool((bound <= exact * 1.04).all())
    assert float(spectral_norm_bound(torch.zeros(3, 3))) == 0.0


def test_paths_of_equal_value_need_no_order_of_their_own() -> None:
    """Heads that do nothing on a text all contribute 0, and the search must not compare paths."""
    triples = [("keep", "in", "mind"), ("keep", "at", "bay"), ("keep", "off", "grass")]
    paths = construct.skip_trigrams(triples).trace("bay mind").paths()
    top = paths.toward(1).top(k=paths.count)
    assert len(top) == paths.count and top.proven
    assert [one.value for one in top].count(0.0) > 1


def test_gains_between_layers_are_computed_once_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[int] = []
    bound = path_bounds.spectral_norm_bound

    def counted(matrices: Tensor) -> Tensor:
        pairs.append(1)
        return bound(matrices)

    monkeypatch.setattr(path_bounds, "spectral_norm_bound", counted)
    config = Config(n_layers=3, n_heads=2, d_model=8, d_head=4, d_vocab=9, n_ctx=6)
    one, other = random_model(config, seed=0), random_model(config, seed=1)
    first = one.trace([1, 2, 3]).paths().toward(-1, 4).top(5)
    assert len(pairs) == 3
    one.trace([3, 2, 1]).paths().toward(-1, 4).top(5)
    assert len(pairs) == 3
    other.trace([1, 2, 3]).paths().toward(-1, 4).top(5)
    assert len(pairs) == 6
    again = one.trace([1, 2, 3]).paths().toward(-1, 4).top(5)
    assert [(path.path, path.value) for path in again] == [(p.path, p.value) for p in first]
