"""Foldings leave every log-probability what it was, one by one and together."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tests.identities.configs import models_with_tokens
from torch import Tensor

import pathsum as ps
from pathsum.base.errors import InputError, NotExactError
from pathsum.model import Folding, Model, fold

EVERY = [list(some) for n in range(1, 5) for some in combinations(Folding, n)]


def close(changed: Model, model: Model, tokens: Tensor) -> None:
    torch.testing.assert_close(
        changed(tokens).log_softmax(-1), model(tokens).log_softmax(-1), rtol=1e-9, atol=1e-9
    )


@settings(max_examples=15)
@given(models_with_tokens(max_layers=3, max_heads=3))
def test_every_combination_leaves_the_probabilities(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    for which in EVERY:
        if Folding.WRITES in which and model.config.norm != "layer":
            with pytest.raises(NotExactError, match="does not remove the mean"):
                fold(model, which)
            continue
        folded = fold(model, which)
        close(folded, model, tokens)
        assert (folded.weights is model.weights) == (not folded.transformations)


POST = {"norm": "rms", "norm_place": "both", "mlp": "silu_gated", "score_cap": 2.0, "n_kv_heads": 2}


@pytest.mark.parametrize(
    "changes",
    [POST, {**POST, "norm_place": "after"}, {"norm": "layer", "windows": (3, None), "tied": True}],
)
def test_post_norms_windows_and_tied_embeddings(changes: dict[str, Any]) -> None:
    config = ps.Config(2, 4, 12, 4, 20, 8, positions="rotary", **changes)
    model = ps.random_model(config, seed=1, dtype=torch.float64, biases=True, gains=True)
    which = [each for each in Folding if each != "writes" or config.norm == "layer"]
    folded = fold(model, which)
    close(folded, model, torch.arange(8)[None])
    assert len(folded.transformations) == len(which)


def test_each_does_what_it_says() -> None:
    config = ps.Config(2, 2, 8, 4, 20, 8, positions="residual", norm="layer", mlp="gelu")
    model = ps.random_model(config, dtype=torch.float64, biases=True, gains=True)
    weights = fold(model, list(Folding)).weights
    for written in (weights.W_E, weights.W_pos, weights.layers[1].W_O, weights.layers[1].b_out):
        assert written is not None and float(written.mean(-1).abs().max()) < 1e-12
    assert float(weights.W_U.mean(-1).abs().max()) < 1e-12
    assert weights.layers[0].b_V is None and weights.layers[0].ln1_w is None
    assert weights.ln_f_b is None


def test_the_order_is_kept_and_a_folding_is_listed_once_done(tmp_path: Any) -> None:
    config = ps.Config(1, 2, 8, 4, 20, 8, norm="layer")
    model = ps.random_model(config, biases=True, gains=True)
    folded = fold(model, ["unembedding", "gains"])
    assert folded.transformations == (
        "unembedding centered over the vocabulary",
        "normalization gains and biases folded",
    )
    folded.save(tmp_path)
    assert ps.load(tmp_path).transformations == folded.transformations


def test_what_would_change_probabilities_is_refused() -> None:
    config = ps.Config(1, 2, 8, 4, 20, 8, positions="rotary", norm="rms")
    sinks = ps.random_model(replace(config, sinks=True), biases=True)
    with pytest.raises(NotExactError, match="attention sinks"):
        fold(sinks, ["value-biases"])
    with pytest.raises(NotExactError, match="caps its logits"):
        fold(ps.random_model(replace(config, logit_cap=3.0)), ["unembedding"])
    with pytest.raises(InputError, match="gains"):
        fold(sinks, ["gain"])
