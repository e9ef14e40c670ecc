"""How the page reads: formulas are set, small pictures can be seen, nothing is cut on a phone."""

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, ViewportSize, expect
from tests.browser.conftest import Watched, sign_in
from tests.browser.heads import HEADS, INDUCTION, OTHERS
from tests.browser.test_live import settled, token
from tests.explorer.variants import two_copying_heads

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer
from pathsum.sources.named import BUNDLED

pytestmark = pytest.mark.browser

PHONE: ViewportSize = {"width": 390, "height": 844}


def story(page: Page):
    return page.get_by_role("region", name="What to see first")


def test_the_story_follows_the_token_that_is_clicked(page: Page, live: str) -> None:
    page.goto(f"{live}#/text")
    expect(story(page)).to_contain_text("This is induction")
    first = story(page).locator("p").inner_text()
    token(page, 30).click()
    expect(story(page).locator("p")).not_to_have_text(first)
    # The probability in the sentence is the one of that prediction.
    said = re.search(
        r"the model predicts\s+“.*?”\s+with\s+(?:< )?([\d.]+%)", story(page).inner_text()
    )
    assert said
    expect(token(page, 31)).to_have_attribute("title", re.compile(re.escape(said[1])))
    story(page).get_by_role("button", name="Back to the most informative prediction").click()
    expect(story(page).locator("p")).to_have_text(first)


@pytest.fixture(scope="module")
def two_heads() -> Iterator[ExplorerServer]:
    """The explorer of a model with MLPs in which two heads copy the same."""
    server = ExplorerServer(Explorer([two_copying_heads()], bundled=()), port=0).start()
    yield server
    server.close()


def test_the_story_tells_of_all_heads_that_copy_and_of_mlps(
    page: Page, context: BrowserContext, watched: Watched, two_heads: ExplorerServer
) -> None:
    watched.allowed += (two_heads.address,)
    sign_in(context, two_heads)
    page.goto(f"{two_heads.address}#/text?text=c a b d a b")
    told = story(page).locator("p")
    expect(told).to_contain_text(
        re.compile(
            r"This is induction:\s+2 heads attend mostly to\s+“b”, which followed “a” before"
        )
    )
    expect(told.locator("a.head").nth(0)).to_have_text(re.compile("L1H[01]"))
    one, both = re.findall(r"(?:keeps at least|would\s+drop to)\s+([\d.]+%)", told.inner_text())[:2]
    assert float(one[:-1]) > float(both[:-1])
    story(page).get_by_role("link", name="Switch all 2 heads off").click()
    expect(
        page.get_by_text(re.compile(rf"Without\s+L1H\d,\s*L1H\d.*{re.escape(both)}"))
    ).to_be_visible()


def test_other_views_open_where_the_story_is(page: Page, live: str) -> None:
    """In code, the repeat that gains most is not the one that heads copy."""
    page.goto(f"{live}#/text?example=1")
    expect(story(page)).to_contain_text("This is induction")
    page.get_by_role("link", name="Why", exact=True).click()
    expect(page).to_have_url(re.compile(r"[?&]position=71\b"))
    expect(page.locator("main")).to_contain_text(re.compile(r"after\s*word\s*at 71"))


def test_another_text_opens_at_its_own_story(page: Page, live: str) -> None:
    page.goto(f"{live}#/text")
    expect(story(page)).to_contain_text("This is induction")
    page.locator(f'[data-head="{OTHERS[0]}"]').hover()
    page.mouse.move(4, 4)
    page.goto(f"{live}#/text?text=Marlowe met Quentin. Marlowe met Quen")
    # One document: the hash alone changed.
    expect(page.get_by_role("listbox")).to_contain_text("Quentin")
    expect(story(page)).not_to_contain_text("man")
    settled(page)
    head = story(page).locator("a.head").first.inner_text()
    expect(page.locator("section.pattern h2")).to_contain_text(head)
    focused = page.locator("[role=option].focus").inner_text()
    expect(story(page).locator("p em").first).to_have_text(focused.strip())


