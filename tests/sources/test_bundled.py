"""The trained models that come with pathsum: there, whole, small, and what their cards say."""

import json
from typing import Any

import pytest
import torch

import pathsum as ps
from pathsum.sources.named import BUNDLED, bundled_names
from pathsum.training import Recipe, read_snapshots, recipe

SEEDS = ("two-layer", "two-layer-seed-1", "two-layer-full-positions")
FAMILY = ("zero-layer", "one-layer", *SEEDS)
WORDS = ("one-layer-words", "two-layer-words")
MLPS = ("one-layer-bilinear", "two-layer-mlp")
EVERY = (*FAMILY, *WORDS, *MLPS)
RUN = "two-layer"
MISSED = {"two-layer-mlp": ["largest K-composition, by z, is between the two"]}


def card(name: str) -> dict[str, Any]:
    return json.loads((BUNDLED / name / "card.json").read_text(encoding="utf-8"))


def test_the_family_is_there() -> None:
    assert set(bundled_names()) == set(EVERY)
    assert [ps.load(name).config.n_layers for name in EVERY] == [0, 1, 2, 2, 2, 1, 2, 1, 2]


@pytest.mark.parametrize("family", [FAMILY, WORDS])
def test_the_family_reads_the_same_tokens(family: tuple[str, ...]) -> None:
    spellings = {(BUNDLED / name / "tokenizer.json").read_bytes() for name in family}
    assert len(spellings) == 1
    assert len({card(name)["corpus"]["fingerprint"] for name in family}) == 1


def test_words_of_the_paper_are_tokens() -> None:
    tokenizer = ps.load("one-layer-words").tokenizer
    assert tokenizer is not None
    of_the_paper = (" perfect", " two", " large", " Great", " lambda", "nbsp", " keep", " mind")
    names = (" John", " Mary", " David", " Elizabeth", " Washington", " London", " Rome")
    assert [text for text in (*of_the_paper, *names) if len(tokenizer.encode(text)) > 1] == []


@pytest.mark.parametrize("name", EVERY)
def test_a_model_was_trained_by_the_recipe_that_has_its_name(name: str) -> None:
    told = Recipe.from_dict(card(name)["recipe"])
    here = recipe(name, "bundled")
    for part in ("steps", "batch", "seed", "precision", "start", "optimizer", "schedule"):
        assert getattr(told, part) == getattr(here, part)
    assert told.data.corpus == here.data.corpus
    assert told.config.d_model == here.config.d_model == ps.load(name).config.d_model


def test_one_of_the_seeds_has_positions_in_every_layer() -> None:
    W_pos = ps.load("two-layer-full-positions").weights
    first, second = (layer.W_pos for layer in W_pos.layers)
    assert first is not None and second is not None
    assert 0.5 < float(second.norm() / first.norm()) < 2


@pytest.mark.parametrize("name", EVERY)
def test_a_model_reads_text_and_knows_its_counts(name: str) -> None:
    model = ps.load(name)
    assert model.tokenizer is not None
    assert model.token_counts is not None
    assert int(model.token_counts.sum()) > 1_000_000
    trace = model.trace("def f(self):")
    assert trace.tokens[0, 0] == model.config.start_token
    assert bool(torch.isfinite(trace.logits).all())


@pytest.mark.parametrize("name", EVERY)
def test_a_card_says_where_a_model_comes_from(name: str) -> None:
    assert card(name)["format"] == "pathsum-card"
    text = (BUNDLED / name / "card.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert "to repeat it: `pathsum train" in text


@pytest.mark.parametrize("name", ["zero-layer", "one-layer", "two-layer", *WORDS, *MLPS])
def test_a_model_shows_what_it_must(name: str) -> None:
    needed = [one for one in card(name)["checks"] if not one["what"].startswith("target")]
    assert needed
    missed = [one["what"] for one in needed if not one["passed"]]
    assert missed == MISSED.get(name, [])


def test_the_model_with_mlps_has_an_induction_head_by_k_composition() -> None:
    # Its largest z is another edge's; the one that carries the stripe is found by cutting.
    best = max(ps.induction(ps.load("two-layer-mlp")).heads, key=lambda one: one.stripe.value)
    assert best.stripe.value >= 0.6
    assert (best.mechanism, best.partner) == ("K-composition", "L0H0")
    assert best.edges[0].stripe_left <= 0.1


@pytest.mark.parametrize(
    "name", [SEEDS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in SEEDS[1:])]
)
def test_a_card_holds_on_the_weights_that_are_shipped(name: str) -> None:
    told = card(name)["measured"]
    # Values, not chances: few draws, and no text but this.
    found = ps.atlas(ps.load(name), sequences=10, draws=99, tokens="def f(self):")
    for score in ("previous_token", "induction"):
        value = found[told[score]["head"]].scores[score].value
        assert value == pytest.approx(told[score]["score"]["value"], abs=0.08)


def test_the_run_has_snapshots_and_a_phase_change() -> None:
    steps = [snapshot.step for snapshot in read_snapshots(BUNDLED / RUN)]
    assert len(steps) >= 11
    assert steps[0] == 0
    assert steps[-1] == recipe(RUN, "bundled").steps


def test_all_of_them_are_small() -> None:
    size = sum(file.stat().st_size for file in BUNDLED.rglob("*") if file.is_file())
    assert size < 60_000_000


def test_the_two_layer_model_has_an_induction_head_by_k_composition() -> None:
    found = ps.induction(ps.load("two-layer"))
    best = found.heads[0]
    assert best.stripe.value >= 0.72
    assert best.mechanism == "K-composition"
    assert best.edges[0].p <= 1e-6
    assert found.first_copy.value - found.second_copy.value >= 6


def test_the_one_layer_model_has_none() -> None:
    found = ps.induction(ps.load("one-layer"))
    assert found.heads == ()
    assert found.best_stripe < 0.05


def test_the_bilinear_mlp_is_a_sum_over_pairs_of_what_it_reads() -> None:
    """W_in and W_gate alone: no activation, no bias, no norm stands between."""
    model = ps.load("one-layer-bilinear")
    layer = model.weights.layers[0]
    assert layer.W_in is not None and layer.W_gate is not None and layer.W_out is not None
    trace = model.trace("def f(self):")
    read = trace["mlp0.in"]
    written = ((read @ layer.W_in) * (read @ layer.W_gate)) @ layer.W_out
    assert torch.allclose(written, trace["mlp0"], atol=1e-4)
