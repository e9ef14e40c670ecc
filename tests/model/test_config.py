from typing import Any

import pytest

from pathsum.base.errors import ConfigError
from pathsum.model import Config
from pathsum.model.config import CEILINGS

SIZES: dict[str, Any] = {
    "n_layers": 2,
    "n_heads": 4,
    "d_model": 64,
    "d_head": 16,
    "d_vocab": 128,
    "n_ctx": 64,
}


def test_defaults_are_the_papers_family() -> None:
    config = Config(**SIZES)
    assert (config.positions, config.norm, config.mlp) == ("qk", "none", "none")
    assert config.n_kv_heads == 4
    assert config.score_scale == 0.25
    assert config.d_mlp == 0


def test_what_follows_from_other_fields_is_filled_in() -> None:
    assert Config(**SIZES, mlp="gelu").d_mlp == 256
    assert Config(**SIZES, mlp="gelu") == Config(**SIZES, mlp="gelu", d_mlp=256, n_kv_heads=4)


def test_plain_values_round_trip() -> None:
    config = Config(**SIZES, positions="rotary", rotary_fraction=0.5, norm="rms", qk_norm="rms")
    assert Config.from_dict(config.to_dict()) == config
    assert config.rotary_width == 8
    assert Config(**SIZES).rotary_width == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotery"}, "positions is 'rotery'; choose .*; did you mean 'rotary'"),
        ({"norm": "batch"}, "norm is 'batch'; choose 'none', 'layer' or 'rms'"),
        ({"n_heads": 0}, "n_heads=0 is not a size; use a whole number of at least 1"),
        ({"n_layers": -1}, "n_layers=-1 is not a size"),
        ({"d_model": True}, "d_model is True, but must be an integer"),
        ({"n_kv_heads": 3}, "n_heads=4 is not a multiple of n_kv_heads=3"),
        ({"d_mlp": 8}, "d_mlp=8 is given, but mlp='none' has no neurons"),
        ({"block": "parallel"}, "block='parallel' needs an MLP that reads what the heads read"),
        ({"start_token": 128}, "start_token=128 is out of range for 128 tokens"),
        ({"rotary_base": 500.0}, "rotary_base is set, but positions='qk' does not rotate"),
        ({"positions": "rotary", "rotary_fraction": 0.3}, "an even number of them"),
        ({"score_cap": -1.0}, "score_cap=-1.0 must be a finite number above 0"),
        ({"norm_eps": float("nan")}, "norm_eps=nan must be a finite number"),
        ({"score_scale": float("inf")}, "score_scale=inf must be finite; 0 stands for 1/√d_head"),
        ({"norm_place": "after", "norm": "layer"}, "norm_place='after' needs norm='rms'"),
        ({"windows": [3]}, "windows has 1 entries, but there are 2 layers"),
        ({"windows": [None, 0]}, "must be at least 1, or None for no limit"),
        (
            {"positions": "rotary", "rotary_factors": [1.0] * 7},
            "rotary_factors has 7 entries, but 8 planes are rotated",
        ),
        (
            {"positions": "rotary", "rotary_factors": [1.0] * 7 + [0.0]},
            "must be finite and above 0",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_dict({**SIZES, **changes})


def test_unknown_and_missing_names() -> None:
    with pytest.raises(ConfigError, match="no 'n_layer'; did you mean 'n_layers'"):
        Config.from_dict({**SIZES, "n_layer": 2})
    with pytest.raises(ConfigError, match="lacks d_model, n_ctx"):
        Config.from_dict({k: v for k, v in SIZES.items() if k not in ("d_model", "n_ctx")})


def test_whole_numbers_in_a_file_may_stand_for_floats() -> None:
    found = Config.from_dict({**SIZES, "score_cap": 30, "norm_eps": 1})
    assert isinstance(found.score_cap, float) and isinstance(found.norm_eps, float)


def test_replacing_a_field_renews_what_follows_from_it() -> None:
    config = Config(**SIZES, mlp="gelu")
    assert config.replace(n_heads=2).n_kv_heads == 2
    assert config.replace(d_head=4).score_scale == 0.5
    assert config.replace(mlp="none").d_mlp == 0
    assert Config(**SIZES, n_kv_heads=2).replace(n_heads=8).n_kv_heads == 2


@pytest.mark.parametrize("name", CEILINGS)
def test_sizes_have_a_ceiling(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=.* is more than .*the config is damaged"):
        Config.from_dict({**SIZES, name: CEILINGS[name] + 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": "8"}, "d_model is '8', but must be an integer"),
        ({"rotary_base": [1]}, r"rotary_base is \[1\], but must be a number"),
        ({"norm_eps": 10**400}, "norm_eps is 1000.*, but must be a number"),
        ({"start_token": "a"}, "start_token is 'a', but must be an integer"),
        ({"windows": ["a"]}, r"windows\[0\] is 'a', but must be an integer"),
        ({"tied": 1}, "tied is 1, but must be true or false"),
        ({"norm": None}, "norm is None; choose"),
    ],
)
def test_values_of_another_kind(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_dict({**SIZES, **changes})
