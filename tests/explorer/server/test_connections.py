"""Connections that do nothing do not stay, and many at once neither block nor spin."""

import contextlib
import errno
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from tests.waiting import until

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer, connections
from pathsum.explorer.server import queue as queue_module
from pathsum.explorer.server.connections import ListeningSocket, max_connections

SECONDS = 20


@pytest.fixture
def server(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExplorerServer]:
    for name in ("HEADER_SECONDS", "BODY_SECONDS", "READ_SECONDS"):
        monkeypatch.setattr(connections, name, 0.5)
    started = ExplorerServer(explorer, port=0, token="").start()
    yield started
    started.close()


def connect(server: ExplorerServer, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.names.port), timeout=SECONDS)
    made.sendall(sent)
    return made


def open_connections(server: ExplorerServer) -> int:
    return len(server._server.server_state.connections)


HEAD = b"POST /api/model HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD, HEAD + b"content-length: 9\r\n\r\n{"])
def test_half_a_request_does_not_stay(server: ExplorerServer, sent: bytes) -> None:
    half = connect(server, sent.replace(b"%d", b"%d" % server.names.port))
    with half, contextlib.suppress(ConnectionResetError):
        assert half.recv(1) == b""
    until(lambda: open_connections(server) == 0)


def test_a_byte_now_and_then_does_not_extend_the_deadline(server: ExplorerServer) -> None:
    def trickle(slow: socket.socket) -> None:
        for _ in range(10 * SECONDS):
            slow.sendall(b"G")
            time.sleep(0.1)

    with connect(server) as slow, pytest.raises((ConnectionResetError, BrokenPipeError)):
        trickle(slow)


def test_who_does_not_read_is_let_go(
    server: ExplorerServer, explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorer, "cached", lambda *_: b"x" * 30_000_000)
    head = HEAD % server.names.port + b"content-length: 2\r\n\r\n{}"
    with connect(server, head):
        until(lambda: open_connections(server) == 1)
        until(lambda: open_connections(server) == 0)


def test_idle_connections_make_room(
    server: ExplorerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 600.0)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 10)
    opened = [connect(server, b"GET ") for _ in range(60)]
    try:
        until(lambda: open_connections(server) == 10)
        with urlopen(server.url, timeout=SECONDS) as answered:
            assert answered.status == 200
        assert open_connections(server) <= 11
    finally:
        for one in opened:
            one.close()


def test_the_limit_leaves_descriptors_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in ((64, 32), (10_000, 128), (resource.RLIM_INFINITY, 128)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert max_connections() == most


def test_out_of_descriptors_a_connection_is_closed_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Linux: accept fails until a descriptor is free."""
    listening = ListeningSocket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    listening.reserve()
    real: Any = socket.socket.accept

    def accept(self: ListeningSocket) -> Any:
        if self._spare is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    with socket.create_connection(listening.getsockname(), timeout=SECONDS) as waiting:
        with pytest.raises(ConnectionAbortedError):
            listening.accept()
        assert waiting.recv(1) == b""
    assert listening._spare is not None
    spare = listening._spare
    listening.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(spare)


def test_too_many_questions_are_told_when_to_come_back(
    server: ExplorerServer, explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slow threads compute, one waits, the next is refused; who leaves makes room."""
    go_on, asked = threading.Event(), list[str]()

    def slow(name: str, params: dict[str, Any], *_: object) -> bytes:
        asked.append(params["name"])
        assert go_on.wait(SECONDS)
        return b"done"

    monkeypatch.setattr(explorer, "ask", slow)
    monkeypatch.setattr(explorer, "cached", lambda *_: None)
    monkeypatch.setattr(queue_module, "MAX_WAITING", 1)

    def atlas(name: str) -> socket.socket:
        body = b'{"name": "%s"}' % name.encode()
        head = HEAD.replace(b"model", b"atlas") % server.names.port
        return connect(server, head + b"content-length: %d\r\n\r\n" % len(body) + body)

    names = [f"a{number}" for number in range(queue_module.SLOW_THREADS)]
    first = [atlas(name) for name in names]
    until(lambda: len(asked) == len(names))
    waiting = atlas("leaves")
    with atlas("refused") as refused:
        answer = refused.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503") and b"retry-after: 2" in answer.lower()
    waiting.close()
    until(lambda: open_connections(server) == len(names))
    last = atlas("c")
    go_on.set()
    for one in (*first, last):
        assert one.recv(4096).startswith(b"HTTP/1.1 200")
        one.close()
    assert sorted(asked) == [*names, "c"]
