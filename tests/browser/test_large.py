"""Layer × head navigation of deep and wide models: every head can be reached, seen and named."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect
from tests.browser.conftest import PATIENCE_MS, Watched, sign_in

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer
from pathsum.model import Config, random_model

pytestmark = pytest.mark.browser

SIZES = [(30, 9), (48, 25)]


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: "{}x{}".format(*size))
def deep(request: pytest.FixtureRequest) -> Iterator[tuple[ExplorerServer, int, int]]:
    """The explorer of a random model of so many layers and heads."""
    layers, heads = request.param
    config = Config(layers, heads, 32, 4, 100, 64, norm="layer")
    server = ExplorerServer(Explorer([random_model(config, seed=0)], bundled=()), port=0).start()
    yield server, layers, heads
    server.close()


@pytest.fixture
def large(
    deep: tuple[ExplorerServer, int, int], context: BrowserContext, watched: Watched
) -> Iterator[tuple[Page, str, int, int]]:
    server, layers, heads = deep
    watched.allowed += (server.address,)
    sign_in(context, server)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    watched.attach(page)
    yield page, server.address, layers, heads
    assert watched.errors == []


def wait_until_inside(page: Page, inner: str, outer: str) -> None:
    """Wait until an element lies within what scrolls around it."""
    page.wait_for_function(
        """([inner, outer]) => {
          const box = document.querySelector(outer).getBoundingClientRect();
          const own = document.querySelector(inner).getBoundingClientRect();
          return own.top >= box.top - 1 && own.bottom <= box.bottom + 1
            && own.left >= box.left - 1 && own.right <= box.right + 1;
        }""",
        arg=[inner, outer],
    )


def test_every_head_is_in_the_grid_of_a_text(large: tuple[Page, str, int, int]) -> None:
    page, address, layers, heads = large
    page.goto(f"{address}#/text?example=0&head=L0H{heads - 1}")
    grid = page.locator("section[aria-label=Heads]")
    expect(grid.locator("[data-head]")).to_have_count(layers * heads)
    # The head that the link names is scrolled into sight, and named above its pattern.
    last = f'[data-head="L0H{heads - 1}"]'
    expect(page.locator(f"{last}[aria-pressed=true]")).to_be_visible()
    wait_until_inside(page, last, "section[aria-label=Heads] .grid")
    expect(page.locator("section.pattern h2")).to_contain_text(f"L0H{heads - 1}")
    # Rows of thumbnails have about the same length, and none is too small to point at.
    sizes = page.locator("[data-head] .frame").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().width)"
    )
    assert min(sizes) >= 12
    other = grid.locator(f'[data-head="L{layers - 1}H0"]')
    other.scroll_into_view_if_needed()
    other.click()
    expect(page).to_have_url(re.compile(f"head=L{layers - 1}H0"))


@pytest.mark.parametrize("width", [1280, 390])
def test_the_grid_of_scores_shows_every_head_before_the_atlas_is_there(
    large: tuple[Page, str, int, int], width: int
) -> None:
    page, address, layers, heads = large
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"{address}#/atlas")
    grid = page.locator("section[aria-label='Grid of heads'] [role=grid]")
    expect(grid.locator("[data-head]")).to_have_count(layers * heads)
    expect(page.locator("section[aria-label='Still to come'] progress")).to_be_visible()
    assert grid.evaluate("one => one.scrollWidth <= one.clientWidth + 1")
    assert grid.evaluate("one => one.scrollHeight <= one.clientHeight + 1")
    # The numbers of columns stand apart.
    assert (
        grid.locator("[role=columnheader]").evaluate_all(
            """all => all.filter((one) => one.scrollWidth > one.clientWidth + 8).length"""
        )
        == 0
    )
    # By keys to another head, and to its page.
    grid.locator(f'[data-head="L{layers - 1}H0"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"#/head\\?head=L{layers - 2}H1"))


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_head_does_not_wait_for_the_atlas(
    large: tuple[Page, str, int, int], width: int
) -> None:
    page, address, _, _ = large
    page.set_viewport_size({"width": width, "height": 844})
    asked: list[str] = []

    def note(route: Route) -> None:
        asked.append(route.request.url.rpartition("/")[2])
        # Nulls and composition never arrive.
        if asked[-1] in ("head", "first_scores"):
            route.continue_()

    for name in ("head", "first_scores", "atlas", "composition"):
        page.route(f"**/api/{name}", note)
    page.goto(f"{address}#/head?head=L3H1")
    part = page.locator("section[aria-label='Kind']")
    row = part.locator("tr", has_text="previous token").first
    expect(row.locator("td").nth(1)).to_have_text(re.compile(r"^0\.\d+ ± "))
    expect(row.locator("td").nth(2)).to_have_text("–")
    expect(part).to_contain_text("Computing its kind and null distributions")
    expect(part.locator(".kind")).to_have_count(0)
    expect(page.locator("section[aria-label^=Eigenvalues] svg").first).to_be_visible()
    # Questions that take minutes are sent after those of the head.
    page.wait_for_timeout(200)
    assert asked[:2] == ["head", "first_scores"] and set(asked[2:]) == {"atlas", "composition"}
    page.unroute_all(behavior="ignoreErrors")


def test_a_deep_model_fits_a_phone(large: tuple[Page, str, int, int]) -> None:
    """What comes after the heads is near, and the table of a score needs no scrolling."""
    page, address, layers, _ = large
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}#/text?example=0&head=L{layers - 1}H0&cell=9.3")
    table = page.locator("section[aria-label=Details] .scroll")
    expect(table).to_be_visible()
    expect(table.locator("td").first).to_be_visible()
    assert page.locator("section[aria-label=Heads] .grid").bounding_box()["height"] <= 330  # pyright: ignore[reportOptionalSubscript]
    assert table.evaluate("one => one.scrollWidth <= one.clientWidth + 1")


def test_large_counts_can_be_read(large: tuple[Page, str, int, int]) -> None:
    page, address, _, _ = large
    page.goto(f"{address}#/paths?example=0")
    counts = page.locator("section", has_text="open a bar to see its heads").first
    expect(counts).to_contain_text(re.compile(r"\d\.\d × 10[⁰¹²³⁴⁵⁶⁷⁸⁹]+ paths"))
    expect(counts).not_to_contain_text(re.compile(r"e\+\d|\d(,\d{3}){4}"))


def test_labels_of_the_composition_graph_do_not_overlap(
    large: tuple[Page, str, int, int],
) -> None:
    page, address, layers, heads = large
    page.goto(f"{address}#/composition")
    nodes = page.locator("[data-node]")
    expect(nodes).to_have_count(layers * heads, timeout=4 * PATIENCE_MS)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(300)
        overlaps = page.evaluate(
            """() => [...document.querySelectorAll("[data-node]")].flatMap((node) => {
              const text = node.querySelector("text.label").getBoundingClientRect();
              const box = node.querySelector("rect.box").getBoundingClientRect();
              const outside = text.left < box.left - 1 || text.right > box.right + 1;
              return text.width > 0 && outside ? [node.dataset.node] : [];
            })"""
        )
        assert overlaps == []
    # Edges show through the heads that they pass.
    assert (
        page.locator(".node.far rect.box").first.evaluate(
            "one => getComputedStyle(one).fillOpacity"
        )
        == "0.3"
    )
    # Each has its name for those who do not see it, and for the pointer.
    top = page.locator(f'[data-node="L{layers - 1}H{heads - 1}"]')
    expect(top).to_have_accessible_name(f"L{layers - 1}H{heads - 1}")


def test_switches_show_their_whole_names(large: tuple[Page, str, int, int]) -> None:
    page, address, layers, heads = large
    page.goto(f"{address}#/why?example=0")
    switches = page.locator("[role=grid] [data-head]")
    expect(switches).to_have_count(layers * heads)
    cut = switches.evaluate_all(
        "all => all.filter((one) => one.scrollWidth > one.clientWidth).length"
    )
    assert cut == 0
    expect(page.get_by_role("button", name=f"L{layers - 1}H0", exact=True).first).to_be_visible()


def test_the_layers_of_a_prediction_are_named_in_full(large: tuple[Page, str, int, int]) -> None:
    page, address, _, _ = large
    page.goto(f"{address}#/why?example=0")
    names = page.locator(".graph .rows span")
    expect(names.first).to_be_visible(timeout=4 * PATIENCE_MS)
    cut = names.evaluate_all(
        """all => all.filter((one) => one.getBoundingClientRect().right
          > one.parentElement.getBoundingClientRect().right + 0.5).map((one) => one.textContent)"""
    )
    assert cut == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_circuit_of_a_prediction_is_as_high_as_its_panel(
    large: tuple[Page, str, int, int], width: int
) -> None:
    page, address, layers, _ = large
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"{address}#/why?example=0")
    panel = page.locator(".graph .scroll")
    expect(panel.locator("[data-node]").first).to_be_visible(timeout=4 * PATIENCE_MS)
    assert panel.evaluate("one => one.scrollHeight <= one.clientHeight + 1")
    rows = page.locator(".graph .rows span").all_text_contents()
    # The circuit of 48 × 25 random heads is in few layers, which all have rows of their own.
    assert any("–" in name for name in rows) or layers == 48


def test_a_group_of_a_circuit_opens_and_closes(
    context: BrowserContext, page: Page, watched: Watched
) -> None:
    config = Config(12, 2, 32, 16, 100, 64, mlp="gelu", norm="layer")
    server = ExplorerServer(Explorer([random_model(config, seed=0)], bundled=()), port=0).start()
    watched.allowed += (server.address,)
    sign_in(context, server)
    page.goto(f"{server.address}#/why?example=0")
    nodes = page.locator(".graph [data-node]")
    groups = page.locator('.graph [data-node^="group:"]')
    expect(groups.first).to_be_visible(timeout=4 * PATIENCE_MS)
    closed, grouped = nodes.count(), groups.count()
    groups.first.click()
    expect(groups).to_have_count(grouped - 1)
    assert nodes.count() > closed
    expect(page).to_have_url(re.compile("expanded=group:"))
    page.get_by_role("button", name="close groups").click()
    expect(nodes).to_have_count(closed)
    server.close()


def test_many_heads_are_compared_only_on_request(
    large: tuple[Page, str, int, int], watched: Watched
) -> None:
    page, address, layers, heads = large
    page.goto(f"{address}#/compare")
    expect(page.locator("main")).to_contain_text(f"{layers * heads:,} heads take minutes")

    def asked() -> bool:
        return any("compare" in url.split("#")[0] for url in watched.requests)

    page.wait_for_timeout(500)
    assert not asked()
    page.get_by_role("button", name="Compare all heads").click()
    expect(page.locator("main progress")).to_be_visible()
    assert asked()
