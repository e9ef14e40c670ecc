"""What is kept: the most recently used, up to a bound, and each computed once."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from tests.explorer.variants import ALL
from tests.waiting import until

from pathsum.base import Progress
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.in_flight import CanceledError
from pathsum.explorer.memo import Memo, bytes_held
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.model.weights import Weights


def test_the_least_recently_used_goes_first() -> None:
    memo = Memo[str, int](bound=10, size=lambda value: value)
    for key, value in (("a", 4), ("b", 4)):
        memo.get(key, lambda value=value: value)
    memo.get("a", lambda: pytest.fail("a is kept"))
    memo.get("c", lambda: 4)
    assert memo.held == 8
    memo.get("a", lambda: pytest.fail("a was used last"))
    assert memo.get("b", lambda: 5) == 5  # b was dropped


def test_what_is_larger_than_the_bound_is_kept_alone() -> None:
    memo = Memo[str, int](bound=10, size=lambda value: value)
    memo.get("a", lambda: 3)
    memo.get("b", lambda: 50)
    assert len(memo) == 1 and memo.held == 50


def test_long_keys_count() -> None:
    memo = Memo[str, int](bound=100, size=lambda _: 1, key_size=len)
    for letter in "abc":
        memo.get(letter * 60, lambda: 0)
    assert (len(memo), memo.held) == (1, 61)


def test_threads_share_one_computation() -> None:
    memo = Memo[str, int](bound=10, size=lambda _: 1)
    begun, go_on, counted = threading.Event(), threading.Event(), []

    def slow() -> int:
        counted.append(1)
        begun.set()
        assert go_on.wait(10)
        return 7

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(memo.get("a", slow))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    # Another key does not wait for it.
    assert memo.get("b", lambda: 1) == 1
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert found == [7, 7, 7, 7] and len(counted) == 1


class Asker:
    """A thread that asks for one key, and may withdraw."""

    def __init__(self, memo: Memo[str, int], compute: Callable[[Progress], int]) -> None:
        self.reports: list[tuple[int, int, str]] = []
        self.withdrawn, self.found = threading.Event(), list[object]()

        def ask() -> None:
            try:
                self.found.append(memo.shared("a", compute, self._report))
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
    memo, go_on = Memo[str, int](bound=10, size=lambda _: 1), threading.Event()
    first = Asker(memo, counting(go_on))
    until(lambda: first.reports)
    second = Asker(memo, lambda _: pytest.fail("computed twice"))
    until(lambda: memo.waiting == 1 and second.reports)
    assert second.reports[0][1:] == (2000, "counting")
    go_on.set()
    for asker in (first, second):
        asker.thread.join(10)
    assert first.found == second.found == [7] and memo.waiting == 0


def test_a_computation_ends_when_nobody_waits_for_it() -> None:
    memo, go_on = Memo[str, int](bound=10, size=lambda _: 1), threading.Event()
    first = Asker(memo, counting(go_on))
    until(lambda: first.reports)
    second = Asker(memo, lambda _: pytest.fail("computed twice"))
    until(lambda: second.reports)
    # Who computes leaves, and goes on for the other, until that one leaves too.
    first.withdrawn.set()
    time.sleep(0.05)
    assert first.thread.is_alive() and not first.found
    second.withdrawn.set()
    for asker in (first, second):
        asker.thread.join(10)
    assert first.found == second.found == ["canceled"]
    assert memo.computing == 0 and memo.get("a", lambda: 3) == 3


def test_what_raised_is_not_kept() -> None:
    memo = Memo[str, int](bound=10, size=lambda _: 1)

    def fails() -> int:
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        memo.get("a", fails)
    assert memo.get("a", lambda: 3) == 3


def test_a_value_that_grew_is_noticed() -> None:
    memo = Memo[str, list[int]](bound=10, size=len)
    grows = memo.get("a", lambda: [0] * 3)
    memo.get("b", lambda: [0] * 3)
    grows.extend([0] * 20)
    assert memo.held == 6
    memo.remeasure()
    assert memo.held == 3 and memo.peek("a") is None and memo.peek("b") == [0, 0, 0]


def test_only_what_was_used_is_measured_again() -> None:
    measured: list[str] = []

    def size(value: str) -> int:
        measured.append(value)
        return 1

    memo = Memo[str, str](bound=2, size=size)
    for key in ("a", "b"):
        memo.get(key, lambda key=key: key)
    memo.remeasure()
    measured.clear()
    memo.remeasure()
    assert measured == []
    assert memo.peek("b") == "b"
    memo.remeasure()
    assert measured == ["b"]
    memo.get("c", lambda: "c")  # drops the least recently used
    assert memo.peek("a") is None and memo.held == 2
    memo.remeasure()
    assert memo.held == 2 and memo._used == set()


def test_bytes_held_follows_what_is_reachable_and_counts_it_once() -> None:
    model = ALL["two layers"]()
    trace = model.trace([1, 2, 3, 4])
    own = bytes_held(trace, shared=(Model, Weights))
    tensors = sum(one.numel() * one.element_size() for one in (*trace.patterns, *trace.streams))
    weights = 4 * model.weights.n_parameters
    assert tensors < own
    assert bytes_held(trace) > bytes_held(model) > weights
    assert bytes_held([trace, trace, {"again": trace}], (Model, Weights)) < own + 1000
    loop: list[object] = [np.zeros(1000)]
    loop += [loop, loop[0][::2]]
    assert 8000 < bytes_held(loop) < 8500


def test_caches_are_bounded_by_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.explorer.explorer.ANSWER_BYTES", 20_000)
    explorer = Explorer([ALL["two layers"]()])
    bench = explorer.workbench = Workbench(explorer.workbench.models, run_bytes=50_000)
    for first in range(8):
        for second in range(8):
            explorer.ask("run", {"ids": f"{first},{second},1,2"})
    bench.remeasure()
    assert bench._runs.held <= 50_000 and explorer._answers.held <= 20_000
    assert 0 < len(bench._runs) < 64 and 0 < len(explorer._answers) < 64
