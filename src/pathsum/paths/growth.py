"""Growing a circuit: from the prediction down, keeping the nodes that carry enough of it.

Each head or MLP node has a gradient G of the prediction at its output, summed over the edges that
leave it. A head's V inputs split output · G exactly. Moving source j contributes
v_j = (read at j) · W_V W_O G, so attending by its scores contributes Σ_j A_j v_j; `attention`
splits the excess over uniform attention over the scores, and so over the parts of queries and keys.
`mlp_nodes` splits an MLP's output · G over the inputs of its values and of its gates. All readers
of a node are in levels above it, so one pass from the top level down meets every node after all its
readers. The nodes of a component, one per position, are decomposed together.

With a reference run, every number is a difference between the two runs, and the shares into a node
add up to its difference over all kinds of edges.

A second pass (`removal`) has drops instead of shares: how much less the prediction is when one
writer is removed from one read, which is not linear in attention and MLPs, with everything above
linear. Neurons or sources that cancel leave a share of 0 to an edge whose removal matters. Edges
with a large drop are kept besides those with a large share.

An edge is kept if it carries a floor, or if all weaker edges that leave its node, each from a part
of the floor on, carry the floor together. A node is kept if one of its edges is. The floor is
`threshold` times the prediction or, if larger, times a part of the sum of the magnitudes of its
direct shares. The difference of two tokens that nearly tie is close to zero, and every
edge of the model would carry a large share of it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.options import batched
from pathsum.base.path import level_of
from pathsum.base.site import LOGITS, Side, Site
from pathsum.model import HeadId, Source, Trace
from pathsum.model.folding import Reads
from pathsum.paths.attention import HeadNodes, Inputs
from pathsum.paths.edges import (
    GraphEdge,
    GraphNode,
    LeftOut,
    edge_between,
    is_inner,
    node_position,
    side_of,
    sides_of,
    unit_of,
)
from pathsum.paths.flows import FrozenRow
from pathsum.paths.mlp_nodes import MlpNodes
from pathsum.paths.removal import removal_inputs
from pathsum.paths.target import PredictionRun

# The least size that the floor is relative to: this part of the sum of |direct shares|.
CANCELED = 0.5
# The part of the floor from which weaker edges of a node count together.
EDGE_PART = 0.25
# How much the floor is raised at a time if too many nodes are kept.
_RAISE = 1.5


@dataclass(eq=False)
class _Writer:
    """Edges that leave a node, and their sums.

    `value` is the sum of their shares, with two views of one number counted by half each, and
    `gradient` that of the written vector. `common` is output · gradient minus `value`: what keys
    have in common with other sources.
    """

    edges: list[GraphEdge] = field(default_factory=list[GraphEdge])
    value: float = 0.0
    common: float = 0.0
    gradient: Float[Tensor, " d"] | None = None

    def add(
        self, edges: list[GraphEdge], value: float, common: float, gradient: Tensor | None
    ) -> None:
        """Add edges and their numbers."""
        self.edges += edges
        self.value += value
        self.common += common
        if gradient is not None:
            self.gradient = gradient if self.gradient is None else self.gradient + gradient


@dataclass(eq=False)
class _Rest:
    """The edges into one read of a node that are not kept, and `held`, which no edge carries."""

    exact: float
    share: float
    count: int
    held: float


class Growth:
    """One prediction's circuit while it grows; `grown` finishes it.

    With `only`, these edges are kept, however many, and no others; those of `also` are kept besides
    the strong ones. Nodes below level `lowest` are not decomposed. With a `reference` run, the
    difference from it is explained. With `removal`, the numbers of edges are drops by removing them
    (`removal`), not shares.
    """

    def __init__(
        self,
        of: PredictionRun,
        threshold: float,
        rival: int | None = None,
        only: Sequence[Site] | None = None,
        reference: Trace | None = None,
        removal: bool = False,
        also: Sequence[Site] = (),
        lowest: int = 0,
    ) -> None:
        self.trace, self.row, self.rival = of.trace, of.sequence, rival
        self.removal, self.also, self.lowest = removal, by_read(also), lowest
        self.target = of.target.rows(slice(self.row, self.row + 1))
        self.position = int(self.target.positions[0])
        self.run = FrozenRow.of(self.trace, self.row, of.length)
        self.start: FrozenRow | None = None
        self.carried = self.run
        self.total = self._prediction(self.run)
        self.change = self.total
        if reference is not None:
            row = of.sequence if len(reference.tokens) > 1 else 0
            self.start = FrozenRow.of(reference, row, of.length)
            self.carried = self.run.minus(self.start)
            self.change = self.total - self._prediction(self.start)
        self.only = None if only is None else by_read(only)
        self.direct, self.direct_held = self._direct()
        size = max(abs(self.change), CANCELED * float(self.direct.shares.abs().sum()))
        # Above zero, so that it can be raised.
        self.first_floor = 0.0 if only is not None else max(threshold * size, sys.float_info.min)
        self._restart(self.first_floor)

    def _prediction(self, run: FrozenRow) -> float:
        logits = run.trace.uncapped_logits_at(self.position)[run.row : run.row + 1]
        return float(self.target.of_rows(logits)[0])

    def grown(self, max_nodes: int = 1000, progress: Progress = silent) -> "Growth":
        """The whole circuit; the floor is raised until it has few enough nodes."""
        # The floor of edges that are given is 0, which cannot be raised.
        most = max_nodes if self.only is None else sys.maxsize
        while not self._grow(most, progress):
            self._restart(self.floor * _RAISE)
        return self

    def _restart(self, floor: float) -> None:
        """Restart from the logits, with this floor for keeping nodes."""
        self.floor = floor
        self.writers: dict[Site, _Writer] = {}
        self.weak: dict[Site, _Writer] = {}
        self.nodes: list[GraphNode] = []
        self.edges: list[GraphEdge] = []
        self.rests: dict[tuple[Site, Side], _Rest] = {}
        self.quadrature_error = 0.0

    @property
    def left_out(self) -> list[LeftOut]:
        """The sums of the edges that are not kept, by node and kind."""
        return [
            LeftOut(node, side, rest.exact, rest.share + rest.held, rest.count, rest.held)
            for (node, side), rest in self.rests.items()
        ]

    def _grow(self, max_nodes: int, progress: Progress) -> bool:
        """Grow from the logits to the tokens; stop and return False if there are too many nodes."""
        self._logits()
        layers, config = self.run.frozen.n_layers, self.trace.model.config
        for level in reversed(range(2 * layers)):
            progress(2 * layers - 1 - level, 2 * layers, "decomposing layers")
            opened: dict[HeadId | Source, list[Site]] = {}
            for node in self._decide(level):
                assert isinstance(node.writer, HeadId | Source)
                if level >= self.lowest and not (
                    self.removal and self._follows_from_first_token(node)
                ):
                    opened.setdefault(node.writer, []).append(node)
            reads = self.run.reads(level // 2) if opened and level % 2 == 0 else None
            for component, nodes in sorted(opened.items(), key=lambda item: str(item[0])):
                nodes.sort(key=node_position)
                for some in batched(nodes, self._bytes_of_a_node(nodes[-1])):
                    if isinstance(component, HeadId):
                        assert reads is not None
                        self._head(component, some, reads)
                    else:
                        self._mlp(component.layer, some)
                    if self._count > max_nodes:
                        return False
        for node in self._decide(None):
            note = f"mlp={config.mlp!r} is not a value times a gate" if is_inner(node) else ""
            self.nodes.append(
                GraphNode(node, self._text(node), self.writers[node].value, note=note)
            )
        progress(2 * layers, 2 * layers, "decomposing layers")
        return len(self.nodes) <= max_nodes

    def _decide(self, level: int | None) -> list[Site]:
        """The nodes of a level that are kept, and their edges; None is for all that is no reader.

        Weak edges that do not carry the floor together join those that are left out.
        """

        def is_here(node: Site) -> bool:
            component = node.writer if sides_of(self.trace.model.config, node) else None
            return level == (
                level_of(component) if isinstance(component, HeadId | Source) else None
            )

        for node in filter(is_here, self.weak):
            weak = self.weak[node]
            if abs(weak.value) >= self.floor:
                strong = self.writers.setdefault(node, _Writer())
                strong.add(weak.edges, weak.value, weak.common, weak.gradient)
                continue
            for edge in weak.edges:
                rest = self.rests[edge.edge.end, edge.kind]
                rest.exact += edge.exact
                rest.share += edge.share
                rest.count += 1
        kept = list(filter(is_here, self.writers))
        for node in kept:
            self.edges += self.writers[node].edges
        return kept

    def _follows_from_first_token(self, node: Site) -> bool:
        """Whether a node is at the first position, where a causal model sees one token.

        Its drops are not followed: heads above attend to it whatever it writes (a sink), so that
        everything above is far from linear. On SmolLM2, drops there do not predict effects.
        """
        return self.trace.model.config.causal and node.at == 0 < self.position

    @property
    def _count(self) -> int:
        """About the number of nodes."""
        together = {node for node, weak in self.weak.items() if abs(weak.value) >= self.floor}
        return 1 + len(together | self.writers.keys())

    @property
    def reconstruction_error(self) -> float:
        """|the sum of the direct shares − the prediction|."""
        return abs(float(self.direct.shares.sum()) + self.direct_held - self.change)

    def _bytes_of_a_node(self, last: Site) -> int:
        """The memory of one node's candidate edges; the last node sees the most positions."""
        config, size = self.trace.model.config, self.run.final_stream.element_size()
        if last.head is None:
            writers = len(self.run.writers(2 * config.n_layers)) if self.removal else 1
            return 8 * config.d_mlp * size * writers
        width = max(config.d_model, len(self.run.writers(2 * config.n_layers)))
        return 4 * width * self._visible(last) * size

    def _visible(self, node: Site) -> int:
        """The number of first positions that a head node can attend to."""
        config = self.trace.model.config
        return config.visible_length(node_position(node), self.run.length)

    def _direct(self) -> tuple[Inputs, float]:
        """The direct contributions of all writers to the logits, and of a change of scale.

        The bias of the logits is one of them; between two runs it cancels.
        """
        direction, bias = self.target.direction(self.trace.model.weights)
        ends = [self.run] if self.start is None else [self.run, self.start]
        scales = [float(one.frozen.final_scale[0, self.position]) for one in ends]
        gradient = direction * (sum(scales) / len(scales))
        level = 2 * self.run.frozen.n_layers
        here = self.target.positions[:1]
        shares = self.carried.writes_at(level, gradient, here)
        writers, held = self.run.writers(level), 0.0
        if self.start is None and bool(bias[0]):
            sources = len(self.run.sources)
            writers = (*writers[:sources], Source("unembed_bias"), *writers[sources:])
            own = bias[:, None].to(shares)
            shares = torch.cat([shares[:, :sources], own, shares[:, sources:]], 1)
        if self.start is not None:
            streams = [one.final_stream[self.position] for one in ends]
            mean = (streams[0] + streams[1]) / 2
            held = float((mean * direction[0]).sum()) * (scales[0] - scales[1])
        inputs = Inputs(
            Side.V,
            writers,
            shares[..., None],
            shares[..., None],
            gradient=lambda nodes, *_: gradient.expand(len(nodes), -1),
            positions=(self.position,),
        )
        return inputs, held

    def _logits(self) -> None:
        node = Site(LOGITS, at=self.position)
        self._collect([node], self.direct, torch.tensor([self.direct_held], dtype=torch.float64))
        predicted = self.trace.model.output_text(int(self.target.tokens[0]))
        self.nodes.append(GraphNode(node, predicted, self.change))

    def _mlp(self, layer: int, nodes: Sequence[Site]) -> None:
        """Decompose some nodes of an MLP."""
        opened, common = self._opened_mlp(layer, nodes)
        for node in nodes:
            value = self.writers[node].value
            self.nodes.append(GraphNode(node, self._text(node), value))
        if self.removal:
            for inputs in opened.removals():
                self._collect(nodes, inputs, None)
            return
        for inputs, held in opened.inputs():
            # Between two runs, only one kind subtracts the part that keys have in common.
            once = inputs.side is Side.U or self.start is None
            self._collect(nodes, inputs, held - common.to(held) if once else held)

    def neurons(self, node: Site) -> Float[Tensor, " m"]:
        """The contribution of each neuron of a kept MLP node, once the circuit has grown."""
        assert isinstance(node.writer, Source)
        return self._opened_mlp(node.writer.layer, [node])[0].by_neuron[0]

    def _opened_mlp(self, layer: int, nodes: Sequence[Site]) -> tuple[MlpNodes, Tensor]:
        gradients, common = self._opened(nodes)
        places = torch.tensor([node_position(node) for node in nodes], device=gradients.device)
        return MlpNodes(self.run, layer, places, gradients, self.start, self.carried), common

    def _opened(self, nodes: Sequence[Site]) -> tuple[Float[Tensor, "node d"], Tensor]:
        """The gradients at the outputs of some nodes, and their `common`."""
        writers = [self.writers[node] for node in nodes]
        gradients = [one.gradient for one in writers if one.gradient is not None]
        common = torch.tensor([one.common for one in writers], dtype=torch.float64)
        return torch.stack(gradients), common.to(gradients[0].device)

    def _head(self, head: HeadId, nodes: Sequence[Site], reads: Reads) -> None:
        """Decompose some nodes of a head."""
        places = torch.tensor([node_position(node) for node in nodes])
        gradients, common = self._opened(nodes)
        given = (self._visible(nodes[-1]), self.rival, self.start, self.carried)
        opened = HeadNodes(self.run, head, reads, places.to(gradients.device), gradients, *given)
        attention, held = opened.attention, opened.held
        if self.removal:
            self._collect(nodes, opened.values, None)
            for inputs in removal_inputs(attention):
                self._collect(nodes, inputs, None)
            return
        added = {
            number
            for number, node in enumerate(nodes)
            if (node, Side.Q) in self.also or (node, Side.K) in self.also
        }
        explained = sorted(added.union(attention.explained(self.floor)))
        if self.start is not None:
            # Scores that are not decomposed are no edge's.
            others = torch.ones(len(nodes), dtype=torch.bool)
            others[explained] = False
            held = held + attention.score_weights.effect * others.to(held.device)
        self._collect(nodes, opened.values, held - common)
        described = attention.described(self.floor, common.tolist())
        for node, (attended, note) in zip(nodes, described, strict=True):
            value = self.writers[node].value
            self.nodes.append(GraphNode(node, self._text(node), value, attended, note))
            if attended is not None:
                self.quadrature_error = max(self.quadrature_error, attended.error)
        some = [nodes[number] for number in explained]
        no_edge = attention.held(explained)
        for inputs in attention.inputs(explained):
            self._collect(some, inputs, no_edge[inputs.side])

    def _text(self, node: Site) -> str:
        return self.trace.model.token_text(int(self.trace.tokens[self.row, node_position(node)]))

    def _collect(
        self, readers: Sequence[Site], inputs: Inputs, held: Float[Tensor, " node"] | None
    ) -> None:
        """Add the edges that may be kept to their writers; the rest is left out together.

        `held` is the part of the rest that no edge carries.
        """
        shares, exact = inputs.shares.double(), inputs.exact.double()
        strong, kept = self._masks(readers, inputs, shares)
        unit = unit_of(inputs.side)
        into, writers, columns = kept.nonzero().T
        common = torch.zeros_like(shares) if inputs.common is None else inputs.common.double()
        numbers = (into, writers, columns, strong[kept], shares[kept], exact[kept], common[kept])
        gradients = inputs.gradient(into, writers, columns) / inputs.views
        each = zip(*(values.tolist() for values in numbers), gradients, strict=True)
        for reader, writer, column, carries, share, own, shared, gradient in each:
            place = column if inputs.positions is None else inputs.positions[reader]
            edge = edge_between(inputs.writers[writer], place, readers[reader], inputs.side)
            node = (self.writers if carries else self.weak).setdefault(edge.start, _Writer())
            sums = share / inputs.views, shared / inputs.views
            inner = gradient if is_inner(edge.start) else None
            node.add([GraphEdge(edge, own, unit, share)], *sums, inner)
        rest, others = shares.masked_fill(kept, 0), exact.masked_fill(kept, 0)
        no_edge = torch.zeros_like(rest[:, 0, 0]) if held is None else held
        sums = (others.sum((1, 2)), rest.sum((1, 2)), rest.count_nonzero((1, 2)), no_edge)
        rows = zip(readers, *(values.tolist() for values in sums), strict=True)
        for reader, *found in rows:
            self.rests[reader, inputs.side] = _Rest(*found)

    def _masks(
        self, readers: Sequence[Site], inputs: Inputs, shares: Float[Tensor, "node writer src"]
    ) -> tuple[Bool[Tensor, "node writer src"], Bool[Tensor, "node writer src"]]:
        """The edges that are kept, and those that may be, which include them."""
        size = shares.abs()
        if self.only is not None:
            size = torch.zeros_like(shares)
        # Exact zeros are dropped: a floor that underflows would keep every edge.
        strong = (size >= self.floor) & (size > 0)
        weak = (size >= EDGE_PART * self.floor) & (size > 0) & (not self.removal)
        wanted = self.also if self.only is None else self.only
        for number, reader in enumerate(readers):
            for writer in wanted.get((reader, inputs.side), ()):
                if writer.writer in inputs.writers:
                    column = 0 if inputs.positions is not None else node_position(writer)
                    strong[number, inputs.writers.index(writer.writer), column] = True
        return strong, strong | weak


def by_read(edges: Sequence[Site]) -> dict[tuple[Site, Side], list[Site]]:
    """The writers of edges by their reader and its side."""
    found: dict[tuple[Site, Side], list[Site]] = {}
    for edge in edges:
        found.setdefault((edge.end, side_of(edge)), []).append(edge.start)
    return found
