"""Figures: what they draw, that nothing is clipped, how they are saved, and who shows them."""

import math
import re
import stat
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import FailedError, InputError
from pathsum.figures import svg
from pathsum.figures.figure import BROWSERS, Axis, Figure, NoFigureError
from pathsum.figures.svg import RAMPS, SIDES, Pen, color_at, text_width

ROOT = Path(__file__).parents[2]
TEXT = "Mr. and Mrs. Tillerman kept the lighthouse. Mr. Tiller"
NS = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def model() -> ps.Model:
    return ps.load("two-layer")


@pytest.fixture(scope="module")
def results(model: ps.Model) -> dict[str, Any]:
    """One result of every kind that has a figure."""
    from pathsum.circuits import head_card
    from pathsum.paths import by_head

    trace = model.trace(TEXT)
    copying = ps.copying(model)
    composition = ps.composition(model)
    return {
        "attention": ps.attention(trace, "L1H0"),
        "attention of all heads": ps.attention(trace),
        "copying": copying,
        "head copying": copying["L1H0"],
        "head card": head_card(model, "L1H0"),
        "composition": composition,
        "composition edges": composition.edges(max_p=0.01),
        "no edges": composition.edges(min_z=1000.0),
        "atlas": ps.atlas(model, sequences=2),
        "terms": ps.term_importance(model, model.held_out[:2, :64], sets=by_head(model)),
        "waterfall": trace.paths().toward(versus="mean"),
        "sweep": ps.patch_sweep(model, TEXT, reference="zero", versus="mean"),
        "circuit": trace.circuit(effects=False),
        "dynamics": ps.dynamics("two-layer", sequences=2, probe_sequences=2),
    }


NAMES = [
    "attention",
    "attention of all heads",
    "copying",
    "head copying",
    "head card",
    "composition",
    "composition edges",
    "no edges",
    "atlas",
    "terms",
    "waterfall",
    "sweep",
    "circuit",
    "dynamics",
]


def parse(figure: Figure) -> ET.Element:
    return ET.fromstring(figure.to_svg())


def texts(figure: Figure) -> list[str]:
    return [found.text or "" for found in parse(figure).iter(f"{NS}text")]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_clipped(results: dict[str, Any], name: str, theme: str) -> None:
    figure = results[name].figure(theme=theme)
    wide, high = figure.width * 72, figure.height * 72
    assert figure.width == 3.3 and 0.3 < figure.height < 8
    ends = {"start": (0.0, 1.0), "middle": (-0.5, 0.5), "end": (-1.0, 0.0)}
    drawn = list(parse(figure).iter(f"{NS}text"))
    assert drawn
    for found in drawn:
        x, y, size = (float(found.get(key, 0)) for key in ("x", "y", "font-size"))
        # Helvetica is narrower than the estimate that labels are clipped by.
        length = text_width(found.text or "", size, bool(found.get("font-family"))) * 0.9
        low, high_end = (share * length for share in ends[found.get("text-anchor", "start")])
        turned = "rotate" in found.get("transform", "")
        left, right = (x - size, x) if turned else (x + low, x + high_end)
        upper, lower = (y - high_end, y - low) if turned else (y - size, y)
        assert left > -1 and right < wide + 1, (found.text, left, right)
        assert upper > -1 and lower < high + 1, (found.text, upper, lower)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_the_figure_and_all_that_is_printed(
    results: dict[str, Any], name: str
) -> None:
    shown = results[name]._repr_html_()
    assert shown.count("<svg") == 1
    assert "<table" in shown or "<pre" in shown


def test_a_circuit_shows_its_sentence_and_its_tree_too(results: dict[str, Any]) -> None:
    shown = results["circuit"]._repr_html_()
    assert "L1H0 adds" in shown and "V embed@12" in shown


def test_a_trace_shows_its_patterns(model: ps.Model) -> None:
    shown = model.trace(TEXT)._repr_html_()
    assert shown.startswith("<pre>Trace(") and ">L1H3<" in shown
    assert "<svg" not in model.trace([[1, 2], [3, 4]])._repr_html_()


