"""Attention by position alone."""

from typing import Any

import pytest
import torch

from pathsum.base import schema
from pathsum.base.errors import ConfigError, HeadError, InputError, NotExactError
from pathsum.circuits import positional
from pathsum.model import Config, construct, from_tensors, random_model


def test_a_previous_token_head_peaks_at_offset_1():
    found = positional(construct.induction("abcdefgh", n_ctx=16))
    previous = found["L0H0"]
    assert previous.peak == 1
    assert previous.attention is not None
    assert float(previous.attention[1]) == pytest.approx(1.0, abs=1e-6)
    assert float(previous.sd.max()) == pytest.approx(0.0, abs=1e-4)
    assert previous.share > 0.99
    matches = found["L1H0"]
    assert matches.position == pytest.approx(0.0, abs=1e-4)
    assert matches.content > 1.0
    assert matches.share < 0.01


def test_a_score_of_the_offset_alone_has_no_spread_and_is_given_back():
    # cos(ω (i − j)) from sines and cosines of places, which is what a sinusoid allows.
    n, omega = 32, 0.4
    places = torch.arange(n, dtype=torch.float64)
    W_pos = torch.stack(((omega * places).cos(), (omega * places).sin()), 1)
    eye = torch.eye(2, dtype=torch.float64)[None, None]
    config = Config(1, 1, 2, 2, 3, n, positions="qk", score_scale=1.0)
    rest = {"W_V": eye, "W_O": eye, "W_U": torch.ones(2, 3, dtype=torch.float64)}
    tensors = {"W_E": torch.zeros(3, 2, dtype=torch.float64), "W_pos": W_pos, "W_Q": 5 * eye}
    model = from_tensors(config, {**tensors, "W_K": eye, **rest})
    found = positional(model).heads[0]
    expected = 5 * (omega * places[:16]).cos()
    assert torch.allclose(found.score, expected - expected.mean())
    assert float(found.sd.max()) < 1e-12
    assert found.content == 0.0


def test_notes_say_what_is_left_out():
    def note(**choices: Any) -> str:
        model = random_model(Config(2, 1, 8, 4, 20, 16, **choices))
        return positional(model, "L1H0").note

    assert note(positions="qk", norm="layer") == ""
    assert note(positions="residual") == ""
    assert note(positions="residual", norm="layer") == "direct path, scale omitted"
    assert "average query against the average key" in note(positions="rotary")
    assert "QK-norm's scale omitted" in note(positions="qk", qk_norm="rms")
    scaled = random_model(Config(2, 1, 8, 4, 20, 16, positions="residual", norm="layer"))
    profiles = positional(scaled).heads
    assert profiles[0].attention is not None
    assert profiles[1].attention is None


def test_a_head_without_positions_has_a_sentence_and_no_table_of_zeros():
    config = Config(n_layers=2, n_heads=2, d_model=16, d_head=8, d_vocab=20, n_ctx=12)
    shapes = {"W_E": (20, 16), "W_O": (2, 2, 8, 16), "W_U": (16, 20)}
    shapes |= dict.fromkeys(("W_Q", "W_K", "W_V"), (2, 2, 16, 8))
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    W_pos = torch.randn(12, 16, generator=generator)
    tensors["W_pos"] = torch.stack([W_pos, torch.zeros_like(W_pos)])
    found = positional(from_tensors(config, tensors))
    assert found["L0H0"].to_table().rows
    assert not found["L1H0"].to_table().rows
    assert "positions do not enter this head's scores" in found["L1H0"].to_table().to_text()


def test_layers_that_do_not_rotate_have_no_positions():
    config = Config(2, 2, 8, 4, 9, 12, positions="rotary", rotary_layers=(True, False))
    model = random_model(config, dtype=torch.float64)
    assert [each.head for each in positional(model).heads] == ["L0H0", "L0H1"]
    with pytest.raises(InputError, match="L1H0 has no position part: layer 1 does not rotate"):
        positional(model, "L1H0")
    still = model.head("L1H0")
    assert torch.equal(still.qk.dense(), still.qk_at(5).dense())
    with pytest.raises(NotExactError, match="L0H0 has no single QK matrix"):
        _ = model.head("L0H0").qk
    with pytest.raises(ConfigError, match="rotary_layers has 1 entries, but there are 2 layers"):
        config.replace(rotary_layers=(False,))
    with pytest.raises(ConfigError, match="lists no layer that rotates"):
        config.replace(rotary_layers=(False, False))
    assert config.replace(n_layers=1).rotary_layers == ()
    assert Config.from_dict(config.to_dict()) == config


def test_bad_input_raises():
    model = random_model(Config(1, 1, 8, 4, 20, 16))
    with pytest.raises(InputError, match="window=17 offsets do not fit a context of 16"):
        positional(model, window=17)
    with pytest.raises(HeadError, match="head L0H1 does not exist"):
        positional(model, "L0H1")
    with pytest.raises(InputError, match="scores do not depend on position"):
        positional(random_model(Config(1, 1, 8, 4, 20, 16, positions="none")))
    with pytest.raises(HeadError, match="has no layers"):
        positional(random_model(Config(0, 1, 8, 4, 20, 16)))


def test_records_have_schemas_and_fit_a_terminal():
    found = positional(construct.induction("abcdefgh", n_ctx=16))
    for record in (found, found.heads[0]):
        assert schema(type(record))["title"]
        record.dumps()
        assert all(len(line) <= 80 for line in record.to_table().to_text(80).splitlines())
