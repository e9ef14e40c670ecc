"""A circuit as it is drawn: nodes in columns and layers, and edges with their numbers.

The circuit of one prompt and the mean of many become the same `Picture`, which `drawing` prints
and writes. What was left out of a node's inputs is one more node, so that they add up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from pathsum.base import HeadId, Node, Side, Source
from pathsum.base.node import Component

if TYPE_CHECKING:
    from pathsum.paths.circuit.circuit import Circuit
    from pathsum.paths.circuit.mean_circuit import MeanCircuit, MeanEdge

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
    """Nodes and edges to draw; the first node is the prediction, `columns` are tokens or places."""

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
    """The edges left out of one read of a node, summed."""

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


def mean_picture(mean: "MeanCircuit", places: list[list[str]]) -> Picture:
    """Nodes by component and place; `places` has the name of every position of every prompt.

    Numbers are means over all prompts, where a node that a prompt does not have counts as 0; so
    the inputs of a node add up to its value as they do in each prompt.
    """
    columns, count = _columns(mean.circuits, places), len(mean.circuits)
    n_layers = mean.circuits[0].prediction.trace.model.config.n_layers
    values: dict[tuple[Component, str], float] = {}
    rests: dict[tuple[str, Side], list[tuple[float, float, int]]] = {}
    for circuit, names in zip(mean.circuits, places, strict=True):
        for one in circuit.nodes:
            key = one.node.component, names[one.node.position]
            values[key] = values.get(key, 0.0) + one.value / count
        for rest in circuit.left_out:
            here = rests.setdefault((_name(rest.node, names), rest.kind), [])
            here.append((rest.exact, rest.share, rest.count))
    nodes = [
        PictureNode(
            name=f"{component}@{place}",
            component=component,
            column=columns.index(place),
            layer=float(layer_of(component, n_layers)),
            text="",
            value=value,
        )
        for (component, place), value in values.items()
    ]
    nodes.sort(key=lambda node: (-node.layer, node.column, node.name))
    more_nodes, more_edges = with_rest(
        nodes,
        [
            Rest(
                reader,
                kind,
                exact=sum(exact for exact, _, _ in found) / count,
                share=sum(share for _, share, _ in found) / count,
                count=round(sum(edges for _, _, edges in found) / count),
            )
            for (reader, kind), found in rests.items()
        ],
    )
    return Picture(
        title=mean.title,
        model=mean.model,
        columns=tuple(columns),
        n_layers=n_layers,
        token_text="prediction",
        probability=mean.probability.value,
        threshold=mean.threshold,
        nodes=(*nodes, *more_nodes),
        edges=(*map(_edge, mean.edges), *more_edges),
    )


def _columns(circuits: "tuple[Circuit, ...]", places: list[list[str]]) -> list[str]:
    """The places, ordered by where they are in the texts on average, as a part of their length."""
    found: dict[str, list[float]] = {}
    for circuit, names in zip(circuits, places, strict=True):
        length = circuit.position + 1
        for at, name in enumerate(names[:length]):
            found.setdefault(name, []).append(at / length)
    return sorted(found, key=lambda name: sum(found[name]) / len(found[name]))


def _edge(edge: "MeanEdge") -> PictureEdge:
    low, high = edge.share.low, edge.share.high
    interval = "" if low is None or high is None else f"[{low:+.2f}, {high:+.2f}]"
    return PictureEdge(
        edge.writer,
        edge.reader,
        edge.kind,
        exact=edge.exact.value,
        unit=edge.unit,
        share=edge.share.value,
        effect=None if edge.effect is None else edge.effect.value,
        detail=interval,
    )


def _name(node: Node, places: list[str]) -> str:
    return f"{node.component}@{places[node.position]}"
