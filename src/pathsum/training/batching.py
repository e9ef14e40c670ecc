"""Batches: the windows of text that a step learns from, a function of seed and step alone.

On small models a batch is learned in equal parts, one per thread (`ThreadedBatch`).
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, repeat

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.errors import InputError
from pathsum.base.shapes import Tokens
from pathsum.text import Corpus
from pathsum.training.network import Network


class Batches:
    """Windows of n_ctx tokens, shuffled again in each epoch.

    Each epoch cuts the text at another offset, so that window boundaries move. Only seed and step
    determine the batch, so a resumed run sees what an uninterrupted one would have seen, with any
    number of processes.
    """

    def __init__(self, corpus: Corpus, n_ctx: int, batch: int, seed: int) -> None:
        self.shards, self.start = corpus.train, corpus.start_token
        self.n_ctx, self.batch, self.seed = n_ctx, batch, seed
        # The largest offset leaves the fewest windows; every epoch uses that many.
        self.windows = self.shards.count_windows(n_ctx, offset=n_ctx - 1)
        if self.windows < batch:
            raise InputError(
                f"the corpus {corpus.info.name!r} has {corpus.info.tokens:,} training tokens, "
                f"less than one batch needs ({batch} sequences of {n_ctx}, and {n_ctx} more for "
                "the offset); give more text, or lower batch or n_ctx"
            )
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)
        self._offset = 0

    def at(self, step: int, part: int = 0, parts: int = 1) -> tuple[Tokens, Tokens]:
        """Inputs and targets of a step, or one of several equal parts."""
        first = step * self.batch
        numbers = range(
            first + part * self.batch // parts, first + (part + 1) * self.batch // parts
        )
        by_epoch = groupby(numbers, key=lambda number: number // self.windows)
        read = [self._windows(epoch, list(some)) for epoch, some in by_epoch]
        windows = read[0] if len(read) == 1 else torch.cat(read)
        inputs = torch.empty_like(windows)
        inputs[:, 0] = self.start
        inputs[:, 1:] = windows[:, :-1]
        return inputs, windows

    def _windows(self, epoch: int, numbers: list[int]) -> Int[Tensor, "window pos"]:
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self._offset = int(generator.integers(self.n_ctx))
            self._order = generator.permutation(self.windows)
            self._epoch = epoch
        places = [int(self._order[number % self.windows]) for number in numbers]
        return self.shards.windows(places, self.n_ctx, self._offset)


class ThreadedBatch:
    """A network, and a copy that shares its weights for each further part; see `count_parts`.

    The operations of a small model take tens of microseconds, and threads that split each operation
    wait for each other a hundred times per step. Here each thread takes some of the batch's
    sequences forward and backward on its own, on weights in shared memory, with its own gradients.
    Gradients are added in a fixed order, so a run depends only on its seed and its number of
    threads.
    """

    def __init__(self, network: Network, parts: int, half: bool = False) -> None:
        self.half = half
        self.networks = [network, *(_sharing_copy(network) for _ in range(parts - 1))]
        # A setting of each thread: the process keeps its own.
        self.threads = ThreadPoolExecutor(
            parts, "part", initializer=torch.set_num_threads, initargs=(1,)
        )

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
