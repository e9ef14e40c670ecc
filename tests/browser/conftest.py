"""A real Chromium against the real server and a real report file.

Without Chromium the tests are skipped by name; where PATHSUM_REQUIRE_BROWSER is set they fail
instead, so that nobody takes a skip for a pass. A test fails at its end if the page logged an
error, threw, or asked any other host for anything.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

import pathsum as ps
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer
from pathsum.explorer.server.guard import Access

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRED = bool(os.environ.get("PATHSUM_REQUIRE_BROWSER"))
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
SIZE = {"width": 1280, "height": 800}
# A busy machine is slow, not wrong.
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


def missing(what: str) -> None:
    """Skip by name, or fail where a skip is not allowed."""
    if REQUIRED:
        pytest.fail(f"{what}, and PATHSUM_REQUIRE_BROWSER says that these tests must run")
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        missing(f"there is no Chromium here (looked for {', '.join(NAMES)})")
    with sync_playwright() as playwright:
        # Root has no sandbox of its own; everybody else keeps theirs.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=found, args=arguments)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def live_server() -> Iterator[ExplorerServer]:
    """The explorer of two bundled models."""
    server = ExplorerServer(Explorer(["two-layer", "one-layer"]), port=0).start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def live(live_server: ExplorerServer) -> str:
    """Its address; a browser context is signed in."""
    return live_server.address


@pytest.fixture(scope="session")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report on disk."""
    path = tmp_path_factory.mktemp("report") / "two-layer.html"
    ps.report("two-layer", path, others=["one-layer"])
    return path.as_uri()


@pytest.fixture(scope="session")
def recorded_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report whose page does not run its model, as those of larger models."""
    path = tmp_path_factory.mktemp("report") / "recorded.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathsum.explorer.answers.weights.MAX_PARAMETERS", 0)
        ps.report("two-layer", path, views=["story", "text", "why", "paths", "lens"])
    return path.as_uri()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: PATHSUM_SCREENSHOTS, or a folder that is thrown away."""
    wanted = os.environ.get("PATHSUM_SCREENSHOTS")
    folder = Path(wanted) if wanted else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sign_in(context: BrowserContext, server: ExplorerServer) -> None:
    """Give a browser what opening the server's link gives it: a cookie, and the stored token."""
    access, origin = Access(server.token, server.names.port), server.address.rstrip("/")
    given: Any = {"name": access.cookie, "value": access.page_key, "url": server.address}
    context.add_cookies([{**given, "httpOnly": True, "sameSite": "Strict"}])
    keep = f"localStorage.setItem('pathsum-token', '{server.token}')"
    context.add_init_script(f"if (location.origin === '{origin}') {keep}")


@dataclass
class Watched:
    """What a page said and asked for."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()
    # Chromium logs every refusal; a test that asks what must be refused says so.
    may_be_refused: bool = False

    def attach(self, page: Page) -> None:
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _hear(self, said: ConsoleMessage) -> None:
        is_refusal = "status of 400" in said.text
        if said.type == "error" and not (is_refusal and self.may_be_refused):
            self.errors.append(said.text)

    def strangers(self) -> list[str]:
        """Requests to anyone but the page itself."""
        local = ("data:", "blob:", "file:", *self.allowed)
        return [url for url in self.requests if not url.startswith(local)]


@pytest.fixture
def context(browser: Browser, live_server: ExplorerServer) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport=SIZE, accept_downloads=True)
    sign_in(made, live_server)
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def watched(live: str) -> Watched:
    return Watched(allowed=(live,))


@pytest.fixture
def page(context: BrowserContext, watched: Watched) -> Iterator[Page]:
    """A page that must stay quiet and at home."""
    opened = context.new_page()
    watched.attach(opened)
    yield opened
    assert watched.errors == []
    assert watched.strangers() == []
