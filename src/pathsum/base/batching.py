"""Batching by memory: consecutive parts of a sequence that are computed together."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

BYTES = 1 << 26
"""Memory of one batch, unless a caller gives another bound: 64 MB."""


def batched(
    items: Sequence[Item], bytes_each: int, total_bytes: int | None = None
) -> Iterator[Sequence[Item]]:
    """Consecutive slices of `items` of at most `total_bytes` (by default `BYTES`), at least one.

    >>> list(batched(range(5), bytes_each=8, total_bytes=16))
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    size = batch_size(bytes_each, total_bytes)
    for first in range(0, len(items), size):
        yield items[first : first + size]


def batch_size(bytes_each: int, total_bytes: int | None = None) -> int:
    """The number of items that fit into one batch, at least 1."""
    return max(1, (BYTES if total_bytes is None else total_bytes) // max(1, bytes_each))
