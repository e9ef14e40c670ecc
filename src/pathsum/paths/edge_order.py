"""Orders in which edges join a circuit. The first n edges of an order are its circuit of size n.

All orders start at the logits and only take edges into nodes that are in the circuit already.

    best_first    by any strength, from the top down
    random_order  random walks from the logits down to the tokens
"""

import heapq
from collections.abc import Callable, Iterable, Iterator

import torch

from pathsum.base import Node, NodeEdge, Side
from pathsum.model import Config
from pathsum.model.sites import writers_below

# Walks in a row that add no edge before edges are drawn one by one.
_IDLE_WALKS = 20


def best_first(
    top: Node,
    inputs: Callable[[Node], Iterable[tuple[NodeEdge, float]]],
    count: int | None = None,
) -> list[NodeEdge]:
    """Edges from the top down, the strongest first of those into nodes that are reached already.

    `inputs` gives the edges into a node and how strong each is.
    """
    reached, found = {top}, list[NodeEdge]()
    waiting = [(-strength, str(edge), edge) for edge, strength in inputs(top)]
    heapq.heapify(waiting)
    while waiting and (count is None or len(found) < count):
        _, _, edge = heapq.heappop(waiting)
        found.append(edge)
        if edge.writer.head is not None and edge.writer not in reached:
            reached.add(edge.writer)
            for below, strength in inputs(edge.writer):
                heapq.heappush(waiting, (-strength, str(below), below))
    return found


def random_order(
    config: Config, position: int, count: int, generator: torch.Generator
) -> list[NodeEdge]:
    """Edges of random walks from the logits down to a token (or an MLP), one walk after another.

    A walk chooses one of a head's reads, a position and a writer, each uniformly. Where walks find
    nothing more to add, edges into the circuit are drawn one by one.
    """
    found: dict[NodeEdge, None] = {}
    top, idle = Node("logits", position), 0
    while len(found) < count and idle < _IDLE_WALKS:
        before, node = len(found), top
        while True:
            edge = _random_edge(config, node, generator)
            found[edge] = None
            if edge.writer.head is None:
                break
            node = edge.writer
        idle = idle + 1 if len(found) == before else 0
    while len(found) < count:
        inside = dict.fromkeys([top, *(edge.writer for edge in found if edge.writer.head)])
        rest = [e for node in inside for e in edges_into(config, node) if e not in found]
        if not rest:
            break
        found[rest[_draw(len(rest), generator)]] = None
    return list(found)[:count]


def edges_into(config: Config, node: Node) -> Iterator[NodeEdge]:
    """Every edge into a node."""
    layer = config.n_layers if node.head is None else node.head.layer
    for side in (Side.V,) if node.head is None else Side:
        for place in read_positions(config, node, side):
            for writer in writers_below(config, layer):
                yield NodeEdge(Node(writer, place), node, side)


def read_positions(config: Config, node: Node, side: Side) -> range:
    """The positions that a node's read sees."""
    if node.head is None or side is Side.Q:
        return range(node.position, node.position + 1)
    window = config.window(node.head.layer)
    first = 0 if window is None else max(0, node.position + 1 - window)
    return range(first, node.position + 1)


def _random_edge(config: Config, node: Node, generator: torch.Generator) -> NodeEdge:
    sides = (Side.V,) if node.head is None else tuple(Side)
    side = sides[_draw(len(sides), generator)]
    places = read_positions(config, node, side)
    layer = config.n_layers if node.head is None else node.head.layer
    writers = list(writers_below(config, layer))
    writer = writers[_draw(len(writers), generator)]
    return NodeEdge(Node(writer, places[_draw(len(places), generator)]), node, side)


def _draw(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))
