"""Answers in progress: which threads compute them, and the two ways to end one early."""

import ctypes
import os
import pathlib
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from pathsum.base import files

# Code that opens and closes files: an exception in the middle would leave a file open. The same
# holds for imports, which would leave a module half imported.
_NOT_INSIDE = (files.__file__, os.__file__, pathlib.__file__)
_IMPORTS = "<frozen importlib"
_RETRY_SECONDS = 0.005


class StoppedError(BaseException):
    """Raised in a thread whose answer was aborted; not an Exception, so no handler catches it."""


class CanceledError(StoppedError):
    """Raised by a progress callback when the answer is no longer waited for."""


class InFlight:
    """The threads that are computing answers, and how to abort them.

    A thread that computes while the interpreter shuts down takes the process down with it. Threads
    cannot be killed from outside, but they can be made to raise at their next Python instruction,
    which is at most one tensor operation away. A thread that is reading a file or importing a
    module finishes that first.
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
        end = time.monotonic() + seconds
        stopped = {threading.get_ident()}
        with self._changed:
            while self._threads and (left := end - time.monotonic()) > 0:
                for thread in set(self._threads) - stopped:
                    if not _may_not_stop(thread):
                        stopped.add(thread)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ctypes.c_ulong(thread), ctypes.py_object(StoppedError)
                        )
                waits = set(self._threads) <= stopped
                self._changed.wait(left if waits else min(left, _RETRY_SECONDS))
            return not self._threads


def _may_not_stop(thread: int) -> bool:
    """Whether a thread is reading or writing a file, or importing a module."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        name = frame.f_code.co_filename
        if name in _NOT_INSIDE or name.startswith(_IMPORTS):
            return True
        frame = frame.f_back
    return False


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
