"""A picture of a circuit: an indented tree, circuit-tracer's JSON, Graphviz, and SVG."""

import html
import json
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.text import Text
from rich.tree import Tree

from pathsum.base import HeadId, Part, Side
from pathsum.base.arguments import checked_methods
from pathsum.base.files import write_output
from pathsum.paths.circuit.circuit_picture import Picture, PictureEdge, PictureNode

# Sizes of the picture, in pixels.
_WIDE, _HIGH, _GAP, _ROW, _MARGIN = 78, 34, 10, 92, 16
_COLORS = {Side.V: "#2f6fb5", Side.Q: "#c2571a", Side.K: "#2f8f5b"}
_DASHES = {Side.V: "", Side.Q: "7 4", Side.K: "2 4"}
_STYLES = {Side.V: "solid", Side.Q: "dashed", Side.K: "dotted"}


@checked_methods
class Drawn(ABC):
    """Views of what has a picture: the circuit of one prompt, or the mean of many."""

    @property
    @abstractmethod
    def picture(self) -> Picture:
        """The nodes and edges that are printed and drawn."""

    def tree(self) -> Tree:
        """An indented tree, each node opened where it is met first."""
        return print_tree(self.picture)

    def to_graph(self) -> dict[str, Any]:
        """The graph in circuit-tracer's JSON format: metadata, nodes, links."""
        return to_graph(self.picture)

    def to_dot(self) -> str:
        """The graph for Graphviz: V edges solid, Q dashed, K dotted, width by share."""
        return to_dot(self.picture)

    def to_svg(self) -> str:
        """The graph as a picture: tokens or places below, the prediction on top."""
        return to_svg(self.picture)

    def write_graph(self, file: str | Path) -> None:
        """Write the graph to a file: .dot, .svg, or circuit-tracer's JSON for any other name."""
        file = Path(file)
        if file.suffix in (".dot", ".svg"):
            text = self.to_dot() if file.suffix == ".dot" else self.to_svg()
        else:
            text = json.dumps(self.to_graph(), indent=1)
        write_output(file, text)


def to_graph(picture: Picture) -> dict[str, Any]:
    """The graph in circuit-tracer's JSON format: metadata, nodes, links.

    Links have a weight, the share, as in that format; `kind`, `exact`, `unit` and `effect` are
    fields of our own, and two nodes may have one link of each kind.
    """
    top = picture.nodes[0]
    ranks = _ranks(picture)
    return {
        "metadata": {
            "slug": re.sub(r"[^A-Za-z0-9._-]+", "-", f"{picture.model}-{top.name}"),
            "scan": picture.model,
            "transcoder_list": [],
            "prompt_tokens": list(picture.columns),
            "prompt": "".join(picture.columns),
            "node_threshold": picture.threshold,
            "schema_version": 1,
        },
        "qParams": {
            "pinnedIds": [],
            "supernodes": [],
            "linkType": "both",
            "clickedId": "",
            "sg_pos": "",
        },
        "nodes": [
            _graph_node(picture, node, number, ranks.get(node.name))
            for number, node in enumerate(picture.nodes)
        ],
        "links": [
            {
                "source": edge.writer,
                "target": edge.reader,
                "weight": edge.share,
                "kind": edge.kind.value,
                "exact": edge.exact,
                "unit": edge.unit,
                "effect": edge.effect,
            }
            for edge in picture.edges
        ],
    }


def _graph_node(
    picture: Picture, node: PictureNode, number: int, influence: float | None
) -> dict[str, Any]:
    is_logit, kind = node.component == "logits", _feature_type(node)
    # The viewer takes a layer and a feature to be one thing at several tokens: it gives all of them
    # one text, and deletes those of most tokens. So no two nodes share a number; an embedding has
    # that of its position, as in circuit-tracer.
    feature = node.column if kind == "embedding" else len(picture.columns) + number
    return {
        "node_id": node.name,
        "feature": feature,
        "layer": "E" if node.layer < 0 else str(int(node.layer)),
        "ctx_idx": node.column,
        "feature_type": kind,
        "token_prob": picture.probability if is_logit else 0.0,
        "is_target_logit": is_logit,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": node.name,
        "clerp": _clerp(picture, node),
        "influence": influence,
        "activation": node.value,
    }


def _feature_type(node: PictureNode) -> str:
    """The viewer knows `logit` and `embedding`, and takes names with `error` as unexplained."""
    if node.component is None:
        return "left out error"
    if isinstance(node.component, HeadId):
        return "attention head"
    if isinstance(node.component, Part):
        return node.component.kind
    kinds = {"logits": "logit", "embed": "embedding"}
    return kinds.get(str(node.component), str(node.component))


