"""The trained models that come with pathsum: there, whole, small, and what their cards say."""

import json

import pytest
import torch

import pathsum as ps
from pathsum.sources.named import BUNDLED, bundled_names

FAMILY = ("zero-layer", "one-layer", "two-layer")


def test_the_family_is_there() -> None:
    assert set(FAMILY) <= set(bundled_names())
    assert [ps.load(name).config.n_layers for name in FAMILY] == [0, 1, 2]


@pytest.mark.parametrize("name", FAMILY)
def test_a_model_reads_text_and_knows_its_counts(name: str) -> None:
    model = ps.load(name)
    assert model.tokenizer is not None
    assert model.token_counts is not None
    assert int(model.token_counts.sum()) > 1_000_000
    trace = model.trace("def f(self):")
    assert trace.tokens[0, 0] == model.config.start_token
    assert bool(torch.isfinite(trace.logits).all())


@pytest.mark.parametrize("name", FAMILY)
def test_a_card_says_where_a_model_comes_from(name: str) -> None:
    card = json.loads((BUNDLED / name / "card.json").read_text(encoding="utf-8"))
    assert card["format"] == "pathsum-card"
    assert (BUNDLED / name / "card.md").read_text(encoding="utf-8").startswith("# ")


def test_all_of_them_are_small() -> None:
    size = sum(file.stat().st_size for file in BUNDLED.rglob("*") if file.is_file())
    assert size < 40_000_000


def test_the_two_layer_model_has_an_induction_head_by_k_composition() -> None:
    found = ps.induction(ps.load("two-layer"))
    best = found.heads[0]
    assert best.stripe.value >= 0.5
    assert best.mechanism == "K-composition"
    assert best.edges[0].p < 1e-6
    assert found.first_copy.value - found.second_copy.value >= 3


def test_the_one_layer_model_has_none() -> None:
    found = ps.induction(ps.load("one-layer"))
    assert found.heads == ()
    assert found.best_stripe < 0.05
