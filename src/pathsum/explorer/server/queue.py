"""AnswerQueue: how many answers are computed at once, and how many may wait.

Cached answers are sent at once. Quick ones (a run, a pattern) and slow ones (an atlas) have threads
of their own, so that a page stays responsive while an atlas is computed. A question whose client
has left is dropped: at once while it waits, at its next progress report while it is computed.
"""

import threading
from collections.abc import Mapping

import anyio
import anyio.to_thread

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.in_flight import CanceledError
from pathsum.explorer.questions import find_question

QUICK_THREADS, SLOW_THREADS = 4, 4
# Questions that may wait for a thread of either kind.
MAX_WAITING = 64
RETRY_SECONDS = 2
WAITING = "waiting for other answers"


class BusyError(Exception):
    """Too many questions are waiting."""


class Asked:
    """A question of one client: how far its answer is, and whether the client has left."""

    def __init__(self, name: str, params: Mapping[str, object]) -> None:
        self.name, self.params = name, params
        self.at = (0, 0, WAITING)
        self.left = anyio.Event()
        self._withdrawn = threading.Event()

    def leave(self) -> None:
        """The client does not want the answer any more; called in the server's own thread."""
        self.left.set()
        self._withdrawn.set()

    def report(self, done: int, total: int, what: str) -> None:
        """The progress callback of its computation."""
        if self._withdrawn.is_set():
            raise CanceledError
        self.at = (done, total, what)


class AnswerQueue:
    """Answers questions in threads, a few at a time."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._quick = anyio.CapacityLimiter(QUICK_THREADS)
        self._slow = anyio.CapacityLimiter(SLOW_THREADS)
        # Places in the queue are handed out by the two limiters, so this one never blocks.
        self._threads = anyio.CapacityLimiter(QUICK_THREADS + SLOW_THREADS)

    async def answer(self, asked: Asked) -> bytes:
        """The answer to a question as bytes."""
        known = self._explorer.cached(asked.name, asked.params)
        if known is not None:
            return known
        limiter = self._quick if find_question(asked.name).quick else self._slow
        await _wait_for_place(limiter, asked)
        asked.at = (0, 0, "")
        try:
            return await anyio.to_thread.run_sync(
                self._explorer.ask,
                asked.name,
                asked.params,
                asked.report,
                limiter=self._threads,
                abandon_on_cancel=True,
            )
        finally:
            limiter.release_on_behalf_of(asked)


async def _wait_for_place(limiter: anyio.CapacityLimiter, asked: Asked) -> None:
    try:
        limiter.acquire_on_behalf_of_nowait(asked)
    except anyio.WouldBlock:
        if limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise BusyError(
                f"{MAX_WAITING} questions are waiting for an answer already; ask again later"
            ) from None
        async with anyio.create_task_group() as group:

            async def stop_when_client_leaves() -> None:
                await asked.left.wait()
                group.cancel_scope.cancel()

            group.start_soon(stop_when_client_leaves)
            await limiter.acquire_on_behalf_of(asked)
            group.cancel_scope.cancel()
        # Both may happen at once; the limiter knows whether the place was given.
        if asked not in limiter.statistics().borrowers:
            raise CanceledError from None
