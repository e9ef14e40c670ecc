"""The mean of many circuits as it is shown: a column per place, in the order of the texts."""

from typing import TYPE_CHECKING

from pathsum.names import Node, Side
from pathsum.names.node import Component
from pathsum.paths.circuit.picture import (
    Picture,
    PictureEdge,
    PictureNode,
    Rest,
    layer_of,
    with_rest,
)

if TYPE_CHECKING:
    from pathsum.paths.circuit.circuit import Circuit
    from pathsum.paths.circuit.mean_circuit import MeanCircuit, MeanEdge


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
                *(reader, kind),
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
        *(edge.writer, edge.reader, edge.kind),
        exact=edge.exact.value,
        unit=edge.unit,
        share=edge.share.value,
        effect=None if edge.effect is None else edge.effect.value,
        detail=interval,
    )


def _name(node: Node, places: list[str]) -> str:
    return f"{node.component}@{places[node.position]}"
