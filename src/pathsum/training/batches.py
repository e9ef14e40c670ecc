"""Batches: which windows of the text a step learns from, decided by seed and step alone."""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.errors import InputError
from pathsum.shapes import Tokens
from pathsum.text import Corpus


class Batches:
    """Windows of n_ctx tokens in an order shuffled anew each epoch.

    An epoch cuts the text from an offset of its own, so that tokens meet other neighbours at the
    window's ends. Nothing but seed and step decides what a step sees: a run that is resumed sees
    what one that never stopped would have, whatever the number of processes.
    """

    def __init__(self, corpus: Corpus, n_ctx: int, batch: int, seed: int) -> None:
        self.shards, self.start = corpus.train, corpus.start_token
        self.n_ctx, self.batch, self.seed = n_ctx, batch, seed
        # The largest offset leaves the fewest windows; every epoch takes that many.
        self.windows = self.shards.count_windows(n_ctx, offset=n_ctx - 1)
        if self.windows < batch:
            raise InputError(
                f"the corpus {corpus.info.name!r} has {corpus.info.tokens:,} tokens to train on, "
                f"less than one batch needs ({batch} sequences of {n_ctx}, and as many to shift "
                "by); give more text, or lower batch or n_ctx"
            )
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)
        self._offset = 0

    def at(self, step: int, part: int = 0, parts: int = 1) -> tuple[Tokens, Tokens]:
        """Inputs and targets of a step, or one of several equal parts of them."""
        rows = range(part * self.batch // parts, (part + 1) * self.batch // parts)
        windows = torch.cat([self._window(step * self.batch + row) for row in rows])
        start = torch.full((len(rows), 1), self.start)
        return torch.cat((start, windows[:, :-1]), dim=1), windows

    def _window(self, number: int) -> Int[Tensor, "1 pos"]:
        epoch, place = divmod(number, self.windows)
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self._offset = int(generator.integers(self.n_ctx))
            self._order = generator.permutation(self.windows)
            self._epoch = epoch
        return self.shards.windows([int(self._order[place])], self.n_ctx, self._offset)
