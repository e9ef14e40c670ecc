"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

import pytest


def until(reached: Callable[[], object], seconds: float = 60.0, pause: float = 0.005) -> None:
    """Wait until something holds; a test that waits too long fails."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            pytest.fail("it never came to that")
        time.sleep(pause)
