"""No dead ends: every view opens on something to see, and says what a link names in vain."""

import csv
import io
import re
from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import PATIENCE_MS
from tests.browser.heads import INDUCTION, OTHERS, STEP
from tests.browser.test_live import settled
from torch import Tensor

import pathsum as ps
from pathsum.claims.examples import examples

pytestmark = pytest.mark.browser


def own_pattern() -> Tensor:
    """The library's pattern of the induction head on the first example."""
    model = ps.load("two-layer")
    return model.trace(list(examples(model)[0].ids)).pattern(INDUCTION)[0]


VIEWS = ("text", "atlas", "composition", "paths", "training", "paper", "compare", "head")


@pytest.mark.parametrize("model", ["two-layer", "one-layer", "two-layer-seed-1"])
def test_compare_opens_on_a_pair_that_can_be_compared(page: Page, live: str, model: str) -> None:
    page.goto(f"{live}#/compare?model={model}")
    expect(page.get_by_role("heading", name="Both on the same text")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    offered = page.get_by_label("The other model").locator("option").all_inner_texts()
    size = ps.load(model).config.d_vocab
    for name in offered:
        assert ps.load(name.split(",")[0].split(" ")[0]).config.d_vocab == size


def test_two_heads_of_one_model(page: Page, live: str) -> None:
    page.goto(f"{live}#/compare?other=two-layer")
    heading = page.locator("h3", has_text="of two-layer")
    expect(heading).to_have_count(2)
    first, second = heading.all_inner_texts()
    assert first != second


def test_two_texts_show_which_heads_make_the_difference(page: Page, live: str) -> None:
    page.goto(f"{live}#/swap")
    expect(page.get_by_role("heading", name="Corrupted text")).to_be_visible()
    rows = page.locator("table tbody tr")
    expect(rows).to_have_count(8)
    before = rows.first.inner_text()
    page.get_by_role("radio", name="restore the corrupted run").click()
    expect(page).to_have_url(re.compile("patch=restored"))
    assert rows.first.inner_text() != before
    # A text of one's own, and a position chosen by a click.
    tokens = page.get_by_role("listbox", name="Clean text")
    tokens.get_by_role("option").nth(30).click()
    expect(page).to_have_url(re.compile("position=30"))
    # The text is one stop of the Tab key, and arrows move in it.
    tokens.focus()
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("position=31"))
    settled(page)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_training_of_a_model_without_snapshots_offers_one_with(page: Page, live: str) -> None:
    page.goto(f"{live}#/training?model=one-layer&head=L0H1&off=L0H1&selected=L0H1@3")
    expect(page.get_by_role("heading", name="one-layer has no snapshots")).to_be_visible()
    page.get_by_role("link", name="Show the training of two-layer", exact=True).click()
    expect(page.get_by_role("slider").first).to_be_visible(timeout=120_000)


def test_another_model_shows_the_same_text(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?text=for word in words: word&head={INDUCTION}&position=3")
    listbox = page.get_by_role("listbox")
    expect(listbox).to_contain_text("word in words")
    for model in ("one-layer", "two-layer-seed-1", "two-layer"):
        page.get_by_label("Model", exact=True).select_option(model)
        expect(page.get_by_role("contentinfo")).to_contain_text(f"{model}:")
        expect(listbox).to_contain_text("word in words")
        expect(page.get_by_role("alert")).to_have_count(0)


def test_an_unknown_head_or_edge_is_said(page: Page, live: str) -> None:
    for link, name in (
        ("text?head=L9H9", "L9H9"),
        ("head?head=L2H0", "L2H0"),
        ("composition?edge=L1H0→L0H0.k", "L1H0→L0H0.k"),
        ("composition?edge=garbage", "garbage"),
        ("why?off=L9H9@4", "L9H9@4"),
        ("why?off=L0H0&pattern=L8H8", "L8H8"),
        ("compare?pair=L7H7~L0H0", "L7H7"),
    ):
        page.goto(f"{live}#/{link}")
        expect(page.get_by_role("status").first).to_contain_text(f"two-layer has no “{name}”")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_text("which the link names")).to_have_count(0)


@pytest.mark.parametrize("view", VIEWS)
def test_a_step_of_training_is_said_in_every_view_with_a_way_back(
    page: Page, live: str, view: str
) -> None:
    page.goto(f"{live}#/{view}?step={STEP}")
    banner = page.get_by_role("banner")
    expect(banner).to_contain_text(f"at step {STEP}")
    banner.get_by_role("button", name="Back to the trained model").click()
    expect(banner).not_to_contain_text("at step")
    assert f"step={STEP}" not in page.url


def test_the_head_is_the_same_in_all_views(page: Page, live: str) -> None:
    head = next(one for one in OTHERS if one.startswith("L1"))
    page.goto(f"{live}#/head?head={head}")
    expect(page.get_by_role("combobox", name="Head").first).to_have_value(head)
    for key, view in enumerate(
        ("text", "why", "atlas", "composition", "paths", "training", "paper", "compare"), 1
    ):
        page.keyboard.press(str(key))
        expect(page).to_have_url(re.compile(f"#/{view}\\?.*head={head}"))
        if view == "text":
            expect(page.get_by_label(f"Pattern of {head}")).to_be_visible()
        if view == "training":
            expect(page.get_by_role("heading", name=f"{head} at step")).to_be_visible(
                timeout=10 * PATIENCE_MS
            )
    page.goto(f"{live}#/head?head={head}")
    expect(page.get_by_role("combobox", name="Head").first).to_have_value(head)


def test_d_locks_the_strongest_source(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?example=0&head={INDUCTION}&position=60")
    expect(page.get_by_role("listbox")).to_be_visible()
    settled(page)
    page.keyboard.press("d")
    expect(page).to_have_url(re.compile(r"cell=60\."))
    # The first position, where heads rest, is not a source worth locking.
    assert f"cell=60.{1 + int(own_pattern()[60, 1:61].argmax())}" in page.url


def test_a_csv_of_a_pattern_has_the_models_own_precision(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?example=0&head={INDUCTION}")
    expect(page.get_by_role("listbox")).to_be_visible()
    settled(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    pattern = own_pattern()
    for row in rows:
        own = float(pattern[int(row["destination"]), int(row["source"])])
        assert float(row["attention"]) == pytest.approx(own, rel=1e-6, abs=1e-12)


def test_the_view_can_be_reached_past_the_tabs(page: Page, live: str) -> None:
    page.goto(f"{live}#/atlas")
    settled(page)
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the view")
    expect(skip).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert page.url.endswith("#/atlas")


@pytest.mark.parametrize("view", VIEWS)
def test_headings_are_in_order(page: Page, live: str, view: str) -> None:
    page.goto(f"{live}#/{view}")
    settled(page)
    levels = page.locator("main :is(h1, h2, h3, h4)").evaluate_all(
        "all => all.map(one => Number(one.tagName[1]))"
    )
    assert levels[0] == 1
    for before, after in pairwise(levels):
        assert after <= before + 1, levels


def test_bytes_are_shown_as_bytes(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?text=日")
    listbox = page.get_by_role("listbox")
    expect(listbox).to_contain_text("⟨E6⟩")
    expect(listbox).to_contain_text("⟨A5⟩")
