"""The report opened from disk: the same page, with what it holds and words about the rest."""

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page, expect
from tests.browser.heads import EDGE, INDUCTION, PREVIOUS
from tests.browser.test_layout import WIDTHS, faults
from tests.browser.test_live import VIEWS, settled

from pathsum.sources.named import BUNDLED

pytestmark = pytest.mark.browser


# What each view cannot be without: an element, and words that it shows.
ESSENTIALS = {
    "story": ("section[aria-label='The circuit of this prediction']", "moved"),
    "text": ("section[aria-label=Details]", "predicts"),
    "why": ("section[aria-label=Circuit]", "moved"),
    "atlas": ("section[aria-label='Table of scores']", "induction"),
    "composition": ("main", "edges"),
    "paths": ("section[aria-label=Waterfall]", "direct"),
    "lens": ("section[aria-label='This cell']", "reads"),
    "training": ("main", "step"),
    "paper": ("main", "holds"),
    "compare": ("main", "Matched heads"),
}
FIELDS = "main textarea, main input:not([type=checkbox], [type=range], [type=radio])"


def held(address: str) -> list[str]:
    """The views that a report says it holds."""
    text = Path(unquote(urlsplit(address).path)).read_text(encoding="utf-8")
    found = re.search(r'"title":"[^"]*","views":(\[[^]]*\])', text)
    assert found is not None
    return json.loads(found[1])


def test_it_has_the_tabs_that_have_something_to_show(page: Page, report_file: str) -> None:
    page.goto(report_file)
    settled(page)
    tabs = page.get_by_role("navigation", name="Views").get_by_role("link").all_inner_texts()
    views = [view for view in held(report_file) if view != "head"]
    sections: list[str] = []
    for tab in tabs:
        page.get_by_role("navigation", name="Views").get_by_role("link", name=tab).click()
        inside = page.get_by_role("navigation", name="Sections").get_by_role("link")
        sections += inside.all_inner_texts() or [tab]
    assert sorted(section.lower() for section in sections) == sorted(views)
    assert {"story", "text", "why", "atlas", "composition", "paths", "paper", "compare"} <= {*views}
    for view in {view.lower() for view in VIEWS} - {*views}:
        page.goto(f"{report_file}#/{view}")
        expect(
            page.get_by_role("status").filter(has_text="does not include the view")
        ).to_be_visible()


@pytest.mark.parametrize("view", ESSENTIALS)
def test_every_view_shows_something(
    page: Page, report_file: str, view: str, pictures: Path
) -> None:
    if view not in held(report_file):
        pytest.skip(f"the model has nothing for {view}")
    page.goto(f"{report_file}#/{view}")
    settled(page)
    place, words = ESSENTIALS[view]
    expect(page.locator(place).first).to_contain_text(re.compile(words, re.IGNORECASE))
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_text("Not in this report")).to_have_count(0)
    page.screenshot(path=pictures / f"report-{view}.png")


@pytest.mark.parametrize("view", ["text", "why", "paths"])
def test_nothing_looks_as_if_it_could_be_edited(page: Page, recorded_file: str, view: str) -> None:
    page.goto(f"{recorded_file}#/{view}")
    settled(page)
    expect(page.locator(FIELDS)).to_have_count(0)


@pytest.mark.parametrize("view", ["why", "paths"])
def test_every_prediction_of_the_first_text_is_explained(
    page: Page, report_file: str, view: str
) -> None:
    page.goto(f"{report_file}#/{view}?example=0")
    settled(page)
    tokens = page.get_by_role("option")
    expect(page.locator("[role=option].mute")).to_have_count(0)
    for position in range(0, tokens.count(), 7):
        page.goto(f"{report_file}#/{view}?example=0&position={position}")
        settled(page)
        expect(page.get_by_role("alert")).to_have_count(0)


