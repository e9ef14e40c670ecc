"""What is kept: the most recently used, up to a bound, and each computed once."""

import threading

import pytest

from pathsum.explorer.memo import Memo


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


def test_what_raised_is_not_kept() -> None:
    memo = Memo[str, int](bound=10, size=lambda _: 1)

    def fails() -> int:
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        memo.get("a", fails)
    assert memo.get("a", lambda: 3) == 3
