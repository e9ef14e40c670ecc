"""The application: the bundle's files, and `POST /api/<question>`.

An answer that takes a while is a stream: lines of progress, and then the answer.

    {"done": 3, "total": 12, "what": "heads on split words"}      while it is computed
    {"answer": 5120}                                              and then 5,120 bytes
    {"error": "…", "kind": "InputError", "status": 400}           or why there is none

Only clients that accept `PROGRESS` get one, and only after `FIRST_SECONDS`: earlier answers and
refusals are plain responses.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive

from pathsum.base.errors import InputError, NotExactError, PathsumError
from pathsum.explorer import bundle
from pathsum.explorer.cache import CanceledError
from pathsum.explorer.explorer import BusyError, Explorer, UnknownQuestionError
from pathsum.explorer.server.guard import Access, Guard, Names, refuse

_LOG = logging.getLogger("pathsum.explorer.server")

# A question holds a few parameters and a text.
MAX_BYTES = 1_000_000

PROGRESS = "application/vnd.pathsum.progress"
# Shorter waits are not shown on the page, and progress is drawn at this interval.
FIRST_SECONDS, LINE_SECONDS = 0.2, 0.2
# When a client that was refused because of too many questions may ask again.
RETRY_SECONDS = 2
WAITING = "waiting for other answers"


class Asked:
    """A question of one client: its progress, and whether the client has left.

    The answer of a client that has left is canceled: at once while it waits for a thread, at its
    next progress report while it is computed.
    """

    def __init__(self, name: str, params: Mapping[str, object]) -> None:
        self.name, self.params = name, params
        self.at = (0, 0, WAITING)
        self.future: Future[bytes] | None = None
        self.left = False

    def leave(self) -> None:
        """The client does not want the answer any more."""
        self.left = True
        if self.future is not None:
            self.future.cancel()

    def report(self, done: int, total: int, what: str) -> None:
        """The progress callback of its computation."""
        if self.left:
            raise CanceledError
        self.at = (done, total, what)


def make_app(explorer: Explorer, names: Names, access: Access) -> ASGIApp:
    """The server as one ASGI application."""
    routes = [
        Route("/api/{name}", partial(_answer, explorer), methods=["POST"]),
        Route("/", _file, methods=["GET"]),
        Route("/{name}", _file, methods=["GET"]),
    ]
    handlers = dict.fromkeys((HTTPException, PathsumError, Exception), _on_error)
    return Guard(Starlette(routes=routes, exception_handlers=handlers), names, access)


async def _answer(explorer: Explorer, request: Request) -> Response:
    """The response to a question; the question is withdrawn when its client leaves."""
    asked = Asked(request.path_params["name"], _params(await _body(request)))
    is_stream = PROGRESS in request.headers.get("accept", "")
    computing = asyncio.ensure_future(_answered(explorer, asked))
    leaving = asyncio.ensure_future(_leave_with_client(asked, request.receive))
    computing.add_done_callback(lambda _: leaving.cancel())
    try:
        if is_stream:
            await asyncio.wait({computing}, timeout=FIRST_SECONDS)
        if not is_stream or computing.done():
            return await computing
    except asyncio.CancelledError:
        asked.leave()
        raise
    return StreamingResponse(_lines(asked, computing), media_type=PROGRESS)


async def _answered(explorer: Explorer, asked: Asked) -> Response:
    """The answer, or the refusal with its reason."""
    try:
        asked.future = explorer.submit(asked.name, asked.params, asked.report)
        # Shielded: a task that is canceled does not cancel the future, `Asked.leave` does.
        wire = await asyncio.shield(asyncio.wrap_future(asked.future))
    except asyncio.CancelledError:
        if asked.future is None or not asked.future.cancelled():
            raise
        return _canceled(asked)
    except CanceledError:
        return _canceled(asked)
    except Exception as error:  # noqa: BLE001 (logged with its traceback)
        return _refused(error)
    return Response(wire, media_type="application/octet-stream")


def _canceled(asked: Asked) -> Response:
    if asked.left:
        return refuse(499, "the question was withdrawn before it was answered")
    return refuse(503, "the explorer is closing, and this answer was aborted")


async def _file(request: Request) -> Response:
    """A file of the bundle, by name; no path is ever built from a request."""
    name = request.path_params.get("name", bundle.PAGE)
    if name not in bundle.names():
        return refuse(404, "no such file; the page is at /")
    return Response(bundle.read(name), headers={"Content-Type": bundle.content_type(name)})


async def _body(request: Request) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "a question must be JSON, with Content-Type application/json")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BYTES:
                raise HTTPException(413, f"a question may have at most {MAX_BYTES:,} bytes")
    except ClientDisconnect as error:
        raise HTTPException(400, "the question was incomplete") from error
    return bytes(body)


def _params(body: bytes) -> dict[str, Any]:
    try:
        # Deeply nested lists raise a RecursionError.
        values = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InputError(f"the question is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError('a question must be an object of parameters, as in {"example": 0}')
    return values


async def _on_error(_: Request, error: Exception) -> Response:
    return _refused(error)


def _refused(error: Exception) -> Response:
    """The reason of an error; of an unexpected one its type, and the terminal the traceback."""
    if isinstance(error, HTTPException):
        return refuse(error.status_code, str(error.detail))
    if isinstance(error, BusyError):
        busy = refuse(503, str(error), "Busy")
        busy.headers["Retry-After"] = str(RETRY_SECONDS)
        return busy
    if isinstance(error, PathsumError):
        known = 400 if isinstance(error, InputError | NotExactError) else 500
        status = 404 if isinstance(error, UnknownQuestionError) else known
        return refuse(status, str(error), type(error).__name__)
    _LOG.error("an answer failed", exc_info=error)
    text = f"an unexpected {type(error).__name__} in pathsum; see the traceback in its terminal"
    return refuse(500, text, "FailedError")


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
