"""Make the pictures of the README and the guide: landing page, graph of a prediction, report.

    .venv/bin/python scripts/pictures.py            # into docs/pictures

Needs the system's Chromium and playwright (`make setup` installs it). A picture over 250 kB is an
error, because it would make the repository heavy.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import pathsum as ps
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer

MODEL = "two-layer"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, HEIGHT = 1280, 800
LARGEST = 250_000
PATIENCE_MS = 120_000
READY = """() => document.querySelector("main")?.textContent.trim().length > 40
  && !document.querySelector("main").textContent.includes("Computing ")
  && !document.querySelector("main [aria-busy=true], main .loading, main [role=alert]")"""


def main() -> int:
    """Write the pictures; returns 1 if one is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    with opened_page(MODEL, WIDTH, HEIGHT) as page, tempfile.TemporaryDirectory() as scratch:
        page.set_default_timeout(PATIENCE_MS)
        sizes = [take(page, folder / "landing.png")]
        page.goto(f"{page.url.partition('#')[0]}#/why?example=0")
        sizes.append(take(page, folder / "why.png"))
        report = Path(scratch) / f"{MODEL}.html"
        ps.report(MODEL, report)
        page.goto(f"{report.as_uri()}#/atlas")
        sizes.append(take(page, folder / "report.png"))
    return int(max(sizes) > LARGEST)


@contextmanager
def opened_page(model: str, width: int, height: int) -> Generator[Page]:
    """The explorer of a model in the system's Chromium."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit(f"there is no Chromium here (looked for {', '.join(NAMES)})")
    server = ExplorerServer(Explorer([model]), port=0).start()
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=found, args=arguments)
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="light"
            )
            page.goto(server.url)
            yield page
            browser.close()
    finally:
        server.close()


def take(page: Page, path: Path) -> int:
    """Save what the page shows once it has its answers; returns the size of the file."""
    page.wait_for_function(READY, timeout=PATIENCE_MS)
    page.wait_for_timeout(1000)
    page.screenshot(path=path, animations="disabled")
    size = path.stat().st_size
    print(f"{path}: {size / 1e3:.0f} kB{'' if size <= LARGEST else ', which is too large'}")
    return size


if __name__ == "__main__":
    sys.exit(main())
