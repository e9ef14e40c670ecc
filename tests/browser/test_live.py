"""The explorer in Chromium: click, type, keys, deep links, export, and a server that goes."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from tests.browser.conftest import PATIENCE_MS, Watched
from tests.browser.heads import EDGE, HEADS, INDUCTION, PREVIOUS
from tests.explorer.variants import hostile

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer
from pathsum.model import Config, random_model

pytestmark = pytest.mark.browser

VIEWS = (
    "Story",
    "Text",
    "Why",
    "Atlas",
    "Composition",
    "Paths",
    "Lens",
    "Training",
    "Paper",
    "Compare",
    "Models",
)


# What is done when the pointer comes over an element, 40 times: pictures made of numbers, pictures
# copied to the screen, and elements whose attributes change.
HOVERS = """async (selector) => {
  const all = [...document.querySelectorAll(selector)], pen = CanvasRenderingContext2D.prototype;
  const work = { made: 0, copied: 0, changed: new Set() };
  const { putImageData, drawImage } = pen;
  pen.putImageData = function (...args) { work.made++; return putImageData.apply(this, args); };
  pen.drawImage = function (...args) { work.copied++; return drawImage.apply(this, args); };
  const seen = new MutationObserver((all) => all.forEach((one) => work.changed.add(one.target)));
  seen.observe(document.querySelector("main"), { attributes: true, subtree: true });
  const most = { made: 0, copied: 0, changed: 0 };
  for (let i = 0; i < 40; i++) {
    work.made = work.copied = 0;
    work.changed.clear();
    const over = new PointerEvent("pointerover", { bubbles: true, composed: true });
    all[(17 * i + 5) % all.length].dispatchEvent(over);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    most.made = Math.max(most.made, work.made);
    most.copied = Math.max(most.copied, work.copied);
    most.changed = Math.max(most.changed, work.changed.size);
  }
  seen.disconnect();
  Object.assign(pen, { putImageData, drawImage });
  return most;
}"""


def settled(page: Page) -> None:
    """Wait until the view has its answers: nothing says that it is loading, nothing went wrong."""
    page.wait_for_function(
        "() => document.querySelector('main')?.textContent.trim().length > 40"
        " && !document.querySelector('main [aria-busy=true], main .loading')",
        timeout=2 * PATIENCE_MS,
    )


def token(page: Page, position: int):
    return page.locator(f'[role=option][data-i="{position}"]')


def probe(page: Page, live: str, more: str = "") -> None:
    """The random tokens shown twice."""
    page.goto(f"{live}#/text?example=4{more}")
    expect(page.get_by_role("listbox")).to_be_visible()
    expect(page.locator("section[aria-label=Details]")).to_contain_text("predicts")
    # The story moves the text down when it comes, and a click in that moment meets nothing.
    settled(page)


def test_it_says_what_it_shows(page: Page, live: str, pictures: Path) -> None:
    page.goto(f"{live}#/text")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Where each head attends")
    expect(page.locator("section[aria-label=Details]")).to_contain_text("predicts")
    expect(page.get_by_text(re.compile(r"2 × \d+ heads, "))).to_be_visible()
    expect(
        page.locator("footer").get_by_text(re.compile(r"reconstruction error (0|\d+e[-−])"))
    ).to_be_visible()
    page.screenshot(path=pictures / "text.png")


SECTION_OF = dict.fromkeys(("Text", "Why", "Paths", "Lens"), "Story") | dict.fromkeys(
    ("Atlas", "Composition", "Compare"), "Heads"
)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_by_its_tab(page: Page, live: str, view: str, pictures: Path) -> None:
    page.goto(f"{live}#/{'atlas' if view == 'Text' else 'text'}")
    tabs = page.get_by_role("navigation", name="Views")
    if tab := SECTION_OF.get(view):
        tabs.get_by_role("link", name=tab).click()
        tabs = page.get_by_role("navigation", name="Sections")
    tabs.get_by_role("link", name=view, exact=True).click()
    expect(page).to_have_url(re.compile(f"#/{view.lower()}"))
    expect(page.get_by_role("heading").first).to_be_visible()
    settled(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    page.screenshot(path=pictures / f"view-{view.lower()}.png")


def test_locks_are_independent_and_undone_by_the_back_button(page: Page, live: str) -> None:
    probe(page, live)
    token(page, 40).click()
    expect(page).to_have_url(re.compile("position=40"))
    page.locator(f'[data-head="{INDUCTION}"]').click()
    expect(page).to_have_url(re.compile(f"head={INDUCTION}"))
    expect(page).to_have_url(re.compile("position=40"))
    expect(page.locator(f'[data-head="{INDUCTION}"]')).to_have_attribute("aria-pressed", "true")
    page.go_back()
    expect(page).not_to_have_url(re.compile(f"head={INDUCTION}"))
    expect(page).to_have_url(re.compile("position=40"))
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("position=40"))


def test_a_deep_link_shows_what_it_says(page: Page, live: str) -> None:
    probe(page, live, f"&head={INDUCTION}&position=40&weighting=effect")
    expect(page.get_by_role("radio", name="logit effect")).to_have_attribute("aria-checked", "true")
    expect(page.locator(f'[data-head="{INDUCTION}"]')).to_have_attribute("aria-pressed", "true")
    expect(page.locator("section[aria-label=Details]")).to_contain_text("position 40")


def test_a_stale_link_is_no_error(page: Page, live: str, watched: Watched) -> None:
    watched.may_be_refused = True  # nobody knows a model called gone
    page.goto(
        f"{live}#/text?example=99&head=L7H7&position=4000&weighting=nothing&step=12&model=gone"
    )
    expect(page.get_by_role("heading", level=1)).to_contain_text("Where each head attends")
    page.goto(f"{live}#/no-such-view?text=1")
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()


def test_typing_a_text_runs_it(page: Page, live: str) -> None:
    page.goto(live)
    box = page.get_by_role("textbox").first
    box.fill("def add(self, word):\n    self.add(word)\n")
    expect(page.get_by_role("listbox")).to_contain_text("add")
    expect(page).to_have_url(re.compile("text=def"))
    expect(page.get_by_role("listbox")).to_have_attribute("aria-label", re.compile(r"1\d tokens"))


def test_the_matrix_stays_while_a_text_is_typed(page: Page, live: str) -> None:
    probe(page, live)
    matrix = page.locator("section.pattern canvas").first
    matrix.evaluate("each => { each.isTheOldOne = true }")
    for text in ("def one", "def one(two)", "class Other:\n    pass"):
        page.get_by_role("textbox").first.fill(text)
        expect(page).to_have_url(re.compile(f"text={text[:3]}"))
        expect(page.get_by_role("listbox")).to_contain_text(text.split()[0])
        expect(page.get_by_role("listbox")).not_to_contain_text("end5vel")
        assert matrix.evaluate("each => each.isTheOldOne")


def test_a_focus_on_a_long_text_does_little_work(
    context: BrowserContext, watched: Watched, pictures: Path
) -> None:
    """1,024 tokens on 144 heads: a focus makes no picture anew but the one that it shows."""
    model = random_model(Config(12, 12, 96, 8, 300, 1024), seed=0)
    server = ExplorerServer(Explorer([model]), port=0).start()
    watched.allowed += (server.address,)
    try:
        page = context.new_page()
        watched.attach(page)
        ids = ",".join(str((37 * place) % 300) for place in range(1024))
        page.goto(f"{server.url}#/text?tokens={ids}")
        matrix = page.get_by_role("img", name=re.compile("from each destination"))
        expect(matrix).to_be_visible(timeout=4 * PATIENCE_MS)
        expect(page.locator("[data-head]")).to_have_count(144)
        settled(page)
        # The pictures of heads are made a few at a time.
        page.wait_for_timeout(1500)
        asked = len(watched.requests)
        token = page.evaluate(HOVERS, "[role=option]")
        # A focused token changes how bright the heads are, and which tokens are shaded.
        assert token["made"] == 0 and token["copied"] <= 144 and token["changed"] <= 1024 + 20
        head = page.evaluate(HOVERS, "[data-head]")
        assert head["made"] <= 1 and head["changed"] <= 1024 + 20
        sent = [url for url in watched.requests[asked:] if "/attention" in url or "/run" in url]
        assert sent == []
        # Pictures of heads are one canvas: a hundred would be painted one by one.
        assert page.locator("section[aria-label=Heads] canvas").count() == 1
        page.screenshot(path=pictures / "long.png")
        assert watched.errors == [] and watched.strangers() == []
    finally:
        server.close()


def test_a_long_text_is_cut_visibly(page: Page, live: str) -> None:
    page.goto(live)
    page.get_by_role("textbox").first.fill("self " * 400)
    expect(page.get_by_text("Truncated to the context")).to_be_visible()


def test_an_empty_text_is_no_error(page: Page, live: str) -> None:
    page.goto(live)
    page.get_by_role("textbox").first.fill("")
    expect(page.get_by_role("listbox")).to_have_attribute("aria-label", re.compile("1 token"))
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_keyboard_is_enough(page: Page, live: str) -> None:
    probe(page, live)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator("section[aria-label=Details]")).to_contain_text("position 1")
    page.keyboard.press("w")
    expect(page).to_have_url(re.compile("weighting=information"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("h")
    expect(page).to_have_url(re.compile("head=L"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("the token before, after")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    color = "getComputedStyle(document.querySelector('header')).backgroundColor"
    before = page.evaluate(color)
    page.keyboard.press("Shift+D")
    page.wait_for_function(f"{color} !== '{before}'")


@pytest.mark.parametrize("view", [*VIEWS, "Head"])
def test_every_view_says_how_to_read_it(page: Page, live: str, view: str) -> None:
    page.goto(f"{live}#/{view.lower()}")
    # The first screen has one row of buttons.
    page.get_by_role("button", name="help" if view == "Story" else "how to read it").click()
    dialog = page.get_by_role("dialog", name="How to read this view")
    expect(dialog.get_by_role("heading", name="To try")).to_be_visible()
    expect(dialog.get_by_role("heading", name="Keys")).to_be_visible()
    expect(dialog).to_contain_text("More in the guide")


def test_the_grid_rings_the_heads_of_the_story_and_names_kinds(page: Page, live: str) -> None:
    page.goto(f"{live}#/atlas?example=0")
    grid = page.locator("section[aria-label='Grid of heads']")
    ringed = grid.locator("button.ringed")
    expect(grid.locator(f'[data-head="{INDUCTION}"].ringed')).to_be_visible()
    expect(ringed).to_contain_text(["in the story"] * ringed.count())
    assert 1 < ringed.count() < len(HEADS)
    grid.get_by_label("each cell:").select_option("kind")
    expect(page).to_have_url(re.compile("score=kind"))
    expect(grid.locator(f'[data-head="{INDUCTION}"]')).to_contain_text("induction")
    expect(grid.locator(f'[data-head="{PREVIOUS}"]')).to_contain_text("previous token")


def test_the_papers_induction_scatter_is_ready(page: Page, live: str, pictures: Path) -> None:
    page.goto(f"{live}#/atlas")
    ready = page.get_by_label("Preset axes")
    ready.select_option(label="prefix matching and copying on data")
    expect(page).to_have_url(re.compile("x=prefix_matching"))
    ready.select_option(label="the paper's induction scatter")
    expect(page).to_have_url(re.compile("x=copying_weights&y=matching_through_previous"))
    plot = page.get_by_role("img", name=re.compile("matching through previous token up"))
    expect(plot).to_be_visible()
    # The induction head stands in the corner: nobody further right or higher.
    groups = plot.locator("g").filter(has=page.locator("circle"))
    places = {}
    for group in groups.all():
        dot = group.locator("circle")
        name = group.locator("text").text_content() if group.locator("text").count() else ""
        places[name] = (
            float(dot.get_attribute("cx") or "nan"),
            float(dot.get_attribute("cy") or "nan"),
        )
    assert places[INDUCTION] == (
        max(place[0] for place in places.values()),
        min(place[1] for place in places.values()),
    )
    page.screenshot(path=pictures / "scatter.png")


def test_every_tab_has_a_key(page: Page, live: str) -> None:
    page.goto(f"{live}#/compare")
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    links = page.get_by_role("navigation").get_by_role("link").all()
    told = [(link.get_attribute("title") or "", link.get_attribute("href") or "") for link in links]
    assert len(told) > 6
    for title, place in told:
        page.keyboard.press(title[title.rindex("(") + 1 : -1])
        expect(page).to_have_url(re.compile(re.escape(place.split("?")[0])))


@pytest.mark.parametrize(
    ("button", "begins"),
    [
        ("CSV", b"destination"),
        ("Save the pattern as PNG", b"\x89PNG"),
        ("Save the pattern as SVG", b"<"),
    ],
)
def test_what_is_seen_can_be_saved(page: Page, live: str, button: str, begins: bytes) -> None:
    probe(page, live, f"&head={INDUCTION}")
    with page.expect_download() as started:
        page.get_by_role("button", name=button, exact=True).click()
    saved = Path(started.value.path()).read_bytes()
    assert saved.lstrip(b"\xef\xbb\xbf").startswith(begins)
    assert started.value.suggested_filename.endswith(f".{button[-3:].lower()}")


def test_a_cell_of_the_matrix_shows_its_terms(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?example=4&head={INDUCTION}&cell=40.16")
    details = page.locator("section[aria-label=Details]")
    expect(details).to_contain_text(PREVIOUS)
    expect(details).to_contain_text("embed")


def test_the_head_page_looks_up_a_token(page: Page, live: str, pictures: Path) -> None:
    page.goto(f"{live}#/head?head={INDUCTION}")
    expect(page.locator("main").get_by_text("induction").first).to_be_visible()
    settled(page)
    page.screenshot(path=pictures / "head.png", full_page=True)


def test_an_edge_of_the_composition_graph_opens(page: Page, live: str, pictures: Path) -> None:
    page.goto(f"{live}#/composition?edge={EDGE}")
    expect(page.get_by_text(f"brought by {PREVIOUS}")).to_be_visible()
    page.screenshot(path=pictures / "edge.png")


def test_the_tour_tells_what_was_measured(page: Page, live: str, pictures: Path) -> None:
    page.goto(f"{live}#/paper?claim=two-mechanism")
    expect(page.get_by_text("removes").first).to_be_visible(timeout=4 * PATIENCE_MS)
    expect(
        page.get_by_text(re.compile(r"\d+ hold, \d+ partly, \d+ do(es)? not")).first
    ).to_be_visible()
    expect(page.get_by_text("holds if the share of the stripe")).to_be_visible()
    page.screenshot(path=pictures / "paper.png")


def test_two_models_are_compared(page: Page, live: str, pictures: Path) -> None:
    page.goto(f"{live}#/compare?other=one-layer")
    settled(page)
    expect(page.get_by_text(PREVIOUS).first).to_be_visible()
    page.screenshot(path=pictures / "compare.png")


def test_a_phone_can_read_it(context: BrowserContext, live: str, pictures: Path) -> None:
    page = context.new_page()
    page.set_viewport_size({"width": 390, "height": 844})
    probe(page, live, f"&head={INDUCTION}&position=40")
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.screenshot(path=pictures / "phone.png")
    assert wide <= 400


def test_dark_mode_follows_the_system(context: BrowserContext, live: str, pictures: Path) -> None:
    page = context.new_page()
    page.emulate_media(color_scheme="dark")
    probe(page, live, f"&head={INDUCTION}&position=40")
    ground = page.evaluate("getComputedStyle(document.querySelector('header')).backgroundColor")
    page.screenshot(path=pictures / "dark.png")
    assert max(map(int, re.findall(r"\d+", ground)[:3])) < 90


def test_tokens_that_spell_html_stay_text(context: BrowserContext, watched: Watched) -> None:
    server = ExplorerServer(Explorer([hostile()]), port=0).start()
    watched.allowed += (server.address,)
    try:
        page = context.new_page()
        watched.attach(page)
        page.on("dialog", lambda dialog: watched.errors.append(dialog.message))
        for view in ("text?example=0", "head?head=L1H0", "paths?example=0&position=1", "atlas"):
            page.goto(f"{server.url}#/{view}")
            settled(page)
        page.goto(f"{server.url}#/text?tokens=0,1,3,1")
        expect(page.get_by_role("listbox")).to_contain_text("<script>alert(1)</script>")
        assert page.locator("main img, main script").count() == 0
        assert watched.errors == [] and watched.strangers() == []
    finally:
        server.close()


def test_a_server_that_goes_is_said_and_forgiven(context: BrowserContext, live: str) -> None:
    page = context.new_page()
    probe(page, live)
    page.context.set_offline(True)
    page.get_by_role("textbox").first.fill("class Other:")
    expect(page.get_by_role("alert")).to_contain_text("Lost connection to the server")
    page.context.set_offline(False)
    expect(page.get_by_role("alert")).to_have_count(0, timeout=2 * PATIENCE_MS)
    expect(page.get_by_role("listbox")).to_contain_text("Other")


def test_the_page_opens_with_few_questions(page: Page, live: str, watched: Watched) -> None:
    """What is not seen is not asked for: the text that is shown, and no view that is not open."""
    page.goto(live)
    expect(page.get_by_role("listbox")).to_be_visible()
    settled(page)
    asked = {url.rsplit("/", 1)[-1] for url in watched.requests if "/api/" in url}
    assert asked <= {"model", "vocabulary", "run", "attention", "story", "why", "paths", "scores"}
