"""Answers that take a while: progress on the way, and an end when their client leaves."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import pytest
from tests.explorer.variants import ALL
from tests.waiting import until

from pathsum.base import Progress
from pathsum.base.errors import InputError
from pathsum.explorer.cache import CanceledError
from pathsum.explorer.explorer import SLOW_THREADS, Explorer
from pathsum.explorer.params import decode
from pathsum.explorer.server import ExplorerServer
from pathsum.explorer.server.app import PROGRESS, WAITING
from pathsum.explorer.server.running import MAX_CONNECTIONS

Asking: TypeAlias = Callable[..., http.client.HTTPConnection]
HEADERS = {"Content-Type": "application/json", "Accept": PROGRESS}


class Slow:
    """`Explorer.ask` whose `atlas` takes until it may end, reporting its steps."""

    def __init__(self) -> None:
        self.go_on, self.begun, self.canceled = (threading.Event() for _ in range(3))
        self.fails = False
        self.real = Explorer.ask

    def ask(self, explorer: Explorer, name: str, params: Any, progress: Progress) -> bytes:
        try:
            for step in range(4000 if name == "atlas" else 0):
                progress(step, 4000, "step by step")
                self.begun.set()
                if self.go_on.wait(0.005):
                    break
        except CanceledError:
            self.canceled.set()
            raise
        if self.fails:
            raise InputError("not with this model")
        return self.real(explorer, name, params, progress)


@pytest.fixture
def explorer() -> Explorer:
    return Explorer([ALL["two layers"]()], bundled=())


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    slow = Slow()
    monkeypatch.setattr(Explorer, "ask", lambda *given: slow.ask(*given))  # noqa: PLW0108
    return slow


@pytest.fixture
def server(explorer: Explorer, slow: Slow) -> Iterator[ExplorerServer]:
    server = ExplorerServer(explorer, port=0, token="").start()
    yield server
    slow.go_on.set()
    server.close()


@pytest.fixture
def asked(server: ExplorerServer) -> Iterator[Asking]:
    opened: list[http.client.HTTPConnection] = []

    def ask(name: str, params: Any = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", server.names.port, timeout=60)
        opened.append(connection)
        connection.request("POST", f"/api/{name}", json.dumps(params or {}), HEADERS)
        return connection

    yield ask
    for connection in opened:
        connection.close()


def test_a_quick_answer_is_a_plain_one(asked: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.explorer.server.app.FIRST_SECONDS", 60.0)
    found = asked("run", {"ids": "1,2"}).getresponse()
    assert found.headers["Content-Type"] == "application/octet-stream"
    assert decode(found.read())["ids"] == [1, 2]


def test_a_slow_answer_comes_after_its_progress(
    asked: Asking, slow: Slow, explorer: Explorer
) -> None:
    found = asked("atlas").getresponse()
    assert found.status == 200 and found.headers["Content-Type"] == PROGRESS
    first, second = json.loads(found.readline()), json.loads(found.readline())
    assert first["what"] == second["what"] == "step by step"
    assert 0 <= first["done"] < second["done"] < second["total"] == 4000
    slow.go_on.set()
    while "answer" not in (line := json.loads(found.readline())):
        pass
    wire = found.read()
    assert len(wire) == line["answer"] and wire == explorer.session.cache.peek("atlas:{}")


def test_a_refusal_after_a_while_is_a_line(asked: Asking, slow: Slow) -> None:
    slow.fails = True
    found = asked("atlas").getresponse()
    assert "done" in json.loads(found.readline())
    slow.go_on.set()
    last = json.loads(found.read().splitlines()[-1])
    assert last == {"error": "not with this model", "kind": "InputError", "status": 400}


@pytest.mark.parametrize("reads_progress", [True, False])
def test_an_answer_ends_when_its_client_leaves(
    asked: Asking, slow: Slow, reads_progress: bool
) -> None:
    connection = asked("atlas")
    if reads_progress:
        connection.getresponse().readline()
    assert slow.begun.wait(20) and not slow.canceled.is_set()
    connection.close()
    assert slow.canceled.wait(20)


def test_who_waits_in_the_queue_is_told(asked: Asking, slow: Slow) -> None:
    others = [asked("atlas") for _ in range(SLOW_THREADS)]
    assert slow.begun.wait(20)
    time.sleep(0.1)
    found = asked("atlas").getresponse()
    assert json.loads(found.readline()) == {"done": 0, "total": 0, "what": WAITING}
    for other in others:
        other.close()
    assert json.loads(found.readline())["what"] in ("", "step by step")


def test_too_many_questions_are_told_when_to_come_back(
    asked: Asking, explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slow threads compute, one question waits, the next is refused; who leaves makes room."""
    go_on, computed = threading.Event(), list[str]()

    def slow(_: str, params: dict[str, str], *__: object) -> bytes:
        computed.append(params["model"])
        assert go_on.wait(20)
        return b"done"

    monkeypatch.setattr(explorer, "ask", slow)
    monkeypatch.setattr("pathsum.explorer.explorer.MAX_WAITING", 1)
    names = [f"a{number}" for number in range(SLOW_THREADS)]
    first = [asked("atlas", {"model": name}) for name in names]
    until(lambda: len(computed) == len(names))
    waiting = asked("atlas", {"model": "leaves"})
    until(lambda: len(explorer._slow._submitted) == len(names) + 1)
    refused = asked("atlas", {"model": "refused"}).getresponse()
    assert refused.status == 503 and refused.headers["Retry-After"] == "2"
    waiting.close()
    until(lambda: any(one.cancelled() for one in explorer._slow._submitted))
    last = asked("atlas", {"model": "last"})
    go_on.set()
    for one in (*first, last):
        assert one.getresponse().status == 200
    assert sorted(computed) == [*names, "last"]


