"""Analyses that several processes share: rank 0 prints what a single process prints."""

import contextlib
import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pathsum.cli.main import main
from pathsum.model import Config, random_model
from pathsum.model.processes import shared_map, shared_sum

ROOT = Path(__file__).parent.parent.parent
COMMANDS = {
    "composition": ("--max-p", "0.5"),
    "atlas": ("--sequences", "2"),
    "terms": ("--sequences", "6", "--split", "heads"),
}


def output(name: str, folder: str) -> str:
    """What a command prints in this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([name, folder, *COMMANDS[name], "--json"]) == 0
    return printed.getvalue()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and what each of two processes printed about it."""
    folder = tmp_path_factory.mktemp("processes")
    config = Config(3, 4, 16, 4, 40, 60, positions="rotary", norm="rms", mlp="gelu")
    random_model(config, gains=True).save(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    together |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.cli.test_processes", str(folder)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **together, "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_two_processes_print_what_one_prints(name: str, both: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = output(name, str(both / "model"))
    finally:
        torch.set_num_threads(threads)
    assert (both / f"{name}-0").read_text() == alone
    assert (both / f"{name}-1").read_text() == ""


def test_alone_a_shared_map_is_a_loop() -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int, what: str) -> None:
        seen.append((done, total))

    assert shared_map([3, 1, 2], lambda n: n * n, progress) == [9, 1, 4]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    total = shared_sum([1.0, 2.0], lambda n: torch.tensor([n]))
    assert float(total) == 3.0


if __name__ == "__main__":
    import torch.distributed as dist

    dist.init_process_group("gloo")
    place, rank = Path(sys.argv[1]), dist.get_rank()
    for each in COMMANDS:
        (place / f"{each}-{rank}").write_text(output(each, str(place / "model")))
    dist.destroy_process_group()
