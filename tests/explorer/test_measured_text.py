"""What answers are measured on: the held-out text that a model comes with."""

from dataclasses import replace

import pytest
import torch
from tests.explorer.variants import ALL

import pathsum as ps
from pathsum.claims.examples import INTERVENTION_LENGTH, TEXT_SEQUENCES
from pathsum.explorer.answers.head import TRIPLE_SEQUENCES
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import ModelParams, decode

SEQUENCES = 64


@pytest.fixture(scope="module")
def model() -> ps.Model:
    text = torch.randint(1, 40, (SEQUENCES, 20), generator=torch.Generator().manual_seed(0))
    return replace(ALL["one layer"](), held_out=text)


def test_terms_are_measured_on_held_out_text(model: ps.Model) -> None:
    found = decode(Explorer([model]).ask("terms"))
    assert model.held_out is not None
    every = SEQUENCES // TEXT_SEQUENCES
    own = ps.term_importance(model, model.held_out[::every])
    assert found["loss"] == pytest.approx(own.loss, abs=1e-5)
    assert found["note"].startswith("on held-out text (16 sequences, 20 tokens)")
    without = decode(Explorer([ALL["one layer"]()]).ask("terms"))
    assert without["note"].startswith("on random tokens")


def test_interventions_say_which_text_they_are_measured_on() -> None:
    config = ALL["one layer"]().config.replace(n_ctx=100)
    text = torch.randint(1, 40, (SEQUENCES, 100), generator=torch.Generator().manual_seed(0))
    model = replace(ps.random_model(config), held_out=text)
    on = Explorer([model]).session.sequences(ModelParams())[-1]
    assert on.name == "held-out text (16 sequences, the first 64 tokens)"
    assert torch.equal(on.tokens, text[:: SEQUENCES // TEXT_SEQUENCES, :INTERVENTION_LENGTH])


def test_the_head_page_ranks_on_as_many_sequences_as_it_says(model: ps.Model) -> None:
    found = decode(Explorer([model]).ask("trigrams", {"head": "L0H0"}))
    assert found["rank"] == "text"
    predictions = TRIPLE_SEQUENCES * 19
    sequences = f"{TRIPLE_SEQUENCES} sequences with {predictions} predictions"
    assert sequences in found["note"] or f"nowhere in {predictions} predictions" in found["note"]