def _clerp(picture: Picture, node: PictureNode) -> str:
    """The label of a node; the viewer parses token and probability from that of the logit."""
    if node.component == "logits":
        token = picture.token_text.replace("(p=", "( p=").replace('"', "”")
        return f'Output "{token}" (p={picture.probability:.3f})'
    if node.component is None:
        return f"left out ({node.text})"
    return f"{node.component} {node.text}".strip()


def _ranks(picture: Picture) -> dict[str, float]:
    """The cumulative share of values, largest node first, as in circuit-tracer's format.

    The viewer's slider hides nodes above a number between 0 and 1. The logit is always shown.
    """
    ordered = sorted(picture.nodes[1:], key=lambda node: -abs(node.value))
    total, sofar, found = sum(abs(node.value) for node in ordered), 0.0, dict[str, float]()
    for node in ordered:
        sofar += abs(node.value)
        found[node.name] = min(1.0, sofar / total) if total else 1.0
    return found


def to_dot(picture: Picture) -> str:
    """The graph for Graphviz: V edges solid, Q dashed, K dotted, width by share."""
    lines = ["digraph circuit {", "  rankdir=BT;", "  node [shape=box, fontname=Helvetica];"]
    for node in picture.nodes:
        name = "left out" if node.component is None else node.name
        label = f"{_quoted(name)}\\n{_quoted(node.text)}\\n{node.value:+.2f}"
        style = ", style=dashed" if node.component is None else ""
        lines.append(f'  "{_quoted(node.name)}" [label="{label}"{style}];')
    widest = _widest(picture)
    for edge in picture.edges:
        width = 0.5 + 4 * abs(edge.share) / widest
        lines.append(
            f'  "{_quoted(edge.writer)}" -> "{_quoted(edge.reader)}" [style={_STYLES[edge.kind]}, '
            f'penwidth={width:.2f}, label="{edge.kind.value.upper()} {edge.share:+.2f}"];'
        )
    return "\n".join([*lines, "}"]) + "\n"


def to_svg(picture: Picture) -> str:
    """A picture: a column per place, a row per layer, tokens below, the prediction on top.

    Places without a node are left out. V edges are solid, Q dashed, K dotted, their width is the
    magnitude of the share; hovering shows the numbers.
    """
    places = _layout(picture)
    width = max((x for x, _ in places.values()), default=0) + _WIDE + _MARGIN
    width = max(width, 420)
    bottom = max((y for _, y in places.values()), default=0) + _HIGH
    height = bottom + 64
    edges = sorted(picture.edges, key=lambda edge: abs(edge.share))
    shapes = [_edge_shape(edge, places, _widest(picture)) for edge in edges]
    shapes += [_node_shape(node, *places[node.name]) for node in picture.nodes]
    columns: dict[int, list[int]] = defaultdict(list)
    for node in picture.nodes:
        columns[node.column].append(places[node.name][0])
    for column, xs in sorted(columns.items()):
        middle = (min(xs) + max(xs) + _WIDE) // 2
        token = _short(picture.columns[column], 11)
        shapes.append(_text(middle, bottom + 20, token, "font-weight='bold'"))
        shapes.append(_text(middle, bottom + 34, str(column), "fill='#777'"))
    legend = "V solid, Q dashed, K dotted; width: share of the prediction; red: lowers it"
    shapes.append(_text(_MARGIN, height - 10, legend, "text-anchor='start' fill='#777'"))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}' font-family='Helvetica, Arial, sans-serif' "
        f"font-size='11'><title>{html.escape(picture.title)}</title>"
        "<rect width='100%' height='100%' fill='#fff'/>" + "\n".join(shapes) + "</svg>\n"
    )


