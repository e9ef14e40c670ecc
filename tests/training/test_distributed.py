"""Two processes on one batch come to what one process comes to."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.training.test_loop import weights_of
from tests.training.tiny import tiny_recipe

from pathsum.base.errors import InputError
from pathsum.model.processes import World
from pathsum.training import train
from pathsum.training.checkpoint import read_checkpoint
from pathsum.training.metrics import read_metrics
from pathsum.training.train import _check_batch_divides

# Sums over sequences are taken in another order, in float32, twelve times over.
TOLERANCE = 1e-3
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def two(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes, without and with clipping."""
    folder = tmp_path_factory.mktemp("two")
    train(tiny_recipe(text, steps=2), out=folder / "corpus")  # built once, by one process
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    together |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.training.worker", str(text), str(folder)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **together, "RANK": str(rank)})
        for rank in range(2)
    ]
    codes = [process.wait(timeout=120) for process in processes]
    assert codes == [0, 0]
    return folder


@pytest.mark.parametrize(("name", "clip"), [("plain", 0.0), ("clipped", 1.0)])
def test_two_processes_agree_with_one(
    text: Path, two: Path, tmp_path: Path, name: str, clip: float
) -> None:
    train(tiny_recipe(text, steps=12, optimizer__clip=clip), out=tmp_path / "one")
    for ours, theirs in zip(read_metrics(tmp_path / "one"), read_metrics(two / name), strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=TOLERANCE)
    one, both = weights_of(tmp_path / "one"), weights_of(two / name)
    for key, tensor in one.items():
        torch.testing.assert_close(
            both[key], tensor, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda shown, k=key: k + shown
        )


@pytest.mark.parametrize("name", ["plain", "clipped"])
def test_their_checkpoint_is_that_of_a_run_of_one(two: Path, name: str) -> None:
    kept = read_checkpoint(two / name)
    assert kept is not None
    assert kept.step == 12
    train(two / name, resume=True)


def test_a_batch_must_share_out_evenly() -> None:
    with pytest.raises(InputError, match="5 sequences cannot be shared evenly by 2 processes"):
        _check_batch_divides(5, World(0, 2, torch.device("cpu")))
