"""The command `decompile`."""

import json
from pathlib import Path

import pytest

import pathsum as ps
from pathsum.cli.main import main

MODEL = ("decompile", "hand-built-induction", "--budget", "20")


def test_rules_and_fidelity(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # a rule on one line
    assert main([*MODEL]) == 0
    printed = capsys.readouterr()
    assert "hand-built induction has no held-out text" in printed.err
    shown = " ".join(printed.out.split())
    assert "L1H0 attends to the token after an earlier copy of the current token" in shown
    assert "share of KL(model ‖ unigram) closed" in shown


def test_json_and_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "program.json"
    assert main([*MODEL, "--json", "-o", str(file)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["format"] == "pathsum-program" and printed["size"] <= 20
    saved = ps.Program.load(file)
    assert saved.to_dict() == printed


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MODEL, "--explain", "a b c a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["token"]["text"] == "b" and found["model_prediction"]["text"] == "b"
    assert sum(term["value"] for term in found["terms"]) == pytest.approx(found["logit"], abs=1e-4)
    assert main([*MODEL, "--explain", "a b c a", "--token", "c", "--position", "2"]) == 0
    assert "→ c" in capsys.readouterr().out


def test_own_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a b c d e " * 200)
    assert main([*MODEL, "--text", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fidelity"]["sequences"] > 1


def test_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, message in (
        (("--budget", "0"), "greater than or equal to 1"),
        (("--text", "none.txt"), "there is no file none.txt"),
        (("--text", "a", "--corpus", "b"), "give one of them"),
        (("-o", str(tmp_path)), "is a folder"),
        (("--corpus", "nonsense"), "there is no corpus 'nonsense'"),
    ):
        assert main([*MODEL, *arguments]) == 2
        assert message in capsys.readouterr().err
