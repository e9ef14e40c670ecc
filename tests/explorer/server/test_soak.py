"""A short soak, with small caches so that they are full soon; `make soak` runs the long one."""

import sys

import pytest
from tests.explorer.server.soak import WINDOWS, rise, running, soak

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
