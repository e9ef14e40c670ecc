"""Batches: the windows of text that a step learns from, a function of seed and step alone."""

from itertools import groupby

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.errors import InputError
from pathsum.shapes import Tokens
from pathsum.text import Corpus


class Batches:
    """Windows of n_ctx tokens, shuffled again in each epoch.

    Each epoch cuts the text at another offset, so that window boundaries move. Only seed and step
    determine the batch: a resumed run sees what an uninterrupted one would have seen, whatever the
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