def status(address: tuple[str, int], token: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", "/", headers={"Authorization": f"Bearer {token}"})
    found = connection.getresponse().status
    connection.close()
    return found


@pytest.mark.parametrize("sent", ["GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "GET / HTTP/1.1\r\n"])
def test_strangers_who_do_not_read_make_room_for_the_owner(explorer: Explorer, sent: str) -> None:
    server = ExplorerServer(explorer, port=0).start()
    address, strangers = ("127.0.0.1", server.names.port), list[socket.socket]()
    try:
        for number in range(MAX_CONNECTIONS + 12):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.settimeout(0.2)
            one.connect(address)
            with suppress(OSError):  # it is closed, or its buffers are full
                one.sendall(sent.format(f"127.0.0.1:{address[1]}").encode() * 500)
            strangers.append(one)
            if number % 20 == 19:
                assert status(address, server.token) == 200
        assert [status(address, server.token) for _ in range(10)] == [200] * 10
    finally:
        for one in strangers:
            one.close()
        server.close()


def test_a_rejected_request_closes_its_connection(explorer: Explorer) -> None:
    server = ExplorerServer(explorer, port=0).start()
    try:
        for host, code in ((f"127.0.0.1:{server.names.port}", 401), ("elsewhere", 421)):
            with socket.create_connection(("127.0.0.1", server.names.port), timeout=60) as one:
                one.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() * 3)
                received = b"".join(iter(lambda: one.recv(4096), b""))
            assert received.count(b"HTTP/1.1 ") == received.count(f" {code} ".encode()) == 1
            assert b"\r\nconnection: close\r\n" in received.lower()
    finally:
        server.close()


def test_connections_of_the_owner_are_limited_too(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pathsum.explorer.server.running.MAX_CONNECTIONS", 2)
    server = ExplorerServer(explorer, port=0, token="").start()
    address = ("127.0.0.1", server.names.port)
    try:
        idle = [http.client.HTTPConnection(*address, timeout=60) for _ in range(3)]
        for one in idle:
            one.request("GET", "/")
            assert one.getresponse().read()
        assert status(address, "") == 503
        for one in idle:
            one.close()
        time.sleep(0.1)
        assert status(address, "") == 200
    finally:
        server.close()
