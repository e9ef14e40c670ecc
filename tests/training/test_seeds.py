"""Several seeds of one recipe: trained, continued, and compared by mechanism."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.training.test_loop import StopAt
from tests.training.tiny import tiny_recipe

from pathsum.base import schema
from pathsum.base.errors import InputError
from pathsum.cli.main import main
from pathsum.model import construct
from pathsum.training import SeedRuns, to_toml, train_seeds
from pathsum.training.seeds import SEEDS, SeedRun
from pathsum.training.train import TrainingRun


def test_each_seed_trains_once(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_recipe(text, steps=10, seed=4)
    shown: list[str] = []
    steps: list[int] = []
    found = train_seeds(
        recipe,
        seeds=2,
        out=tmp_path,
        begin=shown.append,
        watch=lambda metrics: steps.append(metrics.step),
    )
    assert shown == ["seed 4 (1 of 2)", "seed 5 (2 of 2)"]
    assert steps.count(10) == 2
    assert [Path(run.folder).name for run in found.runs] == ["seed-4", "seed-5"]
    assert found.runs[0].held_out_loss != found.runs[1].held_out_loss
    assert found.count("none") == 2
    assert json.loads((tmp_path / SEEDS).read_text())["format"] == "pathsum-seed-runs"

    steps.clear()
    more = train_seeds(
        recipe, seeds=3, out=tmp_path, watch=lambda metrics: steps.append(metrics.step)
    )
    assert steps.count(10) == 1  # the third alone
    assert [run.to_dict() for run in more.runs[:2]] == [run.to_dict() for run in found.runs]

    def not_again(*given: object, **named: object) -> None:
        raise AssertionError("a finished seed was trained again")

    monkeypatch.setattr("pathsum.training.seeds.train", not_again)
    train_seeds(recipe, seeds=3, out=tmp_path)
    with pytest.raises(InputError, match="steps is 10 there and 12 here"):
        train_seeds(replace(recipe, steps=12), seeds=3, out=tmp_path)


def test_a_stopped_seed_continues(text: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(text, steps=15)
    with pytest.raises(KeyboardInterrupt, match="stopped at step 5 of 15"):
        train_seeds(recipe, seeds=2, out=tmp_path, watch=StopAt(5))
    steps: list[int] = []
    train_seeds(recipe, seeds=2, out=tmp_path, watch=lambda metrics: steps.append(metrics.step))
    assert steps[0] == 10  # what was reported before is not done again


def test_mechanisms_are_recognized(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hand-built models in place of what was trained, one mechanism each."""
    made = iter([construct.induction(n_ctx=40), construct.induction_by_q(n_ctx=40)])
    monkeypatch.setattr(TrainingRun, "model", property(lambda run: next(made)))
    found = train_seeds(tiny_recipe(text, steps=2), seeds=2, out=tmp_path)
    first, second = found.runs
    assert (first.mechanism, first.head, first.partner) == ("K-composition", "L1H0", "L0H0")
    assert (second.mechanism, second.head, second.partner) == ("Q-composition", "L1H0", "L0H0")
    assert first.stripe > 0.95 and first.share_lost > 0.8 and first.drop > 3
    assert found.to_table().note == "2 seeds: 1 K-composition, 1 Q-composition"
    assert max(map(len, found.to_table().to_text(90).splitlines())) <= 90


def test_records_have_schemas(text: Path, tmp_path: Path) -> None:
    found = train_seeds(tiny_recipe(text, steps=2), seeds=1, out=tmp_path)
    assert set(schema(SeedRuns)["properties"]) == set(found.to_dict())
    assert set(schema(SeedRun)["properties"]) == set(found.runs[0].to_dict())


def test_what_cannot_be_meant(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_recipe(text)
    with pytest.raises(InputError, match="seeds=0 runs were requested; choose 1 or more"):
        train_seeds(recipe, seeds=0, out=tmp_path)
    with pytest.raises(InputError, match="change it with dataclasses.replace"):
        train_seeds(recipe, seeds=1, out=tmp_path, steps=3)
    with pytest.raises(InputError, match="no mechanism to compare"):
        train_seeds(tiny_recipe(text, model__n_layers=0), seeds=1, out=tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="one after another in one process"):
        train_seeds(recipe, seeds=2, out=tmp_path)


def test_the_command(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(tiny_recipe(text, steps=5)))
    arguments = ["train", str(file), "--seeds", "2", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "seed 1 (2 of 2)" in printed.err
    assert "2 seeds: 2 none" in printed.out
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [run["seed"] for run in shown["runs"]] == [0, 1]
    assert shown["runs"][0]["mechanism"] == "none"
