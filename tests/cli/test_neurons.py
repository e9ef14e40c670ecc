"""The commands `neurons` and `lens`: tables, pages, JSON, files and messages."""

import json
from pathlib import Path

import pytest

from pathsum.cli.main import main


def test_neurons_of_an_mlp_and_the_page_of_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c d e f a b " * 4)
    options = ["--text", str(text), "--json"]
    assert main(["neurons", "hand-built-memory", "mlp0", *options]) == 0
    every = json.loads(capsys.readouterr().out)
    assert every["format"] == "pathsum-neurons"
    assert [one["neuron"] for one in every["neurons"]] == [f"mlp0.n{at}" for at in range(26)]
    assert main(["neurons", "hand-built-memory", "mlp0.n0", "--k", "2", *options]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["inputs"][0]["edges"][0]["component"] == "L0H0"
    assert page["contexts"][0]["tokens"][-2:] == ["a", "b"]
    assert main(["neurons", "hand-built-memory", "mlp0.n0", "--text", str(text)]) == 0
    printed = capsys.readouterr().out
    assert "mean ablation costs" in printed
    assert "top contexts" in printed


def test_bad_neurons_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in (
        ("mlp0.n26", "mlp0 has 26 neurons, n0 to n25"),
        ("mlp1", "there is no mlp1"),
        ("L0H0", "does not name neurons"),
    ):
        assert main(["neurons", "hand-built-memory", name]) == 2
        assert message in capsys.readouterr().err


def test_the_lens_as_a_figure_and_as_a_mean(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure, text = tmp_path / "lens.svg", tmp_path / "text.txt"
    text.write_text("a b c a b c a b c " * 3)
    assert main(["lens", "hand-built-induction", "a b c a", "--figure", str(figure)]) == 0
    assert "residual2" in figure.read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["lens", "hand-built-induction", "--mean", "--over", str(text), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layers"][-1]["mean"]["value"] == 1
    assert main(["lens", "hand-built-induction", "a b", "--mean"]) == 2
    assert "--mean" in capsys.readouterr().err
