"""A circuit as it is shown: nodes in columns and layers, and edges with their numbers.

The circuit of one prompt and the mean of many become the same `Picture`, which `tree` prints and
`drawing` writes. What was left out of a node's inputs is one more node, so that they add up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pathsum.names import HeadId, Side, Source
from pathsum.names.node import Component

Unit: TypeAlias = Literal["logits", "score"]
LEFT_OUT = "left-out"


@dataclass(frozen=True)
class PictureNode:
    """A component at a place; `component` is None for what was left out of another node's inputs.

    `layer` is −1 for what is there before the first layer; what was left out is half a layer below
    the node that it belongs to. `detail` says where a head attends, `note` why it has no scores.
    """

    name: str
    component: Component | None
    column: int
    layer: float
    text: str
    value: float
    detail: str = ""
    note: str = ""


@dataclass(frozen=True)
class PictureEdge:
    """One node read by another; `detail` is printed after the share, such as an interval."""

    writer: str
    reader: str
    kind: Side
    exact: float
    unit: Unit
    share: float
    effect: float | None = None
    detail: str = ""

    @property
    def is_left_out(self) -> bool:
        """Whether it stands for the edges that are too small to keep."""
        return self.writer.startswith(LEFT_OUT)


@dataclass(frozen=True)
class Picture:
    """What is drawn; the first node is the prediction, and `columns` are tokens or places."""

    title: str
    model: str
    columns: tuple[str, ...]
    n_layers: int
    token_text: str
    probability: float
    threshold: float
    nodes: tuple[PictureNode, ...]
    edges: tuple[PictureEdge, ...]

    def inputs(self, name: str, kind: Side) -> list[PictureEdge]:
        """The edges into a node, the largest share first; what was left out comes last."""
        found = [edge for edge in self.edges if edge.reader == name and edge.kind == kind]
        return sorted(found, key=lambda edge: (edge.is_left_out, -abs(edge.share)))


def layer_of(component: Component, n_layers: int) -> int:
    """The layer of a component: −1 before the first, `n_layers` for the logits."""
    if isinstance(component, HeadId | Source):
        return component.layer
    return n_layers if component == "logits" else -1


@dataclass(frozen=True)
class Rest:
    """What was left out of one read of a node."""

    reader: str
    kind: Side
    exact: float
    share: float
    count: int


def with_rest(
    nodes: Iterable[PictureNode], rests: Iterable[Rest]
) -> tuple[list[PictureNode], list[PictureEdge]]:
    """A node for what was left out of each node, and edges from it for each read."""
    by_reader: dict[str, list[Rest]] = {}
    for rest in rests:
        if rest.share or rest.exact:
            by_reader.setdefault(rest.reader, []).append(rest)
    found: list[PictureNode] = []
    edges: list[PictureEdge] = []
    for reader in nodes:
        here = by_reader.get(reader.name, [])
        if not here:
            continue
        name = f"{LEFT_OUT}@{reader.name}"
        # Its value is that of its V edge: Q and K are other views of the same number.
        value = sum(rest.share for rest in here if rest.kind is Side.V)
        counts = ", ".join(f"{rest.kind.value.upper()} {rest.count}" for rest in here)
        found.append(PictureNode(name, None, reader.column, reader.layer - 0.5, counts, value))
        for rest in here:
            unit: Unit = "logits" if rest.kind is Side.V else "score"
            count = f"{rest.count} edge{'' if rest.count == 1 else 's'}"
            edges.append(
                PictureEdge(name, reader.name, rest.kind, rest.exact, unit, rest.share, None, count)
            )
    return found, edges
