"""The explorer's one cache, and the cancellation of its computations."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from pathsum.base import Progress, silent

# Polling interval while waiting for another thread's computation, in seconds.
POLL_SECONDS = 0.1

Value = TypeVar("Value")


class CanceledError(BaseException):
    """Raised by a progress callback to cancel a computation.

    Not an Exception, so that no error handler catches it.
    """


class _Computation:
    """A running computation: its result, its progress, and the number of waiting threads."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()
        self.n_waiting = 0
        self.progress: tuple[int, int, str] = (0, 0, "")


class Cache:
    """A thread-safe LRU cache of values by key, up to `bound` bytes.

    Threads that request the same key at once share one computation. Errors are not cached. The most
    recently used value stays even if it alone exceeds the bound.

    >>> cache = Cache(bound=2)
    >>> [cache.get(key, lambda _: len(key), size=1) for key in ("a", "bb", "ccc")], len(cache)
    ([1, 2, 3], 2)
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.n_bytes = bound, 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._running: dict[Hashable, _Computation] = {}
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
        """The value of a key, computed if it is not cached; `size` estimates its bytes.

        A caller whose `progress` raises CanceledError stops waiting. The computation ends when no
        caller remains.
        """
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
            other = self._running.get(key)
            if other is not None:
                other.n_waiting += 1
            running = self._running.setdefault(key, _Computation())
        if other is not None:
            return self._wait(other, progress)
        try:
            value = compute(self._reporter(key, running, progress))
        except BaseException as error:
            self._end(key, running)
            running.future.set_exception(error)
            raise
        self._add(key, value, size if isinstance(size, int) else size(value))
        self._end(key, running)
        running.future.set_result(value)
        return value

    def _reporter(self, key: Hashable, running: _Computation, progress: Progress) -> Progress:
        def report(done: int, total: int, what: str) -> None:
            running.progress = (done, total, what)
            try:
                progress(done, total, what)
            except CanceledError:
                with self._lock:
                    if running.n_waiting:
                        return
                    # Under the lock, so that no thread begins to wait for a canceled computation.
                    if self._running.get(key) is running:
                        del self._running[key]
                raise

        return report

    def _wait(self, running: _Computation, progress: Progress) -> Any:
        try:
            while not wait([running.future], POLL_SECONDS).done:
                progress(*running.progress)
        finally:
            with self._lock:
                running.n_waiting -= 1
        return running.future.result()

    def _end(self, key: Hashable, running: _Computation) -> None:
        with self._lock:
            if self._running.get(key) is running:
                del self._running[key]

    def _add(self, key: Hashable, value: Any, size: int) -> None:
        with self._lock:
            self._entries[key] = (value, size)
            self.n_bytes += size
            while self.n_bytes > self.bound and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self.n_bytes -= freed
