"""What can be taken along: a link, lines of Python, pictures of single panels, a fragment."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from tests.browser.heads import INDUCTION
from tests.browser.test_live import settled

import pathsum as ps

pytestmark = pytest.mark.browser

GRAPH = "The circuit of this prediction"
PAGE = """<!doctype html><meta charset="utf-8"><title>A post</title>
<style>* { color: red; } button { font-size: 60px; }</style><p>Before.</p>{fragment}<p>After.</p>"""


@pytest.fixture
def copied(context: BrowserContext, live: str) -> None:
    """A page that may use the clipboard."""
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=live.rstrip("/"))


def clipboard(page: Page) -> str:
    return page.evaluate("() => navigator.clipboard.readText()")


@pytest.mark.usefixtures("copied")
def test_the_link_is_copied(page: Page, live: str) -> None:
    page.goto(f"{live}#/why?example=0&position=12")
    settled(page)
    page.get_by_role("button", name="link", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="link copied")).to_be_visible()
    assert clipboard(page) == f"{live}#/why?example=0&position=12"


@pytest.mark.usefixtures("copied")
def test_the_python_of_a_view_makes_what_it_shows(page: Page, live: str) -> None:
    page.goto(f"{live}#/why?example=0&position=12")
    graph = page.get_by_role("group", name=GRAPH)
    expect(graph).to_be_visible()
    page.get_by_role("button", name="Python", exact=True).click()
    expect(page.locator("pre.lines")).to_contain_text("trace.circuit(position=12")
    space: dict[str, Any] = {}
    exec(clipboard(page), space)
    shown = space["shown"]
    strongest = shown.edges[0].edge
    assert shown.position == 12 and shown.token == space["trace"].tokens[0, 13]
    expect(graph).to_contain_text(str(strongest.writer).partition("@")[0])


def test_a_panel_is_saved_by_itself(page: Page, live: str, tmp_path: Path) -> None:
    page.goto(f"{live}#/why?example=0&position=12")
    expect(page.get_by_role("group", name=GRAPH)).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("button", name="Save the graph as SVG").click()
    drawn = Path(started.value.path()).read_text(encoding="utf-8")
    assert drawn.startswith("<svg") and "@12" in drawn
    assert "Switch heads off" not in drawn  # a panel of its own
    with page.expect_download() as started:
        page.get_by_role("button", name="Save the numbers of the graph as CSV").click()
    assert "writer,reader,kind" in Path(started.value.path()).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("view", "panel"),
    [
        ("training", "held-out loss"),
        ("compare", "the similarity of heads"),
        ("atlas", "the scatter"),
    ],
)
def test_plots_are_saved_by_themselves(page: Page, live: str, view: str, panel: str) -> None:
    page.goto(f"{live}#/{view}")
    save = page.get_by_role("button", name=f"Save {panel} as SVG")
    expect(save).to_be_visible(timeout=120_000)
    with page.expect_download() as started:
        save.click()
    assert Path(started.value.path()).read_text(encoding="utf-8").startswith("<svg")


def test_a_comparison_of_two_texts_is_saved(page: Page, live: str) -> None:
    page.goto(f"{live}#/swap")
    settled(page)
    with page.expect_download() as started:
        page.get_by_role("button", name="Save the numbers of two texts as CSV").click()
    lines = Path(started.value.path()).read_text(encoding="utf-8").splitlines()
    assert re.match(r"\W*part,clean,", lines[0]) and len(lines) > 2


@pytest.mark.parametrize(
    ("panel", "header"),
    [
        ("Kind", "score,value,standard error,null,p"),
        ("Eigenvalues of W_E OV W_U", "of,real,imaginary"),
        ("By distance", "tokens back,score,spread,attention"),
        ("Which heads it reads, which read it", "writer,reader,kind,score,excess,z,p"),
        ("Ablation", "on,measure,of,value,low,high"),
    ],
)
def test_every_panel_of_the_head_page_saves_its_numbers(
    page: Page, live: str, panel: str, header: str
) -> None:
    page.goto(f"{live}#/head?head={INDUCTION}")
    part = page.get_by_role("region", name=panel, exact=True)
    part.scroll_into_view_if_needed()
    save = part.get_by_role("button", name=f"Save the numbers of {panel} as CSV")
    expect(save).to_be_visible(timeout=60_000)
    with page.expect_download() as started:
        save.click()
    lines = Path(started.value.path()).read_text(encoding="utf-8").splitlines()
    assert lines[0] == header and len(lines) > 2
    assert INDUCTION in started.value.suggested_filename


@pytest.mark.parametrize("view", ["why", "text", "paths", "composition"])
def test_a_fragment_shows_its_view_inside_another_page(
    page: Page, tmp_path: Path, view: str
) -> None:
    text = "Ada met Bob. Ada met"
    made, post = tmp_path / "fragment.html", tmp_path / "post.html"
    got = ps.report("two-layer", made, texts=[text], views=[view], fragment=True)
    assert got.bytes <= 2_500_000
    post.write_text(PAGE.replace("{fragment}", made.read_text()), encoding="utf-8")
    page.goto(post.as_uri())
    inside = page.get_by_role("group", name=re.compile("two-layer"))
    expect(inside.get_by_role("heading", level=1)).to_be_visible()
    marks = {
        "why": inside.get_by_role("group", name=GRAPH),
        "text": inside.get_by_role("listbox"),
        "paths": inside.get_by_role("region", name="Waterfall"),
        "composition": inside.get_by_role("main").locator("canvas, svg").first,
    }
    expect(marks[view]).to_be_visible()
    expect(inside.get_by_role("alert")).to_have_count(0)
    expect(inside.get_by_role("navigation")).to_have_count(0)  # one view needs no tabs
    # Nothing is offered to try that the fragment does not hold.
    expect(inside.get_by_text("See the whole circuit")).to_have_count(0)
    # In a narrow column it does not cover what comes after it.
    page.set_viewport_size({"width": 600, "height": 900})
    after = page.get_by_text("After.", exact=True)
    after.scroll_into_view_if_needed()
    hit = after.evaluate(
        """(one) => { const box = one.getBoundingClientRect();
          return document.elementFromPoint(box.left + 5, box.top + box.height / 2) === one }"""
    )
    assert hit
    # The styles of the post do not reach into it.
    size = inside.get_by_role("button").first.evaluate("(one) => getComputedStyle(one).fontSize")
    assert size != "60px"
