"""The report opened from disk: the same page, with what it holds and words about the rest."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.browser.heads import EDGE, INDUCTION, PREVIOUS
from tests.browser.test_live import VIEWS, settled

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens(page: Page, report_file: str, view: str, pictures: Path) -> None:
    page.goto(f"{report_file}#/{view.lower()}")
    expect(page.get_by_role("heading").first).to_be_visible()
    settled(page)
    page.screenshot(path=pictures / f"report-{view.lower()}.png")


def test_texts_heads_edges_and_claims_are_in_it(page: Page, report_file: str) -> None:
    page.goto(f"{report_file}#/text?e=4&h={INDUCTION}&t=40&w=effect")
    expect(page.locator("section[aria-label=Details]")).to_contain_text("position 40")
    page.goto(f"{report_file}#/head?h={INDUCTION}")
    expect(page.get_by_text("induction").first).to_be_visible()
    page.goto(f"{report_file}#/circuit?edge={EDGE}")
    expect(page.get_by_text(f"brought by {PREVIOUS}")).to_be_visible()
    page.goto(f"{report_file}#/paper?claim=two-mechanism")
    expect(page.get_by_text("takes away").first).to_be_visible()


def test_it_opens_on_its_story_and_holds_the_graph(page: Page, report_file: str) -> None:
    page.goto(report_file)
    story = page.get_by_role("region", name="What to see first")
    expect(story).to_contain_text(re.compile(r"without L\dH\d it would look there with"))
    story.get_by_role("link", name="See the whole circuit").click()
    graph = page.get_by_role("group", name="The circuit of this prediction")
    expect(graph.get_by_role("button", name=re.compile(r"key: \+"))).not_to_have_count(0)
    # A report holds no runs with something off, so it offers none.
    expect(page.get_by_role("region", name="Switched off")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("^Cut|switch off"))).to_have_count(0)


def test_what_it_does_not_hold_it_says(page: Page, report_file: str) -> None:
    page.goto(f"{report_file}#/text?x=another%20text")
    expect(page.get_by_role("alert").first).to_contain_text("pathsum explore")


def test_what_is_seen_can_be_saved(page: Page, report_file: str) -> None:
    page.goto(f"{report_file}#/text?e=4&h={INDUCTION}")
    with page.expect_download() as started:
        page.get_by_role("button", name="CSV", exact=True).click()
    assert re.match(rb"\W*destination", Path(started.value.path()).read_bytes())


def test_both_sides_of_a_comparison_are_in_it(page: Page, report_file: str) -> None:
    page.goto(f"{report_file}#/compare")
    settled(page)
    for model in ("two-layer", "one-layer"):
        heading = page.get_by_role("heading", name=re.compile(rf"L\dH\d of {model}"))
        expect(heading).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Attention of L"))).to_have_count(2)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_it_helps(page: Page, report_file: str) -> None:
    page.goto(f"{report_file}#/circuit")
    page.get_by_role("button", name="how to read it").click()
    expect(page.get_by_role("dialog")).to_contain_text("K, dotted")
