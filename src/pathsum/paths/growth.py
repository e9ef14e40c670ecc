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

A second pass (`removal`) computes drops instead of shares: the drop of the prediction when one
writer is removed from one read, with everything above linear. If neurons or sources cancel, an edge
has a share of 0 although its removal matters. Edges with a large drop are kept, too.

An edge is kept if it carries a floor, or if all weaker edges that leave its node, each from a part
of the floor on, carry the floor together. A node is kept if one of its edges is. The floor is
`threshold` times the prediction or, if larger, times a part of the sum of the magnitudes of its
direct shares: if two tokens nearly tie, every edge carries a large share of their difference.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.options import batched
from pathsum.base.path import level_of
from pathsum.base.site import LOGITS, Side, Site, Writer
from pathsum.model import HeadId, Source, Trace
from pathsum.model.folding import Reads
from pathsum.paths.attention import HeadNodes, Inputs
from pathsum.paths.edges import (
    Attended,
    GraphEdge,
    GraphNode,
    LeftOut,
    component_of,
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
# The factor by which the floor is raised if too many nodes are kept.
_RAISE = 1.5


@dataclass(eq=False)
class _Writer:
    """Edges that leave a node, and their sums.

    `value` is the sum of their shares, with two views of one number counted by half each, and
    `gradient` the sum of the gradients at the output. `common` is output · gradient minus `value`:
    the part that keys have in common with other sources.
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


class Growth:
    """One prediction's circuit while it grows; `grow` finishes it.

    With `only`, these edges are kept, however many, and no others. Edges in `also` are kept
    besides the strong ones. Nodes below level `lowest` are not decomposed. With a `reference` run,
    the difference from it is explained. With `removal`, the numbers of edges are drops by removing
    them (see `removal`), not shares.
    """

    def __init__(
        self,
        prediction: PredictionRun,
        threshold: float,
        rival: int | None = None,
        only: Sequence[Site] | None = None,
        reference: Trace | None = None,
        removal: bool = False,
        also: Sequence[Site] = (),
        lowest: int = 0,
    ) -> None:
        self.trace, self.row, self.rival = prediction.trace, prediction.sequence, rival
        self.removal, self.also, self.lowest = removal, by_read(also), lowest
        self.target = prediction.target.rows(slice(self.row, self.row + 1))
        self.position = int(self.target.positions[0])
        self.run = FrozenRow.of(self.trace, self.row, prediction.length)
        self.start: FrozenRow | None = None
        self.carried = self.run
        self.total = self._prediction(self.run)
        self.change = self.total
        if reference is not None:
            row = self.row if len(reference.tokens) > 1 else 0
            self.start = FrozenRow.of(reference, row, prediction.length)
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

    def grow(self, max_nodes: int = 1000, progress: Progress = silent) -> "Growth":
        """The whole circuit; the floor is raised until it has at most so many nodes."""
        # With `only`, the floor is 0, which cannot be raised.
        most = max_nodes if self.only is None else sys.maxsize
        while not self._grow_down(most, progress):
            self._restart(self.floor * _RAISE)
        return self

    def _restart(self, floor: float) -> None:
        """Restart from the logits, with this floor for keeping nodes."""
        self.floor = floor
        self.writers: dict[Site, _Writer] = {}
        self.weak: dict[Site, _Writer] = {}
        self.nodes: list[GraphNode] = []
        self.edges: list[GraphEdge] = []
        self.left_out: dict[tuple[Site, Side], LeftOut] = {}
        self.quadrature_error = 0.0

    def _grow_down(self, max_nodes: int, progress: Progress) -> bool:
        """Grow from the logits to the tokens; stop and return False if there are too many nodes."""
        self._open_logits()
        layers, config = self.run.frozen.n_layers, self.trace.model.config
        for level in reversed(range(2 * layers)):
            progress(2 * layers - 1 - level, 2 * layers, "decomposing layers")
            components: dict[Writer, list[Site]] = {}
            for node in self._keep_nodes(level):
                is_fixed = self.removal and self._follows_from_first_token(node)
                if level >= self.lowest and not is_fixed:
                    components.setdefault(component_of(node), []).append(node)
            reads = self.run.reads(level // 2) if components and level % 2 == 0 else None
            for component, nodes in sorted(components.items(), key=lambda item: str(item[0])):
                nodes.sort(key=node_position)
                for part in batched(nodes, self._bytes_of_a_node(nodes[-1])):
                    if isinstance(component, HeadId):
                        assert reads is not None
                        self._open_head(component, part, reads)
                    else:
                        self._open_mlp(component.layer, part)
                    if self._count > max_nodes:
                        return False
        for node in self._keep_nodes(None):
            note = f"mlp={config.mlp!r} is not a value times a gate" if is_inner(node) else ""
            self._add_node(node, note=note)
        progress(2 * layers, 2 * layers, "decomposing layers")
        return len(self.nodes) <= max_nodes

    def _keep_nodes(self, level: int | None) -> list[Site]:
        """Keep nodes of a level, and their edges; None stands for all nodes that do not read.

        Weak edges that do not carry the floor together are left out.
        """

        def is_inside(node: Site) -> bool:
            reads = bool(sides_of(self.trace.model.config, node))
            return level == (level_of(component_of(node)) if reads else None)

        for node in filter(is_inside, self.weak):
            weak = self.weak[node]
            if abs(weak.value) >= self.floor:
                strong = self.writers.setdefault(node, _Writer())
                strong.add(weak.edges, weak.value, weak.common, weak.gradient)
                continue
            for edge in weak.edges:
                rest = self.left_out[edge.edge.end, edge.kind]
                sums = {"exact": rest.exact + edge.exact, "share": rest.share + edge.share}
                self.left_out[edge.edge.end, edge.kind] = replace(
                    rest, **sums, count=rest.count + 1
                )
        nodes = list(filter(is_inside, self.writers))
        for node in nodes:
            self.edges += self.writers[node].edges
        return nodes

    def _add_node(self, node: Site, attended: Attended | None = None, note: str = "") -> None:
        """Add the record of a node that is kept."""
        token = int(self.trace.tokens[self.row, node_position(node)])
        text, value = self.trace.model.token_text(token), self.writers[node].value
        self.nodes.append(GraphNode(node, text, value, attended, note))

    def _follows_from_first_token(self, node: Site) -> bool:
        """Whether a node is at the first position, where a causal model sees one token.

        Its drops are not followed: heads above attend to it whatever its output is (a sink), so
        everything above is far from linear. On SmolLM2, drops there do not predict effects.
        """
        return self.trace.model.config.causal and node.at == 0 < self.position

    @property
    def _count(self) -> int:
        """The number of nodes so far, approximately."""
        by_weak_edges = {node for node, weak in self.weak.items() if abs(weak.value) >= self.floor}
        return 1 + len(by_weak_edges | self.writers.keys())

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
        scales = [float(end.frozen.final_scale[0, self.position]) for end in ends]
        gradient = direction * (sum(scales) / len(scales))
        level = 2 * self.run.frozen.n_layers
        shares = self.carried.writes_at(level, gradient, self.target.positions[:1])
        writers, held = self.run.writers(level), 0.0
        if self.start is None and bool(bias[0]):
            sources = len(self.run.sources)
            writers = (*writers[:sources], Source("unembed_bias"), *writers[sources:])
            column = bias[:, None].to(shares)
            shares = torch.cat([shares[:, :sources], column, shares[:, sources:]], 1)
        if self.start is not None:
            streams = [end.final_stream[self.position] for end in ends]
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

    def _open_logits(self) -> None:
        """Add the prediction and its direct contributions."""
        node = Site(LOGITS, at=self.position)
        self._collect([node], self.direct, torch.tensor([self.direct_held], dtype=torch.float64))
        predicted = self.trace.model.output_text(int(self.target.tokens[0]))
        self.nodes.append(GraphNode(node, predicted, self.change))

    def _open_mlp(self, layer: int, nodes: Sequence[Site]) -> None:
        """Decompose nodes of an MLP."""
        mlp, common = self._mlp_nodes(layer, nodes)
        for node in nodes:
            self._add_node(node)
        if self.removal:
            for inputs in mlp.removals():
                self._collect(nodes, inputs, None)
            return
        for inputs, held in mlp.inputs():
            # Between two runs, only one kind subtracts the part that keys have in common.
            once = inputs.side is Side.U or self.start is None
            self._collect(nodes, inputs, held - common.to(held) if once else held)

    def neurons(self, node: Site) -> Float[Tensor, " m"]:
        """The contribution of each neuron of a kept MLP node, once the circuit has grown."""
        assert isinstance(node.writer, Source)
        return self._mlp_nodes(node.writer.layer, [node])[0].by_neuron[0]

    def _mlp_nodes(self, layer: int, nodes: Sequence[Site]) -> tuple[MlpNodes, Tensor]:
        positions, gradients, common = self._gradients(nodes)
        return MlpNodes(self.run, layer, positions, gradients, self.start, self.carried), common

    def _gradients(self, nodes: Sequence[Site]) -> tuple[Tensor, Float[Tensor, "node d"], Tensor]:
        """The positions of nodes, the gradients at their outputs, and their `common`."""
        writers = [self.writers[node] for node in nodes]
        stack = torch.stack([node.gradient for node in writers if node.gradient is not None])
        common = torch.tensor([node.common for node in writers], dtype=torch.float64)
        positions = torch.tensor([node_position(node) for node in nodes], device=stack.device)
        return positions, stack, common.to(stack.device)

    def _open_head(self, head: HeadId, nodes: Sequence[Site], reads: Reads) -> None:
        """Decompose nodes of a head."""
        positions, gradients, common = self._gradients(nodes)
        ends = (self._visible(nodes[-1]), self.rival, self.start, self.carried)
        head_nodes = HeadNodes(self.run, head, reads, positions, gradients, *ends)
        attention, held = head_nodes.attention, head_nodes.held
        if self.removal:
            for inputs in (head_nodes.values, *removal_inputs(attention)):
                self._collect(nodes, inputs, None)
            return
        also = {
            number
            for number, node in enumerate(nodes)
            if (node, Side.Q) in self.also or (node, Side.K) in self.also
        }
        explained = sorted(also.union(attention.explained(self.floor)))
        if self.start is not None:
            # No edge carries the scores that are not decomposed.
            others = torch.ones(len(nodes), dtype=torch.bool)
            others[explained] = False
            held = held + attention.score_weights.effect * others.to(held.device)
        self._collect(nodes, head_nodes.values, held - common)
        described = attention.described(self.floor, common.tolist())
        for node, (attended, note) in zip(nodes, described, strict=True):
            self._add_node(node, attended, note)
            if attended is not None:
                self.quadrature_error = max(self.quadrature_error, attended.error)
        readers, held_by_side = [nodes[number] for number in explained], attention.held(explained)
        for inputs in attention.inputs(explained):
            self._collect(readers, inputs, held_by_side[inputs.side])

    def _collect(
        self, readers: Sequence[Site], inputs: Inputs, held: Float[Tensor, " node"] | None
    ) -> None:
        """Add the edges that may be kept to their writers; the rest is left out together.

        `held` is the part of the rest that no edge carries.
        """
        shares, exact, side = inputs.shares.double(), inputs.exact.double(), inputs.side
        strong, candidates = self._masks(readers, inputs, shares)
        cells = into, writers, columns = candidates.nonzero().T
        common = torch.zeros_like(shares) if inputs.common is None else inputs.common.double()
        numbers = (*cells, *(values[candidates] for values in (strong, shares, exact, common)))
        gradients = inputs.gradient(into, writers, columns) / inputs.views
        edges = zip(*(values.tolist() for values in numbers), gradients, strict=True)
        for reader, writer, column, is_strong, share, exact_value, shared, gradient in edges:
            at = column if inputs.positions is None else inputs.positions[reader]
            edge = edge_between(inputs.writers[writer], at, readers[reader], side)
            node = (self.writers if is_strong else self.weak).setdefault(edge.start, _Writer())
            sums = share / inputs.views, shared / inputs.views
            inner = gradient if is_inner(edge.start) else None
            node.add([GraphEdge(edge, exact_value, unit_of(side), share)], *sums, inner)
        share, exact = shares.masked_fill(candidates, 0), exact.masked_fill(candidates, 0)
        held = torch.zeros_like(share[:, 0, 0]) if held is None else held
        count = share.count_nonzero((1, 2))
        sums = (exact.sum((1, 2)), share.sum((1, 2)) + held, count, held)
        for reader, *rest in zip(readers, *(values.tolist() for values in sums), strict=True):
            self.left_out[reader, side] = LeftOut(reader, side, *rest)

    def _masks(
        self, readers: Sequence[Site], inputs: Inputs, shares: Float[Tensor, "node writer src"]
    ) -> tuple[Bool[Tensor, "node writer src"], Bool[Tensor, "node writer src"]]:
        """The edges that are kept, and those that may be, which include them."""
        size, required = shares.abs(), self.also
        if self.only is not None:
            size, required = torch.zeros_like(shares), self.only
        # Exact zeros are dropped: a floor that underflows would keep every edge.
        strong = (size >= self.floor) & (size > 0)
        weak = (size >= EDGE_PART * self.floor) & (size > 0) & (not self.removal)
        for number, reader in enumerate(readers):
            for writer in required.get((reader, inputs.side), ()):
                if writer.writer in inputs.writers:
                    column = 0 if inputs.positions is not None else node_position(writer)
                    strong[number, inputs.writers.index(writer.writer), column] = True
        return strong, strong | weak


def by_read(edges: Sequence[Site]) -> dict[tuple[Site, Side], list[Site]]:
    """The writers of edges by their reader and its side."""
    writers: dict[tuple[Site, Side], list[Site]] = {}
    for edge in edges:
        writers.setdefault((edge.end, side_of(edge)), []).append(edge.start)
    return writers
