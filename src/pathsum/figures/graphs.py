"""Graphs: composition edges between heads, and the circuit of one prediction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pathsum.base import LOGITS, HeadId, Source
from pathsum.base.path import level_of
from pathsum.base.sentence import signed
from pathsum.figures import svg
from pathsum.figures.figure import Figure, legend, page
from pathsum.figures.svg import MARGIN, Length, Pen, Point, Theme, clip_text

if TYPE_CHECKING:
    from pathsum.base.site import Site
    from pathsum.circuits.composition_edges import Edges
    from pathsum.paths.edges import GraphEdge, GraphNode
    from pathsum.paths.graph import Graph

# In models with more heads than this, only heads with an edge are drawn.
MOST_HEADS = 40
EDGES = 20
BOX, ROW_PITCH, LEAST_PITCH = 16.0, 46.0, 18.5
KIND_NAMES = {"q": "query", "k": "key", "v": "value", "u": "MLP value", "g": "gate"}


def curve(pen: Pen, begin: Point, end: Point, style: svg.Style, width: Length, title: str) -> str:
    """A curve that leaves one point upward and enters another from below."""
    (x0, y0), (x1, y1) = begin, end
    bend = max((y0 - y1) * 0.45, 6.0)
    path = (
        f"M{svg.number(x0)} {svg.number(y0)}C{svg.number(x0)} {svg.number(y0 - bend)} "
        f"{svg.number(x1)} {svg.number(y1 + bend)} {svg.number(x1)} {svg.number(y1)}"
    )
    return pen.element(
        "path",
        svg.hint(title),
        d=path,
        fill="none",
        stroke=style,
        stroke_width=width,
        stroke_dasharray=style.dash or None,
        stroke_opacity=0.85,
    )


def composition_graph(
    edges: "Edges", *, width: Length = svg.COLUMN, theme: Theme = "light"
) -> Figure:
    """Heads as nodes, layers from the bottom up, and composition edges between them.

    The thickness of an edge is its z, and its line style the side that it enters.

    Args:
        edges: From `ps.composition(model).edges(…)`; edges with negative z are not drawn.
        width: In inches.
        theme: "light" or "dark".
    """
    pen = Pen(theme, width)
    visible = sorted((edge for edge in edges.edges if edge.z > 0), key=lambda edge: edge.z)
    layers = _rows_of_heads(sorted({head for e in visible for head in (e.writer, e.reader)}))
    pitch = min(62.0, 300.0 / len(layers)) if len(layers) > 2 else 62.0
    top, across = MARGIN + 28.0, pen.wide - 2 * MARGIN
    bottom = top + 8 + max(len(layers) - 1, 0) * pitch
    centers: dict[HeadId, Point] = {
        head: (MARGIN + (column + 0.5) * (across / len(heads)), bottom - row * pitch)
        for row, heads in enumerate(layers)
        for column, head in enumerate(heads)
    }
    radius = min(10.0, 0.45 * across / max(map(len, layers), default=1))
    shift = {"q": -3.0, "k": 3.0, "v": 0.0}
    body = ""
    for edge in visible:
        (x0, y0), (x1, y1) = centers[edge.writer], centers[edge.reader]
        ends = (x0 + shift[edge.kind], y0 - radius), (x1 + shift[edge.kind], y1 + radius)
        thick = 0.4 + 2.2 * edge.z / visible[-1].z
        title = f"{edge.edge}: score {edge.score:.3f}, z {edge.z:+.1f}, p {edge.p:.1g}"
        body += curve(pen, *ends, svg.SIDES[edge.kind], thick, title)
    for head, (x, y) in centers.items():
        body += pen.dot((x, y), radius, svg.PAPER, stroke=svg.INK, stroke_width=0.6)
        size = min(svg.SMALL, radius * 0.75)
        body += pen.text((x, y + size * 0.36), head, size, anchor="middle")
    body += _side_legend(pen, {edge.kind for edge in visible})
    if not visible:
        text = "no edge shares more directions than random heads"
        body += pen.text((MARGIN, top + 4), text, color=svg.MUTED)
    return page(pen, f"composition of {edges.model}", body, bottom + radius + 2)


def _side_legend(pen: Pen, kinds: Collection[str]) -> str:
    names = [(KIND_NAMES[side], style) for side, style in svg.SIDES.items() if side in kinds]
    return legend(pen, (MARGIN, MARGIN + 18), names)


def _rows_of_heads(heads: Sequence[HeadId]) -> list[list[HeadId]]:
    """The heads of each layer with an edge; in small models all heads."""
    n_layers = 1 + max((head.layer for head in heads), default=-1)
    n_heads = 1 + max((head.head for head in heads), default=-1)
    if n_layers * n_heads <= MOST_HEADS:
        return [[HeadId(l, h) for h in range(n_heads)] for l in range(n_layers)]
    layers = sorted({head.layer for head in heads})
    return [[head for head in heads if head.layer == layer] for layer in layers]


def circuit_graph(
    graph: "Graph", *, k: int = EDGES, width: Length = svg.COLUMN, theme: Theme = "light"
) -> Figure:
    """The strongest edges of a circuit: tokens at the bottom, the logit at the top.

    Only positions in use have a column. A box has a node's name and its contribution in logits; the
    thickness of an edge is its share.

    Args:
        graph: From `trace.circuit(…)` or `ps.mean_circuit(…)`.
        k: The number of edges, in greedy order from the logit down; fewer if boxes would overlap.
        width: In inches.
        theme: "light" or "dark".
    """
    pen = Pen(theme, width)
    while True:  # fewer edges until the boxes fit side by side
        edges = graph.ranked[:k]
        layout = _Layout.of(graph, edges, pen.wide - 2 * MARGIN)
        if layout.pitch >= LEAST_PITCH or k <= 1:
            break
        k -= 1
    kinds = {edge.kind.value for edge in edges}
    # A legend of more than three kinds needs the whole line.
    below = 12.0 if len(kinds) > 3 else 0.0
    corners, bottom = layout.corners(MARGIN + 28.0 + below)
    body = _side_legend(pen, kinds)
    count = f"{len(edges)} of {len(graph.edges)} edges"
    body += pen.note((pen.wide - MARGIN, MARGIN + 18 + below), count, "end")
    body += _circuit_edges(pen, edges, corners)
    box = min(layout.pitch - 2, 40.0)
    body += "".join(_box(pen, node, corners[str(node.node)], box) for node in layout.nodes)
    for position, (x, room) in layout.columns().items():
        text = clip_text(graph.tokens[position], room - 1, svg.SMALL, mono=True)
        body += pen.text((x, bottom + 7), text, svg.SMALL, anchor="middle", mono=True)
        body += pen.note((x, bottom + 14), "" if graph.is_mean else str(position), "middle")
    subject = f"{len(graph.prompts)} prompts" if graph.is_mean else repr(graph.token_text)
    title = f"{graph.model}: {subject}, {signed(graph.total)} logits{graph.change}"
    return page(pen, f"circuit of {title}", body, bottom + 14, heading=title)


@dataclass(frozen=True)
class _Layout:
    """Nodes by row (layer) and column (position), side by side if they share both."""

    nodes: "list[GraphNode]"
    cells: "dict[tuple[int, int], list[GraphNode]]"
    slots: dict[int, int]
    pitch: Length

    @classmethod
    def of(cls, graph: "Graph", edges: "Sequence[GraphEdge]", wide: Length) -> "_Layout":
        touched = {graph.top, *(end for edge in edges for end in (edge.edge.start, edge.edge.end))}
        nodes = [node for node in graph.nodes if node.node in touched]
        cells: dict[tuple[int, int], list[GraphNode]] = {}
        for node in nodes:
            key = (_row(node.node, graph.n_layers), node.node.at or 0)
            cells.setdefault(key, []).append(node)
        slots = {
            position: max(len(group) for (_, at), group in cells.items() if at == position)
            for position in sorted({position for _, position in cells})
        }
        return cls(nodes, cells, slots, wide / sum(slots.values()))

    def columns(self) -> dict[int, Point]:
        """The center and the width of each position's column."""
        columns: dict[int, Point] = {}
        x = MARGIN
        for position, count in self.slots.items():
            columns[position] = (x + count * self.pitch / 2, count * self.pitch)
            x += count * self.pitch
        return columns

    def corners(self, top: Length) -> tuple[dict[str, Point], float]:
        """The top center of each node's box, by name, and the bottom of all boxes."""
        columns, corners = self.columns(), dict[str, Point]()
        rows = sorted({row for row, _ in self.cells}, reverse=True)
        for (row, position), nodes in self.cells.items():
            y = top + rows.index(row) * ROW_PITCH
            for index, node in enumerate(nodes):
                x = columns[position][0] + (index - (len(nodes) - 1) / 2) * self.pitch
                corners[str(node.node)] = (x, y)
        return corners, top + (len(rows) - 1) * ROW_PITCH + BOX + 2


