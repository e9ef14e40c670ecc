"""The first minute, the graph of a prediction, live ablation, and the ways between views."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from tests.browser.conftest import PATIENCE_MS, Watched
from tests.browser.heads import INDUCTION, PREVIOUS
from tests.browser.test_live import settled

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer

pytestmark = pytest.mark.browser

SENTENCE = re.compile(
    r"attends to.*because\s+(L\dH\d).*Without \1, its attention\s+there would be\s.*%", re.DOTALL
)


def graph(page: Page):
    return page.get_by_role("group", name="The circuit of this prediction")


def test_the_text_opens_on_a_story(page: Page, live: str, pictures: Path) -> None:
    page.goto(f"{live}#/text")
    story = page.get_by_role("region", name="What to see first")
    expect(story).to_contain_text(SENTENCE)
    expect(story).to_contain_text(re.compile(rf"This is\s+induction:\s+{INDUCTION}\s+attends to"))
    expect(story.get_by_role("listitem")).to_have_count(3)
    # The cell that the sentence is about is open, and the head is the one that does most there.
    expect(page.locator("section[aria-label=Details]")).to_contain_text("Score of this cell in")
    head = story.locator("a.head").first.inner_text()
    expect(page.locator("section.pattern h2")).to_contain_text(head)
    page.screenshot(path=pictures / "landing.png")
    said = re.search(r"would\s+drop to\s+([\d.]+%)", story.inner_text())
    assert said
    story.get_by_role("link", name=re.compile("Switch L")).click()
    # Switching the head off gives the number that the sentence says.
    predictions = page.get_by_role("region", name="Predictions before and after")
    expect(predictions).to_contain_text(f"→ {said[1]}")


def test_the_graph_opens_on_what_the_story_tells(page: Page, live: str) -> None:
    """One prediction has one account: the sentence is the same in both views."""
    page.goto(f"{live}#/text")
    story = page.get_by_role("region", name="What to see first").locator("p").first
    told = re.search(r"the model predicts\s+“(.+?)”", story.inner_text())
    assert told
    sentence = story.inner_text()
    page.goto(f"{live}#/why")
    expect(page.locator("p.sentence")).to_contain_text(f"predicts “{told[1]}” with")
    assert page.locator("p.sentence").inner_text().strip() == sentence.strip()


@pytest.mark.parametrize("width", [390, 820, 1280, 2560])
def test_the_circuit_fits_its_panel_with_positions_as_pins(
    page: Page, live: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{live}#/why?example=0")
    expect(graph(page)).to_be_visible()
    settled(page)
    room = page.locator("section[aria-label=Circuit] .scroll")
    assert room.evaluate("room => room.scrollWidth - room.clientWidth") <= 1
    pins = graph(page).locator(".node.pin")
    assert pins.count() >= 2
    # A pin is at the foot of its token, and has no words of its own.
    for pin, token in (("pos@0@12", "embed@12"),):
        at, above = (graph(page).locator(f"[data-node='{name}'] .box") for name in (pin, token))
        foot, box = at.bounding_box(), above.bounding_box()
        assert foot and box and foot["y"] > box["y"] + box["height"] / 2
        assert foot["width"] < box["width"]


def test_a_graph_has_numbers_and_edges_that_can_be_cut(
    page: Page, live: str, pictures: Path
) -> None:
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "/api/without" in one.url else None)
    page.goto(f"{live}#/why?example=0")
    expect(page.get_by_label("Legend")).to_contain_text("written into a key")
    edges = graph(page).get_by_role("button", name=re.compile(r"L\dH\d at .*key: \+.*costs"))
    key = edges.first
    key.focus()
    details = page.locator("section[aria-label=Details]")
    for words in ("contribution to the score", "share of the prediction", "drop if it is cut"):
        expect(details).to_contain_text(words)
    expect(details).to_contain_text("Explains the cell")
    lost = re.search(r"drop if it is cut, logits\s*\+([\d.]+)", details.inner_text())
    # A click selects; the mark on the edge cuts it.
    key.press("Enter")
    expect(page).not_to_have_url(re.compile("off=L"))
    graph(page).get_by_role("button", name="Cut this edge").press("Enter")
    expect(key).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile("off=L"))
    logit = page.get_by_role("region", name="Logit before and after")
    row = logit.get_by_role("row", name=re.compile("together"))
    expect(row).to_be_visible()
    before, after = (float(text) for text in re.findall(r"\+([\d.]+)", row.inner_text())[:2])
    assert lost and abs(before - after - float(lost[1])) < 0.02
    expect(page.get_by_role("region", name="Patterns before and after")).to_be_visible()
    page.screenshot(path=pictures / "why.png", full_page=True)
    # Quick changes are one question.
    asked.clear()
    page.evaluate(
        """() => ["L0H0", "L0H1", "L0H2"].forEach((head) =>
          document.querySelector(`[data-head="${head}"]`).click())"""
    )
    expect(page.get_by_role("button", name="Put L0H2 back")).to_be_visible()
    expect(page).to_have_url(re.compile("L0H0,L0H1,L0H2"))
    page.wait_for_timeout(1000)
    assert len(asked) == 1
    page.get_by_role("button", name="all on").click()
    expect(page.get_by_role("region", name="Patterns before and after")).to_have_count(0)


def test_pointing_at_edges_moves_nothing_and_the_list_can_cut(page: Page, live: str) -> None:
    page.goto(f"{live}#/why?example=0")
    node = graph(page).get_by_role("button", name=re.compile(rf"^{INDUCTION} at")).first
    before = node.bounding_box()
    edges = page.locator("svg .edge .reach")
    for at in range(min(6, edges.count())):
        edges.nth(at).dispatch_event("pointerenter")
        edges.nth(at).hover(force=True)
        assert node.bounding_box() == before
    page.mouse.move(5, 5)
    # Pointing at a row of the list lights its edge, and the list stays.
    details = page.locator("section[aria-label=Details]")
    scissors = details.get_by_role("button", name=re.compile("^Cut ")).first
    cut = scissors.get_attribute("aria-label") or ""
    scissors.hover()
    scissors.click()
    expect(page).to_have_url(re.compile("off="))
    expect(details.get_by_role("button", name=cut.replace("Cut", "Put back"))).to_be_visible()
    # The headline says what that did, and takes it back.
    headline = page.locator("p.without")
    expect(headline).to_contain_text(re.compile(r"has\s+[\d.]+% instead of [\d.]+%, rank\s+\d"))
    headline.get_by_role("button", name="put back").click()
    expect(headline).to_have_count(0)


def test_an_edge_that_is_off_everywhere_is_drawn_cut(page: Page, live: str) -> None:
    page.goto(f"{live}#/why?example=0&off={PREVIOUS}→{INDUCTION}.k")
    cut = graph(page).locator(".edge[aria-pressed=true]")
    expect(cut.first).to_be_visible()
    names = cut.evaluate_all("edges => edges.map((each) => each.getAttribute('aria-label'))")
    assert all(name.startswith(PREVIOUS) and INDUCTION in name for name in names), names


def test_a_click_on_a_token_shows_its_predictions(page: Page, live: str) -> None:
    page.goto(f"{live}#/text")
    details = page.locator("section[aria-label=Details]")
    expect(details).to_contain_text("Score of this cell in")
    page.get_by_role("listbox").get_by_role("option").nth(25).click()
    expect(details).to_contain_text(re.compile(r"position 25\s+locked\s+predicts"))
    expect(details).not_to_contain_text("Score of this cell in")


def test_a_node_opens_and_leads_on(page: Page, live: str) -> None:
    page.goto(f"{live}#/why?example=0")
    more = graph(page).get_by_role("button", name=re.compile("smaller input")).first
    expect(more).to_be_visible()
    count = page.locator("svg .edge").count()
    more.press("Enter")
    expect(page).to_have_url(re.compile("expanded="))
    page.wait_for_function(f"document.querySelectorAll('svg .edge').length > {count}")
    graph(page).locator(f"[data-node^='{INDUCTION}@']").first.press("Enter")
    details = page.locator("section[aria-label=Details]")
    expect(details).to_contain_text("omitted")
    details.get_by_role("link", name=re.compile("@")).first.click()
    expect(page).to_have_url(re.compile(rf"#/text\?.*head={INDUCTION}.*cell=\d+\.\d+"))
    expect(page.locator("section[aria-label=Details]")).to_contain_text("Score of this cell")
    page.get_by_role("link", name="the circuit it is part of").click()
    expect(page).to_have_url(re.compile("#/why"))


def test_rows_of_paths_say_why_the_head_looked_there(page: Page, live: str) -> None:
    page.goto(f"{live}#/paths?example=0")
    waterfall = page.get_by_role("region", name="Waterfall")
    expect(waterfall).to_contain_text(
        re.compile(rf"{INDUCTION} ← .*@\d+, attends there because of L0H\d \(K\)")
    )
    expect(waterfall).to_contain_text("near zero")
    expect(waterfall).to_contain_text("above the mean of all tokens")
    page.goto(f"{live}#/paths?example=0&versus=5")
    for where in ("Waterfall", "The chosen path"):
        expect(page.get_by_role("region", name=where)).to_contain_text("logit difference")


def test_composition_leads_to_a_text(page: Page, live: str) -> None:
    page.goto(f"{live}#/composition?node={INDUCTION}")
    expect(page.get_by_role("img", name=re.compile(f"Attention of {INDUCTION}"))).to_be_visible()
    page.get_by_role("link", name=f"{INDUCTION} on this text").click()
    expect(page).to_have_url(re.compile(rf"#/text\?.*head={INDUCTION}"))


def test_search_finds_kinds_of_heads(context: BrowserContext, watched: Watched) -> None:
    server = ExplorerServer(Explorer(["hand-built-induction"], bundled=()), port=0).start()
    watched.allowed += (server.address,)
    try:
        page = context.new_page()
        watched.attach(page)
        page.goto(server.url)
        expect(page.get_by_role("navigation", name="Views")).to_be_visible()
        settled(page)
        page.keyboard.press("/")
        page.get_by_role("combobox", name="Search").fill("induction")
        # The atlas is computed first.
        found = page.get_by_role("option", name=re.compile("L1H0.*induction")).first
        expect(found).to_be_visible(timeout=4 * PATIENCE_MS)
        found.click()
        expect(page).to_have_url(re.compile("#/head.*head=L1H0"))
        assert watched.errors == [] and watched.strangers() == []
    finally:
        server.close()


def test_contrast_makes_diffuse_attention_visible(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?example=0&head={INDUCTION}")
    matrix = page.locator("section.pattern canvas").first
    expect(matrix).to_be_visible()
    settled(page)
    # How much of the matrix is not paper.
    ink = """(canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let dark = 0;
      for (let i = 0; i < data.length; i += 4) if (data[i + 1] < 235) dark++;
      return dark;
    }"""
    linear = matrix.evaluate(ink)
    for choice, name in (("√", "sqrt"), ("per row", "row")):
        page.get_by_role("radio", name=choice, exact=True).click()
        expect(page).to_have_url(re.compile(f"contrast={name}"))
        page.wait_for_function(
            f"(canvas) => ({ink})(canvas) > {linear}", arg=matrix.element_handle()
        )


@pytest.mark.parametrize("width", [390, 820, 1440])
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_graph_fits(
    context: BrowserContext, live: str, pictures: Path, width: int, mode: str
) -> None:
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if mode == "dark" else "light")
    page.goto(f"{live}#/why?example=0&off=L0H0")
    expect(graph(page)).to_be_visible()
    expect(page.get_by_role("region", name="Logit before and after")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=pictures / f"why-{width}-{mode}.png", full_page=True)


def test_a_click_on_an_edge_selects_that_edge_and_x_cuts_it(page: Page, live: str) -> None:
    """Edges that run side by side overlap in reach; the one under the pointer is meant."""
    page.goto(f"{live}#/why?example=0")
    edges = graph(page).locator(".edge[aria-label*='key: +']")
    expect(edges.first).to_be_visible()
    settled(page)
    for at in range(2):
        name = edges.nth(at).get_attribute("aria-label") or ""
        place = edges.nth(at).evaluate(
            """each => {
              const line = each.querySelector(".line"), frame = each.ownerSVGElement;
              const at = line.getPointAtLength(line.getTotalLength() * 0.35);
              const box = frame.getBoundingClientRect();
              return [box.left + at.x, box.top + at.y];
            }"""
        )
        page.mouse.click(*place)
        chosen = page.evaluate("decodeURIComponent(location.hash)")
        writer = name.split(" ")[0]
        assert re.search(rf"selected={writer}@\d+→", chosen), (name, chosen)
    page.keyboard.press("x")
    expect(edges.nth(1)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("x")
    expect(edges.nth(1)).to_have_attribute("aria-pressed", "false")


def test_pinned_nodes_become_a_group_with_a_name_that_a_link_holds(page: Page, live: str) -> None:
    page.goto(f"{live}#/why?example=0")
    nodes = graph(page).locator(".node")
    expect(nodes.first).to_be_visible()
    settled(page)
    before = nodes.count()
    for head in ("L0H1@12", "L0H3@12"):
        graph(page).locator(f"[data-node='{head}']").click(modifiers=["Control"])
    groups = page.get_by_role("form", name="Groups")
    groups.get_by_label("Name of the group").fill("writers")
    groups.get_by_role("button", name="group", exact=True).click()
    own = graph(page).locator("[data-node='group:writers']")
    expect(own).to_contain_text("writers")
    expect(nodes).to_have_count(before - 1)
    page.reload()
    expect(own).to_be_visible()
    # A click draws its members again, and the group stays until it is taken apart.
    own.click()
    expect(nodes).to_have_count(before)
    page.get_by_role("button", name="close groups").click()
    expect(own).to_be_visible()
    groups.get_by_role("button", name="Ungroup writers").click()
    expect(nodes).to_have_count(before)
    expect(groups).to_have_count(0)
