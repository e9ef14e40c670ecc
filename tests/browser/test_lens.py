"""The lens: tokens by layer and position, and the parts of the cell that is pointed at."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.test_layout import faults
from tests.browser.test_live import settled

pytestmark = pytest.mark.browser


def cell(page: Page, layer: int, position: int) -> Locator:
    return page.locator(f'td[data-layer="{layer}"][data-position="{position}"]')


def numbers(page: Page) -> tuple[float, list[float]]:
    """The readout of the cell that is shown, and its parts."""
    panel = page.get_by_role("region", name="This cell")
    expect(panel.get_by_role("table")).to_be_visible()
    said = re.search(r"above the mean:\s*([+−\d.]+)", panel.inner_text())
    assert said is not None
    parts = panel.locator("td.num").all_inner_texts()
    total, *rest = (float(one.replace("−", "-")) for one in (said[1].rstrip(","), *parts))
    return total, rest


@pytest.mark.parametrize("readout", ["direct", "held"])
def test_the_parts_of_a_cell_add_up(page: Page, live: str, readout: str) -> None:
    page.goto(f"{live}#/lens?example=0&position=30&layer=1&readout={readout}")
    settled(page)
    total, parts = numbers(page)
    assert len(parts) >= 5
    assert sum(parts) == pytest.approx(total, abs=0.006 * len(parts))


def test_pointing_is_soft_and_a_click_moves_the_focus(page: Page, live: str) -> None:
    page.goto(f"{live}#/lens?example=0&position=30")
    panel = page.get_by_role("region", name="This cell")
    expect(panel).to_contain_text("The end, after")
    expect(panel).to_contain_text("@30")
    cell(page, 0, 28).hover()
    expect(panel).to_contain_text("Before layer 0, after")
    expect(panel.locator("td")).to_contain_text(["embed"])
    page.mouse.move(0, 0)
    expect(panel).to_contain_text("@30")
    cell(page, 1, 28).click()
    expect(page).to_have_url(re.compile(r"position=28.*layer=1|layer=1.*position=28"))
    page.get_by_role("navigation", name="Sections").get_by_role("link", name="Paths").click()
    expect(page.locator("div.target")).to_contain_text("at 28:")


def test_the_keyboard_moves_through_the_cells(page: Page, live: str) -> None:
    page.goto(f"{live}#/story?example=0&position=30&layers=lens")
    settled(page)
    cell(page, 2, 30).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    expect(cell(page, 1, 29)).to_be_focused()
    expect(page.get_by_role("region", name="This cell")).to_contain_text("@29")
    # While the grid has the focus, its arrows do not move the story to another prediction.
    expect(page).to_have_url(re.compile("position=30"))
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("position=29"))


def test_a_deep_wide_grid_scrolls_within_its_panel_on_a_phone(page: Page, live: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{live}#/lens?example=0&position=60&readout=held&shade=shown")
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # The focused column is in sight, and so is every control.
    box = cell(page, 2, 60).bounding_box()
    assert box is not None and 40 < box["x"] < 350
    wrong = [one for one in faults(page) if "overlap" not in one]
    assert wrong == []
    for name in ("final prediction", "shown token", "logit lens", "held lens"):
        box = page.get_by_role("radio", name=name).bounding_box()
        assert box is not None and box["x"] + box["width"] <= 376


def test_a_long_text_is_read_in_blocks(page: Page, live: str) -> None:
    page.goto(f"{live}#/lens?example=0&position=60")
    expect(page.locator("main")).to_contain_text("positions 0–63 of 95")
    page.get_by_role("button", name="Later positions").click()
    expect(page.locator("main")).to_contain_text("positions 64–94 of 95")
    expect(cell(page, 2, 64)).to_have_attribute("tabindex", "0")


def test_a_report_offers_the_parts_that_it_holds(page: Page, recorded_file: str) -> None:
    page.goto(f"{recorded_file}#/lens")
    panel = page.get_by_role("region", name="This cell")
    expect(panel.get_by_role("table")).to_be_visible()
    held = page.locator("td[data-layer]:not(.plain)")
    expect(held).to_have_count(3)
    before = page.url
    other = page.locator("td.plain").first
    other.click()
    expect(panel).to_contain_text("This report does not hold the parts of this cell.")
    assert page.url == before
    page.get_by_role("radio", name="held lens").click()
    expect(panel.locator("td").first).to_be_visible()
