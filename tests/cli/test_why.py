"""`pathsum why`, in-process."""

import json
from pathlib import Path

import pytest

from pathsum.cli.main import main
from pathsum.model import construct

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
    assert main([*ARGUMENTS, "--graph", str(tmp_path / "why.json")]) == 0
    assert json.loads((tmp_path / "why.json").read_text())["links"]
    assert main([*ARGUMENTS, "--graph", str(tmp_path / "why.png")]) == 2
    assert main([*ARGUMENTS, "--graph", str(tmp_path / "no" / "why.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_edges_are_cut_to_another_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--other", "c b a d a"]) == 0
    assert main([*ARGUMENTS, "--other", "c b"]) == 2
    assert "same number of tokens" in capsys.readouterr().err


def test_the_other_text_is_token_ids_where_the_text_is(capsys: pytest.CaptureFixture[str]) -> None:
    model = construct.induction()
    here, there = (",".join(map(str, model.encode(text))) for text in ("a b c d a", "c b a d a"))
    asked = ["why", "hand-built-induction", "--token", "b", "--json"]
    assert main([*asked, "--tokens", here, "--other", there]) == 0
    by_ids = json.loads(capsys.readouterr().out)
    assert main([*asked, "a b c d a", "--other", "c b a d a"]) == 0
    assert by_ids["edges"] == json.loads(capsys.readouterr().out)["edges"]
    assert main([*asked, "--tokens", here, "--other", "c b a d a"]) == 2
    assert "is not a list of token ids" in capsys.readouterr().err


def test_options_of_faithfulness_need_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = {"--reference": "zero", "--over": str(tmp_path), "--draws": "3", "--seed": "1"}
    for name, value in options.items():
        assert main([*ARGUMENTS, name, value]) == 2
        assert f"{name} belongs to --faithfulness" in " ".join(capsys.readouterr().err.split())
    assert main([*ARGUMENTS, "--faithfulness", "--diff", "hand-built-induction-by-q"]) == 2
    assert "--diff and --faithfulness" in " ".join(capsys.readouterr().err.split())


def test_notes_of_heads_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "two-layer", "a b", "--position", "0", "--threshold", "0.02"]) == 0
    assert "no other position to attend to" in capsys.readouterr().out


def test_faithfulness_is_a_table_over_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*ARGUMENTS, "--faithfulness", "--draws", "3"]
    assert main([*asked, "--reference", "zero"]) == 0
    assert "EAP-IG" in capsys.readouterr().out
    assert main([*asked, "--reference", "other", "--other", "e b c d a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "pathsum-faithfulness"
    assert found["points"][-1]["kept"]["value"] > 0.99
    assert main([*asked, "--reference", "other"]) == 2
    assert "--other" in capsys.readouterr().err
    assert main([*asked, "--reference", "men"]) == 2
    assert "choose 'zero', 'mean' or 'other'" in capsys.readouterr().err


def test_the_mean_may_be_over_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a b c d e f a b", encoding="utf-8")
    asked = [*ARGUMENTS, "--faithfulness", "--draws", "1", "--over"]
    assert main([*asked, str(file)]) == 0
    assert "the mean over 8 tokens of the given text" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, str(tmp_path / "none.txt")]) == 2


def test_prompts_of_a_file_are_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"text": "a b c d a", "names": {"answer": "b"}, "corrupted": "e b c d a"},
        {"text": "f g h f", "names": {"answer": [2, 3]}, "corrupted": "i g h f"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    asked = ["why", "hand-built-induction", "--prompts", str(file)]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "pathsum-circuit"
    assert "L0H0@answer→L1H0@last.k" in [edge["edge"] for edge in found["edges"]]
    assert main([*asked, "--faithfulness", "--reference", "other", "--draws", "2"]) == 0
    assert "over 2 prompts" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--diff", "hand-built-induction-by-q", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "pathsum-circuit-diff"
    assert main([*asked, "--graph", str(tmp_path / "mean.json")]) == 0
    assert "V L1H0@last" in capsys.readouterr().out
    links = json.loads((tmp_path / "mean.json").read_text())["links"]
    assert "L0H0@answer" in [link["source"] for link in links]
    assert main([*asked, "--other", "a b"]) == 2
    assert main([*asked[:2], "a b a", *asked[2:]]) == 2
    assert "TEXT and --prompts were both given" in capsys.readouterr().err


def test_bad_prompt_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    wrong = {
        "{": "line 1 is not JSON",
        '{"txt": "a"}': 'an object with a "text"',
        '{"text": "a b", "tokn": "b"}': "'tokn' is not known; did you mean 'token'?",
        "": "no prompts",
    }
    for text, message in wrong.items():
        file.write_text(text, encoding="utf-8")
        assert main(["why", "hand-built-induction", "--prompts", str(file)]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert main(["why", "hand-built-induction", "--prompts", str(tmp_path / "none")]) == 2


def test_two_models_on_one_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--diff", "hand-built-induction-by-q"]) == 0
    assert "kept by" in capsys.readouterr().out
