"""Recipes: data that says all of a run, read from presets, files and flags."""

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.training.tiny import tiny_recipe, tiny_values

from pathsum.base import schema
from pathsum.base.errors import ConfigError, FileError, InputError
from pathsum.training import PRESETS, Recipe, TrainingRun, recipe, to_toml, variants
from pathsum.training.checkpoint import snapshot_steps
from pathsum.training.recipe import Schedule, differences

ALL = [(preset, name) for preset in PRESETS for name in variants(preset)]


@pytest.mark.parametrize(("preset", "name"), ALL)
def test_every_preset_is_a_recipe_that_files_can_say(preset: str, name: str) -> None:
    made = recipe(name, preset)
    assert made.name == name
    assert Recipe.from_dict(tomllib.loads(to_toml(made))) == made
    assert Recipe.from_dict(made.to_dict()) == made


def test_presets_have_the_three_depths() -> None:
    for preset in PRESETS:
        for name, layers in (("zero-layer", 0), ("one-layer", 1), ("two-layer", 2)):
            assert recipe(name, preset).config.n_layers == layers


def test_the_paper_preset_has_the_papers_sizes() -> None:
    config = recipe("two-layer", "paper").config
    assert (config.n_heads, config.d_head, config.d_model, config.n_ctx) == (12, 64, 768, 2048)
    assert config.d_vocab == 50_000
    assert recipe("two-layer", "paper").start.later_position_scale == 1.0


def test_a_file_takes_what_it_does_not_say_from_its_base(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "quick/two-layer"\nsteps = 70\n[optimizer]\nclip = 1\n')
    made = recipe(file)
    expected = recipe("two-layer", "quick", steps=70, optimizer__clip=1.0)
    assert made == dataclasses.replace(expected, name="mine")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stepz": 3}, "a recipe has no 'stepz'; did you mean 'steps'"),
        ({"optimizer__clipp": 3}, "a recipe has no 'optimizer.clipp'; did you mean 'clip'"),
        ({"steps": 0}, "steps is 0, but must be at least 1"),
        (
            {"steps": 2**70},
            "steps is 1180591620717411303424, but must be at most 1,000,000,000,000",
        ),
        ({"watching__snapshots": 2**70}, "must be at most 1,000,000"),
        ({"optimizer__clip": math.nan}, "optimizer.clip is nan, but must be at least 0"),
        ({"optimizer__matrix_decay": -0.1}, "optimizer.matrix_decay is -0.1, but must be at least"),
        ({"optimizer__beta1": -1}, "optimizer.beta1 is -1.0, but must be at least 0 and below 1"),
        ({"optimizer__beta2": 1.0}, "optimizer.beta2 is 1.0, but must be at least 0 and below 1"),
        ({"optimizer__momentum": math.nan}, "optimizer.momentum is nan, but must be at least 0"),
        ({"steps": 9, "schedule__warmup": 10}, "schedule.warmup is 10 and steps is 9, so the run"),
        ({"steps": "many"}, "steps is 'many', but must be an integer"),
        ({"optimizer__matrices": "sgd"}, "optimizer.matrices is 'sgd'; choose 'muon' or 'adamw'"),
        ({"optimizer": 3}, "optimizer is 3, but must be a table of names and values"),
        ({"schedule__decay": 2.0}, "schedule.decay is 2.0, but must be between 0 and 1"),
        (
            {"optimizer__matrix_lr": -1.0},
            "optimizer.matrix_lr is -1.0, but a learning rate must be 0 or more",
        ),
        (
            {"model__d_vocab": 5},
            "model.d_vocab is 5 and data.vocabulary 280, but they must be equal",
        ),
        ({"model__score_cap": 5.0}, "score_cap and logit_cap cannot be trained"),
    ],
)
def test_what_a_recipe_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Recipe.from_dict(tiny_values("text", **changes))
    assert message in str(caught.value)


def test_a_recipe_needs_a_model() -> None:
    with pytest.raises(InputError, match=r"has no \[model\]"):
        Recipe.from_dict({"name": "x", "steps": 1})
    with pytest.raises(ConfigError, match="lacks n_heads"):
        Recipe.from_dict({"name": "x", "steps": 1, "model": {"n_layers": 1, "d_model": 4}})
    values = tiny_values("text")
    del values["steps"]
    with pytest.raises(InputError, match="a recipe lacks steps"):
        Recipe.from_dict(values)


def test_names_that_are_none() -> None:
    with pytest.raises(InputError, match=r"no preset 'quik'; did you mean 'quick'\?"):
        recipe("two-layer", "quik")
    with pytest.raises(InputError, match=r"has no model 'two-layr'; did you mean 'two-layer'"):
        recipe("two-layr", "quick")
    with pytest.raises(FileError, match=r"there is no file .*nowhere.toml"):
        recipe("nowhere.toml")


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("steps = ")
    with pytest.raises(FileError, match="is not TOML"):
        recipe(tmp_path / "bad.toml")


def test_differences_name_what_differs() -> None:
    one, other = tiny_recipe("text"), tiny_recipe("text", seed=3, model__norm="rms")
    assert differences(one, other) == [("seed", 0, 3), ("model.norm", None, "rms")]


def test_the_schedule_rises_stays_and_falls_to_almost_zero() -> None:
    factors = [Schedule(warmup=20, decay=0.4).factor(step, 1000) for step in range(1000)]
    assert factors[0] == 1 / 20
    assert set(factors[19:601]) == {1.0}
    assert factors[-1] == pytest.approx(1 / 400)
    assert min(factors) > 0
    assert Schedule(warmup=0, decay=0.0).factor(0, 10) == 1.0


def test_snapshots_are_spaced_in_the_logarithm() -> None:
    steps = snapshot_steps(3000, 20)
    assert steps[0] == 0
    assert steps[-1] == 3000
    assert len(steps) >= 16
    assert snapshot_steps(3000, 0) == ()


def test_the_result_has_a_schema() -> None:
    assert schema(TrainingRun)["properties"]["induction"] == {"type": ["number", "null"]}
