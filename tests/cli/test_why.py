"""`pathsum why`, in-process."""

import json
from pathlib import Path

import pytest

from pathsum.cli.main import main

ARGUMENTS = ["why", "hand-built-induction", "a b c d a", "--token", "b"]


def test_the_circuit_is_printed_as_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGUMENTS) == 0
    shown = capsys.readouterr().out
    assert "K L0H0@2 'b'" in shown
    assert "L1H0 adds" in shown


def test_json_has_every_edge(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--json", "--no-cut"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "pathsum-circuit"
    assert "L0H0@2→L1H0@5.k" in [edge["edge"] for edge in found["edges"]]
    assert {edge["effect"] for edge in found["edges"]} == {None}


def test_graphs_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("why.json", "why.dot"):
        assert main([*ARGUMENTS, "--graph", str(tmp_path / name)]) == 0
    assert json.loads((tmp_path / "why.json").read_text())["links"]
    assert (tmp_path / "why.dot").read_text().startswith("digraph")
    assert main([*ARGUMENTS, "--graph", str(tmp_path / "why.png")]) == 2
    assert main([*ARGUMENTS, "--graph", str(tmp_path / "no" / "why.dot")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_edges_are_cut_to_another_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--other", "c b a d a"]) == 0
    assert main([*ARGUMENTS, "--other", "c b"]) == 2
    assert "same length" in capsys.readouterr().err


def test_faithfulness_is_a_table_over_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*ARGUMENTS, "--faithfulness", "--draws", "3"]
    assert main([*asked, "--reference", "zero"]) == 0
    assert "EAP-IG" in capsys.readouterr().out
    assert main([*asked, "--reference", "other", "--other", "e b c d a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "pathsum-faithfulness"
    assert found["points"][-1]["kept"]["value"] > 0.99
    assert main([*asked, "--reference", "other"]) == 2
    assert "needs --other" in capsys.readouterr().err
    assert main([*asked, "--reference", "men"]) == 2
    assert "choose 'mean', 'zero' or 'other'" in capsys.readouterr().err


def test_the_mean_may_be_over_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a b c d e f a b", encoding="utf-8")
    asked = [*ARGUMENTS, "--faithfulness", "--draws", "1", "--over"]
    assert main([*asked, str(file)]) == 0
    assert "the mean over a text" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, str(tmp_path / "none.txt")]) == 2
