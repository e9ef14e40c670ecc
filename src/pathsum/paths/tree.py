"""A graph as an indented tree, in which the MLPs of one position are one node.

The MLPs of a position read and write the same stream, one after another. A chain of them says
little, so the tree shows `mlp3–mlp29@7` where a position has several. Its inputs are the heads and
tokens that the MLPs there read, each with the sum of its shares over them; shares of values and of
gates, two views of one number, count by half. Edges between the MLPs of a position stay in the data
(`Graph.edges`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text
from rich.tree import Tree

from pathsum.base.site import MLP_SIDES, Side, Site
from pathsum.paths.edges import GraphEdge, GraphNode, LeftOut, is_inner
from pathsum.paths.graph import Graph, Method

# Smaller sums of omitted edges are not printed.
_SMALLEST_REST = 5e-4


@dataclass(frozen=True, eq=False)
class MlpGroup:
    """The MLPs of a graph at one position, two or more, from the lowest layer up."""

    nodes: tuple[GraphNode, ...]

    @property
    def name(self) -> str:
        """First and last MLP and the position, `mlp3–mlp29@7`."""
        return f"{self.nodes[0].node.writer}–{self.nodes[-1].node}"

    def inputs(self, graph: Graph) -> list[tuple[Site, float]]:
        """The outside inputs of the MLPs, with the sums of their shares, the largest first."""
        found: dict[Site, float] = {}
        for edge in self.edges(graph):
            start = edge.edge.start
            found[start] = found.get(start, 0.0) + edge.share * view_part(graph, edge.kind)
        return sorted(found.items(), key=lambda one: -abs(one[1]))

    def edges(self, graph: Graph) -> list[GraphEdge]:
        """The edges into the MLPs from outside."""
        inside = {node.node for node in self.nodes}
        return [
            edge
            for edge in graph.edges
            if edge.edge.end in inside and edge.edge.start not in inside
        ]


def view_part(graph: Graph, side: Side) -> float:
    """The part by which a share counts in sums: half for each of the two views of an MLP."""
    return 0.5 if graph.by is Method.SHARE and side in MLP_SIDES else 1.0


def mlp_groups(graph: Graph) -> dict[Site, MlpGroup]:
    """The group of every MLP node whose position has several."""
    by_position: dict[int | None, list[GraphNode]] = {}
    for one in graph.nodes:
        if is_inner(one.node) and one.node.head is None:
            by_position.setdefault(one.node.at, []).append(one)
    groups = [MlpGroup(tuple(reversed(some))) for some in by_position.values() if len(some) > 1]
    return {node.node: group for group in groups for node in group.nodes}


def print_tree(graph: Graph, k: int | None = None) -> Tree:
    """The tree; a node is opened where it first occurs, with its inputs for all its readers.

    With `k`, only the first k of `graph.ranked` are drawn, and the sums of omitted edges include
    the others.
    """
    # Text, not str: a token may contain what rich would read as markup.
    tree = Tree(Text(graph.title))
    _Printer(graph, graph.ranked[:k]).grow(tree, graph.top)
    return tree


class _Printer:
    """A graph, its edges that are drawn, and the nodes and groups that are in the tree already."""

    def __init__(self, graph: Graph, drawn: Sequence[GraphEdge]) -> None:
        self.graph, self.groups = graph, mlp_groups(graph)
        self.nodes = {str(node): node for node in graph.nodes}
        self.drawn = {edge.edge for edge in drawn}
        # Nodes with kept inputs, none of which is drawn.
        self.closed = {one.edge.end for one in graph.edges} - {one.edge.end for one in drawn}
        self.opened: set[str] = set()

    def grow(self, tree: Tree, node: Site) -> None:
        """Add the inputs of a node to its branch."""
        self.opened.add(str(node))
        for side in (Side.V, Side.K, Side.Q, Side.U, Side.G):
            folded: dict[str, list[GraphEdge]] = {}
            for edge in self._drawn(self.graph.inputs(node, side)):
                group = self.groups.get(edge.edge.start)
                name = str(edge) if group is None else group.name
                folded.setdefault(name, []).append(edge)
            rows = folded.values()
            for edges in sorted(rows, key=lambda some: -abs(sum(one.share for one in some))):
                self._add(tree, edges)
            hidden = self._hidden(self.graph.inputs(node, side))
            rests = [one for one in self._rests(node) if one.kind is side]
            self._add_rests(tree, [*rests, *hidden], side.value.upper())
        if self.nodes[str(node)].note:
            tree.add(Text(f"({self.nodes[str(node)].note})"))

    def _add(self, tree: Tree, edges: Sequence[GraphEdge]) -> None:
        writer = edges[0].edge.start
        node, group = self.nodes[str(writer)], self.groups.get(writer)
        if group is None:
            self._open(tree, _line(edges[0], node), writer, edges[0].share)
            return
        share, kind = sum(one.share for one in edges), edges[0].kind.value.upper()
        exact = sum(one.exact for one in edges)
        scores = "" if edges[0].unit == "logits" else f"{exact:+.2f} score, "
        sink = ", attention sink" if writer.at == 0 and self.graph.position else ""
        count = f"{len(edges)} MLP{'' if len(edges) == 1 else 's'}"
        line = f"{kind} {group.name}{_text(node)}  {scores}{share:+.2f} logits  ({count}{sink})"
        if sink or group.name in self.opened:
            # The inputs of the sink do not depend on this prediction.
            tree.add(Text(line if sink else f"{line}  (above)"))
            return
        inputs, read = group.inputs(self.graph), group.edges(self.graph)
        starts = {edge.edge.start for edge in self._drawn(read)}
        hidden = self._hidden([edge for edge in read if edge.edge.start not in starts])
        rests = self._rests(*(one.node for one in group.nodes))
        total = sum(part for _, part in inputs) + sum(
            rest.share * view_part(self.graph, rest.kind) for rest in rests
        )
        branch = tree.add(Text(line + _total(total, share)))
        if not starts:
            return
        self.opened.add(group.name)
        for start, part in inputs:
            if start not in starts:
                continue
            one = self.nodes[str(start)]
            where = "" if one.attended is None else f"  ({one.attended})"
            self._open(branch, f"{start}{_text(one)}  {part:+.2f} logits{where}", start, part)
        self._add_rests(branch, [*rests, *hidden])

    def _open(self, tree: Tree, line: str, node: Site, share: float) -> None:
        if not is_inner(node):
            tree.add(Text(line))
        elif str(node) in self.opened:
            tree.add(Text(f"{line}  (above)"))
        else:
            branch = tree.add(Text(line + _total(self.nodes[str(node)].value, share)))
            if node not in self.closed:
                self.grow(branch, node)

    def _drawn(self, edges: Sequence[GraphEdge]) -> list[GraphEdge]:
        return [edge for edge in edges if edge.edge in self.drawn]

    def _hidden(self, edges: Sequence[GraphEdge]) -> list[LeftOut]:
        """The edges that are not drawn, as omitted ones."""
        return [
            LeftOut(edge.edge.end, edge.kind, edge.exact, edge.share, 1)
            for edge in edges
            if edge.edge not in self.drawn
        ]

    def _rests(self, *nodes: Site) -> list[LeftOut]:
        return [one for one in self.graph.left_out if one.node in nodes]

    def _add_rests(self, tree: Tree, rests: Sequence[LeftOut], kind: str = "") -> None:
        for line in _rest_lines(self.graph, rests, f"{kind} " if kind else ""):
            tree.add(Text(line))


def _rest_lines(graph: Graph, rests: Sequence[LeftOut], kind: str) -> Iterator[str]:
    # The two views of an MLP count by half where both are added.
    parts = [1.0 if kind else view_part(graph, rest.kind) for rest in rests]
    pairs = list(zip(parts, rests, strict=True))
    share = sum(part * (rest.share - rest.held) for part, rest in pairs)
    held, count = sum(part * rest.held for part, rest in pairs), sum(rest.count for rest in rests)
    if abs(share) >= _SMALLEST_REST:
        yield f"{kind}omitted ({count} edge{'' if count == 1 else 's'}) {share:+.3f}"
    if abs(held) >= _SMALLEST_REST:
        yield f"{kind}carried by no edge {held:+.3f}"


def _total(value: float, share: float) -> str:
    """The sum of a node's inputs, if it differs from the share of the edge above them."""
    return f"  (node total {value:+.2f})" if f"{value:+.2f}" != f"{share:+.2f}" else ""


def _text(node: GraphNode) -> str:
    return f" {node.text!r}" if node.text else ""


def _line(edge: GraphEdge, writer: GraphNode) -> str:
    effect = "" if edge.effect is None else f", cut {edge.effect:+.2f}"
    exact = "" if edge.unit == "logits" else f"{edge.exact:+.2f} score, "
    where = "" if writer.attended is None else f"  ({writer.attended})"
    share = f"{exact}{edge.estimate().format('+.2f')} logits{effect}"
    return f"{edge.kind.value.upper()} {edge.edge.start}{_text(writer)}  {share}{where}"
