"""What one view leaves to the next: one token, cells that belong together, nothing stale."""

import csv
import io
import re

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import Watched
from tests.browser.heads import INDUCTION, OTHERS
from tests.browser.test_live import settled, token

pytestmark = pytest.mark.browser


def test_the_token_locked_in_text_is_the_one_explained(page: Page, live: str) -> None:
    page.goto(f"{live}#/paths?example=0&position=40")
    expect(page.get_by_role("listbox")).to_be_visible()
    settled(page)
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("position=41"))
    page.keyboard.press("1")
    settled(page)
    token(page, 20).click()
    for key, view in (("5", "paths"), ("2", "why")):
        page.keyboard.press(key)
        expect(page).to_have_url(re.compile(f"#/{view}.*position=20"))
        settled(page)
        expect(token(page, 20)).to_have_class(re.compile("locked"))


def test_a_prediction_leads_to_why_with_that_token(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?example=0&position=40")
    settled(page)
    page.locator("section[aria-label=Details] table.bare a").nth(4).click()
    expect(page).to_have_url(
        re.compile(r"#/why.*position=40.*token=\d+|#/why.*token=\d+.*position=40")
    )
    # Another token of the text is explained by its own next token again.
    page.keyboard.press("1")
    settled(page)
    token(page, 41).click()
    expect(page).not_to_have_url(re.compile("token="))


def test_a_text_of_another_length_can_be_corrected(page: Page, live: str, watched: Watched) -> None:
    watched.may_be_refused = True
    page.goto(f"{live}#/swap?example=0")
    settled(page)
    field = page.get_by_label("edit it, keeping the number of tokens")
    field.fill("one word")
    field.press("Enter")
    field.blur()
    expect(page.get_by_role("alert")).to_contain_text("patching needs the same number")
    expect(field).to_have_value("one word")
    page.get_by_role("button", name="back to the default text").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    field.fill("two words")
    field.blur()
    expect(page.get_by_role("alert")).to_be_visible()
    # Another clean text has a corrupted one of its own.
    page.locator("main select").first.select_option(index=1)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page).not_to_have_url(re.compile("other_text="))


def test_the_choice_of_compare_does_not_hide_edges_of_composition(page: Page, live: str) -> None:
    page.goto(f"{live}#/compare")
    settled(page)
    page.get_by_role("radio", name="QK").click()
    page.keyboard.press("o")
    page.keyboard.press("4")
    settled(page)
    for kind in page.get_by_role("group", name="Kinds of edges").get_by_role("button").all():
        expect(kind).to_have_attribute("aria-pressed", "true")


def test_cells_lead_to_the_same_cell_in_text(page: Page, live: str) -> None:
    page.goto(f"{live}#/head?head={INDUCTION}&example=0&position=3&cell=3.1")
    settled(page)
    matrix = page.get_by_role("region", name="Attention on a text").locator(".matrix")
    matrix.scroll_into_view_if_needed()
    box = matrix.bounding_box()
    assert box is not None
    matrix.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    expect(page).to_have_url(re.compile("#/text"))
    found = dict(part.split("=") for part in page.url.split("?")[1].split("&"))
    assert found["cell"].split(".")[0] == found["position"] != "3"


