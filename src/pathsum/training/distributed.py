"""Several processes as one run: each takes a part of every batch, and gradients are averaged.

torchrun starts the processes and gives each its rank. DDP keeps a copy of the model in each
process; FSDP2 shards the parameters over them.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pathsum.errors import InputError
from pathsum.training.muon import gather
from pathsum.training.network import Network

Strategy: TypeAlias = Literal["ddp", "fsdp"]
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp")


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
        """Continue when every process has arrived."""
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


@contextmanager
def join_world() -> Generator[World]:
    """This process's place: alone, or among those that torchrun started."""
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


def distribute(network: Network, world: World, strategy: Strategy) -> nn.Module:
    """The module that this process runs; `network` itself stays what is saved and probed."""
    if world.size == 1:
        return network
    if strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(world.device.type, (world.size,))
        for layer in network.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)
        return network
    return DistributedDataParallel(network)


def gather_weights(network: Network) -> dict[str, Tensor]:
    """Every parameter, gathered. All processes must call this together."""
    return {name: gather(parameter.detach()) for name, parameter in network.named_parameters()}


def check_batch_divides(batch: int, world: World) -> None:
    """Raise if the batch cannot be shared evenly by the processes."""
    if batch % world.size:
        raise InputError(
            f"a batch of {batch} sequences cannot be shared evenly by {world.size} processes; "
            f"use a multiple of {world.size}"
        )
