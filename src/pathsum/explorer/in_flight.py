"""Answers under way, and how to stop them: an interpreter must not end under a computation.

A thread that computes while the interpreter ends brings the process down with it. Threads cannot
be ended from outside, but they can be made to raise at their next step in Python, which is as far
away as one operation on tensors.
"""

import ctypes
import threading
from collections.abc import Generator
from contextlib import contextmanager


class StoppedError(BaseException):
    """Raised in a thread whose answer nobody waits for any more; not for handlers of errors."""


class InFlight:
    """The threads that compute answers just now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: list[int] = []

    @contextmanager
    def answering(self) -> Generator[None]:
        """Say that this thread computes an answer."""
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
        """Whether an answer is being computed."""
        return bool(self._threads)

    def stop(self, seconds: float) -> bool:
        """Stop all answers that have begun, and wait; whether they have ended in time."""
        with self._changed:
            for thread in set(self._threads) - {threading.get_ident()}:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(StoppedError)
                )
            return self._changed.wait_for(lambda: not self._threads, seconds)