def test_another_text_takes_no_cuts_at_positions_along(page: Page, live: str) -> None:
    head = OTHERS[0]
    page.goto(
        f"{live}#/why?example=0&position=40&off={head},{head}@3&selected={INDUCTION}@40&expanded={INDUCTION}@40"
    )
    settled(page)
    page.get_by_label("Example").select_option(index=1)
    expect(page).to_have_url(re.compile(f"off={head}(&|$)"))
    assert (
        "selected=" not in page.url and "expanded=" not in page.url and "position=" not in page.url
    )
    page.get_by_label("Model", exact=True).select_option("one-layer")
    expect(page.get_by_role("contentinfo")).to_contain_text("one-layer:")
    assert "off=" not in page.url
    settled(page)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_refused_text_does_not_hold_the_model(page: Page, live: str, watched: Watched) -> None:
    watched.may_be_refused = True
    page.goto(f"{live}#/text?tokens=3,999999")
    expect(page.get_by_role("alert").first).to_contain_text("out of range")
    page.get_by_label("Model", exact=True).select_option("one-layer")
    expect(page.get_by_role("contentinfo")).to_contain_text("one-layer:")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_tab_accepts_what_the_model_predicts(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?text=def add(self, word):%0A    self")
    box = page.get_by_role("textbox", name="Text")
    box.focus()
    page.keyboard.press("Control+End")
    page.keyboard.type(".")
    expect(page).to_have_url(re.compile(r"self\.$"))
    settled(page)
    expect(page.get_by_role("button", name=re.compile("Tab adds .*%"))).to_be_enabled()
    before = page.locator("[role=option]").count()
    for more in (1, 2, 3):
        page.keyboard.press("Tab")
        expect(page.locator("[role=option]")).to_have_count(before + more)
        expect(box).to_be_focused()
    written = box.input_value()
    assert written.startswith("def add(self, word):\n    self.") and len(written) > 30
    # The way out, and one step back for all that was written.
    page.keyboard.press("Escape")
    expect(box).not_to_be_focused()
    page.go_back()
    expect(page.locator("[role=option]")).to_have_count(before)


def test_texts_that_were_tried_are_offered_again(page: Page, live: str) -> None:
    page.goto(live)
    settled(page)
    page.get_by_role("textbox", name="Text").fill("for name in names: name")
    expect(page.get_by_label("Example").locator("optgroup option")).to_have_count(2)
    page.reload()
    page.goto(f"{live}#/text?example=1")
    page.get_by_label("Example").select_option(label="for name in names: name")
    expect(page.get_by_role("listbox")).to_contain_text("names")
    page.get_by_label("Example").select_option(label="forget these")
    expect(page.get_by_label("Example").locator("optgroup")).to_have_count(0)


def test_a_text_that_the_model_wrote_is_offered_again(page: Page, live: str) -> None:
    page.goto(live)
    settled(page)
    box = page.get_by_role("textbox", name="Text")
    box.fill("while tall")
    for length in (1, 2):
        expect(page.get_by_role("button", name=re.compile("Tab adds .*%"))).to_be_enabled()
        before = box.input_value()
        box.press("Tab")
        expect(box).not_to_have_value(before)
        assert len(box.input_value()) >= len("while tall") + length
    written = " ".join(box.input_value().split())
    kept = page.get_by_label("Example").locator("optgroup option").first
    expect(kept).to_have_text(re.compile(f"^{re.escape(written[:20])}"))
    page.get_by_label("Example").select_option(label="forget these")


def test_several_heads_are_drawn_on_one_text(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?example=0&position=60")
    settled(page)
    for head in OTHERS[:2]:
        page.locator(f'[data-head="{head}"]').click(modifiers=["Control"])
    expect(page).to_have_url(re.compile(f"heads={OTHERS[0]},{OTHERS[1]}"))
    legend = page.get_by_role("list", name="Heads on this text").get_by_role("listitem")
    expect(legend).to_have_count(2)
    styles = [one.locator("svg line").get_attribute("stroke-dasharray") for one in legend.all()]
    hues = [one.locator("svg line").get_attribute("stroke") for one in legend.all()]
    assert len(set(styles)) == 2 == len(set(hues))
    drawn = page.get_by_role("listbox").locator("svg path[stroke]")
    assert {path.get_attribute("stroke") for path in drawn.all()} <= set(hues)
    page.get_by_role("button", name=f"Take {OTHERS[0]} off").click()
    expect(legend).to_have_count(1)


def test_places_lead_to_the_text(page: Page, live: str) -> None:
    page.goto(f"{live}#/head?head={INDUCTION}")
    part = page.get_by_role("region", name="Top contexts")
    part.scroll_into_view_if_needed()
    expect(part.locator("tbody tr").first).to_be_visible(timeout=120_000)
    part.get_by_role("radio", name="by logit effect").click()
    row = part.locator("tbody tr").first
    weight = row.locator("td").nth(1).inner_text()
    row.get_by_role("link", name="open").click()
    expect(page).to_have_url(re.compile(f"#/text.*head={INDUCTION}"))
    # The cell is open, and its weight is the one that the list states.
    details = page.locator("section[aria-label=Details]")
    expect(details).to_contain_text("weight")
    expect(details).to_contain_text(weight)


def test_embedding_and_logits_are_nodes(page: Page, live: str) -> None:
    page.goto(f"{live}#/composition")
    settled(page)
    graph = page.get_by_role("group", name="Composition graph")
    expect(graph.locator('[data-node="embed"]')).to_be_visible(timeout=60_000)
    expect(graph.locator('[data-node="logits"]')).to_be_visible()
    expect(graph.locator("image")).not_to_have_count(0)
    graph.locator('[data-node="embed"] rect.box').click()
    expect(page).to_have_url(re.compile("node=embed"))
    aside = page.get_by_role("complementary", name="Details")
    expect(aside.get_by_role("heading", name="The embedding")).to_be_visible()
    expect(page.get_by_text("which the link names")).to_have_count(0)
    aside.get_by_role("button", name=re.compile("embed→")).first.click()
    expect(page).to_have_url(re.compile("node=L"))


def test_a_csv_of_training_has_headers_with_their_units(page: Page, live: str) -> None:
    page.goto(f"{live}#/training")
    expect(page.get_by_role("slider").first).to_be_visible(timeout=180_000)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV", exact=True).first.click()
    header = next(csv.reader(io.StringIO(download.value.path().read_text())))
    assert header[:2] == ["step", "tokens"] and len(set(header)) == len(header)
    assert not [name for name in header if name.endswith("()") or name.strip() == ""]
