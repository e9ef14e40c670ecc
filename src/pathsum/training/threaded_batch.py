"""A batch in equal parts, one a thread: small models keep several cores busier so than by sharing.

The operations of a small model take tens of microseconds, and threads that share each of them wait
for each other a hundred times a step. Here each thread takes some of the batch's sequences forward
and backward by itself, on weights that are the same memory, into gradients of its own; those are
added in a fixed order, so a run stays a function of its seed and its number of threads.
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
    """A network and as many stand-ins for it as further parts; see `parts_of`."""

    def __init__(self, network: Network, parts: int) -> None:
        self.networks = [network, *(_stand_in(network) for _ in range(parts - 1))]
        self.threads = ThreadPoolExecutor(parts, "part", initializer=_alone)

    def learn(self, inputs: Tokens, targets: Tokens) -> Float[Tensor, ""]:
        """The mean loss of a batch; its gradient is left in the network's parameters."""
        parts = len(self.networks)
        batches = inputs.chunk(parts), targets.chunk(parts)
        done = list(self.threads.map(_pass, self.networks, *batches, repeat(1 / parts)))
        for other in self.networks[1:]:
            for own, its in zip(self.networks[0].parameters(), other.parameters(), strict=True):
                assert own.grad is not None
                assert its.grad is not None
                own.grad.add_(its.grad)
                its.grad = None
        return torch.stack(done).sum()


def parts_of(batch: int, threads: int) -> int:
    """Into how many equal parts a batch goes, at most one a thread.

    >>> parts_of(batch=4, threads=2), parts_of(batch=6, threads=4), parts_of(batch=5, threads=2)
    (2, 3, 1)
    """
    return max(parts for parts in range(1, threads + 1) if batch % parts == 0)


def _stand_in(network: Network) -> Network:
    """Another network whose weights are the memory of this one's, with gradients of its own."""
    other = copy.deepcopy(network)
    for own, its in zip(network.parameters(), other.parameters(), strict=True):
        its.data = own.data
    return other


def _pass(network: Network, inputs: Tensor, targets: Tensor, share: float) -> Tensor:
    loss = network(inputs, targets) * share
    loss.backward()
    return loss.detach()


def _alone() -> None:
    """The thread that calls this computes by itself; other threads keep their number."""
    torch.set_num_threads(1)
