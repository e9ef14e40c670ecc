"""Graphs: which heads read which (composition), and the circuit of one prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pathsum.base import LOGITS, HeadId, Source
from pathsum.base.path import level_of
from pathsum.base.sentence import signed
from pathsum.figures.figure import COLUMN, POINTS, Figure, legend
from pathsum.figures.svg import (
    INK,
    LABEL,
    LINE,
    LOWERS,
    MARGIN,
    MUTED,
    PAPER,
    RAISES,
    SIDES,
    SMALL,
    Length,
    Pen,
    Point,
    Style,
    Theme,
    clip_text,
    element,
    hint,
    number,
)

if TYPE_CHECKING:
    from pathsum.base.site import Site
    from pathsum.circuits.composition import Edges
    from pathsum.paths.graph import Graph, GraphEdge, GraphNode

# With more heads than this only those with an edge are drawn.
MOST_HEADS = 40
EDGES = 20
BOX, ROW_PITCH, LEAST_PITCH = 16.0, 46.0, 18.5
KIND_NAMES = {"q": "query", "k": "key", "v": "value", "u": "MLP value", "g": "gate"}


def curve(pen: Pen, begin: Point, end: Point, style: Style, width: Length, title: str) -> str:
    """A curve that leaves one point upward and enters another from below."""
    (x0, y0), (x1, y1) = begin, end
    bend = max((y0 - y1) * 0.45, 6.0)
    path = (
        f"M{number(x0)} {number(y0)}C{number(x0)} {number(y0 - bend)} "
        f"{number(x1)} {number(y1 + bend)} {number(x1)} {number(y1)}"
    )
    return element(
        "path",
        hint(title),
        d=path,
        fill="none",
        stroke=pen.of(style),
        stroke_width=width,
        stroke_dasharray=style.dash or None,
        stroke_opacity=0.85,
    )


def composition_graph(edges: "Edges", *, width: Length = COLUMN, theme: Theme = "light") -> Figure:
    """Heads as nodes, layers from the bottom up, and composition edges between them.

    The thickness of an edge is its z, and its line style the side that it enters.

    Args:
        edges: From `ps.composition(model).edges(…)`; edges with negative z are not drawn.
        width: In inches.
        theme: "light" or "dark".
    """
    pen, wide = Pen(theme), width * POINTS
    drawn = [edge for edge in edges.edges if edge.z > 0]
    used = {head for edge in drawn for head in (edge.writer, edge.reader)}
    layers = _rows_of_heads(sorted(used, key=lambda head: (head.layer, head.head)))
    pitch = min(62.0, 300.0 / max(len(layers), 1)) if len(layers) > 2 else 62.0
    top = MARGIN + 28.0
    places: dict[HeadId, Point] = {}
    for row, heads in enumerate(layers):
        y = top + 8 + (len(layers) - 1 - row) * pitch
        gap = (wide - 2 * MARGIN) / len(heads)
        for column, head in enumerate(heads):
            places[head] = (MARGIN + (column + 0.5) * gap, y)
    radius = min(10.0, 0.45 * (wide - 2 * MARGIN) / max(map(len, layers), default=1))
    largest = max((edge.z for edge in drawn), default=1.0)
    shift = {"q": -3.0, "k": 3.0, "v": 0.0}
    body = [pen.title(f"composition of {edges.model}", wide)]
    for edge in sorted(drawn, key=lambda each: each.z):
        (x0, y0), (x1, y1) = places[edge.writer], places[edge.reader]
        side = edge.kind
        ends = (x0 + shift[side], y0 - radius), (x1 + shift[side], y1 + radius)
        thick = 0.4 + 2.2 * edge.z / largest
        title = f"{edge.edge}: score {edge.score:.3f}, z {edge.z:+.1f}, p {edge.p:.1g}"
        body.append(curve(pen, *ends, SIDES[side], thick, title))
    for head, at in places.items():
        body.append(pen.dot(at, radius, pen.of(PAPER), stroke=pen.of(INK), stroke_width=0.6))
        size = min(SMALL, radius * 0.75)
        body.append(pen.text((at[0], at[1] + size * 0.36), str(head), size, anchor="middle"))
    kinds = [side for side in ("q", "k", "v") if any(e.kind == side for e in drawn)]
    entries = [(KIND_NAMES[side], SIDES[side]) for side in kinds]
    body.append(legend(pen, (MARGIN, MARGIN + 18), entries))
    bottom = top + 8 + max(len(layers) - 1, 0) * pitch + radius
    if not drawn:
        text = "no edge shares more directions than random heads"
        body.append(pen.text((MARGIN, top + 4), text, LABEL, color=pen.of(MUTED)))
    title = f"composition of {edges.model}"
    return Figure(title, "".join(body), width, (bottom + MARGIN + 2) / POINTS, theme)


def _rows_of_heads(used: Sequence[HeadId]) -> list[list[HeadId]]:
    """The heads of each layer in use; in small models also those without an edge."""
    if not used:
        return []
    n_layers = 1 + max(head.layer for head in used)
    n_heads = 1 + max(head.head for head in used)
    if n_layers * n_heads <= MOST_HEADS:
        return [[HeadId(l, h) for h in range(n_heads)] for l in range(n_layers)]
    layers = sorted({head.layer for head in used})
    return [[head for head in used if head.layer == layer] for layer in layers]


def circuit_graph(
    graph: "Graph", *, k: int = EDGES, width: Length = COLUMN, theme: Theme = "light"
) -> Figure:
    """The strongest edges of a circuit: tokens at the bottom, the logit at the top.

    Only positions in use have a column. A box has a node's name and its contribution in logits; the
    thickness of an edge is its share.

    Args:
        graph: From `trace.circuit(…)` or `ps.mean_circuit(…)`.
        k: The most edges drawn, in greedy order from the logit down; fewer if boxes would overlap.
        width: In inches.
        theme: "light" or "dark".
    """
    pen, wide = Pen(theme), width * POINTS
    while True:  # fewer edges until the boxes fit side by side
        edges = graph.ranked[:k]
        layout = _Layout.of(graph, edges, wide - 2 * MARGIN)
        if layout.pitch >= LEAST_PITCH or k <= 1:
            break
        k -= 1
    kinds = list(dict.fromkeys(edge.kind.value for edge in edges))
    # A legend of more than three kinds needs the whole line.
    below = 12.0 if len(kinds) > 3 else 0.0
    places, bottom = layout.places(MARGIN + 28.0 + below)
    what = f"{len(graph.prompts)} prompts" if graph.is_mean else repr(graph.token_text)
    title = f"{graph.model}: {what}, {signed(graph.total)} logits{graph.change}"
    body = [pen.title(title, wide)]
    entries = [(KIND_NAMES[side], SIDES[side]) for side in SIDES if side in kinds]
    body.append(legend(pen, (MARGIN, MARGIN + 18), entries))
    count = f"{len(edges)} of {len(graph.edges)} edges"
    at = (wide - MARGIN, MARGIN + 18 + below)
    body.append(pen.text(at, count, SMALL, anchor="end", color=pen.of(MUTED)))
    body += _circuit_edges(pen, edges, places)
    box = min(layout.pitch - 2, 40.0)
    body += [_box(pen, node, places[str(node.node)], box) for node in layout.nodes]
    for position, (x, room) in layout.columns().items():
        text = clip_text(graph.tokens[position], room - 1, SMALL, mono=True)
        body.append(pen.text((x, bottom + 7), text, SMALL, anchor="middle", mono=True))
        name = "" if graph.is_mean else str(position)
        muted = pen.of(MUTED)
        body.append(pen.text((x, bottom + 14), name, SMALL, anchor="middle", color=muted))
    height = (bottom + 14 + MARGIN) / POINTS
    return Figure(f"circuit of {title}", "".join(body), width, height, theme)


@dataclass(frozen=True)
class _Layout:
    """Nodes by row (layer) and column (position), side by side where they share both."""

    nodes: "list[GraphNode]"
    cells: "dict[tuple[int, int], list[GraphNode]]"
    slots: dict[int, int]
    pitch: Length

    @classmethod
    def of(cls, graph: "Graph", edges: "Sequence[GraphEdge]", wide: Length) -> "_Layout":
        nodes = _nodes_of(graph, edges)
        cells: dict[tuple[int, int], list[GraphNode]] = {}
        for node in nodes:
            key = (_row(node.node, graph.n_layers), _position(node.node))
            cells.setdefault(key, []).append(node)
        slots = {
            position: max(len(found) for (_, at), found in cells.items() if at == position)
            for position in sorted({position for _, position in cells})
        }
        return cls(nodes, cells, slots, wide / sum(slots.values()))

    def columns(self) -> dict[int, Point]:
        """The center and the width of each position's column."""
        found: dict[int, Point] = {}
        x = MARGIN
        for position, count in self.slots.items():
            found[position] = (x + count * self.pitch / 2, count * self.pitch)
            x += count * self.pitch
        return found

    def places(self, top: Length) -> tuple[dict[str, Point], float]:
        """The upper middle of each node's box, by name, and the lower end of all."""
        columns, places = self.columns(), dict[str, Point]()
        rows = sorted({row for row, _ in self.cells}, reverse=True)
        for (row, position), found in self.cells.items():
            y = top + rows.index(row) * ROW_PITCH
            for place, node in enumerate(found):
                x = columns[position][0] + (place - (len(found) - 1) / 2) * self.pitch
                places[str(node.node)] = (x, y)
        return places, top + (len(rows) - 1) * ROW_PITCH + BOX + 2


