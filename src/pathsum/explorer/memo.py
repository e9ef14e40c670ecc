"""Memo: a cache of bounded size that computes each value once, even under concurrent requests."""

import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from pathsum.base import Progress, silent
from pathsum.explorer.in_flight import CanceledError

# How often who waits for another's computation looks how far it is, in seconds.
LOOK_SECONDS = 0.1

# Shared by everything, or without contents of their own.
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, torch.dtype)

_ATOMS = frozenset((str, bytes, int, float, complex, bool, type(None)))

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Running(Generic[V]):
    """A value that is being computed, how many others wait for it, and how far it is."""

    def __init__(self) -> None:
        self.future: Future[V] = Future()
        self.waiting, self.abandoned = 0, False
        self.at: tuple[int, int, str] = (0, 0, "")


class Memo(Generic[K, V]):
    """Values by key; the least recently used are dropped first. Thread-safe.

    Threads that request the same key at once share one computation. Errors are not cached. The
    value used last is kept even if it alone exceeds the bound. Values may grow while they are kept
    (what they compute on demand); `remeasure` notices.

    >>> memo = Memo[str, int](bound=2, size=lambda value: 1)
    >>> [memo.get(key, lambda key=key: len(key)) for key in ("a", "bb", "ccc")], len(memo)
    ([1, 2, 3], 2)
    """

    def __init__(
        self, bound: int, size: Callable[[V], int], key_size: Callable[[K], int] = lambda _: 0
    ) -> None:
        self._bound, self._size, self._key_size = bound, size, key_size
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._running: dict[K, _Running[V]] = {}
        # Used since they were measured: only those may have grown.
        self._used: set[K] = set()
        self._held = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def computing(self) -> int:
        """The number of values being computed."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of threads that wait for a value that another thread computes."""
        with self._lock:
            return sum(running.waiting for running in self._running.values())

    @property
    def held(self) -> int:
        """The total size of the cached values."""
        return self._held

    def peek(self, key: K) -> V | None:
        """The value of a key if it is cached."""
        with self._lock:
            return self._use(key) if key in self._kept else None

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """The value of a key, computed if it is not cached."""
        return self.shared(key, lambda _: compute(), silent)

    def shared(self, key: K, compute: Callable[[Progress], V], progress: Progress) -> V:
        """`get` for a computation that reports its progress, to all that wait for it.

        A caller that raises CanceledError in `progress` stops waiting; after the last one,
        the report raises it in the computation.
        """
        with self._lock:
            if key in self._kept:
                return self._use(key)
            running = self._running.get(key)
            if running is not None:
                running.waiting += 1
            mine = self._running.setdefault(key, _Running[V]())
        if running is not None:
            return self._wait(running, progress)
        try:
            value = compute(self._reporter(key, mine, progress))
        except BaseException as error:
            self._ended(key, mine)
            mine.future.set_exception(error)
            raise
        self._keep(key, mine, value)
        mine.future.set_result(value)
        return value

    def _use(self, key: K) -> V:
        self._kept.move_to_end(key)
        self._used.add(key)
        return self._kept[key][0]

    def _reporter(self, key: K, mine: _Running[V], progress: Progress) -> Progress:
        def report(done: int, total: int, what: str) -> None:
            mine.at = (done, total, what)
            if not mine.abandoned:
                try:
                    progress(done, total, what)
                except CanceledError:
                    mine.abandoned = True
            if mine.abandoned:
                with self._lock:
                    if mine.waiting:
                        return
                    # At once, so that no thread begins to wait for a computation that ends here.
                    if self._running.get(key) is mine:
                        del self._running[key]
                raise CanceledError

        return report

    def _wait(self, running: _Running[V], progress: Progress) -> V:
        try:
            while not wait([running.future], LOOK_SECONDS).done:
                progress(*running.at)
        finally:
            with self._lock:
                running.waiting -= 1
        return running.future.result()

    def _ended(self, key: K, mine: _Running[V]) -> None:
        with self._lock:
            if self._running.get(key) is mine:
                del self._running[key]

    def remeasure(self) -> None:
        """Measure the values that were used since they were measured; drop what is too much."""
        with self._lock:
            values = [(key, self._kept[key][0]) for key in self._used if key in self._kept]
            self._used.clear()
        # Outside the lock: it may take a while.
        measured = [(key, value, self._size(value) + self._key_size(key)) for key, value in values]
        with self._lock:
            for key, value, size in measured:
                if key in self._kept and self._kept[key][0] is value:
                    self._held += size - self._kept[key][1]
                    self._kept[key] = (value, size)
            self._shrink()

    def _keep(self, key: K, mine: _Running[V], value: V) -> None:
        size = self._size(value) + self._key_size(key)
        with self._lock:
            if self._running.get(key) is mine:
                del self._running[key]
            if key in self._kept:  # computed by another thread too, after this one was given up
                self._held -= self._kept[key][1]
            self._kept[key] = (value, size)
            self._used.add(key)
            self._held += size
            self._shrink()

    def _shrink(self) -> None:
        while self._held > self._bound and len(self._kept) > 1:
            key, (_, dropped) = self._kept.popitem(last=False)
            self._used.discard(key)
            self._held -= dropped


def bytes_held(value: object, shared: tuple[type, ...] = ()) -> int:
    """The bytes of everything reachable from a value, each tensor and object once.

    Objects of the types in `shared` are left out: they have another owner.

    >>> bytes_held([torch.zeros(1000), torch.zeros(1000)]) // 1000
    8
    >>> row = torch.zeros(1000)
    >>> bytes_held({"same": [row, row[:10]]}) // 1000
    4
    """
    seen: set[int] = set()
    waiting: list[Any] = [value]
    others = (*_SHARED, *shared)
    total = 0
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if type(item) in _ATOMS:  # most of what records hold
            total += sys.getsizeof(item)
        elif isinstance(item, others):
            continue
        elif isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
        elif isinstance(item, np.ndarray):
            total += item.nbytes if item.base is None else 0
            waiting.append(item.base)
        else:
            total += sys.getsizeof(item)
            waiting.extend(_contents(item))
    return total


def _contents(item: object) -> Iterator[object]:
    if isinstance(item, str | bytes | bytearray | int | float | complex | None):
        return
    if isinstance(item, Mapping):
        yield from list(item.keys())
        yield from list(item.values())
    elif isinstance(item, list | tuple | set | frozenset):
        yield from list(item)
    if is_dataclass(item) and not hasattr(item, "__dict__"):
        yield from (getattr(item, field.name) for field in fields(item))
    yield from list(getattr(item, "__dict__", {}).values())
