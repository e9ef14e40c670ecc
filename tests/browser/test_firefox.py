"""The same pages in Firefox: the landing page, the graph of a prediction, a report, a fragment."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.conftest import missing
from tests.browser.firefox import Firefox, find_firefox

import pathsum as ps
from pathsum.explorer.server import ExplorerServer

pytestmark = pytest.mark.browser

GRAPH = 'return document.querySelectorAll("[role=group] [role=button]").length > 3'
ALERTS = 'return [...document.querySelectorAll("[role=alert]")].map((one) => one.innerText)'


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    command = find_firefox()
    if command is None:
        missing("there is no Firefox here")
    assert command is not None
    started = Firefox(command, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def test_the_landing_page(firefox: Firefox, live_server: ExplorerServer) -> None:
    firefox.goto(live_server.url)
    firefox.wait_for('return document.querySelectorAll("[role=option]").length > 20')
    firefox.wait_for('return document.body.innerText.includes("This is induction")')
    assert firefox.run("return location.search") == ""  # the token has left the address
    assert firefox.run(ALERTS) == []


def test_the_graph_of_a_prediction(firefox: Firefox, live_server: ExplorerServer) -> None:
    firefox.goto(f"{live_server.url}#/why?example=0")
    firefox.wait_for(GRAPH)
    assert firefox.run(ALERTS) == []


def test_a_report(firefox: Firefox, report_file: str) -> None:
    firefox.goto(f"{report_file}#/why?example=0")
    firefox.wait_for(GRAPH)
    assert firefox.run(ALERTS) == []


def test_a_fragment(firefox: Firefox, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    ps.report("hand-built-induction", path, texts=["c a b d a b"], views=["why"], fragment=True)
    firefox.goto(path.as_uri())
    inside = "document.querySelector('div').shadowRoot"
    found = f"{inside}.querySelectorAll('[role=group] [role=button]')"
    firefox.wait_for(f"return {inside} && {found}.length > 3")
