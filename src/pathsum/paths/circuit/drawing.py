"""A circuit as a graph: circuit-tracer's JSON, Graphviz, and a picture of its own."""

import html
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pathsum.names import HeadId, Node, Side, Source

if TYPE_CHECKING:
    from pathsum.paths.circuit.circuit import Circuit, CircuitEdge, CircuitNode

# Sizes of the picture, in pixels.
_WIDE, _HIGH, _GAP, _ROW, _MARGIN = 78, 34, 10, 92, 16
_COLORS = {Side.V: "#2f6fb5", Side.Q: "#c2571a", Side.K: "#2f8f5b"}
_DASHES = {Side.V: "", Side.Q: "7 4", Side.K: "2 4"}
_STYLES = {Side.V: "solid", Side.Q: "dashed", Side.K: "dotted"}


def edge_layer(node: Node) -> int:
    """The layer of a node; −1 for what is there before the first layer."""
    component = node.component
    if isinstance(component, HeadId | Source):
        return component.layer
    return 1 << 30 if component == "logits" else -1


def to_graph(circuit: "Circuit") -> dict[str, Any]:
    """The graph in circuit-tracer's JSON format: metadata, nodes, links."""
    layers = max((edge_layer(found.node) for found in circuit.nodes), default=0)
    return {
        "metadata": {
            "slug": f"{circuit.model}-{circuit.position}",
            "scan": circuit.model,
            "prompt_tokens": list(circuit.tokens),
            "prompt": "".join(circuit.tokens),
            "node_threshold": circuit.threshold,
            "schema_version": 1,
        },
        "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": ""},
        "nodes": [_graph_node(found, layers) for found in circuit.nodes],
        "links": [
            {
                "source": str(edge.edge.writer),
                "target": str(edge.edge.reader),
                "weight": edge.share,
                "kind": edge.kind.value,
                "exact": edge.exact,
                "unit": edge.unit,
                "effect": edge.effect,
            }
            for edge in circuit.edges
        ],
    }


def _graph_node(found: "CircuitNode", layers: int) -> dict[str, Any]:
    component, layer = found.node.component, edge_layer(found.node)
    kinds = {"logits": "logit", "embed": "embedding"}
    kind = "attention head" if isinstance(component, HeadId) else str(component)
    return {
        "node_id": str(found.node),
        "feature": component.head if isinstance(component, HeadId) else None,
        "layer": "E" if layer < 0 else str(min(layer, layers)),
        "ctx_idx": found.node.position,
        "feature_type": kinds.get(str(component), kind),
        "jsNodeId": str(found.node),
        "clerp": f"{component} {found.text}".strip(),
        "influence": found.value,
        "is_target_logit": component == "logits",
    }


def to_dot(circuit: "Circuit") -> str:
    """The graph for Graphviz: V edges solid, Q dashed, K dotted, width by share."""
    lines = ["digraph circuit {", "  rankdir=BT;", "  node [shape=box, fontname=Helvetica];"]
    for found in circuit.nodes:
        label = f"{found.node}\\n{_quoted(found.text)}\\n{found.value:+.2f}"
        lines.append(f'  "{found.node}" [label="{label}"];')
    widest = _widest(circuit)
    for edge in circuit.edges:
        width = 0.5 + 4 * abs(edge.share) / widest
        lines.append(
            f'  "{edge.edge.writer}" -> "{edge.edge.reader}" [style={_STYLES[edge.kind]}, '
            f'penwidth={width:.2f}, label="{edge.kind.value.upper()} {edge.share:+.2f}"];'
        )
    return "\n".join([*lines, "}"]) + "\n"


def to_svg(circuit: "Circuit") -> str:
    """A picture: a column per position, a row per layer, tokens below, the prediction on top.

    Positions without a node are left out. V edges are solid, Q dashed, K dotted, their width is the
    magnitude of the share; hovering shows the numbers.
    """
    places = _layout(circuit)
    width = max((x for x, _ in places.values()), default=0) + _WIDE + _MARGIN
    width = max(width, 420)
    bottom = max((y for _, y in places.values()), default=0) + _HIGH
    height = bottom + 64
    edges = sorted(circuit.edges, key=lambda edge: abs(edge.share))
    shapes = [_edge_shape(edge, places, _widest(circuit)) for edge in edges]
    shapes += [_node_shape(found, *places[found.node]) for found in circuit.nodes]
    columns: dict[int, list[int]] = defaultdict(list)
    for node, (x, _) in places.items():
        columns[node.position].append(x)
    for position, xs in sorted(columns.items()):
        middle = (min(xs) + max(xs) + _WIDE) // 2
        token = circuit.tokens[position]
        shapes.append(_text(middle, bottom + 20, _short(token, 11), "font-weight='bold'"))
        shapes.append(_text(middle, bottom + 34, str(position), "fill='#777'"))
    legend = "V solid, Q dashed, K dotted; width: share of the prediction; red: lowers it"
    shapes.append(_text(_MARGIN, height - 10, legend, "text-anchor='start' fill='#777'"))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}' font-family='Helvetica, Arial, sans-serif' "
        f"font-size='11'><title>{html.escape(circuit.title)}</title>"
        "<rect width='100%' height='100%' fill='#fff'/>" + "\n".join(shapes) + "</svg>\n"
    )


