"""Random actions on every view: no exception, no error, and the story still opens afterwards."""

import random

import pytest
from playwright.sync_api import Error, Page, expect
from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser

ACTIONS = 320
KEYS = ["ArrowLeft", "ArrowRight", "Escape", "Tab", "Enter", "?", ".", "D", "n", "x", "/", "a"]
VIEWS = [
    "story",
    "text",
    "why",
    "paths",
    "lens",
    "atlas",
    "composition",
    "training",
    "paper",
    "swap",
]
# Printing and saving leave the page.
PICKED = (
    "main button:visible, main a:visible, main select:visible, main [role=option]:visible, "
    "main .node:visible, header a:visible"
)
REFUSED = ("print", "CSV", "SVG", "PNG", "save")


def act(page: Page, live: str, draw: random.Random) -> str:
    """One action; what it was, for the message of a failure."""
    kind = draw.choice(["click", "click", "click", "key", "key", "type", "view", "resize", "back"])
    if kind == "key":
        page.keyboard.press(key := draw.choice(KEYS))
        return f"press {key}"
    if kind == "view":
        page.goto(f"{live}#/{(view := draw.choice(VIEWS))}")
        return f"open {view}"
    if kind == "resize":
        width = draw.choice([390, 820, 1280, 1920])
        page.set_viewport_size({"width": width, "height": 800})
        return f"width {width}"
    if kind == "back":
        page.go_back()
        return "back"
    if kind == "type":
        box = page.get_by_role("textbox", name="Text")
        if box.count() == 1:
            box.fill(text := draw.choice(["", "Ada met Bob. Ada met", "🙂 한국", "x " * 300]))
            return f"type {text[:12]!r}"
        return "nothing to type in"
    shown = page.locator(PICKED)
    target = shown.nth(draw.randrange(max(1, shown.count())))
    name = target.inner_text()[:30] if shown.count() else ""
    if not name or any(word in name for word in REFUSED):
        return "nothing"
    target.click(timeout=800, force=True)
    return f"click {name!r}"


def test_random_actions_raise_nothing(page: Page, live: str, watched: Watched) -> None:
    """The fixture `page` fails at its end if the page logged an error or threw."""
    watched.may_be_refused = True  # what is typed at random is not always a text of the model
    draw = random.Random(0)
    page.goto(live)
    done = 0
    while done < ACTIONS:
        try:
            act(page, live, draw)
        except Error:
            # What was to be clicked has gone; that is no action.
            continue
        done += 1
        if not page.url.startswith(live):
            page.goto(live)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(live)
    expect(page.get_by_role("region", name="Predictions")).to_be_visible()
