"""ThreadedBatch: a batch in equal parts, one per thread, which suits small models.

The operations of a small model take tens of microseconds, and threads that split each operation
wait for each other a hundred times per step. Here each thread takes some of the batch's sequences
forward and backward on its own, on weights in shared memory, with its own gradients. Gradients
are added in a fixed order, so a run depends only on its seed and its number of threads.
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.shapes import Tokens
from pathsum.training.network import Network


class ThreadedBatch:
    """A network, and a copy that shares its weights for each further part; see `count_parts`."""

    def __init__(self, network: Network, parts: int, half: bool = False) -> None:
        self.half = half
        self.networks = [network, *(_sharing_copy(network) for _ in range(parts - 1))]
        self.threads = ThreadPoolExecutor(parts, "part", initializer=_use_one_thread)

    def learn(self, inputs: Tokens, targets: Tokens) -> Float[Tensor, ""]:
        """The mean loss of a batch; leaves its gradient in the network's parameters."""
        parts = len(self.networks)
        batches = inputs.chunk(parts), targets.chunk(parts)
        losses = list(
            self.threads.map(_pass, self.networks, *batches, repeat(1 / parts), repeat(self.half))
        )
        network, *copies = self.networks
        for copied in copies:
            for parameter, other in zip(network.parameters(), copied.parameters(), strict=True):
                assert parameter.grad is not None
                assert other.grad is not None
                parameter.grad.add_(other.grad)
                other.grad = None
        return torch.stack(losses).sum()


def count_parts(batch: int, threads: int) -> int:
    """The largest number of equal parts of a batch that is at most one per thread.

    >>> [count_parts(4, threads=2), count_parts(6, threads=4), count_parts(5, threads=2)]
    [2, 3, 1]
    """
    return max(parts for parts in range(1, threads + 1) if batch % parts == 0)


def _sharing_copy(network: Network) -> Network:
    """A copy whose weights share this network's memory, with gradients of its own."""
    copied = copy.deepcopy(network)
    for parameter, other in zip(network.parameters(), copied.parameters(), strict=True):
        other.data = parameter.data
    return copied


def _pass(network: Network, inputs: Tensor, targets: Tensor, share: float, half: bool) -> Tensor:
    # Autocast is a setting of the thread.
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = network(inputs, targets) * share
    loss.backward()
    return loss.detach()


def _use_one_thread() -> None:
    """Operations of the calling thread use no other threads; the process keeps its setting."""
    torch.set_num_threads(1)
