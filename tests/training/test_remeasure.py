"""The cards of bundled models say what a second implementation measures."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.remeasure import Loaded, held_out, measure, on_random_tokens

import pathsum as ps
from pathsum.sources.named import BUNDLED

MODELS = sorted(
    folder.name
    for folder in BUNDLED.iterdir()
    if (folder / "card.json").exists()
    and json.loads((folder / "config.json").read_text())["config"]["n_layers"] > 0
)
WITH_TEXT = [name for name in MODELS if (BUNDLED / name / "held_out.safetensors").exists()]


def card(name: str) -> dict[str, Any]:
    return json.loads((BUNDLED / name / "card.json").read_text(encoding="utf-8"))["measured"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "two-layer" else pytest.mark.slow) for name in MODELS],
)
def test_on_random_tokens(name: str) -> None:
    found, told = on_random_tokens(Loaded.read(BUNDLED / name)), card(name)
    stripe = told["best_stripe_on_repeats_of_64"]["value"]
    assert found["stripe_64"] == pytest.approx(stripe, abs=0.04)
    assert found["stripe_25"] == pytest.approx(told["induction"]["score"]["value"], abs=0.05)
    assert found["previous"] == pytest.approx(told["previous_token"]["score"]["value"], abs=0.04)
    for key, words in (("random_first", "first_time"), ("random_second", "second_time")):
        assert found[key] == pytest.approx(told[f"repeat_{words}"]["value"], abs=0.4)
    assert found["uniform"] == pytest.approx(told["uniform_guessing"])


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_TEXT)
def test_on_held_out_text(name: str) -> None:
    found, told = measure(BUNDLED / name, sequences=64), card(name)
    assert found.held_out == pytest.approx(told["held_out_loss"]["value"], abs=0.2)
    drop = found.text_first - found.text_second
    assert drop == pytest.approx(told["text_drop"]["value"], abs=0.15)
    config = ps.load(name).config
    assert len(found.on_first) == len(found.zeroed) == config.n_layers * config.n_heads


@pytest.mark.parametrize("name", WITH_TEXT[:1])
def test_computes_what_the_library_computes(name: str) -> None:
    again = Loaded.read(BUNDLED / name)
    tokens = held_out(BUNDLED / name, again, 2)
    model = ps.load(name).to(torch.float32)
    assert torch.allclose(again.run(tokens)[0], model(tokens), atol=1e-3)


def test_refuses_what_it_does_not_compute(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    config = ps.Config(
        n_layers=1, n_heads=2, d_model=8, d_head=4, d_vocab=16, n_ctx=8, positions="rotary"
    )
    ps.random_model(config, seed=0).save(folder)
    with pytest.raises(ValueError, match="positions is 'rotary'"):
        Loaded.read(folder)
