"""Answers in progress: which threads compute them, and the two ways to end one early."""

import ctypes
import threading
from collections.abc import Generator
from contextlib import contextmanager


class StoppedError(BaseException):
    """Raised in a thread whose answer was aborted; not an Exception, so no handler catches it."""


class CanceledError(StoppedError):
    """Raised by a progress callback when the answer is no longer waited for."""


class InFlight:
    """The threads that are computing answers, and how to abort them.

    A thread that computes while the interpreter shuts down takes the process down with it. Threads
    cannot be killed from outside, but they can be made to raise at their next Python instruction,
    which is at most one tensor operation away.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: list[int] = []

    @contextmanager
    def computing(self) -> Generator[None]:
        """Marks this thread as computing an answer."""
        thread = threading.get_ident()
        with self._changed:
            self._threads.append(thread)
        try:
            yield
        finally:
            with self._changed:
                self._threads.remove(thread)
                self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Whether any thread is computing an answer."""
        return bool(self._threads)

    def stop(self, seconds: float) -> bool:
        """Abort all answers and wait; returns whether all ended within `seconds`."""
        with self._changed:
            for thread in set(self._threads) - {threading.get_ident()}:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(StoppedError)
                )
            return self._changed.wait_for(lambda: not self._threads, seconds)


class Counter:
    """The number of threads inside a block."""

    def __init__(self) -> None:
        self._lock, self.count = threading.Lock(), 0

    @contextmanager
    def one_more(self) -> Generator[None]:
        """Marks this thread as inside."""
        with self._lock:
            self.count += 1
        try:
            yield
        finally:
            with self._lock:
                self.count -= 1