@pytest.mark.parametrize(
    "view", ["composition?node=embed", f"head?head={INDUCTION}", "paths", "atlas"]
)
def test_formulas_are_set(page: Page, live: str, view: str) -> None:
    page.goto(f"{live}#/{view}")
    settled(page)
    page.get_by_role("button", name="formula", exact=True).click()
    main = page.locator("main")
    expect(main.locator("sub").first).to_be_visible()
    assert re.findall(r"\b\w+_[A-Z]\w*", main.inner_text()) == []


def test_claims_have_their_formulas_set(page: Page, live: str) -> None:
    for claim in ("zero-current", "one-copying"):
        page.goto(f"{live}#/paper?claim={claim}")
        expect(page.get_by_role("region", name="The figure of this claim")).to_be_visible()
        settled(page)
        assert re.findall(r"\bW_\w+", page.locator("main article, main").first.inner_text()) == []


def test_an_error_has_no_interval_below_zero(page: Page, live: str) -> None:
    page.goto(f"{live}#/paper?claim=paths")
    expect(page.locator("dd", has_text="95% interval 0 to")).to_be_visible()
    # The zone where the claim holds is wide enough to be seen.
    zone = page.locator("rect.zone.holds").first.bounding_box()
    assert zone is not None and zone["width"] > 80


