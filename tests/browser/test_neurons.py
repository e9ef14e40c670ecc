"""MLPs in the graph of a prediction: value and gate edges, and nodes opened into neurons."""

import re

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import PATIENCE_MS
from tests.browser.test_live import settled

pytestmark = pytest.mark.browser

TEXT = "Mr. and Mrs. Tillerman kept the light. Mr. Till"
WHY = f"#/why?model=one-layer-bilinear&text={TEXT}&position=26"


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_value_and_gate_edges_have_their_own_lines(page: Page, live: str) -> None:
    page.goto(f"{live}{WHY}&selected=mlp0@26")
    legend = page.get_by_label("Legend")
    expect(legend).to_contain_text("moved by an MLP")
    expect(legend.locator(".u line")).to_have_attribute("stroke-dasharray", "none")
    expect(legend.locator(".g line")).to_have_attribute("stroke-dasharray", "4 3")
    details = page.get_by_role("region", name="Details")
    for head in ("into its value, gate held", "into its gate, value held"):
        expect(details).to_contain_text(head)
    expect(details).to_contain_text("two views of one number and must not be added")
    # Cutting one input of a bilinear MLP's value loses exactly its share.
    row = details.locator("tbody tr").first.locator("td.num")
    share, lost = (number(one) for one in row.all_inner_texts())
    assert lost == pytest.approx(share, abs=0.011)
    details.locator("button.way").first.click()
    expect(details).to_contain_text("moved with the gate held, logits")
    expect(details).not_to_contain_text("Score before softmax")


@pytest.mark.parametrize("width", [390, 1280])
def test_an_mlp_opens_into_neurons_that_add_up(page: Page, live: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"{live}{WHY}&selected=mlp0@26")
    details = page.get_by_role("region", name="Details")
    details.get_by_role("button", name="neurons").click()
    listed = page.get_by_role("table", name="Neurons of mlp0@26")
    expect(listed.get_by_role("row")).to_have_count(11)
    shares = [number(one) for one in listed.locator("td.num").all_inner_texts()]
    value = number(details.locator("h2 .total").inner_text().split()[0])
    assert sum(shares) == pytest.approx(value, abs=0.06)
    listed.get_by_role("button").first.click()
    neuron = page.get_by_role("region", name=re.compile(r"Neuron mlp0\.n\d+"))
    expect(neuron).to_contain_text("opens its gate", timeout=2 * PATIENCE_MS)
    for words in ("sets its value", "it raises", "top contexts", "pathsum neurons"):
        expect(neuron).to_contain_text(words)
    expect(page).to_have_url(re.compile(r"neuron=mlp0\.n\d+"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("view", "region"), [("why", "Details"), ("paths", "Waterfall")])
def test_shading_by_source_token_adds_up(page: Page, live: str, view: str, region: str) -> None:
    page.goto(f"{live}{WHY.replace('why', view)}&selected=logits@26")
    note = page.get_by_text("attention and gates frozen")
    expect(note).to_contain_text("Tokens add up to")
    said = re.search(
        r"add up to (\S+) of (\S+?)(?:, positions and biases (\S+))?\. ", note.inner_text()
    )
    assert said
    tokens, total, rest = (number(one) for one in said.groups("0"))
    assert tokens + rest == pytest.approx(total, abs=0.011)
    expect(page.get_by_role("region", name=region).locator("h2")).to_contain_text(said.group(2))


def test_an_attention_only_model_has_neither(page: Page, live: str) -> None:
    page.goto(f"{live}#/why?example=0")
    settled(page)
    expect(page.get_by_label("Legend")).to_contain_text("written into a key")
    expect(page.get_by_label("Legend")).not_to_contain_text("gate")
    expect(page.get_by_role("button", name="neurons")).to_have_count(0)
