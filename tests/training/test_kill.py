"""A process that is killed outright loses nothing but the steps since its last checkpoint."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.training.test_loop import same_weights
from tests.training.tiny import tiny_recipe

from pathsum import load
from pathsum.cli.main import main
from pathsum.training import read_snapshots, train
from pathsum.training.checkpoint import read_checkpoint


def test_kill_9_loses_nothing(text: Path, tmp_path: Path) -> None:
    from pathsum.training import to_toml

    recipe = tiny_recipe(text, steps=120, watching__checkpoint_every=5)
    train(recipe, out=tmp_path / "whole")
    killed = tmp_path / "killed"
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(recipe))
    command = [sys.executable, "-m", "pathsum", "train", str(file), "--out", str(killed)]
    # Bit-equality is promised for the same number of threads.
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not (killed / "checkpoint.safetensors").exists() and time.monotonic() < end:
            time.sleep(0.002)
        process.kill()
    kept = read_checkpoint(killed)
    assert kept is not None
    assert 0 < kept.step < 120, "the kill came too late to show anything"
    train(killed, resume=True)
    assert same_weights(tmp_path / "whole", killed)
    assert not list(killed.glob(".*.part"))


@pytest.mark.slow
def test_many_kills_lose_nothing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed again and again while it saves, a run ends with the weights of one never stopped."""
    from pathsum.training import to_toml

    kills = int(os.environ.get("PATHSUM_KILLS", "20"))
    # A process that is killed has made 2 steps and what fits into 50 ms.
    recipe = tiny_recipe(
        text, steps=20 * kills, watching__checkpoint_every=2, watching__snapshots=12
    )
    train(recipe, out=tmp_path / "whole")
    killed, file = tmp_path / "killed", tmp_path / "tiny.toml"
    file.write_text(to_toml(recipe))
    # Forked from a process that has imported torch, which a new one would do each time.
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["pathsum.training"])
    draw = random.Random(0)
    for _ in range(kills):
        start = [str(killed), "--resume"] if (killed / "run.json").exists() else [str(file)]
        out = [] if len(start) == 2 else ["--out", str(killed)]
        before = _step(killed)
        process = forks.Process(target=main, args=(["train", *start, *out],))
        process.start()
        end = time.monotonic() + 120
        while _written(killed) == before[1] and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run ended before it was killed"
        # A kill may come while files are renamed, and the model is still one that was saved whole.
        if (killed / "config.json").exists():
            load(killed)
        assert _step(killed)[0] >= before[0]
    train(killed, resume=True)
    assert same_weights(tmp_path / "whole", killed)
    assert not list(killed.rglob(".*.part"))
    steps = [snapshot.step for snapshot in read_snapshots(killed)]
    assert steps == [snapshot.step for snapshot in read_snapshots(tmp_path / "whole")]


def _written(folder: Path) -> int:
    file = folder / "checkpoint.safetensors"
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _step(folder: Path) -> tuple[int, int]:
    kept = read_checkpoint(folder)
    return (0 if kept is None else kept.step), _written(folder)
