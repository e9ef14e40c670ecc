"""Plots that are saved one by one, and the page on paper."""

import struct
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import PATIENCE_MS
from tests.browser.heads import EDGE, INDUCTION, PREVIOUS
from tests.browser.test_live import settled

pytestmark = pytest.mark.browser

SVG = "{http://www.w3.org/2000/svg}"
# The view, the plot's name, the words that must be readable in it, and whether it has pixels.
PLOTS = [
    (f"#/text?example=4&head={INDUCTION}&position=40", "the pattern", (), True),
    ("#/atlas", "the scatter", ("null", INDUCTION), False),
    (f"#/head?head={INDUCTION}", "Eigenvalues of W_E OV W_U", ("Re", "Im"), False),
    (f"#/composition?edge={EDGE}", "the graph", (INDUCTION, PREVIOUS), True),
    ("#/why?example=0", "the graph", (INDUCTION, "@"), False),
    ("#/paths?example=0", "the waterfall", ("omitted", "tokens, from 0"), False),
    ("#/compare?other=one-layer", "the similarity of heads", (), True),
]


def saved(page: Page, button: str) -> bytes:
    """What a button of a panel saves."""
    with page.expect_download() as started:
        page.get_by_role("button", name=button, exact=True).click()
    return Path(started.value.path()).read_bytes()


def words(picture: ET.Element) -> str:
    return " ".join("".join(text.itertext()) for text in picture.iter(f"{SVG}text"))


@pytest.mark.parametrize(("place", "plot", "expected", "pixels"), PLOTS)
def test_the_svg_holds_the_plot(
    page: Page, live: str, place: str, plot: str, expected: tuple[str, ...], pixels: bool
) -> None:
    page.goto(f"{live}{place}")
    button = page.get_by_role("button", name=f"Save {plot} as SVG", exact=True)
    expect(button).to_be_attached(timeout=PATIENCE_MS)
    settled(page)
    before = page.evaluate("document.querySelector('main').innerHTML.length")
    picture = ET.fromstring(saved(page, f"Save {plot} as SVG"))
    for one in expected:
        assert one in words(picture)
    assert (next(picture.iter(f"{SVG}image"), None) is not None) == pixels
    # No style sheet comes with the file, so nothing in it may need one.
    assert not any(node.get("class") for node in picture.iter())
    # The page is as it was, but for answers that arrived meanwhile.
    assert page.evaluate("document.querySelector('main').innerHTML.length") >= before


def test_the_png_has_twice_the_pixels(page: Page, live: str) -> None:
    page.goto(f"{live}#/atlas")
    plot = page.get_by_role("img", name="Scatter of")
    expect(plot).to_be_visible()
    settled(page)
    box = plot.bounding_box()
    data = saved(page, "Save the scatter as PNG")
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert box and width >= 2 * box["width"] and height >= 2 * box["height"]


def test_on_paper_everything_is_rolled_out(page: Page, live: str) -> None:
    page.goto(f"{live}#/text?text={'%0A'.join(['self.add(word)'] * 30)}&line_breaks=1")
    text = page.get_by_role("listbox")
    expect(text).to_be_visible()
    expect(page.locator("section[aria-label=Details]")).to_contain_text("predicts")
    scrolls = "each => each.parentElement.scrollHeight > each.parentElement.clientHeight + 200"
    assert text.evaluate(scrolls)
    page.emulate_media(media="print")
    assert not text.evaluate(scrolls)
    expect(page.get_by_role("textbox", name="Text")).to_be_hidden()
    expect(page.get_by_role("button", name="Python")).to_be_hidden()
    page.emulate_media(media="screen")
    assert text.evaluate(scrolls)
