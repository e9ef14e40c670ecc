"""Edges between nodes of a run: their names, and orders in which they join a circuit.

A node is a component at a position, an edge is one node read by another. The first n edges of an
order are its circuit of size n; all orders start at the logits and only take edges into nodes that
are in the circuit already.

    best_first    by any strength, from the top down
    random_order  random walks from the logits down to the tokens
"""

import heapq
from collections.abc import Callable, Iterable, Iterator

import torch

from pathsum.base.site import LOGITS, Component, Side, Site
from pathsum.model import Config
from pathsum.model.sites import writers_below

# Walks in a row that add no edge before edges are drawn one by one.
_IDLE_WALKS = 20


def edge_between(writer: Component, at: int, reader: Site, side: Side) -> Site:
    """The edge from a component at a position to a node; the logits have one side only."""
    return Site.edge(Site(writer, at=at), reader, None if reader.writer == LOGITS else side)


def side_of(edge: Site) -> Side:
    """The side of an edge's reader that reads it; the logits read values."""
    return Side.V if edge.side is None else edge.side


def node_position(node: Site) -> int:
    """The position of a node."""
    assert node.at is not None, f"{node} has no position"
    return node.at


def best_first(
    top: Site,
    inputs: Callable[[Site], Iterable[tuple[Site, float]]],
    count: int | None = None,
) -> list[Site]:
    """Edges from the top down, the strongest first of those into nodes that are reached already.

    `inputs` gives the edges into a node and how strong each is.
    """
    reached, found = {top}, list[Site]()
    waiting = [(-strength, str(edge), edge) for edge, strength in inputs(top)]
    heapq.heapify(waiting)
    while waiting and (count is None or len(found) < count):
        _, _, edge = heapq.heappop(waiting)
        found.append(edge)
        if edge.start.head is not None and edge.start not in reached:
            reached.add(edge.start)
            for below, strength in inputs(edge.start):
                heapq.heappush(waiting, (-strength, str(below), below))
    return found


def random_order(
    config: Config, position: int, count: int, generator: torch.Generator
) -> list[Site]:
    """Edges of random walks from the logits down to a token (or an MLP), one walk after another.

    A walk chooses one of a head's reads, a position and a writer, each uniformly. Where walks find
    nothing more to add, edges into the circuit are drawn one by one.
    """
    found: dict[Site, None] = {}
    top, idle = Site(LOGITS, at=position), 0
    while len(found) < count and idle < _IDLE_WALKS:
        before, node = len(found), top
        while True:
            edge = _random_edge(config, node, generator)
            found[edge] = None
            if edge.start.head is None:
                break
            node = edge.start
        idle = idle + 1 if len(found) == before else 0
    while len(found) < count:
        inside = dict.fromkeys([top, *(edge.start for edge in found if edge.start.head)])
        rest = [e for node in inside for e in edges_into(config, node) if e not in found]
        if not rest:
            break
        found[rest[_draw(len(rest), generator)]] = None
    return list(found)[:count]


def edges_into(config: Config, node: Site) -> Iterator[Site]:
    """Every edge into a node."""
    layer = config.n_layers if node.head is None else node.head.layer
    for side in (Side.V,) if node.head is None else Side:
        for place in read_positions(config, node, side):
            for writer in writers_below(config, layer):
                yield edge_between(writer, place, node, side)


def read_positions(config: Config, node: Site, side: Side) -> range:
    """The positions that a node's read sees."""
    last = node_position(node)
    if node.head is None or side is Side.Q:
        return range(last, last + 1)
    window = config.window(node.head.layer)
    return range(0 if window is None else max(0, last + 1 - window), last + 1)


def _random_edge(config: Config, node: Site, generator: torch.Generator) -> Site:
    sides = (Side.V,) if node.head is None else tuple(Side)
    side = sides[_draw(len(sides), generator)]
    places = read_positions(config, node, side)
    layer = config.n_layers if node.head is None else node.head.layer
    writers = list(writers_below(config, layer))
    writer = writers[_draw(len(writers), generator)]
    return edge_between(writer, places[_draw(len(places), generator)], node, side)


def _draw(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))
