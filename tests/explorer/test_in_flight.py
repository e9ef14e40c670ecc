"""Answers that are ended early."""

import threading
import time
from typing import Any

import pytest

from pathsum.base import files
from pathsum.explorer.in_flight import InFlight, StoppedError

# Compiled under the name of a file, it counts as code of that file.
HOLD = """
def hold(inside, release, heard):
    inside.set()
    while not release.is_set():
        pass
    heard.append("closed")
"""


@pytest.mark.parametrize(
    ("where", "expected"), [(files.__file__, ["closed", "stopped"]), (__file__, ["stopped"])]
)
def test_a_stop_does_not_fall_between_opening_and_closing_a_file(
    where: str, expected: list[str]
) -> None:
    space: dict[str, Any] = {}
    exec(compile(HOLD, where, "exec"), space)
    in_flight, inside, release = InFlight(), threading.Event(), threading.Event()
    heard: list[str] = []

    def compute() -> None:
        try:
            with in_flight.computing():
                space["hold"](inside, release, heard)
                while True:
                    time.sleep(0.001)
        except StoppedError:
            heard.append("stopped")

    thread = threading.Thread(target=compute)
    thread.start()
    assert inside.wait(10)
    threading.Timer(0.2, release.set).start()
    assert in_flight.stop(30.0)
    thread.join(10)
    assert not thread.is_alive()
    assert heard == expected


def test_nothing_is_waited_for_where_nothing_is_computed() -> None:
    assert InFlight().stop(0.0)
