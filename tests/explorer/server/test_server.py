"""The server: what it answers, and to whom it does not."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.explorer.variants import ALL, HOSTILE, hostile
from tests.waiting import until

import pathsum as ps
from pathsum.base import Progress
from pathsum.base.errors import FailedError, InputError
from pathsum.explorer import bundle
from pathsum.explorer.cache import CanceledError
from pathsum.explorer.explorer import MAX_WAITING, SLOW_THREADS, BusyError, Explorer
from pathsum.explorer.params import decode
from pathsum.explorer.server import ExplorerServer
from pathsum.explorer.server.app import MAX_BYTES, make_app
from pathsum.explorer.server.guard import HEADERS, Access, names_of

BASE = "http://127.0.0.1:7321"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer([hostile()])


@pytest.fixture
def client(explorer: Explorer) -> TestClient:
    app = make_app(explorer, names_of("127.0.0.1", 7321), Access("", 7321))
    return TestClient(app, base_url=BASE, raise_server_exceptions=False)


def ask(client: TestClient, name: str, params: Any = None, **headers: str) -> Any:
    body = params if isinstance(params, bytes) else json.dumps(params or {})
    return client.post(f"/api/{name}", content=body, headers={**JSON, **headers})


class TestAnswers:
    def test_are_bytes(self, client: TestClient) -> None:
        found = ask(client, "run", {"ids": "1,2,3"})
        assert found.status_code == 200
        assert found.headers["content-type"] == "application/octet-stream"
        assert decode(found.content)["ids"] == [1, 2, 3]

    def test_token_text_travels_as_it_is_and_is_never_html(self, client: TestClient) -> None:
        found = ask(client, "vocabulary")
        assert decode(found.content)["tokens"][: len(HOSTILE)] == [
            word.replace(" ", "_") for word in HOSTILE
        ]
        assert found.headers["x-content-type-options"] == "nosniff"

    def test_an_empty_body_says_nothing(self, client: TestClient) -> None:
        assert ask(client, "model", b"").status_code == 200

    @pytest.mark.parametrize(
        ("name", "params", "status", "kind", "message"),
        [
            ("run", {}, 400, "InputError", "exactly one way"),
            ("run", {"ids": "99"}, 400, "TokenError", "out of range"),
            ("head", {"head": "L9H9"}, 400, "HeadError", "L9H9"),
            ("nothing", {}, 404, "UnknownQuestionError", "no question 'nothing'"),
            ("run", b"[", 400, "InputError", "not JSON"),
            ("run", b"[" * 5000, 400, "InputError", "not JSON"),
            ("run", b"\xff\xfe", 400, "InputError", "not JSON"),
            ("run", b"[1]", 400, "InputError", "an object of parameters"),
            ("run", b'"' + b"a" * MAX_BYTES + b'"', 413, "Refused", "at most 1,000,000 bytes"),
        ],
    )
    def test_what_is_wrong_is_said_in_words(
        self, client: TestClient, name: str, params: Any, status: int, kind: str, message: str
    ) -> None:
        found = ask(client, name, params)
        assert found.status_code == status
        assert found.json()["kind"] == kind and message in found.json()["error"]

    def test_a_failure_that_nobody_foresaw_is_said_without_its_insides(
        self, client: TestClient, explorer: Explorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> bytes:
            raise KeyError("a secret")

        monkeypatch.setattr(explorer, "ask", broken)
        found = ask(client, "training")
        assert found.status_code == 500 and "KeyError" in found.json()["error"]
        assert "secret" not in found.text


class TestGuard:
    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "evil.example:7321",
            "127.0.0.1",
            "127.0.0.1:80",
            "localhost.x:7321",
            "",
        ],
    )
    def test_a_foreign_host_is_refused(self, client: TestClient, host: str) -> None:
        for found in (
            client.get("/", headers={"host": host}),
            ask(client, "model", host=host),
        ):
            assert found.status_code == 421
            assert "answers only to" in found.json()["error"]

    @pytest.mark.parametrize("host", ["127.0.0.1:7321", "localhost:7321", "[::1]:7321"])
    def test_its_own_names_are_answered(self, client: TestClient, host: str) -> None:
        assert ask(client, "model", host=host).status_code == 200
        assert ask(client, "model", host=host, origin=f"http://{host}").status_code == 200

    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "null", "https://127.0.0.1:7321", "http://127.0.0.1:1"]
    )
    def test_a_foreign_origin_is_refused(self, client: TestClient, origin: str) -> None:
        assert ask(client, "model", origin=origin).status_code == 403

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_another_site_is_refused(self, client: TestClient, site: str) -> None:
        assert ask(client, "model", **{"sec-fetch-site": site}).status_code == 403

    def test_a_form_cannot_ask(self, client: TestClient) -> None:
        """Forms of foreign pages send such types without asking first; JSON they cannot."""
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            found = client.post("/api/model", content="{}", headers={"content-type": kind})
            assert found.status_code == 415

    def test_nobody_else_is_let_in(self, client: TestClient) -> None:
        found = client.options(
            "/api/model",
            headers={"origin": "http://evil.example", "access-control-request-method": "POST"},
        )
        assert found.status_code in (403, 405)
        answered = ask(client, "model", origin=BASE)
        for headers in (found.headers, answered.headers):
            assert not [name for name in headers if name.startswith("access-control")]

    def test_every_answer_has_the_headers(self, client: TestClient) -> None:
        for found in (
            client.get("/"),
            client.get("/nothing"),
            client.get("/", headers={"host": "evil"}),
            ask(client, "model"),
            ask(client, "nothing"),
        ):
            for name, value in HEADERS.items():
                assert found.headers[name] == value, (found.url, name)
            assert "server" not in found.headers
        assert "unsafe" not in HEADERS["Content-Security-Policy"]


class TestFiles:
    def test_the_page_is_at_the_root(self, client: TestClient) -> None:
        found = client.get("/")
        assert found.status_code == 200 and bundle.SCRIPT in found.text
        assert found.headers["content-type"] == "text/html; charset=utf-8"
        for name in (bundle.SCRIPT, bundle.STYLE):
            assert client.get(f"/{name}").content == bundle.read(name)

    @pytest.mark.parametrize(
        "path",
        [
            "/__init__.py",
            "/../__init__.py",
            "/..%2f__init__.py",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/....//etc/passwd",
            "/app.js/../../__init__.py",
            "/app.js%00.html",
            "/%5c..%5c__init__.py",
            "//etc/passwd",
            "/api",
            "/api/",
            "/api/model/x",
        ],
    )
    def test_nothing_else_is_served(self, client: TestClient, path: str) -> None:
        found = client.get(path)
        assert found.status_code in (404, 405)
        assert found.json()["error"]

    def test_questions_are_posted(self, client: TestClient) -> None:
        assert client.get("/api/model").status_code == 405
        assert client.post("/", headers=JSON).status_code == 405


def fetch(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, JSON)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


class TestRunning:
    def test_a_taken_default_port_gives_a_free_one(
        self, explorer: Explorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            monkeypatch.setattr("pathsum.explorer.server.running.PORT", port)
            server = ExplorerServer(explorer, token="").start()
            try:
                assert server.names.port != port
                assert decode(fetch(f"{server.url}api/model", b"{}"))["name"] == explorer.name
            finally:
                server.close()
            with pytest.raises(FailedError, match="another port"):
                ExplorerServer(explorer, port=port)

    @pytest.mark.parametrize(
        ("host", "port"), [("127.0.0.1", 70_000), ("no.such.host.invalid", 0), ("", 0), (" ", 0)]
    )
    def test_where_nothing_can_listen(self, explorer: Explorer, host: str, port: int) -> None:
        with pytest.raises(
            (InputError, FailedError),
            match="is not a port|not an address|cannot listen|host is empty",
        ):
            ExplorerServer(explorer, host, port)

    def test_it_says_under_which_names_it_can_be_reached(self) -> None:
        assert names_of("127.0.0.1", 1).hosts == ("127.0.0.1", "localhost", "[::1]")
        assert "192.0.2.7:1" in names_of("192.0.2.7", 1).authorities
        everywhere = names_of("0.0.0.0", 1).hosts
        assert socket.gethostname().lower() in everywhere
        assert "0.0.0.0" not in everywhere

    def test_slow_answers_do_not_hold_up_others(
        self, explorer: Explorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go_on, real = threading.Event(), Explorer.ask

        def slow(self: Explorer, name: str, params: Any, progress: Progress) -> bytes:
            if name == "atlas":
                go_on.wait(20)
            return real(self, name, params, progress)

        monkeypatch.setattr(Explorer, "ask", slow)
        server = ExplorerServer(explorer, port=0, token="").start()
        try:
            waiting = threading.Thread(target=fetch, args=(f"{server.url}api/atlas", b"{}"))
            waiting.start()
            assert decode(fetch(f"{server.url}api/run", b'{"ids": "1,2"}'))["ids"] == [1, 2]
            assert waiting.is_alive()
            go_on.set()
            waiting.join(30)
        finally:
            go_on.set()
            server.close()

    def test_explore_outside_of_a_notebook_is_a_server(self) -> None:
        page = ps.explore(ALL["two layers"](), port=0)
        try:
            assert bundle.SCRIPT.encode() in fetch(page.url)
            assert page.url in repr(page)
        finally:
            page.close()
        with pytest.raises(urllib.error.URLError, match="refused"):
            fetch(page.url)

    def test_explore_in_a_notebook_is_a_widget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("anywidget")
        module = sys.modules["pathsum.explorer.server.running"]
        monkeypatch.setattr(module, "in_notebook", lambda: True)
        widget = ps.explore(ALL["two layers"](), place="/atlas")
        assert widget.place == "/atlas"

    def test_a_script_is_no_notebook(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from pathsum.explorer.server.running import in_notebook

        assert not in_notebook()

        class Marimo:
            @staticmethod
            def running_in_notebook() -> bool:
                return True

        monkeypatch.setitem(sys.modules, "marimo", Marimo)
        assert in_notebook()


ENDS_UNDER_AN_ANSWER = """
import threading, time
import pathsum as ps
from pathsum.explorer.server import ExplorerServer
config = ps.Config(n_layers=8, n_heads=8, d_model=128, d_head=16, d_vocab=3000, n_ctx=256)
page = ps.explore(ps.random_model(config), port=0, token="")
{ask}
threading.Thread(target=ask, daemon=True).start()
while not page.explorer.busy:
    time.sleep(0.01)
