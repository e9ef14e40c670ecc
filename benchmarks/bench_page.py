"""The explorer in Chromium, and a report: seconds, milliseconds and bytes, against a budget.

First paint is the browser's own "first contentful paint" of the landing page, without anything
cached. A hover is the time of the page's main thread while the mouse goes from one token of a text
of 256 to another, until the frame after it, everything included. The report is the command as a
user runs it the second time: in a process of its own, with an empty cache of pathsum's, and with
all modules compiled that it imports on the way, its own and those of other packages. Its processor
time is that of all its processes; the budget is what two cores have in the seconds that it may
take.
"""

import gzip
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from benchmarks.measurement import Measurement, seconds
from pathsum.explorer import bundle
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer

MODEL = "two-layer"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, HEIGHT = 1440, 900
PAINTS, TOKENS, HOVERS = 5, 256, 60
PATIENCE_MS = 120_000
# What a report may take, on two cores.
SECONDS = 15.0
FIRST_PAINT = """() => new Promise((done) => new PerformanceObserver((found) => {
  for (const entry of found.getEntriesByName("first-contentful-paint")) done(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""
NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


def main() -> list[Measurement]:
    """Measure, print and return."""
    size = sum(len(gzip.compress(bundle.read(name))) for name in bundle.names())
    found = [Measurement("bundle, gzipped", size / 1e3, "kB", "may be", 180.0)]
    server = ExplorerServer(Explorer([MODEL]), port=0).start()
    chromium = next((path for name in NAMES if (path := shutil.which(name))), None)
    if chromium is None:
        raise RuntimeError(f"there is no Chromium here (looked for {', '.join(NAMES)})")
    # Root has no sandbox of its own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
            found += [first_paint(browser, server), hover(browser, server)]
            browser.close()
    finally:
        server.close()
    found += report()
    for one in found:
        print(f"{one.what:<44} {one.ours:8.2f} {one.unit} of {one.theirs:g}", flush=True)
    return found


def first_paint(browser: Browser, server: ExplorerServer) -> Measurement:
    """The median over fresh contexts, none of which has anything cached."""
    times: list[float] = []
    for _ in range(PAINTS):
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        page = context.new_page()
        page.goto(server.url)
        times.append(page.evaluate(FIRST_PAINT) / 1e3)
        context.close()
    return Measurement("first paint", statistics.median(times), "s", "may take", 1.0)


def hover(browser: Browser, server: ExplorerServer) -> Measurement:
    """The main thread's time per hover, the mean over many tokens."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    ids = ",".join(str(1 + 37 * place % 2000) for place in range(TOKENS))
    page.goto(f"{server.url}#/text?tokens={ids}")
    tokens = page.locator("[role=option]")
    tokens.nth(TOKENS - 1).wait_for(timeout=PATIENCE_MS)
    # The pictures of heads are made a few at a time.
    page.wait_for_load_state("networkidle", timeout=PATIENCE_MS)
    page.wait_for_timeout(2000)
    apart = TOKENS // HOVERS
    boxes = [tokens.nth(apart * number).bounding_box() for number in range(HOVERS)]
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def busy() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    before = busy()
    for box in boxes:
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.evaluate(NEXT_FRAME)
    taken = (busy() - before) / HOVERS
    page.close()
    return Measurement(f"hover at {TOKENS} tokens", 1e3 * taken, "ms", "may take", 16.0)


def report() -> list[Measurement]:
    """The command's time, its processor time, and the size of its file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        command = [sys.executable, "-m", "pathsum", "report", MODEL, "-o", str(file)]

        def run(cache: str) -> None:
            environment = {
                **os.environ,
                "PATHSUM_CACHE": str(Path(folder) / cache),
                "PYTHONPYCACHEPREFIX": str(Path(folder) / "compiled"),
            }
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

        run("first")  # compiles, and is not measured
        before = _processor_seconds()
        taken = seconds(lambda: run("second"))
        used = _processor_seconds() - before
        return [
            Measurement(f"report of {MODEL}", taken, "s", "may take", SECONDS),
            Measurement(f"report of {MODEL}, processor time", used, "s", "may take", 2 * SECONDS),
            Measurement(f"report of {MODEL}, size", file.stat().st_size / 1e6, "MB", "may be", 6.5),
        ]


def _processor_seconds() -> float:
    """The processor time of all ended child processes and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