def _nodes_of(graph: "Graph", edges: "Sequence[GraphEdge]") -> "list[GraphNode]":
    """The nodes that edges touch, with the logit first."""
    names = {str(end) for edge in edges for end in (edge.edge.start, edge.edge.end)}
    names.add(str(graph.top))
    return [node for node in graph.nodes if str(node.node) in names]


def _position(node: "Site") -> int:
    return 0 if node.at is None else node.at


def _row(node: "Site", n_layers: int) -> int:
    """Two rows per layer, for heads and then the MLP; sources are below, the logit above."""
    writer = node.writer
    if writer == LOGITS:
        return 2 * n_layers
    if isinstance(writer, HeadId) or (isinstance(writer, Source) and writer.kind != "bias"):
        return level_of(writer)
    return -1


def _circuit_edges(pen: Pen, edges: "Sequence[GraphEdge]", places: dict[str, Point]) -> list[str]:
    largest = max((abs(edge.share) for edge in edges), default=1.0) or 1.0
    shift = {"q": -5.0, "k": 5.0, "g": 5.0}
    parts: list[str] = []
    for edge in sorted(edges, key=lambda each: abs(each.share)):
        (x0, y0), (x1, y1) = places[str(edge.edge.start)], places[str(edge.edge.end)]
        side = edge.kind.value
        title = f"{edge.name}: share {edge.share:+.2f} logits"
        if edge.effect is not None:
            title += f", cut {edge.effect:+.2f}"
        ends = (x0, y0), (x1 + shift.get(side, 0.0), y1 + BOX)
        parts.append(curve(pen, *ends, SIDES[side], 0.4 + 2 * abs(edge.share) / largest, title))
    return parts


def _box(pen: Pen, node: "GraphNode", at: Point, wide: Length) -> str:
    """A node: its name above its contribution."""
    x, y = at
    writer = str(node.node.writer)
    name = clip_text("pos" if writer.startswith("pos@") else writer, wide + 2, SMALL)
    color = pen.of(RAISES if node.value >= 0 else LOWERS)
    return (
        pen.rect((x - wide / 2, y), (wide, BOX), pen.of(PAPER), stroke=pen.of(LINE), round_=2)
        + pen.text((x, y + 6.5), name, SMALL, anchor="middle")
        + pen.text((x, y + 13.2), signed(node.value, 1), SMALL, anchor="middle", color=color)
    )