time.sleep(0.5)
print("busy", page.explorer.busy)
"""
ASK = """
def ask():
    from urllib.request import Request, urlopen
    urlopen(Request(page.url + "api/atlas", b"{}", {"content-type": "application/json"})).read()
"""


def test_a_script_may_end_while_an_answer_is_computed() -> None:
    script = ENDS_UNDER_AN_ANSWER.replace("{ask}", ASK)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert "busy True" in done.stdout
    assert done.returncode == 0, done.stderr
    assert "terminate" not in done.stderr


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """`atlas` that reports its progress until it is canceled; set when it has begun."""
    begun = threading.Event()

    def ask(self: Explorer, name: str, params: Any, progress: Progress) -> bytes:
        report = self._cancelable(progress)
        while True:
            report(0, 1, "forever")
            begun.set()
            time.sleep(0.005)

    monkeypatch.setattr(Explorer, "ask", ask)
    return begun


def silence(done: int, total: int, what: str) -> None:
    """Progress that nobody watches."""


def test_answers_in_progress_are_canceled(endless: threading.Event) -> None:
    explorer = Explorer([ALL["two layers"]()], bundled=())
    running = explorer.submit("atlas", {}, silence)
    assert endless.wait(10) and explorer.busy
    assert explorer.stop(10.0) and not explorer.busy
    with pytest.raises(CanceledError):
        running.result(10)
    assert explorer.stop(0.1)  # nothing to stop


def test_the_queue_is_bounded(endless: threading.Event) -> None:
    explorer = Explorer([ALL["two layers"]()], bundled=())
    computed = [explorer.submit("atlas", {}, silence) for _ in range(SLOW_THREADS)]
    until(lambda: all(one.running() for one in computed))
    waiting = [explorer.submit("atlas", {}, silence) for _ in range(MAX_WAITING)]
    with pytest.raises(BusyError, match="64 questions are waiting"):
        explorer.submit("atlas", {}, silence)
    assert explorer.stop(10.0) and all(one.cancelled() for one in waiting)


@pytest.mark.slow
def test_an_interrupt_ends_the_command_cleanly() -> None:
    command = [sys.executable, "-m", "pathsum", "explore", "hand-built-induction", "--no-open"]
    # A shell that runs the tests in the background has them ignore interrupts, and what they start.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        running = subprocess.Popen(
            [*command, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            assert "hand-built-induction is at http://127.0.0.1:" in line
            assert b"app" in fetch(line.split(" is at ")[1].split(" ")[0])
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=20)
        finally:
            running.kill()
    assert running.returncode == 0 and "closed" in out and err == ""


INTERRUPTED = """
import signal, time
from pathsum.explorer import Explorer
from pathsum.explorer.server import ExplorerServer
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 1.5)
ExplorerServer(Explorer(["hand-built-induction"]), port=0).run()
time.sleep(1)
"""


def test_an_interrupt_lets_the_server_close_its_own_socket() -> None:
    """Closed before it, uvicorn's thread ends in an exception, which the process may outlive."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and done.stderr == ""