def _layout(picture: Picture) -> dict[str, tuple[int, int]]:
    """The upper left corner of each node; nodes of one layer and place stand side by side."""
    cells: dict[tuple[float, int], list[str]] = defaultdict(list)
    for node in picture.nodes:
        cells[node.layer, node.column].append(node.name)
    layers = sorted({layer for layer, _ in cells}, reverse=True)
    # What was left out is close below its node.
    steps = [_ROW if layer == int(layer) else _ROW // 2 for layer in layers]
    rows = {layer: _MARGIN + sum(steps[1 : at + 1]) for at, layer in enumerate(layers)}
    left, columns = _MARGIN, dict[int, tuple[int, int]]()
    for column in sorted({column for _, column in cells}):
        most = max(len(cells.get((layer, column), ())) for layer in layers)
        columns[column] = left, most * (_WIDE + _GAP) - _GAP
        left += columns[column][1] + 2 * _GAP
    found: dict[str, tuple[int, int]] = {}
    for (layer, column), names in cells.items():
        start, room = columns[column]
        # Each cell is in the middle of its column.
        start += (room - (len(names) * (_WIDE + _GAP) - _GAP)) // 2
        for number, name in enumerate(sorted(names)):
            found[name] = start + number * (_WIDE + _GAP), rows[layer]
    return found


def _node_shape(node: PictureNode, x: int, y: int) -> str:
    stroke = "#b3261e" if node.value < 0 else "#444"
    name = "left out" if node.component is None else str(node.component)
    name = f"→ {_short(node.text, 8)}" if name == "logits" else name
    middle = x + _WIDE // 2
    hint = html.escape(f"{node.name} {node.text}: {node.value:+.3f} logits")
    dashed = " stroke-dasharray='4 3'" if node.component is None else ""
    return (
        f"<g><title>{hint}</title><rect x='{x}' y='{y}' width='{_WIDE}' height='{_HIGH}' rx='5' "
        f"fill='#f6f6f4' stroke='{stroke}'{dashed}/>{_text(middle, y + 15, name, '')}"
        f"{_text(middle, y + 28, f'{node.value:+.2f}', _fill(stroke))}</g>"
    )


def _edge_shape(edge: PictureEdge, places: dict[str, tuple[int, int]], widest: float) -> str:
    """From the top of the writer to the bottom of the reader."""
    (x0, y0), (x1, y1) = places[edge.writer], places[edge.reader]
    x0, x1, y1 = x0 + _WIDE // 2, x1 + _WIDE // 2, y1 + _HIGH
    bend = max(4, (y0 - y1) // 2)
    width = 0.8 + 5 * abs(edge.share) / widest
    color = _COLORS[edge.kind] if edge.share >= 0 else "#b3261e"
    return (
        f"<path d='M{x0} {y0} C{x0} {y0 - bend} {x1} {y1 + bend} {x1} {y1}' fill='none' "
        f"stroke='{color}' stroke-width='{width:.2f}' stroke-dasharray='{_DASHES[edge.kind]}' "
        f"stroke-opacity='0.75'><title>{html.escape(_edge_hint(edge))}</title></path>"
    )


def _edge_hint(edge: PictureEdge) -> str:
    side = "" if edge.reader.startswith("logits@") else f".{edge.kind.value}"
    effect = "" if edge.effect is None else f", cut {edge.effect:+.3f}"
    exact = "" if edge.unit == "logits" else f" {edge.exact:+.3f} score,"
    detail = f" {edge.detail}" if edge.detail else ""
    return f"{edge.writer}→{edge.reader}{side}:{exact} {edge.share:+.3f}{detail} logits{effect}"


def _text(x: int, y: int, text: str, style: str) -> str:
    anchor = "" if "text-anchor" in style else "text-anchor='middle' "
    return f"<text x='{x}' y='{y}' {anchor}{style}>{html.escape(text)}</text>"


def _fill(color: str) -> str:
    return f"fill='{color}'"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _widest(picture: Picture) -> float:
    return max((abs(edge.share) for edge in picture.edges), default=1.0) or 1.0


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\\\n")


# A smaller rest is not worth a line.
_SMALLEST_REST = 5e-4


def print_tree(picture: Picture) -> Tree:
    """The tree; a head is opened where it is met first."""
    # Text, not str: a token may contain what rich would read as markup.
    tree = Tree(Text(picture.title))
    nodes = {node.name: node for node in picture.nodes}
    _grow(picture, nodes, tree, picture.nodes[0].name, opened=set())
    return tree


def _grow(
    picture: Picture, nodes: dict[str, PictureNode], tree: Tree, name: str, opened: set[str]
) -> None:
    opened.add(name)
    for side in (Side.V, Side.K, Side.Q):
        for edge in picture.inputs(name, side):
            if edge.is_left_out:
                if abs(edge.share) >= _SMALLEST_REST:
                    text = f"{side.value.upper()} left out ({edge.detail}) {edge.share:+.3f}"
                    tree.add(Text(text))
                continue
            writer = nodes[edge.writer]
            branch = tree.add(Text(_line(edge, writer)))
            if isinstance(writer.component, HeadId) and writer.name in opened:
                branch.add("(above)")
            elif isinstance(writer.component, HeadId):
                _grow(picture, nodes, branch, writer.name, opened)
    if nodes[name].note:
        tree.add(Text(f"({nodes[name].note})"))


def _line(edge: PictureEdge, writer: PictureNode) -> str:
    effect = "" if edge.effect is None else f", cut {edge.effect:+.2f}"
    exact = "" if edge.unit == "logits" else f"{edge.exact:+.2f} score, "
    text = f" {writer.text!r}" if writer.text else ""
    interval = f" {edge.detail}" if edge.detail else ""
    where = f"  ({writer.detail})" if writer.detail else ""
    share = f"{exact}{edge.share:+.2f}{interval} logits{effect}"
    return f"{edge.kind.value.upper()} {edge.writer}{text}  {share}{where}"
