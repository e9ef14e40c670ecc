"""Cache: the explorer's one cache, and the way that a computation is canceled."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from pathsum.base import Progress, silent

# Interval at which a thread that waits for another's computation reports its progress, in seconds.
POLL_SECONDS = 0.1

Value = TypeVar("Value")


class CanceledError(BaseException):
    """Raised by a progress callback to cancel a computation.

    Not an Exception, so that no handler of errors catches it.
    """


class _Running:
    """A value that is being computed: its progress, and the number of threads that wait for it."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()
        self.waiting = 0
        self.at: tuple[int, int, str] = (0, 0, "")


class Cache:
    """Values by key, up to `bound` bytes; the least recently used are dropped first. Thread-safe.

    Threads that request the same key at once share one computation. Errors are not cached. The
    value used last is kept even if it alone exceeds the bound.

    >>> cache = Cache(bound=2)
    >>> [cache.get(key, lambda _: len(key), size=1) for key in ("a", "bb", "ccc")], len(cache)
    ([1, 2, 3], 2)
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.held = bound, 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._running: dict[Hashable, _Running] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, key: Hashable) -> Any | None:
        """The value of a key if it is cached, else None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def get(
        self,
        key: Hashable,
        compute: Callable[[Progress], Value],
        *,
        size: int | Callable[[Value], int],
        progress: Progress = silent,
    ) -> Value:
        """The value of a key; computed if it is not cached, with an estimate of its bytes.

        A caller that raises CanceledError in `progress` stops waiting; the computation ends when no
        caller is left.
        """
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
            other = self._running.get(key)
            if other is not None:
                other.waiting += 1
            mine = self._running.setdefault(key, _Running())
        if other is not None:
            return self._wait(other, progress)
        try:
            value = compute(self._reporter(key, mine, progress))
        except BaseException as error:
            self._end(key, mine)
            mine.future.set_exception(error)
            raise
        self._add(key, value, size if isinstance(size, int) else size(value))
        self._end(key, mine)
        mine.future.set_result(value)
        return value

    def _reporter(self, key: Hashable, mine: _Running, progress: Progress) -> Progress:
        def report(done: int, total: int, what: str) -> None:
            mine.at = (done, total, what)
            try:
                progress(done, total, what)
            except CanceledError:
                with self._lock:
                    if mine.waiting:
                        return
                    # At once, so that no thread begins to wait for a computation that ends here.
                    if self._running.get(key) is mine:
                        del self._running[key]
                raise

        return report

    def _wait(self, running: _Running, progress: Progress) -> Any:
        try:
            while not wait([running.future], POLL_SECONDS).done:
                progress(*running.at)
        finally:
            with self._lock:
                running.waiting -= 1
        return running.future.result()

    def _end(self, key: Hashable, mine: _Running) -> None:
        with self._lock:
            if self._running.get(key) is mine:
                del self._running[key]

    def _add(self, key: Hashable, value: Any, size: int) -> None:
        with self._lock:
            self._entries[key] = (value, size)
            self.held += size
            while self.held > self.bound and len(self._entries) > 1:
                _, (_, dropped) = self._entries.popitem(last=False)
                self.held -= dropped