def test_a_result_without_a_figure_says_which_have_one(model: ps.Model) -> None:
    found = ps.bigram(model, k=2)
    assert "<svg" not in found._repr_html_()
    with pytest.raises(NoFigureError, match=r"Bigram has no figure; .*attention, circuit"):
        found.figure()


def test_heads_that_write_nothing_are_left_out(model: ps.Model) -> None:
    found = ps.copying(model.edited({"L1H0": "zero"}))
    drawn = found.figure().to_svg()
    assert "L1H1" in drawn and "L1H0" not in drawn
    with pytest.raises(NoFigureError, match="L1H0 has no eigenvalues to draw: it writes nothing"):
        found["L1H0"].figure()


def test_no_heads_to_scatter() -> None:
    found = ps.atlas(ps.load("one-layer"), sequences=2, scores=["copying_weights"])
    assert "<svg" not in found._repr_html_()
    with pytest.raises(NoFigureError, match=r"use a model of at least two layers"):
        found.figure()


def test_the_colors_are_the_explorers() -> None:
    source = (ROOT / "web/src/lib/draw/color.ts").read_text(encoding="utf-8")
    for name, themes in RAMPS.items():
        found = re.findall(rf"{name}: ramps\(([^)]*)\)", source)
        assert [re.findall(r"#\w{6}", each) for each in found] == [
            list(themes["light"]),
            list(themes["dark"]),
        ]
    for side, light, dark in re.findall(r'(\w): { light: "(#\w+)", dark: "(#\w+)"', source):
        assert (SIDES[side].light, SIDES[side].dark) == (light, dark)


def test_cells_are_where_their_values_are() -> None:
    drawn = Pen().cells([[0.0, 1.0, 1.0], [-1.0, math.nan, 0.5]], (0, 0), (1, 1), "diverging", 1.0)
    paths = dict(re.findall(r'<path d="([^"]*)" fill="([^"]*)"', drawn))
    assert paths == {
        "M1 0h2v1h-2z": color_at(1.0, "diverging", "light"),
        "M0 1h1v1h-1z": color_at(-1.0, "diverging", "light"),
        "M2 1h1v1h-1z": color_at(0.5, "diverging", "light"),
    }
    assert Pen().cells([[-1.0, 0.001]], (0, 0), (1, 1), "sequential", 1.0) == ""


def test_ticks_lie_on_the_axis() -> None:
    axis = Axis(-0.3, 2.4, 0.0, 100.0)
    assert axis.ticks() == [0.0, 1.0, 2.0] or all(axis.low <= t <= axis.high for t in axis.ticks())
    assert [round(axis(t), 6) for t in (-0.3, 2.4)] == [0.0, 100.0]
    assert Axis(64, 15000, 0.0, 1.0, log=True).ticks() == [100.0, 1000.0, 10000.0]


def test_the_bars_of_a_waterfall_follow_each_other(model: ps.Model) -> None:
    toward = model.trace(TEXT).paths().toward(versus="mean")
    figure = toward.figure(k=3)
    bars = [r for r in parse(figure).iter(f"{NS}rect") if r.get("fill-opacity")]
    spans = [(float(r.attrib["x"]), float(r.attrib["width"])) for r in bars]
    assert len(spans) == 5  # three contributions, the others, the total
    *parts, whole = spans
    ranked = [value for _, value in toward.by_last.ranked()]
    scale = whole[1] / abs(toward.total)
    for (_, width), value in zip(parts, [*ranked[:3], sum(ranked[3:])], strict=True):
        assert width == pytest.approx(abs(value) * scale, abs=0.51)
    assert texts(figure)[-8:-6] != texts(figure)[-6:-4]
    assert f"{toward.total:+.2f}" in texts(figure)


