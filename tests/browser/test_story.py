"""The first screen: one prediction, its picture, and switches that move the answer."""

import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from tests.browser.heads import INDUCTION, PREVIOUS
from tests.browser.test_live import settled, token

pytestmark = pytest.mark.browser


def told(page: Page) -> Locator:
    return page.get_by_role("region", name="What the model predicts, and why")


def predictions(page: Page) -> Locator:
    return page.get_by_role("region", name="Predictions")


def probability(text: str) -> float:
    """The last percentage of a text, as a share."""
    return float(re.findall(r"([\d.]+)%", text)[-1]) / 100


def test_it_lands_on_a_picture_of_the_sentence(page: Page, live: str) -> None:
    page.goto(live)
    expect(told(page)).to_contain_text("This is induction")
    # Both arrows of the sentence are drawn, and the circuit fits its panel.
    labels = page.get_by_role("listbox").locator("svg text")
    expect(labels).to_have_count(2)
    expect(labels.first).to_contain_text(PREVIOUS)
    expect(labels.last).to_have_text(INDUCTION)
    graph = page.get_by_role("group", name="The circuit of this prediction")
    expect(graph.locator(".node")).not_to_have_count(0)
    assert graph.locator(".node").count() <= 7
    scroller = page.locator("section.graph .scroll")
    assert scroller.evaluate("each => each.scrollWidth <= each.clientWidth + 1")
    assert page.locator("main").evaluate("each => each.scrollHeight <= each.clientHeight + 1")


def test_a_switch_moves_the_prediction_and_is_undone(page: Page, live: str) -> None:
    page.goto(live)
    switch = predictions(page).get_by_role("switch", name=INDUCTION)
    row = predictions(page).locator("tr.target")
    expect(row).to_contain_text("99")
    switch.click()
    expect(switch).to_have_attribute("aria-checked", "false")
    expect(told(page).get_by_role("status")).to_contain_text(f"without {INDUCTION}")
    assert probability(row.inner_text()) < 0.05
    assert probability(told(page).get_by_role("status").inner_text().split("without")[0]) < 0.05
    page.keyboard.press("Escape")
    expect(switch).to_have_attribute("aria-checked", "true")
    expect(row).to_contain_text("99")


def test_every_writer_that_matters_has_a_switch(page: Page, live: str) -> None:
    """Cutting either of the two previous-token heads costs about the same on the first text."""
    page.goto(live)
    switches = predictions(page).get_by_role("switch")
    expect(switches).to_have_count(3)
    assert {PREVIOUS, INDUCTION} < {*switches.all_inner_texts()}


def test_while_typing_the_end_of_the_text_is_explained(page: Page, live: str) -> None:
    page.goto(live)
    settled(page)
    page.get_by_role("textbox", name="Text").fill("Mrs. Kovalenko met Mr. Okafor. Mrs. Koval")
    expect(told(page).locator(".headline")).to_contain_text("→ en")
    focused = page.locator("[role=option].focus")
    expect(focused).to_have_attribute("data-i", str(page.locator("[role=option]").count() - 1))
    token(page, 3).click()
    expect(page).to_have_url(re.compile("position=3"))
    page.get_by_role("button", name="the end of the text").click()
    expect(told(page).locator(".headline")).to_contain_text("→ en")


def test_tab_leads_through_the_page(page: Page, live: str) -> None:
    """Tab accepts a prediction only after something was typed."""
    page.goto(live)
    settled(page)
    box = page.get_by_role("textbox", name="Text")
    before = box.input_value()
    box.focus()
    page.keyboard.press("Control+End")
    page.keyboard.press("Tab")
    expect(box).not_to_be_focused()
    assert box.input_value() == before


def test_the_picture_leads_to_the_whole_circuit(page: Page, live: str) -> None:
    page.goto(live)
    page.get_by_role("group", name="The circuit of this prediction").locator(".node").last.click()
    expect(page).to_have_url(re.compile(r"#/why\?.*position=\d+"))
    expect(page.locator("section[aria-label=Circuit]")).to_be_visible()


