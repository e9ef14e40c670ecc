"""Heads of two models, matched: a model against itself in disguise matches perfectly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models

from pathsum.circuits import align_heads
from pathsum.errors import HeadError, InputError
from pathsum.model import Config, Model, construct, from_tensors, random_model
from pathsum.model.symmetries import scrambled
from pathsum.result import schema

SIZE = {"n_layers": 2, "n_heads": 4, "d_model": 24, "d_head": 4, "d_vocab": 60, "n_ctx": 16}


def permuted(model: Model, order: list[int]) -> Model:
    """The same model with the heads of every layer in another order."""
    tensors = dict(model.weights.items())
    stacked = {
        name: torch.stack([getattr(layer, name)[order] for layer in model.weights.layers])
        for name in ("W_Q", "W_K", "W_V", "W_O")
    }
    assert not any(name.startswith("b_") for name in tensors)
    rest = {"W_E": model.weights.W_E, "W_U": model.weights.W_U}
    rest["W_pos"] = torch.stack([layer.W_pos for layer in model.weights.layers])
    return from_tensors(model.config, {**rest, **stacked})


def test_a_permuted_and_scrambled_model_matches_head_for_head() -> None:
    order = [2, 0, 3, 1]
    model = random_model(Config(**SIZE), seed=1, dtype=torch.float64)
    disguised = scrambled(permuted(model, order), seed=5)
    found = align_heads(model, disguised, draws=10)
    for match in found.matches:
        assert match.left.layer == match.right.layer
        assert match.left.head == order[match.right.head]
        assert match.score == pytest.approx(1, abs=1e-6)
        assert match.null < 0.5 and match.p == pytest.approx(1 / 11)
    assert found.score == pytest.approx(1, abs=1e-6)


@given(models(min_layers=1, max_layers=2, max_heads=3), st.integers(0, 99))
@settings(max_examples=15)
def test_similarity_does_not_depend_on_a_basis(model: Model, seed: int) -> None:
    from pathsum.model.folding import fold

    plain = fold(model)
    here = align_heads(plain, plain, draws=1)
    there = align_heads(plain, scrambled(plain, seed), draws=1)
    torch.testing.assert_close(here.qk, there.qk, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(here.ov, there.ov, rtol=1e-5, atol=1e-6)
    both = here.similarity.diagonal()
    alive = (here.qk.diagonal() > 0.5) & (here.ov.diagonal() > 0.5)
    torch.testing.assert_close(both[alive], torch.ones_like(both[alive]), rtol=1e-9, atol=1e-9)


def test_models_of_different_depth_are_matched_as_far_as_they_go() -> None:
    one = random_model(Config(**{**SIZE, "n_layers": 1}), seed=0)
    found = align_heads(one, random_model(Config(**SIZE), seed=0), draws=2)
    assert found.similarity.shape == (4, 8) and len(found.matches) == 4


def test_what_cannot_be_compared() -> None:
    here = random_model(Config(**SIZE), seed=0)
    with pytest.raises(InputError, match="different tokens \\(60 and 61 of them\\)"):
        align_heads(here, random_model(Config(**{**SIZE, "d_vocab": 61}), seed=0))
    with pytest.raises(HeadError, match="has no layers"):
        align_heads(here, random_model(Config(**{**SIZE, "n_layers": 0}), seed=0))
    one, other = construct.induction(), construct.induction()
    assert align_heads(one, other, draws=1).score == pytest.approx(1)


def test_it_has_a_table_and_a_schema() -> None:
    found = align_heads(random_model(Config(**SIZE), seed=0), random_model(Config(**SIZE), seed=1))
    assert found.to_table().to_text().count("L1H") >= 4
    assert schema(type(found))["title"] == "HeadAlignment"
