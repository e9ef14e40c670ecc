"""AnswerQueue: how many answers are computed at once, and how many may wait.

Cached answers are sent at once. Quick ones (a run, a pattern) and slow ones (an atlas) have threads
of their own, so that a page stays responsive while an atlas is computed. A question whose client
has left while it waited is dropped; a computation that has begun is finished, and cached.
"""

from collections.abc import Mapping

import anyio
import anyio.to_thread
from starlette.types import Receive

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.questions import find_question

QUICK_THREADS, SLOW_THREADS = 4, 2
# Questions that may wait for a thread of either kind.
MAX_WAITING = 64
RETRY_SECONDS = 2


class BusyError(Exception):
    """Too many questions are waiting."""


class AnswerQueue:
    """Answers questions in threads, a few at a time."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._quick = anyio.CapacityLimiter(QUICK_THREADS)
        self._slow = anyio.CapacityLimiter(SLOW_THREADS)
        # Places in the queue are handed out by the two limiters, so this one never blocks.
        self._threads = anyio.CapacityLimiter(QUICK_THREADS + SLOW_THREADS)

    async def answer(self, name: str, params: Mapping[str, object], receive: Receive) -> bytes:
        """The answer to a question as bytes; `receive` tells when its client has left."""
        known = self._explorer.cached(name, params)
        if known is not None:
            return known
        limiter = self._quick if find_question(name).quick else self._slow
        place = object()
        await _wait_for_place(limiter, place, receive)
        try:
            return await anyio.to_thread.run_sync(
                self._explorer.ask, name, params, limiter=self._threads, abandon_on_cancel=True
            )
        finally:
            limiter.release_on_behalf_of(place)


async def _wait_for_place(limiter: anyio.CapacityLimiter, place: object, receive: Receive) -> None:
    try:
        limiter.acquire_on_behalf_of_nowait(place)
    except anyio.WouldBlock:
        if limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise BusyError(
                f"{MAX_WAITING} questions are waiting for an answer already; ask again later"
            ) from None
        async with anyio.create_task_group() as group:

            async def stop_when_client_leaves() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(stop_when_client_leaves)
            await limiter.acquire_on_behalf_of(place)
            group.cancel_scope.cancel()
        # Both may happen at once; the limiter knows whether the place was given.
        if place not in limiter.statistics().borrowers:
            raise BusyError("the client left before its question was reached") from None
