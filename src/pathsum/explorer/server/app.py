"""The application: the bundle's files, and `POST /api/<question>`.

A slow answer is a stream: lines of progress, and then the answer or an error.

    {"done": 3, "total": 12, "what": "heads on split words"}      while it is computed
    {"answer": 5120}                                              followed by 5,120 bytes
    {"error": "…", "kind": "InputError", "status": 400}           or an error

Only clients that accept `PROGRESS` get a stream, and only after `FIRST_SECONDS`. Earlier answers
and errors are plain responses.
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

# A question consists of a few parameters and a text.
MAX_BYTES = 1_000_000

PROGRESS = "application/vnd.pathsum.progress"
# Shorter waits have no progress bar, and progress is sent at this interval.
FIRST_SECONDS, LINE_SECONDS = 0.2, 0.2
# The Retry-After header of a response to a client when the queue is full.
RETRY_SECONDS = 2
WAITING = "waiting for other answers"


class ClientQuestion:
    """A question of one client: its progress, and whether the client has disconnected.

    When the client disconnects, the answer is canceled: at once if it is queued, or at its next
    progress report if it is being computed.
    """

    def __init__(self, name: str, params: Mapping[str, object]) -> None:
        self.name, self.params = name, params
        self.progress = (0, 0, WAITING)
        self.future: Future[bytes] | None = None
        self.is_withdrawn = False

    def withdraw(self) -> None:
        """Cancel the answer."""
        self.is_withdrawn = True
        if self.future is not None:
            self.future.cancel()

    def report(self, done: int, total: int, what: str) -> None:
        """The progress callback of the computation."""
        if self.is_withdrawn:
            raise CanceledError
        self.progress = (done, total, what)


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
    """The response to a question, which is withdrawn when its client disconnects."""
    question = ClientQuestion(request.path_params["name"], _params(await _body(request)))
    is_stream = PROGRESS in request.headers.get("accept", "")
    computing = asyncio.ensure_future(_compute(explorer, question))
    watching = asyncio.ensure_future(_withdraw_on_disconnect(question, request.receive))
    computing.add_done_callback(lambda _: watching.cancel())
    try:
        if is_stream:
            await asyncio.wait({computing}, timeout=FIRST_SECONDS)
        if not is_stream or computing.done():
            return await computing
    except asyncio.CancelledError:
        question.withdraw()
        raise
    return StreamingResponse(_lines(question, computing), media_type=PROGRESS)


async def _compute(explorer: Explorer, question: ClientQuestion) -> Response:
    """The answer, or an error with its reason."""
    try:
        future = explorer.submit(question.name, question.params, question.report)
        question.future = future
        # Shielded: a task that is canceled does not cancel the future, `withdraw` does.
        wire = await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        if question.future is None or not question.future.cancelled():
            raise
        return _canceled(question)
    except CanceledError:
        return _canceled(question)
    except Exception as error:  # noqa: BLE001 (logged with its traceback)
        return _error_response(error)
    return Response(wire, media_type="application/octet-stream")


def _canceled(question: ClientQuestion) -> Response:
    if question.is_withdrawn:
        return refuse(499, "the question was withdrawn before it was answered")
    return refuse(503, "the explorer is closing; this answer was canceled")


async def _file(request: Request) -> Response:
    """A file of the bundle; no path is ever built from a request."""
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
    return _error_response(error)


def _error_response(error: Exception) -> Response:
    """The reason of an error; an unexpected error is logged, and only its type is sent."""
    if isinstance(error, HTTPException):
        return refuse(error.status_code, str(error.detail))
    if isinstance(error, BusyError):
        busy = refuse(503, str(error), "Busy")
        busy.headers["Retry-After"] = str(RETRY_SECONDS)
        return busy
    if isinstance(error, PathsumError):
        status = 400 if isinstance(error, InputError | NotExactError) else 500
        if isinstance(error, UnknownQuestionError):
            status = 404
        return refuse(status, str(error), type(error).__name__)
    _LOG.error("an answer failed", exc_info=error)
    text = f"an unexpected {type(error).__name__} in pathsum; see the traceback in its terminal"
    return refuse(500, text, "FailedError")


async def _withdraw_on_disconnect(question: ClientQuestion, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    question.withdraw()


async def _lines(
    question: ClientQuestion, computing: "asyncio.Future[Response]"
) -> AsyncIterator[bytes]:
    last = None
    try:
        while not computing.done():
            if question.progress != last:
                last = question.progress
                yield _line(dict(zip(("done", "total", "what"), last, strict=True)))
            await asyncio.wait({computing}, timeout=LINE_SECONDS)
        response = await computing
        if response.status_code == 200:
            yield _line({"answer": len(response.body)})
            yield bytes(response.body)
        else:
            yield _line({**json.loads(bytes(response.body)), "status": response.status_code})
    finally:
        question.withdraw()


def _line(values: dict[str, object]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
