"""scripts/bundle_run.py: a run made small enough to come with pathsum, and read back."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.training.tiny import tiny_recipe

import pathsum as ps
from pathsum.base.errors import FileError
from pathsum.training import read_snapshots, train
from pathsum.training.checkpoint import bundled_runs, save_small_snapshot

SCRIPT = Path(__file__).parents[2] / "scripts" / "bundle_run.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bundle_run", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(text: Path, tmp_path: Path) -> Path:
    train(tiny_recipe(text, watching__snapshots=8), out=tmp_path / "run")
    return tmp_path / "run"


def test_a_bundled_run_is_small_and_says_the_same(
    run: Path,
    tmp_path: Path,
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script.main(
        [str(run), str(tmp_path / "into"), "--name", "tiny-run", "--no-card", "--steps", "all"]
    )
    folder = tmp_path / "into" / "tiny-run"
    assert "tiny-run: 8 snapshots" in capsys.readouterr().out
    assert json.loads((folder / "run.json").read_text())["corpus"]["folder"] == ""
    before, after = read_snapshots(run), read_snapshots(folder)
    assert [one.step for one in before] == [one.step for one in after]
    for one, other in zip(before, after, strict=True):
        half = one.model.weights.W_E.half().float()
        assert torch.equal(other.model.weights.W_E, half)
        assert other.model.tokenizer is not None
        assert torch.equal(other.model.token_counts, one.model.token_counts)

    # As a name, without the corpus and its cache.
    for module in ("pathsum.sources.named", "pathsum.training.checkpoint"):
        monkeypatch.setattr(f"{module}.BUNDLED", tmp_path / "into")
    monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path / "nothing"))
    assert bundled_runs() == ("tiny-run",)
    assert ps.load("tiny-run").name == "tiny-run"
    small = ps.dynamics("tiny-run", sequences=3, probe_sequences=2)
    large = ps.dynamics(run, sequences=3, probe_sequences=2)
    assert small.run == "tiny-run"
    assert small.tokens == large.tokens
    assert small.logged_loss == large.logged_loss and len(small.logged_steps) > 1
    torch.testing.assert_close(
        small.curve("previous_token").values,
        large.curve("previous_token").values,
        atol=0.01,
        rtol=0,
    )


def test_snapshots_of_another_run_are_refused(
    run: Path, tmp_path: Path, script: ModuleType
) -> None:
    folder = tmp_path / "small"
    script.bundle_run(run, folder, sequences=2, steps=None)
    other = ps.random_model(ps.load(run).config.replace(n_ctx=32))
    save_small_snapshot(folder, 99, other)
    with pytest.raises(FileError, match="different configs, so they belong to different runs"):
        read_snapshots(folder)
    script.bundle_run(run, folder, sequences=2, steps=None)
    snapshot = folder / "snapshots" / "step-0000000.safetensors"
    snapshot.write_bytes((run / "model.safetensors").read_bytes())
    with pytest.raises(FileError, match="is not a snapshot that this version of pathsum reads"):
        read_snapshots(folder)


def test_only_the_named_snapshots_are_bundled(
    run: Path, tmp_path: Path, script: ModuleType
) -> None:
    steps = [snapshot.step for snapshot in read_snapshots(run)]
    script.main(
        [str(run), str(tmp_path), "--name", "two", "--no-card", "--steps", f"0,{steps[-1]}"]
    )
    assert [one.step for one in read_snapshots(tmp_path / "two")] == [0, steps[-1]]
    script.main([str(run), str(tmp_path), "--name", "none", "--no-card"])
    assert read_snapshots(tmp_path / "none") == ()
    assert (tmp_path / "none" / "held_out.safetensors").exists()
    with pytest.raises(SystemExit, match=r"has no snapshots at steps \[7777\]"):
        script.main([str(run), str(tmp_path), "--name", "none", "--no-card", "--steps", "0,7777"])
    assert (tmp_path / "none" / "model.safetensors").exists()
