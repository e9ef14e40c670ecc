"""Nodes and edges of a graph: their records, their names, and orders in which edges join a circuit.

A node is a component at a position (`L0H3@4`). An edge is a connection through which one node reads
another (`L0H3@4→L1H0@9.k`). The first n edges of an order are its circuit of size n. All orders
start at the logits and only take edges into nodes that are in the circuit already.

    best_first     by any strength, from the top down
    random_order   random walks from the logits down to the tokens
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from pathsum.base import ARROW, Estimate, HeadId, Source
from pathsum.base.errors import InputError
from pathsum.base.site import HEAD_SIDES, LOGITS, MLP_SIDES, Component, Side, Site, Writer
from pathsum.model import Config
from pathsum.model.gating import has_gates
from pathsum.model.sites import writers_into

Unit: TypeAlias = Literal["logits", "score"]

# Walks in a row that add no edge before edges are drawn one by one.
_IDLE_WALKS = 20


@dataclass(frozen=True)
class Attended:
    """The explanation of a head's attention at one position.

    `source` is the position whose attention matters most and `weight` is the attention it gets.
    `contrast` is its score minus the score of the alternatives: the softmax-weighted mean of the
    other scores, or the score of `rival` if one was chosen. `effect` is the contribution of this
    attention, in logits, compared with uniform attention, whose contribution is `uniform`; the two
    add up to the node's value. `error` is the quadrature error, in logits.
    """

    source: int
    weight: float
    score: float
    contrast: float
    rival: int | None
    uniform: float
    effect: float
    error: float

    def __str__(self) -> str:
        return f"attends {self.weight:.0%} to {self.source}"


@dataclass(frozen=True)
class NamedSite(Site):
    """A site whose positions have names, `L0H3@subject→L1H0@last.k`; `at` and `to` number them."""

    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.writer}" if self.at is None else f"{self.writer}@{self.names[self.at]}"
        if self.reader is None or self.to is None:
            return text
        side = "" if self.side is None else f".{self.side.value}"
        return f"{text}{ARROW}{self.reader}@{self.names[self.to]}{side}"

    @property
    def start(self) -> "NamedSite":
        """The node at which an edge starts."""
        return NamedSite(self.writer, at=self.at, names=self.names)

    @property
    def end(self) -> "NamedSite":
        """The node at which an edge ends."""
        return NamedSite(self.reader, at=self.to, names=self.names)


@dataclass(frozen=True)
class GraphNode:
    """A node and its contribution to the prediction.

    `value` is the sum of the shares of its outgoing edges, in logits. Its incoming V edges,
    including omitted ones, add up to it. Q edges and K edges are two views of `attended.effect`:
    each kind adds up to it separately. For an MLP, U edges and G edges are two views of `value`,
    and each kind adds up to it; a writer's value counts each of the two by half. `note` explains
    why a head has no Q and K edges.

    In a circuit by "integrated", `value` is a difference from the reference run, and all kinds of
    edges together add up to it.
    """

    node: Site
    text: str
    value: float
    attended: Attended | None = None
    note: str = ""

    def __str__(self) -> str:
        return str(self.node)


@dataclass(frozen=True)
class GraphEdge:
    """An edge from a writer node to a reader node, with three separate scores.

    `exact` is the edge's part of the read in the unit of the read: logits for V edges, score units
    (of the contrast) for Q and K edges. `share` is the edge's contribution to the prediction, in
    logits, by the method of the graph. In a circuit, it equals `exact` for a V, U or G edge and is
    computed by integrated gradients over the attention for Q and K edges. `effect` is the drop in
    the prediction when the edge is cut and everything after it is recomputed, or None if not
    computed.

    Over several prompts, these are means. A prompt whose circuit omits the edge counts as 0, and
    `prompts` is the number of prompts that keep it. `estimates` has the intervals, and the
    `probability` that the edge belongs to the circuit over bootstrap samples of the prompts. For
    one prompt it has the drop by `removal` of edges that this drop keeps.
    """

    edge: Site
    exact: float
    unit: Unit
    share: float
    effect: float | None = None
    prompts: int = 1
    estimates: Mapping[str, Estimate] | None = None

    @property
    def kind(self) -> Side:
        """Whether the edge enters queries, keys or values of a head, or values or gates."""
        return side_of(self.edge)

    @property
    def name(self) -> str:
        """The edge as text."""
        return str(self.edge)

    @property
    def is_written(self) -> bool:
        """Whether a component writes the edge; false for positions and biases."""
        return is_written(self.edge.start)

    @property
    def probability(self) -> float | None:
        """The probability that the edge belongs to the circuit; None for one prompt."""
        estimate = (self.estimates or {}).get("probability")
        return None if estimate is None else estimate.value

    @property
    def strength(self) -> float:
        """|effect| where edges were cut; otherwise |share| or the drop by removal, if larger."""
        if self.effect is not None:
            return abs(self.effect)
        removal = (self.estimates or {}).get("removal", Estimate(0.0))
        return max(abs(self.share), abs(removal.value))

    def estimate(self, measure: str = "share") -> Estimate:
        """One of the numbers with its 95% interval over prompts."""
        if self.estimates is not None and measure in self.estimates:
            return self.estimates[measure]
        value = getattr(self, measure, None) if measure in ("exact", "share", "effect") else None
        if value is None:
            raise InputError(f"{self} has no {measure!r}; choose 'exact', 'share' or 'effect'")
        return Estimate(value)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class LeftOut:
    """The sum of the omitted edges into a node, and of contributions that belong to no edge.

    `held` is the part of `share` that no edge carries: an MLP's contribution at rest and its output
    bias, a sink, the common part of keys or, between two runs, the change of normalization scales
    and of a router's weights.
    """

    node: Site
    kind: Side
    exact: float
    share: float
    count: int
    held: float = 0.0


# ---- names


def edge_between(writer: Component, at: int, reader: Site, side: Side) -> Site:
    """The edge from a component at a position to a node; the logits have one side only."""
    return Site.edge(Site(writer, at=at), reader, None if reader.writer == LOGITS else side)


def side_of(edge: Site) -> Side:
    """The input of the reader that an edge feeds; the logits read values."""
    return Side.V if edge.side is None else edge.side


def unit_of(side: Side) -> Unit:
    """The unit of a read: attention scores for queries and keys, logits for everything else."""
    return "score" if side in (Side.Q, Side.K) else "logits"


def node_position(node: Site) -> int:
    """The position of a node."""
    assert node.at is not None, f"{node} has no position"
    return node.at


def component_of(node: Site) -> Writer:
    """The component of a node that reads."""
    assert isinstance(node.writer, HeadId | Source), f"{node} does not read"
    return node.writer


def is_inner(node: Site) -> bool:
    """Whether a node reads others: a head or an MLP."""
    writer = node.writer
    return isinstance(writer, HeadId) or (isinstance(writer, Source) and writer.kind == "mlp")


def is_written(node: Site) -> bool:
    """Whether a node writes into the stream; false for positions and biases."""
    component = node.writer
    if isinstance(component, Source):
        return component.kind in ("embed", "mlp")
    return isinstance(component, HeadId)


def layer_of(node: Site, n_layers: int) -> int:
    """The layer of a node: −1 before the first, `n_layers` for the logits."""
    if node.writer == LOGITS:
        return n_layers
    return node.writer.layer if isinstance(node.writer, HeadId | Source) else -1


def edges_into(config: Config, node: Site, length: int) -> Iterator[Site]:
    """Every edge into a node, in a text of this length."""
    for side in sides_of(config, node):
        for at in read_positions(config, node, side, length):
            for writer in writers_into(config, component_of(node)):
                yield edge_between(writer, at, node, side)


def sides_of(config: Config, node: Site) -> tuple[Side, ...]:
    """The inputs of a node, empty for a node that does not read; the logits read values.

    An MLP that is not a value times a gate is a leaf of circuits.
    """
    if node.writer == LOGITS:
        return (Side.V,)
    if not is_inner(node):
        return ()
    return HEAD_SIDES if node.head is not None else MLP_SIDES if has_gates(config) else ()


def read_positions(config: Config, node: Site, side: Side, length: int) -> range:
    """The positions that a node's read sees, in a text of this length."""
    last = node_position(node)
    if node.head is None or side is Side.Q:
        return range(last, last + 1)
    return config.sources(node.head.layer, last, length)


