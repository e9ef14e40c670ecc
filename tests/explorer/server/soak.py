"""Thousands of mixed requests to a server: memory stays flat, and nothing fails.

    make soak                                          10,000 requests, a few minutes
    make soak ARGS='--requests 2000'                   fewer
    make soak ARGS='--leak-kb 50'                      a server that keeps 50 kB of each: fails

Four clients ask what a page asks, at random: texts never seen before, patterns, scores, heads,
steps of training; and what a page never asks: nonsense, half requests, too much, no token.

Requests come in thirty windows. After each the server is at rest, and what it uses is what it
keeps, and what it has freed and not returned yet: levels scatter by some percent. So the rise is
that of a line through all levels after the first fifth of the requests (Theil and Sen: the median
of the slopes of all pairs, which a few levels that are off do not move).
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

CLIENTS = 4
# Memory may rise until the end of this window, and from there to the end by so much.
WINDOWS = 30
SETTLED, RISE = 6, 1.10
# What is computed at the moment comes on top. It is sampled so often.
SAMPLES = 200
SECONDS = 300
TOKEN = "a-token-for-the-soak"
MODELS = ("two-layer", "one-layer", "two-layer-seed-1", "zero-layer")
# Some steps of two-layer.
STEPS = (0, 233, 1155, 15000)
# Heads per layer of all of them.
HEADS = 4
WORDS = ("def", "class", "return", "import", "self", "the", "of", "and", "in", "to", "value", "x")

# Questions with their weights: about as often as a page asks them.
ASKED = {
    "run": 20, "attention": 20, "scores": 10, "paths": 4, "token": 6, "model": 4, "vocabulary": 2,
    "head": 2, "trigrams": 1, "edge": 1, "atlas": 2, "composition": 2, "files": 8, "nonsense": 8,
    "half": 6, "too much": 1, "no token": 3,
}  # fmt: skip
EXPECTED = {200, 400, 401, 404, 405, 413, 415, 503}


@dataclass
class Soak:
    """What was asked and what happened."""

    requests: int
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    # In MB: at rest after each window, and the most that was sampled in between.
    levels: list[float] = field(default_factory=list)
    most: float = 0.0
    slowest: float = 0.0

    @property
    def rise(self) -> float:
        """The level after the last window relative to the settled one, on the line through all."""
        return rise(self.levels[SETTLED - 1 :])

    @property
    def seen_kb(self) -> float:
        """The least leak that is noticed, in kB for each request."""
        settled = self.levels[SETTLED - 1 :]
        requests = (len(settled) - 1) * self.requests / WINDOWS
        return (RISE - 1) * median(settled) * 1024 / requests


def rise(levels: list[float]) -> float:
    """The last of some levels relative to the first, both on the Theil–Sen line through all."""
    pairs = combinations(enumerate(levels), 2)
    slope = median((b - a) / (later - earlier) for (earlier, a), (later, b) in pairs)
    start = median(level - slope * at for at, level in enumerate(levels))
    return (start + slope * (len(levels) - 1)) / start


def serve(megabytes: int | None, leak_kb: int) -> None:
    """The server under test, in a process of its own; its address is the first line."""
    import torch

    from pathsum.explorer import explorer, session
    from pathsum.explorer.server import ExplorerServer, running

    plain = running.make_app
    running.make_app = lambda *about: leaking(plain(*about), 1024 * leak_kb)
    torch.set_num_threads(1)
    opened = explorer.Explorer(MODELS)
    if megabytes is not None:
        opened.session = session.Session(
            opened.session.models, opened.session.bundled, cache_bytes=megabytes * 2**20
        )
    server = ExplorerServer(opened, port=0, token=TOKEN)
    print(server.names.port, flush=True)
    server.run()


def leaking(app: ASGIApp, n_bytes: int) -> ASGIApp:
    """The application, which keeps so many bytes of each request."""
    kept = list[bytes]()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        kept.append(b"x" * n_bytes)
        await app(scope, receive, send)

    return answer


@contextmanager
def running(megabytes: int | None = None, leak_kb: int = 0) -> Generator[tuple[int, int]]:
    """A server's process id and port."""
    command = [
        sys.executable,
        "-m",
        "tests.explorer.server.soak",
        "--serve",
        "--leak-kb",
        str(leak_kb),
    ]
    if megabytes is not None:
        command += ["--cache-mb", str(megabytes)]
    # Freed memory is returned to the system, so that levels show what is held.
    settings = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**17)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings}
    ) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def soak(pid: int, port: int, requests: int, seed: int = 0) -> Soak:
    """Ask that many questions, and let the server rest after each window."""
    found = Soak(requests)
    clients = [random.Random(1000 * seed + number) for number in range(CLIENTS)]
    for _ in range(WINDOWS):
        _ask_all(found, clients, pid, port, requests // WINDOWS)
        found.levels.append(resident_mb(pid))
    return found


def _ask_all(found: Soak, clients: list[random.Random], pid: int, port: int, count: int) -> None:
    """Ask questions of all clients at once, and wait for every answer."""
    lock, counted = threading.Lock(), iter(range(1, count + 1))
    every = max(1, found.requests // SAMPLES)

    def client(rng: random.Random) -> None:
        while True:
            with lock:
                done = next(counted, None)
            if done is None:
                return
            kind = rng.choices(list(ASKED), list(ASKED.values()))[0]
            began = time.monotonic()
            try:
                status = request(port, kind, rng)
            except (OSError, ValueError) as error:
                status = 0
                found.failures.append(f"{kind}: {type(error).__name__} {error}")
            with lock:
                found.slowest = max(found.slowest, time.monotonic() - began)
                found.statuses[status] += 1
                if status not in EXPECTED | {0}:
                    found.failures.append(f"{kind}: status {status}")
                if done % every == 0:
                    found.most = max(found.most, resident_mb(pid))

    threads = [threading.Thread(target=client, args=(rng,)) for rng in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def request(port: int, kind: str, rng: random.Random) -> int:
    """One request; its status, or 200 for half a request that was sent."""
    if kind == "half":
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as half:
            half.sendall(b"POST /api/run HTTP/1.1\r\nhost: 127"[: rng.randrange(34)])
        return 200
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    method, path, body = "POST", f"/api/{kind}", json.dumps(params_of(kind, rng)).encode()
    if kind == "files":
        method, path, body = "GET", rng.choice(("/", "/app.js", "/app.css", "/none")), b""
    elif kind == "nonsense":
        path = f"/api/{rng.choice(('run', 'head', 'gone', 'edge', 'scores'))}"
        body = rng.choice((b"[", b"\xff", b'{"ids": "9,9999999"}', b'{"head": "L9H9"}', b"1"))
    elif kind == "too much":
        path, body = "/api/run", b'{"text": "' + b"a" * 1_100_000 + b'"}'
    elif kind == "no token":
        path, headers["authorization"] = "/api/model", "Bearer guessed-wrong-again"
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (BrokenPipeError, ConnectionResetError):
        if kind != "too much":  # which is refused before it has been read
            raise
        return 413
    finally:
        connection.close()


def params_of(kind: str, rng: random.Random) -> dict[str, Any]:
    """Parameters of a question."""
    model = rng.choice(MODELS[:3])
    head = f"L{0 if model == 'one-layer' else rng.randrange(2)}H{rng.randrange(HEADS)}"
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(5, 60)))
    about: dict[str, Any] = {"model": model}
    if model == "two-layer":
        about["step"] = rng.choice(STEPS)
    match kind:
        case "model" | "vocabulary" | "atlas" | "composition":
            return {"model": rng.choice(MODELS)}
        case "head" | "trigrams":
            return {**about, "head": head}
        case "token":
            return {**about, "head": head, "token": rng.randrange(500)}
        case "edge":
            ends = f"L0H{rng.randrange(HEADS)}→L1H{rng.randrange(HEADS)}"
            return {"model": "two-layer", "edge": f"{ends}.{rng.choice('qkv')}"}
        case "scores":
            return {**about, "text": text, "head": head}
        case "paths":
            return {**about, "text": text, "position": 3}
        case "attention":
            weighting = rng.choice(("attention", "information", "effect"))
            return {**about, "text": text, "head": head, "weighting": weighting}
        case _:
            return {**about, "text": text}


def resident_mb(pid: int) -> float:
    """The memory of a process that is in use, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache-mb", type=int, help="of answers and of results that are kept")
    parser.add_argument("--leak-kb", type=int, default=0, help="that the server keeps of each")
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args()
    if given.serve:
        serve(given.cache_mb, given.leak_kb)
        return 0
    with running(given.cache_mb, given.leak_kb) as (pid, port):
        began = time.monotonic()
        found = soak(pid, port, given.requests, given.seed)
        seconds = time.monotonic() - began
    for window, mb in enumerate(found.levels, 1):
        print(f"{window * given.requests // WINDOWS:7,} requests   {mb:7.0f} MB at rest")
    print(f"at most {found.most:.0f} MB, in the middle of a computation")
    print(f"statuses {dict(sorted(found.statuses.items()))}; slowest answer {found.slowest:.1f} s")
    print(
        f"{given.requests:,} requests in {seconds:.0f} s; from request "
        f"{SETTLED * given.requests // WINDOWS:,} on memory rises to {found.rise:.3f} times its "
        f"level, and may rise to {RISE:.2f}: a leak of {found.seen_kb:.1f} kB a request is noticed"
    )
    for failure in found.failures[:20]:
        print(failure)
    return int(bool(found.failures) or found.rise > RISE)


if __name__ == "__main__":
    sys.exit(main())