def _row(node: "Site", n_layers: int) -> int:
    """Two rows per layer, for heads and then the MLP; sources are below, the logit above."""
    writer = node.writer
    if writer == LOGITS:
        return 2 * n_layers
    if isinstance(writer, HeadId) or (isinstance(writer, Source) and writer.kind != "bias"):
        return level_of(writer)
    return -1


def _circuit_edges(pen: Pen, edges: "Sequence[GraphEdge]", corners: dict[str, Point]) -> str:
    largest = max((abs(edge.share) for edge in edges), default=1.0) or 1.0
    shift = {"q": -5.0, "k": 5.0, "g": 5.0}
    body = ""
    for edge in sorted(edges, key=lambda e: abs(e.share)):
        begin, (x, y) = corners[str(edge.edge.start)], corners[str(edge.edge.end)]
        side = edge.kind.value
        title = f"{edge.name}: share {edge.share:+.2f} logits"
        if edge.effect is not None:
            title += f", cut {edge.effect:+.2f}"
        end = (x + shift.get(side, 0.0), y + BOX)
        body += curve(pen, begin, end, svg.SIDES[side], 0.4 + 2 * abs(edge.share) / largest, title)
    return body


def _box(pen: Pen, node: "GraphNode", at: Point, wide: Length) -> str:
    """A node: its name above its contribution."""
    x, y = at
    writer = str(node.node.writer)
    name = clip_text("pos" if writer.startswith("pos@") else writer, wide + 2, svg.SMALL)
    color = svg.RAISES if node.value >= 0 else svg.LOWERS
    return (
        pen.rect((x - wide / 2, y), (wide, BOX), svg.PAPER, stroke=svg.LINE, round_=2)
        + pen.text((x, y + 6.5), name, svg.SMALL, anchor="middle")
        + pen.note((x, y + 13.2), signed(node.value, 1), "middle", color)
    )
