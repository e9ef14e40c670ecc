"""Connections: how many there may be, and how long each may keep the server waiting.

uvicorn closes idle connections after an answer, but waits without limit for the first request, for
the rest of a request, and for a client that does not read its answer.
"""

import asyncio
import errno
import os
import socket
import sys
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if sys.platform != "win32":
    # Here and not where it is used: without a free descriptor nothing can be imported.
    import resource

MAX_CONNECTIONS = 128
# How long a client may take to send the head of a request, from connecting or from its first byte;
# to send the body; and to read any part of an answer.
HEADER_SECONDS, BODY_SECONDS, READ_SECONDS = 10.0, 30.0, 30.0
# How long a connection is kept open for a next request.
KEEP_ALIVE_SECONDS = 15
# How long to wait if the last descriptor of the process is gone.
NO_DESCRIPTOR_SECONDS = 0.05


def max_connections() -> int:
    """`MAX_CONNECTIONS`, or half of the descriptors that the process may open if that is less."""
    if sys.platform == "win32":  # which has no such limit
        return MAX_CONNECTIONS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if limit == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, limit // 2)


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with deadlines; the connection that has idled longest makes room for a new one."""

    _phase: str | None = None
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    # When it began to wait for the rest of a request, or when the last whole one came.
    since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request, and make room if there are too many."""
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > max_connections():
            others = [one for one in self._bounded() if one is not self and one.is_idle]
            min(others, key=lambda one: one.since, default=self).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        super().connection_lost(exc)
        _cancel(self._deadline)
        _cancel(self._reading)

    def data_received(self, data: bytes) -> None:
        """Set the deadline that the state of the request calls for."""
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        """The client reads more slowly than the answer is written: watch that it reads at all."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """The client has read what was written."""
        super().resume_writing()
        _cancel(self._reading)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        # uvicorn declares no None, but sets one until the first request.
        return not self.cycle or self.cycle.response_complete

    def abort(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _bounded(self) -> "list[BoundedProtocol]":
        return [one for one in self.connections if isinstance(one, BoundedProtocol)]

    def _watch(self) -> None:
        phases: dict[Any, str] = {h11.IDLE: "header", h11.SEND_BODY: "body"}
        phase = phases.get(self.conn.their_state)
        if phase == self._phase and phase is not None:
            return  # a byte now and then does not extend a deadline
        self._phase, self.since = phase, self.loop.time()
        _cancel(self._deadline)
        if phase is not None:
            seconds = HEADER_SECONDS if phase == "header" else BODY_SECONDS
            self._deadline = self.loop.call_later(seconds, self.abort)

    def _watch_reading(self, before: int | None = None) -> None:
        left = self.transport.get_write_buffer_size()
        if left == before:
            self.abort()
        else:
            _cancel(self._reading)
            self._reading = self.loop.call_later(READ_SECONDS, self._watch_reading, left)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class ListeningSocket(socket.socket):
    """Closes connections that come when the process is out of descriptors.

    Such a connection stays in the queue otherwise, and asyncio tries to accept it over and over. A
    spare descriptor, given up for a moment, is enough to accept and close it.
    """

    _spare: int | None = None

    def reserve(self) -> None:
        """Open the spare descriptor."""
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; ConnectionAbortedError if it had to be closed."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse_one()
            raise ConnectionAbortedError("no descriptor is left for a connection") from error

    def close(self) -> None:
        """Close the socket and the spare descriptor."""
        super().close()
        self._give_up_spare()

    def _give_up_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _refuse_one(self) -> None:
        self._give_up_spare()
        try:
            super().accept()[0].close()
            self.reserve()
        except OSError:
            # Another thread was quicker and took the descriptor. Without a pause, the loop would
            # find the connection waiting again at once.
            time.sleep(NO_DESCRIPTOR_SECONDS)
