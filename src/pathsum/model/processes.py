"""Several processes as one: torchrun starts them, each computes a share, all get the whole result.

    torchrun --nproc-per-node 4 -m pathsum composition smollm2

`join_world` is this process's place among them; `shared_map` computes independent pieces of an
analysis, each in one process. The pieces are joined in their own order, so the result equals a
single process.
"""

import io
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pathsum.base import Progress, silent

Piece = TypeVar("Piece")
Result = TypeVar("Result")


@dataclass(frozen=True)
class World:
    """The processes of a run, and which of them this one is."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def wait(self) -> None:
        """Barrier."""
        if self.size > 1:
            dist.barrier()

    def mean(self, values: Tensor) -> Tensor:
        """The mean over processes."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
            values = values / self.size
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(self.mean(torch.tensor(float(flag), device=self.device)) > 0)


def local_device(device: str) -> str:
    """The device of a name in this process; under torchrun each process has a separate GPU.

    >>> local_device("cpu")
    'cpu'
    """
    if device == "cuda" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return device


@contextmanager
def join_world() -> Generator[World]:
    """This process's place: alone, or among the processes that torchrun started."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    gpu = torch.cuda.is_available()
    if size == 1:
        yield World(0, 1, torch.device("cuda" if gpu else "cpu"))
        return
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    initializes = not dist.is_initialized()
    if initializes:
        dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield World(dist.get_rank(), size, device)
    finally:
        if initializes:
            dist.destroy_process_group()


def shared_map(
    pieces: Sequence[Piece],
    compute: Callable[[Piece], Result],
    progress: Progress = silent,
    description: str = "",
) -> list[Result]:
    """`[compute(piece) for piece in pieces]`, shared among the processes of a world.

    Every process must call this with the same pieces; each gets the whole list. Outside of
    `join_world`, or alone, it is the plain loop.
    """
    return list(_shared(pieces, compute, progress, description))


def shared_sum(
    pieces: Sequence[Piece],
    compute: Callable[[Piece], Tensor],
    progress: Progress = silent,
    description: str = "",
) -> Tensor:
    """The sum of `compute(piece)`, added in the order of the pieces, however they are shared."""
    total: Tensor | None = None
    for part in _shared(pieces, compute, progress, description):
        total = part if total is None else total.add_(part)
    assert total is not None, "there is nothing to add"
    return total


def _shared(
    pieces: Sequence[Piece],
    compute: Callable[[Piece], Result],
    progress: Progress,
    description: str,
) -> Generator[Result]:
    is_distributed = dist.is_available() and dist.is_initialized()
    rank, size = (dist.get_rank(), dist.get_world_size()) if is_distributed else (0, 1)
    numbers = range(rank, len(pieces), size)
    results: dict[int, Result] = {}
    for number in numbers:
        progress(number, len(pieces), description)
        result = compute(pieces[number])
        if size == 1:
            yield result
        else:
            results[number] = result
    progress(len(pieces), len(pieces), description)
    if size > 1:
        gathered: list[Any] = [None] * size
        dist.all_gather_object(gathered, pack(results))
        all_results: dict[int, Result] = {
            k: v for part in gathered for k, v in unpack(part).items()
        }
        yield from (all_results[number] for number in range(len(pieces)))


def pack(results: Any) -> bytes:
    """The results of one process, serialized."""
    buffer = io.BytesIO()
    torch.save(results, buffer)
    return buffer.getvalue()


def unpack(packed: bytes) -> Any:
    """The results of another process, with GPU tensors moved to this process's GPU."""
    # From our own processes: the pickle is as trusted as the program.
    return torch.load(io.BytesIO(packed), map_location=_own_gpu, weights_only=False)


def _own_gpu(storage: Any, location: str) -> Any:
    return storage if location == "cpu" else storage.cuda(torch.cuda.current_device())