def test_the_gallery_opens_a_model_on_its_story(page: Page, live: str) -> None:
    page.goto(f"{live}#/models")
    card = page.get_by_role("listitem").filter(has_text="hand-built-induction").first
    expect(card).to_contain_text("nothing else")
    page.get_by_role("button", name="Open hand-built-induction", exact=True).click()
    expect(page).to_have_url(re.compile("#/story.*model=hand-built-induction"))
    expect(told(page)).to_contain_text("This is induction")


def test_a_handle_lights_one_read_and_opens_its_score(page: Page, live: str) -> None:
    page.goto(live)
    finds = told(page).get_by_role("button", name="finds")
    strong = page.locator("section.graph .strong .edge")
    expect(strong).to_have_count(0)
    finds.click()
    expect(strong.first).to_have_class(re.compile(r"\bk\b"))
    assert strong.count() == page.locator("section.graph .strong .edge.k").count()
    expect(page.locator("section.graph").get_by_role("status")).to_contain_text(PREVIOUS)
    table = page.get_by_role("region", name="Score table")
    expect(table.get_by_role("table")).to_contain_text(PREVIOUS)
    # A link reproduces it, and a second click frees it.
    expect(page).to_have_url(re.compile("read=key"))
    finds.click()
    page.mouse.move(0, 0)
    finds.blur()
    expect(strong).to_have_count(0)
    expect(table).to_have_count(0)


def test_all_numbers_unfold_below_the_story_with_one_focus(page: Page, live: str) -> None:
    page.goto(live)
    settled(page)
    page.get_by_role("button", name="all numbers").click()
    layers = page.locator("section.layer")
    expect(layers).to_have_count(4)
    settled(page)
    # One text box and one sentence, and all layers explain what is clicked.
    expect(page.get_by_role("textbox", name="Text")).to_have_count(1)
    expect(page.get_by_role("region", name="What to see first")).to_have_count(0)
    token(page, 20).first.click()
    expect(layers.nth(1).locator("div.target")).to_contain_text("at 20:")
    expect(layers.nth(3).get_by_role("region", name="This cell")).to_contain_text("@20")
    expect(told(page)).to_be_visible()
    layers.first.get_by_role("button", name="Attention").click()
    expect(layers).to_have_count(3)
    page.get_by_role("button", name="all numbers").click()
    expect(layers).to_have_count(0)


def test_a_link_to_nothing_is_said(page: Page, live: str) -> None:
    page.goto(f"{live}#/nonsense")
    notice = page.get_by_role("status").filter(has_text="no view “nonsense”")
    expect(notice).to_be_visible()
    notice.get_by_role("button", name="Dismiss").click()
    expect(notice).to_have_count(0)
    page.goto(f"{live}#/story?position=9999")
    notice = page.get_by_role("status").filter(has_text="position “9999”")
    expect(notice).to_be_visible()
    notice.get_by_role("button", name="Dismiss").click()
    expect(page).not_to_have_url(re.compile("position="))
    expect(notice).to_have_count(0)


SEEN = """
() => {
  const seen = [];
  const walk = document.createTreeWalker(document.querySelector(".pathsum"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const { parentElement: parent, nodeValue: text } = walk.currentNode;
    if (parent.closest("[role=listbox], option, title, .hidden-text, .skip")) continue;
    const box = parent.getBoundingClientRect();
    const isSeen = box.width > 0 && box.bottom > 0 && box.top < innerHeight;
    if (isSeen) seen.push(text.replace(/\\s+/g, " ").trim());
  }
  return seen.filter((text) => text !== "").join(" ");
}
"""


def test_the_first_screen_is_not_crowded(page: Page, live: str) -> None:
    """Characters besides those of the text that is explained."""
    page.goto(live)
    settled(page)
    seen = page.evaluate(SEEN)
    assert len(seen) <= 600, seen
    sizes = page.evaluate(SIZES)
    assert set(sizes) <= {"13px", "16px", "22px"}, sizes


