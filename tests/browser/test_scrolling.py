"""Where a page begins, where Back returns to, and that wide tables fit or say that they scroll."""

import re

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect
from tests.browser.heads import INDUCTION
from tests.browser.test_live import settled

pytestmark = pytest.mark.browser

TOP = "document.querySelector('main').scrollTop"
TABLE = "All scores of all heads"


def scroll_to(page: Page, top: int) -> int:
    """Scroll the view; returns how far it went."""
    page.evaluate(f"{TOP} = {top}")
    page.wait_for_timeout(100)
    return int(page.evaluate(TOP))


def at_rest(page: Page, element: Locator) -> FloatRect | None:
    """Where an element is once parts above it, computed as they are seen, have come to rest."""
    before = None
    while True:
        element.scroll_into_view_if_needed()
        page.wait_for_timeout(500)
        settled(page)
        if (now := element.bounding_box()) == before:
            return now
        before = now


def test_a_page_begins_at_its_top_and_back_returns_to_where_one_was(page: Page, live: str) -> None:
    page.goto(f"{live}#/atlas")
    row = page.get_by_role("region", name=TABLE).get_by_role("link", name=INDUCTION)
    expect(row).to_be_visible(timeout=120_000)
    before = scroll_to(page, 10_000)
    assert before > 200
    row.click()
    expect(page).to_have_url(re.compile(f"#/head.*head={INDUCTION}"))
    settled(page)
    assert page.evaluate(TOP) == 0
    part = page.get_by_role("region", name="Which heads it reads, which read it")
    part.scroll_into_view_if_needed()
    link = part.get_by_role("link").filter(has_text="→").first
    # Where a click finds it: Playwright scrolls what the header covers.
    link.hover()
    box = at_rest(page, link)
    link.click()
    expect(page).to_have_url(re.compile("#/composition"))
    page.go_back()
    settled(page)
    expect(link).to_be_in_viewport()
    after = link.bounding_box()
    assert box is not None and after is not None and abs(after["y"] - box["y"]) < 60
    page.go_back()
    settled(page)
    page.wait_for_function(f"() => Math.abs({TOP} - {before}) <= 2")


def test_the_table_fits_a_screen_and_scrolls_visibly_on_a_phone(page: Page, live: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{live}#/atlas")
    table = page.get_by_role("region", name=TABLE)
    expect(table).to_be_visible(timeout=120_000)
    cue = page.get_by_text("scroll for more →")
    assert table.evaluate("each => each.scrollWidth - each.clientWidth") <= 1
    expect(cue).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    expect(cue).to_be_visible()
    table.evaluate("each => { each.scrollLeft = each.scrollWidth }")
    expect(cue).to_be_hidden()
    # The head stays beside its numbers.
    head = table.get_by_role("link", name=INDUCTION).bounding_box()
    assert head is not None and head["x"] < 60


def test_a_cell_shows_its_numbers_beside_it_and_leads_to_the_score(page: Page, live: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{live}#/atlas")
    table = page.get_by_role("region", name=TABLE)
    row = table.get_by_role("row").filter(has=page.get_by_role("link", name=INDUCTION))
    cell = row.locator("td.num").nth(2)
    value = cell.inner_text().split()[0]
    cell.hover()
    tip = page.locator(".tip")
    expect(tip).to_have_count(1)
    for words in (INDUCTION, "first token", "standard error", "null", "< 0.005"):
        expect(tip).to_contain_text(words)
    there, here = tip.bounding_box(), cell.bounding_box()
    assert there is not None and here is not None
    gap = max(there["x"] - here["x"] - here["width"], here["x"] - there["x"] - there["width"])
    assert 0 <= gap < 20 and abs(there["y"] - here["y"]) < 60
    cell.click()
    expect(page).to_have_url(re.compile(f"#/head.*head={INDUCTION}"))
    chosen = page.locator("tr.chosen")
    expect(chosen).to_be_in_viewport()
    expect(chosen).to_contain_text("first token")
    expect(chosen).to_contain_text(value)


def test_a_skip_trigram_runs_where_it_occurs(page: Page, live: str) -> None:
    page.goto(f"{live}#/head?head={INDUCTION}")
    part = page.get_by_role("region", name=re.compile("^Skip-trigrams: "))
    part.scroll_into_view_if_needed()
    row = part.locator("tbody tr").first
    expect(row).to_be_visible(timeout=120_000)
    row.get_by_role("link", name="run").click()
    expect(page).to_have_url(re.compile(f"#/text.*head={INDUCTION}"))
    # The head attends from the destination to the source, as the row says.
    details = page.locator("section[aria-label=Details]")
    expect(details).to_contain_text("weight")
    weight = re.search(r"weight\D*([\d.]+)\s*%", details.inner_text())
    assert weight is not None and float(weight[1]) > 10
