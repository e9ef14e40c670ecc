"""Several processes as one run: each takes a part of every batch, and gradients are averaged.

torchrun starts the processes and gives each its rank. DDP keeps a copy of the model in each
process; FSDP2 shards the parameters over them.
"""

from typing import Literal, TypeAlias

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pathsum.base.errors import InputError
from pathsum.model.processes import World
from pathsum.training.muon import gather
from pathsum.training.network import Network

Strategy: TypeAlias = Literal["ddp", "fsdp"]
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp")


def distribute(network: Network, world: World, strategy: Strategy) -> nn.Module:
    """The module that this process runs; `network` itself is what is saved and probed."""
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
