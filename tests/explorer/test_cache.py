"""The cache: the most recently used values, up to a bound, each computed once."""

import threading
import time
from collections.abc import Callable

import pytest
from tests.explorer.variants import ALL
from tests.waiting import until

from pathsum.base import Progress
from pathsum.explorer.cache import Cache, CanceledError
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.session import Session, trace_bytes


def test_the_least_recently_used_goes_first() -> None:
    cache = Cache(bound=10)
    for key in ("a", "b"):
        cache.get(key, lambda _: 4, size=4)
    cache.get("a", lambda _: pytest.fail("a is cached"), size=4)
    cache.get("c", lambda _: 4, size=4)
    assert cache.n_bytes == 8
    cache.get("a", lambda _: pytest.fail("a was used last"), size=4)
    assert cache.peek("b") is None
    assert cache.get("b", lambda _: 5, size=4) == 5


def test_a_value_larger_than_the_bound_is_kept_alone() -> None:
    cache = Cache(bound=10)
    cache.get("a", lambda _: 3, size=3)
    cache.get("b", lambda _: 50, size=lambda value: value)
    assert len(cache) == 1 and cache.n_bytes == 50


def test_threads_share_one_computation() -> None:
    cache = Cache(bound=10)
    begun, go_on, counted = threading.Event(), threading.Event(), []

    def slow(_: Progress) -> int:
        counted.append(1)
        begun.set()
        assert go_on.wait(10)
        return 7

    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get("a", slow, size=1)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    # Another key does not wait for it.
    assert cache.get("b", lambda _: 1, size=1) == 1
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert found == [7, 7, 7, 7] and len(counted) == 1


class Asker:
    """A thread that asks for one key, and may withdraw."""

    def __init__(self, cache: Cache, compute: Callable[[Progress], int]) -> None:
        self.reports: list[tuple[int, int, str]] = []
        self.withdrawn, self.found = threading.Event(), list[object]()

        def ask() -> None:
            try:
                self.found.append(cache.get("a", compute, size=1, progress=self._report))
            except CanceledError:
                self.found.append("canceled")

        self.thread = threading.Thread(target=ask)
        self.thread.start()

    def _report(self, done: int, total: int, what: str) -> None:
        if self.withdrawn.is_set():
            raise CanceledError
        self.reports.append((done, total, what))


def counting(go_on: threading.Event, steps: int = 2000) -> Callable[[Progress], int]:
    """A computation that reports every few milliseconds, up to `steps` times, until it may end."""

    def compute(progress: Progress) -> int:
        for step in range(steps):
            progress(step, steps, "counting")
            if go_on.wait(0.005):
                break
        return 7

    return compute


def test_all_that_wait_hear_of_the_progress() -> None:
    cache, go_on = Cache(bound=10), threading.Event()
    first = Asker(cache, counting(go_on))
    until(lambda: first.reports)
    second = Asker(cache, lambda _: pytest.fail("computed twice"))
    until(lambda: second.reports)
    assert second.reports[0][1:] == (2000, "counting")
    go_on.set()
    for asker in (first, second):
        asker.thread.join(10)
    assert first.found == second.found == [7]


def test_a_computation_ends_when_nobody_waits_for_it() -> None:
    cache, go_on = Cache(bound=10), threading.Event()
    first = Asker(cache, counting(go_on))
    until(lambda: first.reports)
    second = Asker(cache, lambda _: pytest.fail("computed twice"))
    until(lambda: second.reports)
    # Who computes leaves, and goes on for the other, until that one leaves too.
    first.withdrawn.set()
    time.sleep(0.05)
    assert first.thread.is_alive() and not first.found
    second.withdrawn.set()
    for asker in (first, second):
        asker.thread.join(10)
    assert first.found == second.found == ["canceled"]
    assert cache.get("a", lambda _: 3, size=1) == 3


def test_what_raised_is_not_kept() -> None:
    cache = Cache(bound=10)

    def fails(_: Progress) -> int:
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        cache.get("a", fails, size=1)
    assert cache.get("a", lambda _: 3, size=1) == 3


def test_the_estimate_of_a_run_covers_its_tensors() -> None:
    for name in ("two layers", "hand-built induction"):
        trace = ALL[name]().trace([1, 2, 3, 4, 1, 2])
        assert trace.recorded_logits is not None
        tensors = (*trace.patterns, *trace.streams, trace.recorded_logits)
        held = sum(one.numel() * one.element_size() for one in tensors)
        assert held <= trace_bytes(trace) <= 4 * held


def test_the_cache_of_a_session_is_bounded() -> None:
    explorer = Explorer([ALL["two layers"]()])
    explorer.session = Session(explorer.session.models, cache_bytes=3 * 2**20)
    for first in range(8):
        for second in range(8):
            explorer.ask("run", {"ids": f"{first},{second},1,2"})
    cache = explorer.session.cache
    assert cache.n_bytes <= 3 * 2**20 and 0 < len(cache) < 64
