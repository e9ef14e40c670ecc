"""The program of a model: rules that fire are lit, and the budget is chosen; the gallery."""

import re

import pytest
from playwright.sync_api import Page, expect
from tests.browser.test_live import settled, token

pytestmark = pytest.mark.browser

# Its program is fitted within seconds.
SMALL = "#/program?model=hand-built-induction&budget=100"


def test_rules_that_fire_are_lit_and_follow_the_token(page: Page, live: str) -> None:
    page.goto(f"{live}{SMALL}")
    rules = page.get_by_role("region", name="Rules")
    fires = rules.locator("li.fires")
    expect(fires.first).to_contain_text(re.compile("L1H0 attends to .*earlier copy"))
    expect(rules.get_by_role("heading")).to_contain_text(re.compile(r"\d of \d+ rules fire for"))
    assert rules.locator("li").count() > fires.count()
    # The token that the rule reads is shaded, and elsewhere the rules predict another token.
    before = rules.get_by_role("heading").inner_text()
    shaded = page.locator("[role=option][style*=background]")
    expect(shaded).not_to_have_count(0)
    token(page, 4).first.click()
    expect(page).to_have_url(re.compile("position=4"))
    settled(page)
    expect(rules.get_by_role("heading")).not_to_have_text(before)


def test_rules_are_shown_as_they_come(page: Page, live: str) -> None:
    """The whole program of this model takes half a minute and more."""
    page.goto(f"{live}#/program?model=two-layer&budget=100")
    first = page.get_by_role("region", name="First rules")
    expect(first.get_by_role("listitem").first).to_contain_text("attends to")
    expect(page.get_by_role("region", name="Fidelity")).to_have_count(0)
    page.get_by_role("button", name="Cancel").click()
    expect(first).to_have_count(0)


def test_fidelity_follows_the_budget(page: Page, live: str) -> None:
    page.goto(f"{live}{SMALL}")
    fidelity = page.get_by_role("region", name="Fidelity")
    expect(fidelity).to_contain_text("closed by 100 numbers")
    fidelity.get_by_role("combobox").select_option("400")
    expect(page).not_to_have_url(re.compile("budget="))
    expect(fidelity).to_contain_text(re.compile(r"closed by (39\d|400) numbers"))


def test_the_menu_lists_every_model_that_opens(page: Page, live: str) -> None:
    page.goto(live)
    menu = page.get_by_label("Model", exact=True)
    menu.focus()
    expect(menu.locator("option", has_text="hand-built-induction-by-q")).to_have_count(1)
    menu.select_option("hand-built-induction")
    expect(page).to_have_url(re.compile("model=hand-built-induction"))
    expect(page.locator("footer")).to_contain_text("2 × 2 heads")


def test_cards_have_a_picture_and_the_best_prediction(page: Page, live: str) -> None:
    page.goto(f"{live}#/models")
    card = page.get_by_role("listitem").filter(has_text="hand-built-induction").first
    card.scroll_into_view_if_needed()
    expect(card).to_contain_text(re.compile(r"→.*%, by L1H0"))
    inked = """(canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    picture = card.get_by_role("img", name="Attention of L1H0")
    expect(picture).to_be_visible()
    for _ in range(40):
        if picture.evaluate(inked) > 1:
            break
        page.wait_for_timeout(250)
    assert picture.evaluate(inked) > 1
