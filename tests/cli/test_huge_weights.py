"""Finite weights so large that products overflow: every command says so, none prints NaN."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient

import pathsum as ps
from pathsum.cli.main import main
from pathsum.explorer import Explorer
from pathsum.explorer.server.app import make_app
from pathsum.explorer.server.guard import Access, names_of
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights
from pathsum.training.checkpoint import save_small_snapshot

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
        ["report", "-o", "page.html"],
    ],
    ids=lambda command: command[0],
)
def test_weights_that_overflow_are_an_error(
    folders: dict[float, Path],
    scale: float,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
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


def test_snapshots_that_overflow(
    folders: dict[float, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ps.load(folders[1e30])
    text = torch.zeros(2, model.config.n_ctx, dtype=torch.long)
    replace(model, held_out=text).save(tmp_path)
    for step in (0, 10):
        save_small_snapshot(tmp_path, step, model)
    assert main(["dynamics", str(tmp_path), "--sequences", "2"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "numbers that are NaN or infinite" in shown.err


def test_composition_scores_are_ratios(
    folders: dict[float, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tables: list[str] = []
    for model in ("two-layer", *map(str, folders.values())):
        assert main(["composition", model, "-k", "5"]) == 0
        tables.append(capsys.readouterr().out.partition("\n")[2])
    assert "nan" not in tables[0]
    assert tables[1:] == tables[:1] * 2


def test_the_explorer_survives_them(folders: dict[float, Path]) -> None:
    """One POST to the atlas once killed the process, in LAPACK."""
    explorer = Explorer([folders[1e10]], bundled=())
    app = make_app(explorer, names_of("127.0.0.1", 7321), Access("", 7321))
    client = TestClient(app, base_url="http://127.0.0.1:7321")
    for _ in range(2):
        found = client.post("/api/atlas", json={})
        assert found.status_code == 400
        assert "overflow" in found.json()["error"] or "NaN" in found.json()["error"]
    assert client.post("/api/composition", json={}).status_code == 200
