"""A graph as an indented tree, in which the MLPs of one position are one node.

The MLPs of a position read and write the same stream, one after another. A chain of them explains
little, so the tree has one node `mlp3–mlp29@7` where a position has several. Its inputs are the
heads and tokens that the MLPs there read, each with the sum of its shares over them; shares of
values and of gates, two views of one number, count by half. Edges between the MLPs of a position
are in `Graph.edges` only.
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
        shares: dict[Site, float] = {}
        for edge in self.edges(graph):
            start = edge.edge.start
            shares[start] = shares.get(start, 0.0) + edge.share * view_part(graph, edge.kind)
        return sorted(shares.items(), key=lambda pair: -abs(pair[1]))

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
    for node in graph.nodes:
        if is_inner(node.node) and node.node.head is None:
            by_position.setdefault(node.node.at, []).append(node)
    groups = [MlpGroup(tuple(reversed(nodes))) for nodes in by_position.values() if len(nodes) > 1]
    return {node.node: group for group in groups for node in group.nodes}


def print_tree(graph: Graph, k: int | None = None) -> Tree:
    """The tree; a node is opened where it first occurs, with its inputs for all its readers.

    With `k`, only the first k of `graph.ranked` are printed, and the sums of omitted edges include
    the others.
    """
    # Text, not str: rich would read brackets in a token as markup.
    tree = Tree(Text(graph.title))
    _Printer(graph, graph.ranked[:k]).add_inputs(tree, graph.top)
    return tree


class _Printer:
    """A graph, the edges to print, and the nodes and groups that are in the tree already."""

    def __init__(self, graph: Graph, edges: Sequence[GraphEdge]) -> None:
        self.graph, self.groups = graph, mlp_groups(graph)
        self.nodes = {str(node): node for node in graph.nodes}
        self.edges = {edge.edge for edge in edges}
        # Nodes with kept inputs, none of which is printed.
        self.leaves = {edge.edge.end for edge in graph.edges} - {edge.edge.end for edge in edges}
        self.opened: set[str] = set()

    def add_inputs(self, tree: Tree, node: Site) -> None:
        """Add the inputs of a node to its branch."""
        self.opened.add(str(node))
        for side in (Side.V, Side.K, Side.Q, Side.U, Side.G):
            inputs = self.graph.inputs(node, side)
            lines: dict[str, list[GraphEdge]] = {}
            for edge in inputs:
                if edge.edge in self.edges:
                    group = self.groups.get(edge.edge.start)
                    lines.setdefault(str(edge) if group is None else group.name, []).append(edge)
            for edges in sorted(lines.values(), key=lambda line: -abs(sum(e.share for e in line))):
                self._add(tree, edges)
            rests = [rest for rest in self._rests(node) if rest.kind is side]
            self._add_rests(tree, [*rests, *self._hidden(inputs)], side.value.upper())
        if self.nodes[str(node)].note:
            tree.add(Text(f"({self.nodes[str(node)].note})"))

    def _add(self, tree: Tree, edges: Sequence[GraphEdge]) -> None:
        writer = edges[0].edge.start
        node, group = self.nodes[str(writer)], self.groups.get(writer)
        if group is None:
            self._open(tree, _line(edges[0], node), writer, edges[0].share)
            return
        share, kind = sum(edge.share for edge in edges), edges[0].kind.value.upper()
        exact = sum(edge.exact for edge in edges)
        scores = "" if edges[0].unit == "logits" else f"{exact:+.2f} score, "
        sink = ", attention sink" if writer.at == 0 and self.graph.position else ""
        count = f"{len(edges)} MLP{'' if len(edges) == 1 else 's'}"
        line = f"{kind} {group.name}{_text(node)}  {scores}{share:+.2f} logits  ({count}{sink})"
        if sink or group.name in self.opened:
            # The inputs of the sink do not depend on this prediction.
            tree.add(Text(line if sink else f"{line}  (above)"))
            return
        inputs, into = group.inputs(self.graph), group.edges(self.graph)
        starts = {edge.edge.start for edge in into if edge.edge in self.edges}
        hidden = self._hidden([edge for edge in into if edge.edge.start not in starts])
        rests = self._rests(*(mlp.node for mlp in group.nodes))
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
            line = f"{start}{_text(self.nodes[str(start)])}  {part:+.2f} logits"
            self._open(branch, line + _attended(self.nodes[str(start)]), start, part)
        self._add_rests(branch, [*rests, *hidden])

    def _open(self, tree: Tree, line: str, node: Site, share: float) -> None:
        if not is_inner(node):
            tree.add(Text(line))
        elif str(node) in self.opened:
            tree.add(Text(f"{line}  (above)"))
        else:
            branch = tree.add(Text(line + _total(self.nodes[str(node)].value, share)))
            if node not in self.leaves:
                self.add_inputs(branch, node)

    def _hidden(self, edges: Sequence[GraphEdge]) -> list[LeftOut]:
        """The edges that are not printed, as omitted ones."""
        return [
            LeftOut(edge.edge.end, edge.kind, edge.exact, edge.share, 1)
            for edge in edges
            if edge.edge not in self.edges
        ]

    def _rests(self, *nodes: Site) -> list[LeftOut]:
        return [rest for rest in self.graph.left_out if rest.node in nodes]

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


def _attended(node: GraphNode) -> str:
    return "" if node.attended is None else f"  ({node.attended})"


def _line(edge: GraphEdge, writer: GraphNode) -> str:
    effect = "" if edge.effect is None else f", cut {edge.effect:+.2f}"
    exact = "" if edge.unit == "logits" else f"{edge.exact:+.2f} score, "
    numbers = f"{exact}{edge.estimate().format('+.2f')} logits{effect}{_attended(writer)}"
    return f"{edge.kind.value.upper()} {edge.edge.start}{_text(writer)}  {numbers}"
