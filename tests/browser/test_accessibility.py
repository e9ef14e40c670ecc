"""axe-core on every view, live: no violation of what WCAG 2.2 AA asks for."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import AXE, missing
from tests.browser.heads import EDGE, INDUCTION
from tests.browser.test_live import VIEWS, settled

pytestmark = pytest.mark.browser

PLACES = {
    **{view: f"#/{view.lower()}" for view in VIEWS},
    "Text with locks": f"#/text?example=4&head={INDUCTION}&position=40&cell=40.16",
    "Head": f"#/head?head={INDUCTION}",
    "Edge": f"#/composition?edge={EDGE}",
    "Why without a head": f"#/why?off={INDUCTION}",
    "Story with all numbers": "#/story?layers=text,why,paths,lens",
}


@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_violations(page: Page, live: str, place: str, scheme: Any) -> None:
    if not AXE.is_file():
        missing("axe-core is not installed (make web brings it)")
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{live}{PLACES[place]}")
    expect(page.get_by_role("heading").first).to_be_visible()
    settled(page)
    assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_help_has_none_either(page: Page, live: str, scheme: Any) -> None:
    if not AXE.is_file():
        missing("axe-core is not installed (make web brings it)")
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{live}#/composition")
    settled(page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []


def violations(page: Page) -> list[str]:
    """What axe-core finds, in words."""
    # Evaluated by the driver, not by the page: its policy forbids scripts that are not its own.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    wanted = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    rules = {"runOnly": wanted, "rules": {"target-size": {"enabled": True}}}
    found = page.evaluate("rules => axe.run(document, rules)", rules)
    return [
        f"{one['id']}: {one['help']} ({len(one['nodes'])}×, {one['nodes'][0]['target']})"
        for one in found["violations"]
    ]
