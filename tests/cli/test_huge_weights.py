"""Finite weights so large that products overflow: every command says so, none prints NaN."""

from pathlib import Path

import pytest

import pathsum as ps
from pathsum.cli.main import main
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights

SCALES = (1e10, 1e30)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    plain = ps.load("two-layer")
    made: dict[float, Path] = {}
    for scale in SCALES:
        store = MemoryStore({name: tensor * scale for name, tensor in plain.weights.items()})
        huge = ps.Model(Weights(plain.config, store), "huge", plain.tokenizer, plain.token_counts)
        made[scale] = tmp_path_factory.mktemp("huge")
        huge.save(made[scale])
    return made


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "command",
    [
        ["atlas"],
        ["terms"],
        ["induction"],
        ["bandwidth"],
        ["head", "L1H0"],
        ["paths", "def f(self):"],
        ["why", "def f(self):"],
        ["scores", "def f(self):", "--head", "L1H0"],
        ["patch", "def f(", "--with", "def g("],
        ["replace", "L1H0", "--copying"],
        ["trigrams", "--head", "L0H0"],
    ],
    ids=lambda command: command[0],
)
def test_weights_that_overflow_are_an_error(
    folders: dict[float, Path],
    scale: float,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *rest = command
    assert main([name, str(folders[scale]), *rest]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "overflow" in shown.err or "contain NaN or infinity" in shown.err


def test_a_bigram_table_that_overflows(
    folders: dict[float, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bigram", str(folders[1e30])]) == 2
    assert "a block of W_E W_U" in capsys.readouterr().err
