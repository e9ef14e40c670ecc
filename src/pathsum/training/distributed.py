"""Several processes as one run: each takes a part of every batch, and gradients are averaged.

Started by torchrun, which tells each process its place. DDP keeps a copy of the model in each
process; FSDP2 spreads the parameters over them.
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
from pathsum.training.muon import whole_of
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
        """Go on when every process is here."""
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
        """Whether any process says so."""
        return bool(self.mean(torch.tensor(float(flag), device=self.device)) > 0)


@contextmanager
def world() -> Generator[World]:
    """This process's place: alone, or among those that torchrun started."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    gpu = torch.cuda.is_available()
    if size == 1:
        yield World(0, 1, torch.device("cuda" if gpu else "cpu"))
        return
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    began = not dist.is_initialized()
    if began:
        dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield World(dist.get_rank(), size, device)
    finally:
        if began:
            dist.destroy_process_group()


def spread(network: Network, here: World, strategy: Strategy) -> nn.Module:
    """The network as this process runs it; `network` itself stays what is saved and looked at."""
    if here.size == 1:
        return network
    if strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(here.device.type, (here.size,))
        for layer in network.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)
        return network
    return DistributedDataParallel(network)


def whole_weights(network: Network) -> dict[str, Tensor]:
    """Every parameter, gathered. All processes must ask together."""
    return {name: whole_of(parameter.detach()) for name, parameter in network.named_parameters()}


def refuse_uneven_batch(batch: int, here: World) -> None:
    """An error if the batch cannot be shared out evenly."""
    if batch % here.size:
        raise InputError(
            f"a batch of {batch} sequences cannot be shared evenly by {here.size} processes; "
            f"a multiple of {here.size} would be right"
        )
