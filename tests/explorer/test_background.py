"""Slow answers in the background: computed while nobody asks, out of the way of those who do."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.explorer.variants import ALL
from tests.waiting import until

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.workbench import Workbench


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.explorer.explorer.IDLE_SECONDS", 0.0)


@pytest.fixture
def explorer() -> Iterator[Explorer]:
    explorer = Explorer([ALL["two layers"]()], bundled=())
    yield explorer
    assert explorer.stop(30.0)


def test_atlas_and_composition_are_there_before_they_are_asked(explorer: Explorer) -> None:
    explorer.prepare()
    until(lambda: explorer.cached("composition") and explorer.cached("atlas"))
    assert explorer.asked == 0


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `composition` and `run` do, step by step; composition takes 100 of them."""
    found: list[str] = []

    def composition(model: Any, *, progress: Any) -> Any:
        for step in range(100):
            progress(step, 100, "scores")
            found.append("composition")
            time.sleep(0.002)
        return real(model)

    from pathsum.explorer.answers import composition as module

    real = module.compose
    monkeypatch.setattr(module, "compose", composition)
    return found


def test_it_waits_while_somebody_asks_something_else(
    explorer: Explorer, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real = threading.Event(), Workbench.run

    def slow(bench: Workbench, params: Any) -> Any:
        assert go_on.wait(20)
        return real(bench, params)

    monkeypatch.setattr(Workbench, "run", slow)
    explorer.prepare()
    until(lambda: steps)
    asking = threading.Thread(target=explorer.ask, args=("run", {"ids": "1,2"}))
    asking.start()
    until(lambda: explorer.asked)
    time.sleep(0.05)
    before = len(steps)
    time.sleep(0.2)
    assert len(steps) == before < 100
    go_on.set()
    asking.join(20)
    until(lambda: explorer.cached("composition"))


def test_it_hurries_for_who_waits_for_its_answer(explorer: Explorer, steps: list[str]) -> None:
    explorer.prepare()
    until(lambda: steps)
    reports: list[tuple[int, int, str]] = []
    explorer.ask("composition", progress=lambda *report: reports.append(report))
    assert len(steps) == 100 and explorer.cached("composition")
    assert reports and reports[-1][1:] == (100, "scores")


def test_it_ends_with_the_explorer(explorer: Explorer, steps: list[str]) -> None:
    explorer.prepare()
    until(lambda: steps)
    assert explorer.stop(20.0)
    until(lambda: not explorer.busy)
    assert len(steps) < 100 and explorer.cached("composition") is None
