"""The commands `composition` and `bandwidth`."""

import json
from pathlib import Path

import pytest

from pathsum.cli.main import main


def test_composition_lists_edges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["composition", "hand-built-induction", "--max-p", "0.001"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "L0H0→L1H0.k" in out
    assert "1 of 12 edges pass; 0.012 expected under the null." in out


def test_composition_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["composition", "hand-built-induction", "--kind", "k", "-k", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "pathsum-composition-edges" and found["tested"] == 4
    assert [edge["edge"][-2:] for edge in found["edges"]] == [".k", ".k"]


def test_composition_cuts_edges_on_a_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("a b c d a b c d", encoding="utf-8")
    command = ["composition", "hand-built-induction", "--max-p", "0.01", "--json", "--text"]
    assert main([*command, str(tmp_path / "text.txt")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["matter"] == found["found"] == 1 and found["edges"][0]["cost"] > 3


def test_composition_against_other_heads(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["composition", "hand-built-induction", "--by", "permuted", "--kind", "k", "-k", "1"]
    assert main(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "L0H0→L1H0.k" in text and "0.250" in text and "p only tests whether" in text
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(edge["edge"], edge["p"]) for edge in found["edges"]] == [("L0H0→L1H0.k", 0.25)]
    assert main([*command, "--offset", "2"]) == 2
    assert "--by and --offset were both given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--offset", "2"], "--offset 2 was given"),
        (["--max-p", "3"], "is not a probability"),
    ],
)
def test_bad_input_leaves_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["composition", "hand-built-induction", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bandwidth", "hand-built-induction"]) == 0
    assert "27 by W_E alone, 26 by W_U alone" in capsys.readouterr().out
    assert main(["bandwidth", "hand-built-induction", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dimension"] == 145
