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
    ],
)
def test_ids_are_read_in_place_of_a_text(
    folder: Path, command: str, rest: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(folder), "--tokens", "3,5,7", *rest, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"].startswith("pathsum-")


def test_what_cannot_be_read_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([], "give the model something to read"),
        (["a text", "--tokens", "1,2"], "both given"),
        (["--tokens", "1,x"], "'1,x' is not a list of token ids"),
        (["--tokens", "1,99"], "token id 99 is out of range"),
        (["--tokens", "1", "--tokens", "2"], "this command reads one"),
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
