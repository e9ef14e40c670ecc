"""Every view at four widths: nothing is outside the page, no two texts lie on each other."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.browser.heads import INDUCTION, OTHERS, STEP
from tests.browser.test_live import settled

pytestmark = pytest.mark.browser

WIDTHS = {390: 844, 820: 1180, 1280: 800, 1440: 900}
VIEWS = {
    "story": "#/story?example=0",
    "story, a head off": f"#/story?example=0&off={INDUCTION}",
    "text": "#/text?example=0&position=40",
    "text, a locked cell": f"#/text?example=0&head={INDUCTION}&position=60&cell=60.20",
    "text, several heads": f"#/text?example=0&position=60&heads={','.join(OTHERS[:4])}",
    "atlas": "#/atlas",
    "head": f"#/head?head={INDUCTION}",
    "another head": f"#/head?head={OTHERS[0]}",
    "composition": "#/composition",
    "composition, the embedding": "#/composition?node=embed",
    "paths": "#/paths?example=0&position=40",
    # Unscrolled: the labels of rows stay in sight and cover what scrolls below them.
    "lens": "#/lens?example=0&position=1",
    "training": "#/training",
    "training, nothing to show": "#/training?model=one-layer",
    "paper": "#/paper",
    "compare": "#/compare",
    "swap": "#/swap",
    "why": "#/why",
    "models": "#/models",
    "an unknown head, at a step": f"#/text?head=L9H9&step={STEP}",
}

# Texts as they are drawn: the boxes of text nodes, cut to what scrolls. The view itself scrolls
# downwards, so its texts are compared with each other however far down they are. Arrows over a text
# and their labels are drawn between lines on purpose.
CHECK = """
() => {
  const root = document.querySelector(".pathsum");
  const main = root.querySelector("main");
  const wide = document.documentElement.clientWidth;
  const faults = [];
  const cut = (box, by) => ({
    left: Math.max(box.left, by.left), right: Math.min(box.right, by.right),
    top: Math.max(box.top, by.top), bottom: Math.min(box.bottom, by.bottom),
  });
  const clips = (element) => getComputedStyle(element).overflow !== "visible";
  const seen = (box, element) => {
    let part = { left: box.left, right: box.right, top: box.top, bottom: box.bottom };
    let clipped = false;
    for (let up = element; up && up !== main && up !== root; up = up.parentElement) {
      if (clips(up)) { part = cut(part, up.getBoundingClientRect()); clipped = true; }
    }
    return { ...part, clipped };
  };
  const name = (element) => {
    const text = (element.textContent || "").trim().replace(/\\s+/g, " ").slice(0, 40);
    return `<${element.tagName} class="${element.getAttribute("class") || ""}"> ${text}`;
  };
  const hidden = (element) => {
    const style = getComputedStyle(element);
    return style.visibility === "hidden" || style.opacity === "0" || style.clipPath !== "none" ||
      element.closest(".hidden-text, .skip, svg[aria-hidden=true], dialog:not([open])") !== null;
  };
  if (document.documentElement.scrollWidth > wide + 1) {
    faults.push(`the page is ${document.documentElement.scrollWidth} pixels wide`);
  }
  const tabs = root.querySelector("header nav");
  if (tabs.scrollWidth > tabs.clientWidth + 1) faults.push("the tabs are cut off");
  for (const element of root.querySelectorAll("*")) {
    if (hidden(element) || element.closest("defs, canvas")) continue;
    const box = element.getBoundingClientRect();
    if (box.width < 1 || box.height < 1) continue;
    const part = seen(box, element.parentElement);
    if (part.right - part.left < 1) continue;
    if (part.right > wide + 1 || part.left < -1) {
      const [from, to] = [Math.round(part.left), Math.round(part.right)];
      faults.push(`outside (${from} to ${to}): ${name(element)}`);
    }
  }
  const texts = [];
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, parent = node.parentElement;
    if (!node.nodeValue.trim() || hidden(parent)) continue;
    if (parent.closest("select, textarea, title")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      // Letters fill about two thirds of the height of a line.
      const room = box.height / 6;
      const [top, bottom] = [box.top + room, box.bottom - room];
      const part = seen({ left: box.left + 1, right: box.right - 1, top, bottom }, parent);
      if (part.right - part.left < 3 || part.bottom - part.top < 3) continue;
      texts.push({ ...part, node, parent, inMain: main.contains(node) });
    }
  }
  texts.sort((a, b) => a.top - b.top);
  for (let i = 0; i < texts.length; i++) {
    const a = texts[i];
    for (let j = i + 1; j < texts.length && texts[j].top < a.bottom; j++) {
      const b = texts[j];
      if (a.node === b.node || a.inMain !== b.inMain) continue;
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (x <= 2 || y <= 2) continue;
      const size = `${Math.round(x)} × ${Math.round(y)}`;
      faults.push(`overlap (${size}): ${name(a.parent)} | ${name(b.parent)}`);
    }
  }
  return [...new Set(faults)].slice(0, 12);
}
"""


def faults(page: Page) -> list[str]:
    return page.evaluate(CHECK)


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_outside_and_no_texts_overlap(
    page: Page, live: str, view: str, pictures: Path
) -> None:
    page.goto(f"{live}{VIEWS[view]}")
    expect(page.get_by_role("heading").first).to_be_visible()
    found: dict[int, list[str]] = {}
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        settled(page)
        page.wait_for_timeout(150)
        page.screenshot(path=pictures / f"layout-{view.replace(', ', '-')}-{width}.png")
        if wrong := faults(page):
            found[width] = wrong
    assert found == {}


@pytest.mark.parametrize("width", [761, 800, 860, 951, 960])
def test_the_header_fits_between_phone_and_desk(page: Page, live: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.goto(f"{live}#/text?step={STEP}")
    expect(page.get_by_role("listbox")).to_be_visible()
    banner = page.get_by_role("banner")
    for name in ("search", "help", "Light or dark"):
        box = banner.get_by_role("button", name=name).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width


def test_the_matrix_on_a_phone_is_as_wide_as_the_page(page: Page, live: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{live}#/text?example=0&head={INDUCTION}&position=40")
    settled(page)
    box = page.locator("section.pattern .matrix").bounding_box()
    text = page.get_by_role("listbox").bounding_box()
    assert box is not None and text is not None
    assert box["width"] >= 350 and box["height"] >= 300
    # Right below the text, before the heads and the details.
    heads = page.locator("section[aria-label=Heads]").bounding_box()
    assert heads is not None and text["y"] < box["y"] < heads["y"]


def test_lines_break_where_the_text_does(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?text=one%0Atwo%0Athree")
    listbox = page.get_by_role("listbox")
    expect(listbox.locator("br")).to_have_count(2)
    page.get_by_role("checkbox", name="line breaks").uncheck()
    expect(listbox.locator("br")).to_have_count(0)


SPLIT = """
() => {
  const tokens = [...document.querySelectorAll("[role=listbox] .t")];
  return tokens.slice(1).filter((token, i) =>
    /[a-z]$/i.test(tokens[i].textContent) && /^[a-z]/i.test(token.textContent) &&
    // The space that a token begins with may have stayed on the line before.
    token.getClientRects()[0].top !== [...tokens[i].getClientRects()].at(-1).top
  ).map((token) => token.textContent);
}
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_no_word_is_split_between_lines(page: Page, live: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": WIDTHS[width]})
    page.goto(f"{live}#/text?example=0")
    settled(page)
    assert page.get_by_role("option").count() > 60
    assert page.evaluate(SPLIT) == []


def test_saving_is_quiet_until_its_panel_is_pointed_at(page: Page, live: str) -> None:
    page.goto(f"{live}#/training")
    settled(page)
    panel = page.locator("section.panel").first
    save = panel.get_by_role("button", name=re.compile("as PNG"))
    page.mouse.move(640, 4)
    expect(save).to_have_css("opacity", "0")
    panel.hover()
    expect(save).to_have_css("opacity", "1")
    page.mouse.move(640, 4)
    expect(save).to_have_css("opacity", "0")
    # A keyboard reaches it too.
    save.focus()
    expect(save).to_have_css("opacity", "1")


BARS = """
() => [...document.querySelectorAll("svg[role=img]")].flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("rect, line")].filter((mark) => {
    const box = mark.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1;
  }).map((mark) => `${svg.getAttribute("aria-label").slice(0, 60)}: ${mark.outerHTML}`);
})
"""


@pytest.mark.parametrize("head", [INDUCTION, *OTHERS[:2]])
def test_bars_stay_within_their_axes(page: Page, live: str, head: str) -> None:
    page.goto(f"{live}#/head?head={head}")
    ablation = page.get_by_role("region", name="Ablation")
    ablation.scroll_into_view_if_needed()
    expect(ablation.locator("svg").first).to_be_visible(timeout=120_000)
    settled(page)
    assert page.evaluate(BARS) == []
    # No chart without a bar.
    for chart in ablation.locator("svg[role=img]").all():
        assert chart.locator("rect.bar").count() > 0


def test_the_check_sees_what_is_wrong(page: Page, live: str) -> None:
    page.goto(f"{live}#/atlas")
    settled(page)
    assert faults(page) == []
    page.evaluate(
        """() => {
          const main = document.querySelector("main");
          const add = (style) => {
            const made = main.appendChild(document.createElement("div"));
            made.style.cssText = `position: absolute; top: 300px; ${style}`;
            made.textContent = "on top of each other";
          };
          add("left: 40px"), add("left: 60px"), add("right: -90px; top: 500px");
        }"""
    )
    found = faults(page)
    assert any(one.startswith("overlap") for one in found)
    assert any(one.startswith("outside") for one in found)
