"""An answer that takes a while as a stream: lines of progress, and then the answer.

    {"done": 3, "total": 12, "what": "heads on split words"}      while it is computed
    {"answer": 5120}                                              and then 5,120 bytes
    {"error": "…", "kind": "InputError", "status": 400}           or why there is none

Only clients that accept `PROGRESS` get one, and only after `FIRST_SECONDS`: what is answered
sooner, or refused, is a plain response.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from pathsum.server.queue import Asked

PROGRESS = "application/vnd.pathsum.progress"
# A page says nothing about shorter waits, and draws progress no more often than this.
FIRST_SECONDS, LINE_SECONDS = 0.2, 0.2


async def respond(
    asked: Asked, answer: Awaitable[Response], receive: Receive, *, stream: bool
) -> Response:
    """The response to a question; the question is withdrawn when its client leaves."""
    computing = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_leave_with_client(asked, receive))
    computing.add_done_callback(lambda _: leaving.cancel())
    try:
        if stream:
            await asyncio.wait({computing}, timeout=FIRST_SECONDS)
        if not stream or computing.done():
            return await computing
    except asyncio.CancelledError:
        asked.leave()
        raise
    return StreamingResponse(_lines(asked, computing), media_type=PROGRESS)


async def _leave_with_client(asked: Asked, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    asked.leave()


async def _lines(asked: Asked, computing: "asyncio.Future[Response]") -> AsyncIterator[bytes]:
    said = None
    try:
        while not computing.done():
            if asked.at != said:
                said = asked.at
                yield _line(dict(zip(("done", "total", "what"), said, strict=True)))
            await asyncio.wait({computing}, timeout=LINE_SECONDS)
        found = await computing
        if found.status_code == 200:
            yield _line({"answer": len(found.body)})
            yield bytes(found.body)
        else:
            yield _line({**json.loads(bytes(found.body)), "status": found.status_code})
    finally:
        asked.leave()


def _line(values: dict[str, object]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