def test_a_circuit_has_columns_for_positions_in_use_only(results: dict[str, Any]) -> None:
    graph = results["circuit"]
    figure = graph.figure(k=3)
    edges = graph.ranked[:3]
    used = {end.at for edge in edges for end in (edge.edge.start, edge.edge.end)}
    labels = {int(text) for text in texts(figure) if text.isdigit()}
    assert labels == used and len(used) < 6
    assert "3 of" in " ".join(texts(figure))
    # Boxes of one row do not overlap, whatever the number of edges.
    boxes = [r for r in parse(graph.figure(k=60)).iter(f"{NS}rect") if r.get("rx")]
    rows: dict[str, list[float]] = {}
    for box in boxes:
        rows.setdefault(box.attrib["y"], []).append(float(box.attrib["x"]))
    gaps = [b - a for xs in rows.values() for a, b in zip(sorted(xs), sorted(xs)[1:], strict=False)]
    assert min(gaps) >= float(boxes[0].attrib["width"])


def test_attention_rows_are_destinations(model: ps.Model) -> None:
    found = ps.attention(model.trace(TEXT), (1, 0))
    figure = found.figure()
    assert found.patterns.shape == (1, 30, 30)
    torch.testing.assert_close(found.patterns.sum(-1), torch.ones(1, 30))
    # The last destination attends to position 12: a dark cell in the last row.
    dark = color_at(round(float(found.patterns[0, 29, 12]) * 48) / 48, "sequential", "light")
    path = next(p for p in parse(figure).iter(f"{NS}path") if p.get("fill") == dark)
    assert "M12 29h1v1" in path.attrib["d"]


def test_a_lens_has_a_text_in_every_cell() -> None:
    figure = ps.figures.heat_map(
        [[0.1, 0.9]], ["L0"], ["a", "b"], texts=[["the", "<of>"]], title="lens", extent=1.0
    )
    assert {"the", "<of>", "lens"} <= set(texts(figure))
    with pytest.raises(InputError, match="scale is 'linear'; choose 'sequential' or 'diverging'"):
        ps.figures.heat_map([[0.1]], ["L0"], ["a"], scale="linear")


def test_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = Figure("<a>", Pen().text((1, 9), "a & b"), 1.0, 0.5)
    assert ET.parse(figure.save(tmp_path / "a.svg")).getroot().get("width") == "1in"
    with pytest.raises(InputError, match=r"'a.jpg': the name must end in .svg, .png or .pdf"):
        figure.save(tmp_path / "a.jpg")
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FailedError, match=r"neither is installed; run `pip install cairosvg`"):
        figure.save(tmp_path / "a.png")
    # A browser that writes its arguments.
    browser = tmp_path / BROWSERS[0]
    browser.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "file = next(a.split('=')[1] for a in sys.argv if a.startswith(('--scr', '--print')))\n"
        "open(file, 'w').write(' '.join(sys.argv))\n"
    )
    browser.chmod(browser.stat().st_mode | stat.S_IEXEC)
    assert "--window-size=96,48" in figure.save(tmp_path / "a.png").read_text()
    assert "--no-pdf-header-footer" in figure.save(tmp_path / "a.pdf").read_text()
    browser.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    with pytest.raises(FailedError, match=r"could not convert .* save it as .svg instead"):
        figure.save(tmp_path / "b.pdf")


def test_text_is_escaped() -> None:
    drawn = Pen().text((0, 0), "</text><script>", 5)
    assert "<script>" not in drawn and svg.hint("<b>") == "<title>&lt;b&gt;</title>"


def test_a_lens_is_drawn_from_the_top_layer_down() -> None:
    lens = ps.construct.induction().trace("a b c a").lens()
    drawn = lens.figure(readout="direct").to_svg()
    assert drawn.index("residual2") < drawn.index("residual0")
    assert lens.predictions[-1] in drawn
    assert lens.figure(k=2).to_svg() != lens.figure(k=3).to_svg()
    with pytest.raises(InputError, match="readout"):
        lens.figure(readout="mean")
