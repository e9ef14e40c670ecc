"""Models without a tokenizer on the command line: token ids in place of a text."""

import json
from pathlib import Path

import pytest

import pathsum as ps
from pathsum.cli.main import main

CONFIG = ps.Config(n_layers=2, n_heads=2, d_model=12, d_head=6, d_vocab=20, n_ctx=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    ps.random_model(CONFIG).save(made)
    return made


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        ("paths", ["--token", "4"]),
        ("why", ["--token", "4", "--no-cut"]),
        ("scores", ["--head", "L1H0"]),
        ("patch", ["--with", "1,2,3", "--node", "L0H0"]),
        ("terms", ["--split", "none"]),
    ],
)
def test_ids_are_read_in_place_of_a_text(
    folder: Path, command: str, rest: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(folder), "--tokens", "3,5,7", *rest, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"].startswith("pathsum-")


def test_heads_are_replaced_on_ids(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = ("--tokens", "3,5,7", "--tokens", "5,3,7")
    how = ("L0H0", "--pattern", "first", "--json")
    assert main(["replace", str(folder), *how, *ids]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sequences"], found["predictions"], found["unit"]) == (2, 4, "nats")
    targets = ("--targets", "-1,-1,4", "--targets", "-1,-1,9", "--metric", "error")
    assert main(["replace", str(folder), *how, *ids, *targets]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["predictions"], found["unit"]) == (2, "share of errors")
    assert found["loss"]["value"] in (0, 0.5, 1)


def test_models_with_other_outputs_are_measured_toward_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ps.random_model(CONFIG.replace(d_vocab_out=5)).save(tmp_path)
    ids = ["--tokens", "3,5,7", "--tokens", "5,3,7", "--json"]
    targets = ["--targets", "-1,-1,4", "--targets", "-1,-1,0"]
    assert main(["terms", str(tmp_path), *ids, *targets, "--metric", "error"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["predictions"] == 2 and "share of errors per prediction" in found["note"]
    for given, message in (
        (ids, "give targets"),
        ([*ids, *targets[:2]], "--targets have 3 entries and --tokens 3, 3"),
        (["--tokens", "3,5", "--targets", "-1,-2"], "'-1,-2' is not a list of token ids"),
        (["--tokens", "3,5", "--targets", "-1,5"], "the model has 5 outputs"),
        (targets, "--targets belongs to --tokens; give --tokens with it"),
        (["--tokens", "3,5", "--tokens", "3", "--targets", "1,1", "--targets", "1"], "one length"),
    ):
        assert main(["terms", str(tmp_path), *given]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_what_cannot_be_read_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([], "there is no input; give a text"),
        (["a text", "--tokens", "1,2"], "both given"),
        (["--tokens", "1,x"], "'1,x' is not a list of token ids"),
        (["--tokens", "1,99"], "token id 99 is out of range"),
        (["--tokens", "1", "--tokens", "2"], "this command takes one"),
        (["a text"], "has no tokenizer"),
    ):
        assert main(["paths", str(folder), *arguments]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_ids_on_a_model_with_a_tokenizer_are_taken_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ps.construct.induction()
    ids = ",".join(map(str, model.encode("a b a")))
    for given in (["a b a"], ["--tokens", ids]):
        assert main(["paths", "hand-built-induction", *given, "--json"]) == 0
    first, second = capsys.readouterr().out.split("\n}\n")[:2]
    assert first == second
