"""Memo: a cache of bounded size that computes each value once, even under concurrent requests."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Values by key; the least recently used are dropped first. Thread-safe.

    Threads that request the same key at once share one computation. Errors are not cached. The
    value used last is kept even if it alone exceeds the bound. Values may grow while they are kept
    (what they compute on demand); `remeasure` notices.

    >>> memo = Memo[str, int](bound=2, size=lambda value: 1)
    >>> [memo.get(key, lambda key=key: len(key)) for key in ("a", "bb", "ccc")], len(memo)
    ([1, 2, 3], 2)
    """

    def __init__(self, bound: int, size: Callable[[V], int]) -> None:
        self._bound, self._size = bound, size
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._running: dict[K, Future[V]] = {}
        self._held = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def computing(self) -> int:
        """How many values are being computed."""
        return len(self._running)

    @property
    def held(self) -> int:
        """The total size of the cached values."""
        return self._held

    def peek(self, key: K) -> V | None:
        """The value of a key if it is cached."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """The value of a key, computed if it is not cached."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            running = self._running.get(key)
            mine = self._running.setdefault(key, Future[V]())
        if running is not None:
            return running.result()
        try:
            value = compute()
        except BaseException as error:
            with self._lock:
                del self._running[key]
            mine.set_exception(error)
            raise
        self._keep(key, value)
        mine.set_result(value)
        return value

    def remeasure(self) -> None:
        """Measure all values again, and drop what is too much."""
        with self._lock:
            values = [(key, value) for key, (value, _) in self._kept.items()]
        # Outside the lock: it may take a while.
        measured = [(key, value, self._size(value)) for key, value in values]
        with self._lock:
            for key, value, size in measured:
                if key in self._kept and self._kept[key][0] is value:
                    self._held += size - self._kept[key][1]
                    self._kept[key] = (value, size)
            self._shrink()

    def _keep(self, key: K, value: V) -> None:
        size = self._size(value)
        with self._lock:
            del self._running[key]
            self._kept[key] = (value, size)
            self._held += size
            self._shrink()

    def _shrink(self) -> None:
        while self._held > self._bound and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._held -= dropped
