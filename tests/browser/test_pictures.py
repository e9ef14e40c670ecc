"""Pictures of views, saved: all plots of a view in one file, words as words, lines as lines."""

import struct
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import PATIENCE_MS
from tests.browser.heads import EDGE, HEADS, INDUCTION, PREVIOUS
from tests.browser.test_live import settled

pytestmark = pytest.mark.browser

SVG = "{http://www.w3.org/2000/svg}"
PLACES = {
    "text": f"#/text?e=4&h={INDUCTION}&t=40&w=effect",
    "atlas": "#/atlas",
    "head": f"#/head?h={INDUCTION}",
    "composition": f"#/composition?edge={EDGE}",
    "why": "#/why?e=0",
    "paths": "#/paths?e=0",
    "compare": "#/compare?other=one-layer",
}
# What must be readable in the picture, and how many plots (nested drawings) it has at least.
HOLDS = {
    "text": ((INDUCTION, "predicts", "logits", "strongest paths"), 0),
    "atlas": (("prefix matching", "previous token", "chance", PREVIOUS), 10),
    "head": (("Skip-trigrams: [source] … [destination] → [out]", "writes nothing"), 6),
    "composition": (("previous token", "Strongest tokens", "Singular values", "z at least"), 4),
    "why": ((INDUCTION, "tokens", "layer 1", "logit", "left out", "put into a key"), 1),
    "paths": (("left out", "tokens, from 0", "strongest from"), 2),
    "compare": ((" of two-layer", " of one-layer", "Matched heads"), 1),
}


def saved(page: Page, button: str) -> bytes:
    """What a button of the view's header saves."""
    with page.expect_download() as started:
        page.get_by_role("button", name=button, exact=True).click()
    return Path(started.value.path()).read_bytes()


def words(picture: ET.Element) -> str:
    return " ".join("".join(text.itertext()) for text in picture.iter(f"{SVG}text"))


def written(picture: ET.Element) -> Counter[str]:
    """How often each piece of text stands in a picture."""
    return Counter("".join(text.itertext()).strip() for text in picture.iter(f"{SVG}text"))


def tokens_of(page: Page) -> Counter[str]:
    """The tokens of the running text that draw something."""
    pieces = (piece.strip() for piece in page.locator("[role=option]").all_inner_texts())
    return Counter(piece for piece in pieces if piece)


@pytest.mark.parametrize("view", list(PLACES))
def test_the_svg_holds_the_whole_view(page: Page, live: str, view: str) -> None:
    page.goto(f"{live}{PLACES[view]}")
    expect(page.get_by_role("button", name="SVG", exact=True)).to_be_visible()
    settled(page)
    if view == "composition":  # kinds of heads come from the atlas, which fills in
        expect(page.locator("main")).to_contain_text("previous token", timeout=PATIENCE_MS)
    before = page.evaluate("document.querySelector('main').innerHTML.length")
    picture = ET.fromstring(saved(page, "SVG"))
    said, (expected, plots) = words(picture), HOLDS[view]
    for one in expected:
        assert one in said
    assert len(list(picture.iter(f"{SVG}svg"))) - 1 >= plots
    assert f"two-layer: 2 layers × {len(HEADS) // 2} heads" in said
    # No style sheet comes with the file, so nothing in it may need one.
    assert not any(node.get("class") for node in picture.iter())
    # The page is as it was, but for what the picture made it ask for.
    assert page.evaluate("document.querySelector('main').classList.length") == 1
    assert page.evaluate("document.querySelector('main').innerHTML.length") >= before


def test_tokens_are_text_on_colored_ground(page: Page, live: str) -> None:
    page.goto(f"{live}{PLACES['text']}")
    expect(page.locator("section[aria-label=Details]")).to_contain_text("position 40")
    tokens = tokens_of(page)
    picture = ET.fromstring(saved(page, "SVG"))
    assert tokens <= written(picture)
    dark = page.evaluate(
        "Math.max(...[...document.querySelectorAll('[role=option]')].map(each =>"
        " getComputedStyle(each).backgroundColor === 'rgba(0, 0, 0, 0)' ? 0 : 1))"
    )
    assert dark == 1
    assert any(rect.get("fill") == "#083c78" for rect in picture.iter(f"{SVG}rect"))
    # Pixels only where cells are: one picture a head, and the matrix.
    assert len(list(picture.iter(f"{SVG}image"))) == len(HEADS) + 1


def test_the_png_has_twice_the_pixels(page: Page, live: str) -> None:
    page.goto(f"{live}{PLACES['atlas']}")
    expect(page.get_by_role("button", name="PNG", exact=True)).to_be_visible()
    settled(page)
    data = saved(page, "PNG")
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">I", data[16:20]) == (2 * 1280,)
    assert struct.unpack(">I", data[20:24])[0] > 1500


def test_what_scrolls_is_rolled_out(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?x={'%0A'.join(['self.add(word)'] * 30)}&br=1")
    expect(page.get_by_role("listbox")).to_be_visible()
    expect(page.locator("section[aria-label=Details]")).to_contain_text("predicts")
    tokens = tokens_of(page)
    assert tokens.total() > 100
    scrolls = "each => each.parentElement.scrollHeight > each.parentElement.clientHeight + 200"
    assert page.get_by_role("listbox").evaluate(scrolls)
    picture = ET.fromstring(saved(page, "SVG"))
    assert tokens <= written(picture)
    assert float(picture.get("height") or 0) > 30 * 27 + 400
    assert list(picture.iter(f"{SVG}clipPath")) == []
    assert page.get_by_role("listbox").evaluate(scrolls)