def test_predictions_without_an_explanation_are_marked(page: Page, recorded_file: str) -> None:
    page.goto(f"{recorded_file}#/why?example=1")
    settled(page)
    mute = page.locator("[role=option].mute")
    assert mute.count() > 10
    before = page.url
    mute.nth(3).click(force=True)  # it says that it is disabled
    assert page.url == before
    expect(page.get_by_text("in italics are not in this report")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("view", ["text", "why", "paths", "atlas", "composition", "paper"])
def test_its_layout(page: Page, report_file: str, view: str) -> None:
    page.goto(f"{report_file}#/{view}")
    found: dict[int, list[str]] = {}
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        settled(page)
        page.wait_for_timeout(150)
        if wrong := faults(page):
            found[width] = wrong
    assert found == {}


def test_texts_heads_edges_and_claims_are_in_it(page: Page, report_file: str) -> None:
    page.goto(f"{report_file}#/text?example=4&head={INDUCTION}&position=40&weighting=effect")
    expect(page.locator("section[aria-label=Details]")).to_contain_text("position 40")
    page.goto(f"{report_file}#/head?head={INDUCTION}")
    expect(page.locator("main").get_by_text("induction").first).to_be_visible()
    page.goto(f"{report_file}#/composition?edge={EDGE}")
    expect(page.get_by_text(f"brought by {PREVIOUS}")).to_be_visible()
    page.goto(f"{report_file}#/paper?claim=two-mechanism")
    expect(page.get_by_text("removes").first).to_be_visible()


def test_its_text_has_a_story_and_the_graph(page: Page, recorded_file: str) -> None:
    page.goto(f"{recorded_file}#/text")
    story = page.get_by_role("region", name="What to see first")
    expect(story).to_contain_text(re.compile(r"Without L\dH\d, its attention\s+there would be"))
    story.get_by_role("link", name="See the whole circuit").click()
    graph = page.get_by_role("group", name="The circuit of this prediction")
    expect(graph.get_by_role("button", name=re.compile(r"key: \+"))).not_to_have_count(0)
    # A report holds no runs with something off, so it offers none.
    expect(page.get_by_role("region", name="Switched off")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("^Cut|switch off"))).to_have_count(0)


def test_what_it_does_not_hold_it_says(page: Page, recorded_file: str) -> None:
    page.goto(f"{recorded_file}#/text?text=another%20text")
    expect(page.get_by_role("alert").first).to_contain_text("pathsum explore")


def test_a_small_model_runs_in_the_page(page: Page, report_file: str) -> None:
    page.context.set_offline(True)
    page.goto(f"{report_file}#/story")
    main = page.get_by_role("main")
    expect(main).to_contain_text("99.6%")
    page.get_by_role("textbox", name="Text").fill("Mrs. Kovalenko met Mr. Okafor. Mrs. Koval")
    expect(main).to_contain_text(re.compile(r"en\s*9\d%"))
    page.get_by_role("switch").first.click()
    expect(page).to_have_url(re.compile("off=L"))
    for view in ("text", "why", "paths"):
        page.goto(f"{report_file}#/{view}?text=One two three. One two&off={PREVIOUS}")
        settled(page)
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_text("Not in this report")).to_have_count(0)


def test_a_step_of_the_training_leads_to_no_dead_end(page: Page, report_file: str) -> None:
    page.goto(f"{report_file}#/training?step=441&text=One two three")
    settled(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    for view in ("story", "text", "why", "atlas", "composition", "paths", "paper"):
        page.goto(f"{report_file}#/{view}?step=441")
        settled(page)
        expect(page).not_to_have_url(re.compile("step="))
        expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("width", [1280, 390])
def test_snapshots_are_scrubbed_on_the_text_of_the_story(
    page: Page, report_file: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"{report_file}#/training")
    settled(page)
    page.get_by_role("radio", name="your text").click()
    prediction = page.locator(".prediction")
    scrubber = page.get_by_role("slider", name="step")
    steps = int(scrubber.get_attribute("max") or 0) + 1
    assert steps == len(list((BUNDLED / "two-layer" / "snapshots").iterdir()))
    seen: list[str] = []
    some = sorted({*range(0, steps, 4), steps - 1})
    for index in some:
        scrubber.fill(str(index))
        expect(page.locator("main output")).to_contain_text(f"snapshot {index + 1} of {steps}")
        page.wait_for_timeout(300)  # a slider that moves asks nothing
        settled(page)
        expect(page.get_by_role("img", name=re.compile("Attention of L1H0"))).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
        seen.append(prediction.locator("strong").inner_text())
    assert seen[0].startswith("0.0") and seen[-1] == "99.6%" and len(set(seen)) > len(some) // 2


def test_what_is_seen_can_be_saved(page: Page, report_file: str) -> None:
    page.goto(f"{report_file}#/text?example=4&head={INDUCTION}")
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
    page.goto(f"{report_file}#/composition")
    page.get_by_role("button", name="how to read it").click()
    expect(page.get_by_role("dialog")).to_contain_text("K, dotted")
