"""`pathsum train` and `pathsum corpus`, as typed."""

import io
import json
import tomllib
from pathlib import Path

import pytest
from tests.training.tiny import tiny_recipe, write_text

from pathsum.cli.main import main
from pathsum.training import Metrics, recipe, to_toml
from pathsum.training.metrics import ProbeResult


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pathsum.base.files._flush_to_disk", lambda file: None)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "words.jsonl")


def test_corpus_describes(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", str(text), "--vocab", "280"]) == 0
    assert "60 (0 duplicates removed)" in capsys.readouterr().out
    assert main(["corpus", str(text), "--vocab", "280", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "pathsum-corpus-info"
    assert found["vocabulary"] == 280


def test_corpus_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus"]) == 0
    assert "prose-and-code" in capsys.readouterr().out


def test_corpus_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "nothing"]) == 2
    assert "there is no corpus 'nothing'" in capsys.readouterr().err


def test_train_from_a_file(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(tiny_recipe(text)))
    arguments = ["train", str(file), "--out", str(tmp_path / "run"), "--set", "optimizer.clip=1.0"]
    assert main([*arguments, "--steps", "10"]) == 0
    printed = capsys.readouterr()
    assert "held-out loss" in printed.out
    assert "step 10/10  loss" in printed.err
    assert "previous token" in printed.err
    assert main(["train", str(tmp_path / "run"), "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 10
    assert main([*arguments, "--steps", "12", "--resume"]) == 2
    assert "steps is 10 there and 12 here" in capsys.readouterr().err


def test_show_prints_the_recipe_and_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "two-layer", "--quick", "--show", "--seed", "3", "--layers", "1"]
    assert main([*arguments, "--corpus", "prose", "--vocab", "999", "--batch", "2"]) == 0
    found = tomllib.loads(capsys.readouterr().out)
    assert (found["seed"], found["batch"], found["model"]["n_layers"]) == (3, 2, 1)
    assert found["data"] | {"corpus": "prose", "vocabulary": 999} == found["data"]
    assert main(["train", "two-layer", "--show"]) == 0
    assert capsys.readouterr().out == to_toml(recipe("two-layer", "bundled"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["two-layer", "--quick", "--set", "steps"], "--set 'steps' has no '='"),
        (["nine-layer", "--quick"], "the preset 'quick' has no model 'nine-layer'"),
    ],
)
def test_what_is_not_understood(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_interrupted_run_says_how_to_go_on(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.training.test_loop import StopAt

    monkeypatch.setattr("pathsum.cli.training.line", lambda m: StopAt(5)(m) or "")
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(tiny_recipe(text)))
    run = tmp_path / "run"
    assert main(["train", str(file), "--out", str(run)]) == 130
    found = capsys.readouterr().err
    assert f"stopped at step 5 of 30 and saved; to continue: pathsum train {run} --resume" in found
    assert main(["train", str(run), "--resume"]) == 0


def test_the_live_view_shows_what_rises() -> None:
    from rich.console import Console
    from rich.live import Live

    from pathsum.cli.training import _Panel

    console = Console(width=90, record=True, force_terminal=True, file=io.StringIO())
    sight = ProbeResult(3.1, 0.98, "L0H1", 0.5, "L1H2", 10.0, 6.0)
    with Live(console=console, auto_refresh=False) as live:
        panel = _Panel(live)
        panel.advance(3, 60, "tokenizing")
        for step in (100, 200):
            panel.report(Metrics(step, 3000, step * 1024, 3.5, 1.0, 9000.0, 0.3, 20.0, 99.0, sight))
        console.print(panel.view(Metrics(200, 3000, 9, 3.5, 1.0, 9e3, 0.3, 20.0, 99.0, sight)))
        shown = console.export_text()
    for part in ("200 of 3,000", "0.98 L0H1", "0.50 L1H2", "9,000 tokens/s", "30%", "1:39"):
        assert part in shown
