"""A short soak, with small caches so that they are full soon; `make soak` runs the long one."""

import os
import random
import resource
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.explorer.server.soak import WINDOWS, request, rise, running, soak
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory and time are read from /proc"),
]

REQUESTS = 900
CACHE_MB = 8
# Levels of a short soak scatter, and only a large leak can be told from that.
SHORT_RISE, LEAK_KB = 1.2, 400


def test_memory_stays_flat_and_nothing_fails() -> None:
    with running(CACHE_MB) as (pid, port):
        found = soak(pid, port, REQUESTS)
    assert found.failures == []
    assert set(found.statuses) >= {200, 400, 401, 404, 413} and 500 not in found.statuses
    assert found.rise < SHORT_RISE, found.levels


def test_a_leak_is_noticed() -> None:
    with running(CACHE_MB, leak_kb=LEAK_KB) as (pid, port):
        found = soak(pid, port, REQUESTS)
    assert found.failures == []
    assert found.rise > SHORT_RISE, found.levels


def test_the_rise_is_that_of_a_line() -> None:
    flat = [600.0] * WINDOWS
    assert rise(flat) == 1.0
    assert rise([600.0, 606.0, 612.0, 618.0]) == pytest.approx(1.03)
    # Two of nine levels that are off by a third move nothing.
    assert rise([600.0, 900.0, 600.0, 600.0, 600.0, 600.0, 600.0, 600.0, 900.0]) == 1.0
    assert rise([600.0, 607.5, 615.0, 400.0, 630.0, 637.5, 645.0, 652.5, 660.0]) == pytest.approx(
        1.1
    )


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def answers(port: int) -> bool:
    try:
        return request(port, "model", random.Random(0)) == 200
    except ConnectionError:
        return False


@pytest.mark.parametrize("limit", [64, 1024])
def test_600_half_open_connections_neither_block_nor_spin_nor_stay(limit: int) -> None:
    with running(CACHE_MB) as (pid, port), ExitStack() as opened:
        before = descriptors(pid)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
        for _ in range(600):
            half = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            half.sendall(b"GET / HTTP/1.1\r\n")
        until(lambda: descriptors(pid) <= before + 130, pause=0.1)
        # At the limit a connection may be refused while others are being closed; a page asks again.
        until(lambda: answers(port), pause=0.1)
        began = processor_seconds(pid)
        time.sleep(3)
        assert processor_seconds(pid) - began < 1
        # The deadline of a head is 10 seconds.
        until(lambda: descriptors(pid) <= before + 5, pause=0.1)
