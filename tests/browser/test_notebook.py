"""The widget in Chromium, in a page that behaves as a notebook: its theme, its keys, its kernel."""

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.conftest import PATIENCE_MS

pytestmark = pytest.mark.browser

# A notebook's page: a focusable cell, and a widget whose kernel is the server until it stops.
NOTEBOOK = (
    "<!doctype html><title>a notebook</title><div id=cell tabindex=-1><div id=el></div></div>"
)
RENDER = """async () => {
  const style = await (await fetch("/app.css")).text();
  const traits = { page_style: style, height: 700, place: "" };
  const heard = new Set();
  const model = {
    get: (name) => traits[name],
    on: (_, callback) => heard.add(callback),
    off: (_, callback) => heard.delete(callback),
    send: ({ id, name, params }) => {
      if (window.stopped) throw new Error("Cannot send");
      const Authorization = `Bearer ${localStorage.getItem("pathsum-token")}`;
      const headers = { "Content-Type": "application/json", Authorization };
      fetch(`/api/${name}`, { method: "POST", headers, body: JSON.stringify(params) })
        .then((answer) => answer.arrayBuffer())
        .then((wire) => heard.forEach((hear) => hear({ id }, [new DataView(wire)])));
    },
  };
  const el = document.getElementById("el");
  window.leave = (await import("/app.js")).default.render({ model, el });
}"""


@pytest.fixture
def widget(page: Page, live: str) -> Locator:
    """The root of the page inside the widget."""
    address = f"{live}notebook"
    page.route(address, lambda route: route.fulfill(body=NOTEBOOK, content_type="text/html"))
    page.goto(address)
    page.evaluate(RENDER)
    root = page.locator("#el .pathsum.root")
    story = root.get_by_role("region", name="What the model predicts, and why")
    expect(story).to_contain_text("the first time", timeout=2 * PATIENCE_MS)
    return root


def test_the_widget_has_its_style(widget: Locator) -> None:
    expect(widget).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(widget).to_have_css("height", "700px")


def test_the_widget_follows_the_notebooks_theme(page: Page, widget: Locator) -> None:
    expect(widget).to_have_attribute("data-theme", "light")
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    expect(widget).to_have_attribute("data-theme", "dark")
    expect(widget).to_have_css("background-color", "rgb(24, 25, 28)")
    page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    expect(widget).to_have_attribute("data-theme", "light")
    page.evaluate("delete document.body.dataset.jpThemeLight; document.body.className = 'dark'")
    expect(widget).to_have_attribute("data-theme", "dark")
    # What the reader chooses here stays, and is no choice for other widgets.
    widget.focus()
    page.keyboard.press("D")
    expect(widget).to_have_attribute("data-theme", "light")
    page.evaluate("document.body.className = 'dark dark-theme'")
    expect(widget).to_have_attribute("data-theme", "light")
    assert page.evaluate("localStorage.getItem('pathsum-theme')") is None


def test_a_stopped_kernel_says_what_to_do(page: Page, widget: Locator) -> None:
    page.evaluate("window.stopped = true")
    widget.focus()
    page.keyboard.press("3")  # the atlas, of which nothing has been asked yet
    expect(widget.get_by_role("alert").first).to_contain_text(
        "The notebook's kernel has stopped; run the cell again."
    )


def test_jupyterlab_is_told_to_leave_the_keys_alone(page: Page, widget: Locator) -> None:
    # Lumino gives a key no command if its target, or anything around it, has this attribute.
    page.evaluate("addEventListener('keydown', (event) => (window.target = event.target), true)")
    widget.focus()
    page.keyboard.press("j")
    assert page.evaluate("target.closest('[data-lm-suppress-shortcuts]')?.id") == "el"