# ---- orders


def best_first(
    top: Site,
    inputs: Callable[[Site], Iterable[tuple[Site, float]]],
    count: int | None = None,
) -> list[Site]:
    """Edges in greedy order from the top down: always the strongest into a node already reached.

    `inputs` gives the edges into a node and their strengths.
    """
    reached, order = {top}, list[Site]()
    heap = [(-strength, str(edge), edge) for edge, strength in inputs(top)]
    heapq.heapify(heap)
    while heap and (count is None or len(order) < count):
        _, _, edge = heapq.heappop(heap)
        order.append(edge)
        if is_inner(edge.start) and edge.start not in reached:
            reached.add(edge.start)
            for below, strength in inputs(edge.start):
                heapq.heappush(heap, (-strength, str(below), below))
    return order


def random_order(
    config: Config, position: int, length: int, count: int, generator: torch.Generator
) -> list[Site]:
    """Edges of random walks from the logits down to a token, one walk after another.

    A walk chooses one of a node's reads, a position and a writer, each uniformly. Where walks add
    nothing more, edges into the circuit are drawn one by one.
    """
    order: dict[Site, None] = {}
    top, idle = Site(LOGITS, at=position), 0
    while len(order) < count and idle < _IDLE_WALKS:
        before, node = len(order), top
        while sides_of(config, node):
            edge = _random_edge(config, node, length, generator)
            order[edge] = None
            node = edge.start
        idle = idle + 1 if len(order) == before else 0
    while len(order) < count:
        inside = dict.fromkeys([top, *(edge.start for edge in order if is_inner(edge.start))])
        rest = [e for node in inside for e in edges_into(config, node, length) if e not in order]
        if not rest:
            break
        order[rest[_draw(len(rest), generator)]] = None
    return list(order)[:count]


def _random_edge(config: Config, node: Site, length: int, generator: torch.Generator) -> Site:
    sides, writers = sides_of(config, node), writers_into(config, component_of(node))
    side = sides[_draw(len(sides), generator)]
    positions = read_positions(config, node, side, length)
    writer = writers[_draw(len(writers), generator)]
    return edge_between(writer, positions[_draw(len(positions), generator)], node, side)


def _draw(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))
