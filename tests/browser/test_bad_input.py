"""What readers do wrong, what links forget and what servers suffer: nothing breaks, all is said."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.browser.conftest import PATIENCE_MS, Watched
from tests.browser.heads import INDUCTION
from tests.browser.test_live import settled
from tests.explorer.variants import VARIANTS

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer

pytestmark = pytest.mark.browser

STALE = (
    "text?position=9999&head=L9H9&cell=999.1&weighting=nothing&side=up&find=99999",
    "text?cell=x.y&example=-1",
    "text?tokens=abc",
    "text?step=12",
    "head?head=L9H9",
    f"head?head={INDUCTION}&lookup=99999999",
    "atlas?x=gone&y=gone&filter=garbage&sort=gone&size=1",
    f"composition?edge=L9H9-{INDUCTION}-k&threshold=abc&node=L9H9&pinned=L9H9,x&groups=a+b",
    "paths?position=9999&token=999999&versus=id:99999999&open=gone&path=gone",
    "training?step=7",
    "paper?claim=gone",
    "compare?other=gone&other_step=4&pair=X-Y",
)


@pytest.fixture
def without_tokenizer(watched: Watched) -> Iterator[str]:
    """The explorer of a model that knows ids only."""
    server = ExplorerServer(Explorer([VARIANTS["two layers"]()]), port=0).start()
    watched.allowed += (server.address,)
    yield server.url
    server.close()


@pytest.mark.parametrize("link", STALE)
def test_a_stale_link_shows_what_there_is(page: Page, live: str, link: str) -> None:
    page.goto(f"{live}#/{link}")
    expect(page.get_by_role("heading").first).to_be_visible()
    settled(page)
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize(
    "link", ["text?step=12", "atlas?step=many", "training?step=12", "compare?other_step=12"]
)
def test_a_step_that_is_not_there_is_said_and_not_shown(page: Page, live: str, link: str) -> None:
    page.goto(f"{live}#/{link}")
    said = page.get_by_text("which two-layer does not have")
    expect(said).to_contain_text(f"a snapshot at step “{link.partition('=')[2]}”")
    expect(page.get_by_role("contentinfo")).not_to_contain_text("step 12")
    page.get_by_role("button", name="Dismiss").click()
    expect(said).to_have_count(0)
    expect(page).not_to_have_url(re.compile("step=(12|many)"))


def test_a_link_to_another_model_says_that_it_is_gone(
    page: Page, live: str, watched: Watched
) -> None:
    watched.may_be_refused = True
    page.goto(f"{live}#/text?model=gone")
    said = page.get_by_text("The model “gone” in the link is not open here")
    expect(said).to_contain_text("This is two-layer")
    page.get_by_role("button", name="Dismiss").click()
    expect(said).to_have_count(0)
    expect(page).not_to_have_url(re.compile("model=gone"))


def test_ids_are_shown_and_typed_where_there_is_no_tokenizer(
    page: Page, without_tokenizer: str
) -> None:
    page.goto(f"{without_tokenizer}#/text?tokens=3,1,4")
    text = page.get_by_role("listbox")
    expect(text).to_contain_text("⟨3⟩")
    box = page.get_by_role("textbox", name="Token ids")
    box.fill("a few words")
    expect(page.get_by_role("alert")).to_have_text(re.compile("Token ids only: numbers from 0 to"))
    box.fill("3, 999999")
    expect(page.get_by_role("alert")).to_be_visible()
    box.fill("7, 8 9")
    expect(text).to_contain_text("⟨9⟩")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page).to_have_url(re.compile("tokens=7,8,9"))


def test_an_id_that_is_not_there_is_refused_in_words(
    page: Page, live: str, watched: Watched
) -> None:
    watched.may_be_refused = True
    page.goto(f"{live}#/text?tokens=3,999999")
    expect(page.get_by_role("alert").first).to_contain_text("out of range")
    page.get_by_label("Example").select_option(index=1)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("listbox")).to_be_visible()


def test_a_server_that_is_killed_and_started_again(context: BrowserContext) -> None:
    server = ExplorerServer(Explorer(["two-layer"]), port=0).start()
    page = context.new_page()
    page.goto(f"{server.url}#/text?example=4&position=40")
    expect(page.locator("section[aria-label=Details]")).to_contain_text("position 40")
    server.close()
    page.get_by_role("textbox").first.fill("class Other:")
    expect(page.get_by_role("alert")).to_contain_text("Lost connection to the server")
    # What was there stays to be read.
    expect(page.get_by_role("listbox")).to_be_visible()
    port = server.names.port
    again = ExplorerServer(Explorer(["two-layer"]), port=port, token=server.token).start()
    try:
        expect(page.get_by_role("alert")).to_have_count(0, timeout=2 * PATIENCE_MS)
        expect(page.get_by_role("listbox")).to_contain_text("Other")
    finally:
        again.close()
    # With another token, as after every start from the command line, the page says what to do.
    other = ExplorerServer(Explorer(["two-layer"]), port=port).start()
    try:
        page.get_by_role("textbox").first.fill("class Another:")
        expect(page.get_by_role("alert").first).to_contain_text("open the link")
        page.goto(f"{other.url}#/text?example=4&position=40")
        expect(page.locator("section[aria-label=Details]")).to_contain_text("position 40")
        # The token leaves the address bar, so that a copied link does not contain it.
        assert page.url == f"{other.address}#/text?example=4&position=40"
        page.reload()
        expect(page.locator("section[aria-label=Details]")).to_contain_text("position 40")
    finally:
        other.close()


def test_without_the_link_the_page_asks_for_the_token(browser: Browser, live: str) -> None:
    """In a browser of somebody else: a field for the token, and nothing of the explorer."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(live)
        expect(page.get_by_role("heading")).to_contain_text("its own link")
        page.get_by_label("Token").fill("not the token")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("heading")).to_contain_text("its own link")
    finally:
        context.close()


def test_the_token_may_be_pasted(browser: Browser, live_server: ExplorerServer) -> None:
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(f"{live_server.address}#/why?example=0&off=L0H3")
        page.get_by_label("Token").fill(live_server.token)
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("listbox")).to_be_visible()
        # What the link showed survives.
        expect(page).to_have_url(re.compile("#/why.*off=L0H3"))
        assert page.url.startswith(live_server.address) and "token" not in page.url
        assert page.evaluate("document.cookie") == ""
    finally:
        context.close()