SIZES = """
() => [...new Set([...document.querySelectorAll(".pathsum *")]
  .filter((each) => [...each.childNodes].some(({ nodeType: type, nodeValue: text }) =>
    type === 3 && text.trim() !== ""))
  .map((each) => getComputedStyle(each).fontSize))]
"""


def test_the_sentence_gives_its_reasons_in_full(page: Page, live: str) -> None:
    page.goto(live)
    expect(told(page)).to_contain_text("This is induction")
    expect(told(page)).not_to_contain_text("because")
    told(page).get_by_role("button", name="in full").click()
    expect(told(page)).to_contain_text(re.compile(rf"After .* because {PREVIOUS} moved"))
    told(page).get_by_role("button", name="in short").click()
    expect(told(page)).not_to_contain_text("because")


def test_code_keeps_its_indentation_and_its_lines(page: Page, live: str) -> None:
    page.goto(f"{live}#/story?text=if%20a%3A%0A%20%20%20%20b%20%3D%201%0Ac")
    lines = page.get_by_role("listbox")
    expect(lines.locator("br")).to_have_count(2)
    left = """(list) => [...list.querySelectorAll(".t")].map((each) => {
      const range = document.createRange();
      const text = each.textContent, at = text.search(/[a-z]/);
      const node = [...each.childNodes].findLast((child) => /[a-z]/.test(child.nodeValue ?? ""));
      if (!node || at < 0) return null;
      range.setStart(node, node.nodeValue.search(/[a-z]/));
      range.setEnd(node, node.nodeValue.length);
      return [text.trim(), Math.round(range.getBoundingClientRect().left)];
    }).filter((each) => each)"""
    places = dict(lines.evaluate(left))
    assert places["b"] > places["c"] + 20
    box = page.get_by_role("textbox", name="Text").bounding_box()
    assert box is not None and box["height"] >= 70


def test_a_click_explains_what_the_model_expected(page: Page, live: str) -> None:
    """The token that comes next in the text is the other choice."""
    page.goto(live)
    settled(page)
    token(page, 20).first.click()
    headline = told(page).locator(".headline")
    expect(page).to_have_url(re.compile("position=20&token="))
    expect(predictions(page).locator("tr").first).to_have_class(re.compile("target"))
    settled(page)
    expected = probability(headline.inner_text())
    page.get_by_role("button", name="which comes next").click()
    expect(page).not_to_have_url(re.compile("token="))
    page.get_by_role("button", name="the likeliest?").wait_for()
    settled(page)
    assert probability(headline.inner_text()) < expected


def test_models_open_on_a_prediction_that_they_learned(page: Page, live: str) -> None:
    """Where no repeat is learned, it is the likeliest prediction; nothing more is to be told."""
    page.goto(f"{live}#/story?model=two-layer-words")
    headline = page.locator(".headline")
    expect(headline).to_contain_text("Solomon")
    expect(headline).to_contain_text("82%")
    page.goto(f"{live}#/story?model=zero-layer")
    expect(headline).to_contain_text("from")
    expect(page.get_by_role("button", name="in full")).to_have_count(0)


@pytest.mark.parametrize(
    "place", ["swap?model=zero-layer", "composition?model=one-layer", "head?model=zero-layer"]
)
def test_a_view_without_content_leads_to_other_models(page: Page, live: str, place: str) -> None:
    page.goto(f"{live}#/{place}")
    page.get_by_role("link", name="Choose another model").click()
    expect(page.get_by_role("heading", name="Bundled models")).to_be_visible()


def test_a_head_shows_typical_contexts_too(page: Page, live: str) -> None:
    page.goto(f"{live}#/head?head=L1H0")
    panel = page.get_by_role("region", name="Top contexts")
    panel.get_by_role("radio", name="typical contexts").click()
    expect(panel.locator("tbody tr")).to_have_count(9)
    weights = [
        float(each.strip("<> %"))
        for each in panel.locator("tbody tr td:nth-child(3)").all_inner_texts()
    ]
    assert weights == sorted(weights, reverse=True) and weights[0] > 5 * weights[-1]


