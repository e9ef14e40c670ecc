"""TokenShards: token ids in memory-mapped files, read as windows."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


def smallest_dtype(vocabulary: int) -> type[np.unsignedinteger]:
    """The smallest dtype that holds every id."""
    return np.uint16 if vocabulary <= 1 << 16 else np.uint32


def spaced(total: int, most: int) -> list[int]:
    """Indices of at most `most` of `total` sequences, evenly spaced.

    >>> spaced(10, 3)
    [0, 3, 6]
    """
    count = min(most, total)
    return [place * total // count for place in range(count)]


class TokenShards:
    """Token ids in `.npy` files, as windows of equal length.

    A window never crosses from one file into the next. Nothing is read before a window is.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The memory-mapped files."""
        return tuple(np.load(file, mmap_mode="r") for file in self.files)

    @property
    def n_tokens(self) -> int:
        """The number of tokens."""
        return sum(len(array) for array in self.arrays)

    def count_windows(self, length: int, offset: int = 0) -> int:
        """The number of windows if each file is cut from `offset` on."""
        return sum(max(0, len(array) - offset) // length for array in self.arrays)

    def windows(
        self, numbers: Sequence[int], length: int, offset: int = 0
    ) -> Int[Tensor, "window pos"]:
        """Some windows, by number, [window, pos]."""
        counts = [max(0, len(array) - offset) // length for array in self.arrays]
        ends = np.cumsum(counts)
        rows = np.empty((len(numbers), length), dtype=np.int64)
        for row, number in enumerate(numbers):
            shard = int(np.searchsorted(ends, number, side="right"))
            inside = number - (int(ends[shard]) - counts[shard])
            start = offset + inside * length
            rows[row] = self.arrays[shard][start : start + length]
        return torch.from_numpy(rows)

    def counts(self, vocabulary: int) -> Int[Tensor, " vocab"]:
        """The number of occurrences of each token."""
        total = np.zeros(vocabulary, dtype=np.int64)
        for array in self.arrays:
            total += np.bincount(array, minlength=vocabulary)
        return torch.from_numpy(total)