def _layout(circuit: "Circuit") -> dict[Node, tuple[int, int]]:
    """The upper left corner of each node; nodes of one layer and position stand side by side."""
    cells: dict[tuple[int, int], list[Node]] = defaultdict(list)
    for one in circuit.nodes:
        cells[edge_layer(one.node), one.node.position].append(one.node)
    layers = sorted({layer for layer, _ in cells}, reverse=True)
    left, columns = _MARGIN, dict[int, tuple[int, int]]()
    for position in sorted({position for _, position in cells}):
        most = max(len(cells.get((layer, position), ())) for layer in layers)
        columns[position] = left, most * (_WIDE + _GAP) - _GAP
        left += columns[position][1] + 2 * _GAP
    found: dict[Node, tuple[int, int]] = {}
    for (layer, position), nodes in cells.items():
        start, room = columns[position]
        # Each cell is in the middle of its column.
        start += (room - (len(nodes) * (_WIDE + _GAP) - _GAP)) // 2
        for number, node in enumerate(sorted(nodes, key=str)):
            x = start + number * (_WIDE + _GAP)
            found[node] = x, _MARGIN + layers.index(layer) * _ROW
    return found


def _node_shape(found: "CircuitNode", x: int, y: int) -> str:
    stroke = "#b3261e" if found.value < 0 else "#444"
    name = str(found.node.component)
    name = f"→ {_short(found.text, 8)}" if name == "logits" else name
    middle = x + _WIDE // 2
    hint = html.escape(f"{found.node} {found.text}: {found.value:+.3f} logits")
    return (
        f"<g><title>{hint}</title><rect x='{x}' y='{y}' width='{_WIDE}' height='{_HIGH}' rx='5' "
        f"fill='#f6f6f4' stroke='{stroke}'/>{_text(middle, y + 15, name, '')}"
        f"{_text(middle, y + 28, f'{found.value:+.2f}', _fill(stroke))}</g>"
    )


def _edge_shape(edge: "CircuitEdge", places: dict[Node, tuple[int, int]], widest: float) -> str:
    """From the top of the writer to the bottom of the reader."""
    (x0, y0), (x1, y1) = places[edge.edge.writer], places[edge.edge.reader]
    x0, x1, y1 = x0 + _WIDE // 2, x1 + _WIDE // 2, y1 + _HIGH
    bend = max(20, (y0 - y1) // 2)
    width = 0.8 + 5 * abs(edge.share) / widest
    effect = "" if edge.effect is None else f", cut {edge.effect:+.3f}"
    exact = "" if edge.unit == "logits" else f" {edge.exact:+.3f} score,"
    hint = html.escape(f"{edge}:{exact} {edge.share:+.3f} logits{effect}")
    color = _COLORS[edge.kind] if edge.share >= 0 else "#b3261e"
    return (
        f"<path d='M{x0} {y0} C{x0} {y0 - bend} {x1} {y1 + bend} {x1} {y1}' fill='none' "
        f"stroke='{color}' stroke-width='{width:.2f}' stroke-dasharray='{_DASHES[edge.kind]}' "
        f"stroke-opacity='0.75'><title>{hint}</title></path>"
    )


def _text(x: int, y: int, text: str, style: str) -> str:
    anchor = "" if "text-anchor" in style else "text-anchor='middle' "
    return f"<text x='{x}' y='{y}' {anchor}{style}>{html.escape(text)}</text>"


def _fill(color: str) -> str:
    return f"fill='{color}'"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _widest(circuit: "Circuit") -> float:
    return max((abs(edge.share) for edge in circuit.edges), default=1.0) or 1.0


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\\\n")