# The share of a small picture that stands out from its ground, by the contrast of luminances.
SEEN = """
async (image) => {
  const canvas = new OffscreenCanvas(64, 64);
  const pen = canvas.getContext("2d");
  const loaded = new Image();
  loaded.src = image.getAttribute("href");
  await loaded.decode();
  pen.drawImage(loaded, 0, 0, 64, 64);
  const { data } = pen.getImageData(0, 0, 64, 64);
  const light = (i) => 0.2126 * data[i] + 0.7152 * data[i + 1] + 0.0722 * data[i + 2];
  // The upper right corner is masked, so it has the color of the ground.
  const ground = light(4 * 62);
  let seen = 0;
  for (let i = 0; i < data.length; i += 4) if (Math.abs(light(i) - ground) > 24) seen++;
  return seen / (data.length / 4);
}
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_patterns_in_the_composition_graph_can_be_seen(
    page: Page, live: str, theme: str, width: int
) -> None:
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{live}#/composition")
    settled(page)
    for head in HEADS:
        image = page.locator(f'[data-node="{head}"] image')
        expect(image).to_have_count(1)
        box = image.bounding_box()
        assert box is not None and box["width"] >= (50 if width > 1000 else 24)
        assert image.evaluate(SEEN) > 0.02, head
    # Kinds are written out.
    expect(page.locator("[data-node] text.word").first).to_be_visible()
    words = page.locator("[data-node] text.word").all_text_contents()
    assert not any("…" in word for word in words)


def test_the_waterfall_on_a_phone_keeps_words_and_bars_apart(page: Page, live: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{live}#/paths?example=0")
    settled(page)
    crossing = page.locator("g.row").evaluate_all(
        """rows => rows.flatMap((row) => {
          const label = row.querySelector(".label").getBoundingClientRect();
          const bar = row.querySelector(".bar").getBoundingClientRect();
          return label.right > bar.left && bar.right > label.left ? [row.textContent.trim()] : [];
        })"""
    )
    assert crossing == []


def test_the_graph_of_a_prediction_fits_a_phone_in_height(page: Page, live: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{live}#/why?example=0")
    settled(page)
    hidden = page.locator(".graph .scroll").evaluate("one => one.scrollHeight - one.clientHeight")
    assert hidden <= 1


@pytest.mark.parametrize("view", ["text", "why", "atlas", "composition", "paths", "training"])
def test_the_actions_of_a_view_take_one_line_of_a_phone(page: Page, live: str, view: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{live}#/{view}")
    settled(page)
    tops = page.locator(".actions .button").evaluate_all(
        "all => all.map((one) => Math.round(one.getBoundingClientRect().top))"
    )
    assert len(tops) >= 6 and len(set(tops)) == 1


def test_where_a_head_does_most_is_read_in_whole_lines_on_a_phone(page: Page, live: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{live}#/head?head={INDUCTION}")
    places = page.get_by_role("region", name="Top contexts")
    places.scroll_into_view_if_needed()
    expect(places.locator("tbody tr").first).to_be_visible(timeout=120_000)
    box = places.locator("td.text").first.bounding_box()
    assert box is not None and box["width"] >= 300


# Tokens at the start of a line: how far their letters are from the edge of the text.
INDENTED = """
(row) => [...row.querySelectorAll(".t")].flatMap((token) => {
  const node = token.firstChild, range = document.createRange();
  const letter = node.nodeValue.search(/\\S/);
  if (letter < 1) return [];
  range.setStart(node, letter), range.setEnd(node, letter + 1);
  const gap = range.getBoundingClientRect().left - row.getBoundingClientRect().left;
  // A space of the font is about eight pixels.
  return gap > 6 && gap < 14 ? [token.textContent] : [];
})
"""


def test_two_texts_can_be_saved_and_are_set_flush(page: Page, live: str) -> None:
    page.goto(f"{live}#/swap")
    settled(page)
    expect(page.locator("table tbody tr")).to_have_count(8)
    header = page.locator("main .header")
    for kind in ("CSV", "print"):
        expect(header.get_by_role("button", name=kind)).to_be_visible()
    with page.expect_download() as download:
        header.get_by_role("button", name="CSV").click()
    assert "clean with the part corrupted" in download.value.path().read_text()
    # A position can be chosen in the clean text only.
    for role, text in (("listbox", "Clean text"), ("group", "Corrupted text")):
        row = page.get_by_role(role, name=re.compile(text))
        assert row.evaluate(INDENTED) == []


def test_a_chosen_head_keeps_its_picture(page: Page, live: str) -> None:
    page.goto(f"{live}#/composition?node={INDUCTION}")
    settled(page)
    node = page.locator(f'[data-node="{INDUCTION}"]')
    expect(node.locator("image")).to_have_count(1)
    # Nothing that is filled lies over it.
    covering = node.evaluate(
        """node => [...node.querySelectorAll("image ~ *")].filter((one) =>
          one.tagName !== "text" && getComputedStyle(one).fill !== "none").length"""
    )
    assert covering == 0


def test_escape_closes_the_search_at_once(page: Page, live: str) -> None:
    page.goto(f"{live}#/atlas")
    settled(page)
    page.keyboard.press("/")
    page.keyboard.type("induction")
    expect(page.get_by_role("dialog").get_by_role("option").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("more", ["lines=1", f"heads={INDUCTION}"])
def test_arcs_over_the_first_line_are_not_cut(page: Page, live: str, more: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{live}#/text?example=1")
    settled(page)
    page.goto(f"{live}#/text?example=0&position=43&head={INDUCTION}&{more}")
    expect(page.get_by_role("listbox")).to_contain_text("lighthouse")
    expect(page.locator(".text .box svg path").first).to_be_visible()
    settled(page)
    box = page.locator(".text .box").bounding_box()
    highest = page.locator(".text .box svg path").evaluate_all(
        "all => Math.min(...all.filter((one) => !one.closest('defs'))"
        ".map((one) => one.getBoundingClientRect().top))"
    )
    assert box is not None and highest >= box["y"]


def test_evidence_is_aligned(page: Page, live: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{live}#/head?head={INDUCTION}")
    settled(page)
    item = page.locator("section[aria-label='Kind'] li").first
    lines = item.evaluate(
        """item => {
          const range = document.createRange();
          range.selectNodeContents(item.lastChild);
          return [...new Set([...range.getClientRects()].map((box) => Math.round(box.left)))];
        }"""
    )
    assert len(lines) == 1


def test_training_plays_from_its_first_snapshot(page: Page, live: str) -> None:
    page.goto(f"{live}#/training")
    settled(page)
    shown = page.locator("main output strong")
    last = shown.inner_text()
    page.get_by_role("button", name="play").click()
    expect(shown).not_to_have_text(last)
    page.get_by_role("button", name="pause").click()
    expect(page.get_by_role("button", name="play")).to_be_visible()


def test_training_draws_the_other_seeds(context: BrowserContext, tmp_path: Path) -> None:
    """Runs on the page with heads and tokens alike are dotted lines in the same plots."""
    shutil.copytree(BUNDLED / "two-layer", tmp_path / "seed-7")
    explorer = Explorer(["two-layer", str(tmp_path / "seed-7")])
    with closing(ExplorerServer(explorer, port=0).start()) as server:
        sign_in(context, server)
        page = context.new_page()
        page.goto(f"{server.address}#/training")
        expect(page.get_by_text("Dotted: seed-7.")).to_be_visible(timeout=120_000)
        lines = page.locator("path.curve", has=page.locator("title", has_text="seed-7"))
        # The loss, both scores of heads, and the smaller curves.
        assert lines.count() >= 4


def test_a_link_holds_that_no_head_is_chosen(page: Page, live: str) -> None:
    page.goto(f"{live}#/text")
    settled(page)
    page.get_by_role("button", name="all heads").click()
    expect(page.get_by_role("button", name="all heads")).to_have_attribute("aria-pressed", "true")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    settled(page)
    expect(page.get_by_role("button", name="all heads")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("status").filter(has_text="which the link names")).to_have_count(0)


def test_a_model_without_heads_shows_predictions_alone(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?model=zero-layer")
    expect(page.get_by_text("zero-layer has no heads")).to_be_visible()
    expect(page.get_by_role("region", name="Details")).to_contain_text("predicts")
    expect(page.get_by_role("region", name="Heads")).to_have_count(0)
    expect(page.get_by_role("img", name="attention")).to_have_count(0)
    page.goto(f"{live}#/why?model=zero-layer")
    expect(page.get_by_role("region", name="Circuit")).to_be_visible()
    expect(page.get_by_role("region", name="Switched off")).to_have_count(0)


def test_an_explanation_that_was_closed_opens_again(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?example=0")
    story = page.get_by_role("region", name="What to see first")
    story.get_by_role("button", name="Hide this").click()
    expect(story).to_have_count(0)
    page.get_by_role("button", name="show the explanation").click()
    expect(story).to_be_visible()
    expect(page).not_to_have_url(re.compile("story="))


def test_heads_are_ranked_by_their_effect_on_the_prediction(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?example=0")
    rows = page.get_by_role("region", name="Heads").locator("tbody tr")
    expect(rows.first).to_contain_text(INDUCTION)
    expect(rows.first).to_contain_text("+13")


def test_places_are_in_prose_unless_all_text_is_asked_for(page: Page, live: str) -> None:
    page.goto(f"{live}#/head?head=L1H0")
    panel = page.get_by_role("region", name="Top contexts")
    expect(panel).to_contain_text("prose in held-out text")
    panel.get_by_role("radio", name="all text").click()
    expect(panel).not_to_contain_text("prose in held-out text")
    expect(panel).to_contain_text("sequences of held-out text")
    expect(page).to_have_url(re.compile("context=all"))


def test_kinds_say_how_many_heads_chance_would_give(page: Page, live: str) -> None:
    page.goto(f"{live}#/atlas")
    kinds = page.locator("dl.kinds")
    expect(kinds).to_contain_text("random heads would give at most 0.")
    named = kinds.locator("dt").all_inner_texts()
    kinds_named = {name.split("\n")[-1].strip() for name in named} - {"mixed", "unknown"}
    assert kinds.get_by_text("random heads would give").count() == len(kinds_named)
    # Each kind has the picture of its pattern.
    assert kinds.locator("dt svg").count() >= 3
