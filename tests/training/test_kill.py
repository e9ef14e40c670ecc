"""A process that is killed outright loses nothing but the steps since its last checkpoint."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from tests.training.test_loop import same_weights
from tests.training.tiny import tiny_recipe

from pathsum.training import train
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