def test_a_model_that_is_being_opened_is_not_shown_as_another(page: Page, live: str) -> None:
    page.goto(live)
    expect(page.locator(".headline")).to_be_visible()
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "one-layer" in (route.request.post_data or "") and not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/model", hold)
    page.evaluate("location.hash = '#/story?model=one-layer'")
    expect(page.locator("main")).to_contain_text("the page of one-layer")
    expect(page.locator(".headline")).to_have_count(0)
    held[0].continue_()
    expect(page.locator(".headline")).to_be_visible()
    expect(page.locator("footer")).to_contain_text("one-layer")


def test_the_picture_of_a_model_with_mlps_does_not_wait_for_cuts(page: Page, live: str) -> None:
    """Thousands of cuts take a deep model ten times as long as its circuit."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        if '"effects":false' in (route.request.post_data or ""):
            route.continue_()
        else:
            held.append(route)

    page.route("**/api/why", hold)
    page.goto(f"{live}#/why?model=two-layer-mlp&example=0")
    graph = page.get_by_role("group", name="The circuit of this prediction")
    expect(graph.locator(".node").first).to_be_visible()
    legend = page.get_by_label("Legend")
    expect(legend).to_contain_text("the effect of cutting each edge")
    edges = graph.locator(".edge[aria-label*='cutting it costs']")
    expect(edges).to_have_count(0)
    for route in held:
        route.continue_()
    expect(edges).not_to_have_count(0)
    expect(legend).not_to_contain_text("the effect of cutting each edge")


def test_a_rival_from_the_text_is_a_contrast_in_every_view(page: Page, live: str) -> None:
    page.goto(f"{live}#/story?text=Mary met John. John met Mary. Mary met")
    legend = page.get_by_role("region", name="The circuit of this prediction").locator(".legend")
    expect(legend).to_contain_text("logits")
    before = re.findall(r"of \S+ logits", legend.inner_text())[0]
    page.get_by_role("button", name=re.compile("rather than .*M")).click()
    expect(page).to_have_url(re.compile(r"#/story\?.*versus=\d+"))
    expect(told(page).locator(".headline")).to_contain_text(re.compile(r"rather than\s+·M"))
    settled(page)
    expect(legend).not_to_contain_text(before)
    total = re.search(r"of (\S+) logits", legend.inner_text())
    assert total
    # The same account on the other pages, and a way back.
    page.get_by_role("button", name="all numbers").click()
    target = page.locator("section.layer div.target").first
    expect(target.get_by_role("radio", name="other token")).to_have_attribute(
        "aria-checked", "true"
    )
    settled(page)
    expect(page.get_by_role("region", name="Waterfall")).to_contain_text(total[1])
    page.get_by_role("button", name="against all tokens").click()
    expect(page).not_to_have_url(re.compile("versus="))
    expect(legend).to_contain_text(before)


UNKNOWN = (
    ("story", "example=99", "example “99”, which two-layer does not have"),
    ("paper", "claim=nothing", "claim “nothing”, which the paper does not have"),
    ("lens", "layer=9", "layer “9”, which two-layer does not have"),
    ("atlas", "score=luck", "score “luck”, which the atlas does not have"),
    ("why", "selected=L9H9@3", "node or edge “L9H9@3”, which this circuit does not have"),
    ("compare", "other=nobody", "model “nobody”, which this comparison does not have"),
    ("why", "versus=99999", "token “99999”, which two-layer does not have"),
    ("text", "weighting=loud", "“weighting=loud”, which means nothing here"),
)


@pytest.mark.parametrize(("view", "named", "words"), UNKNOWN)
def test_a_link_to_what_is_not_there_is_said(
    page: Page, live: str, view: str, named: str, words: str
) -> None:
    page.goto(f"{live}#/{view}?{named}")
    notice = page.get_by_role("status").filter(has_text=words)
    expect(notice).to_have_count(1)
    notice.get_by_role("button", name="Dismiss").click()
    expect(page).not_to_have_url(re.compile(named))
    expect(notice).to_have_count(0)
