"""Growing a circuit: from the prediction down, keeping the edges that carry enough of it.

Each head node has a gradient G: that of the prediction at its output, summed over the kept edges
that leave it. Its V inputs split output · G exactly. Moving source j contributes
v_j = (read at j) · W_V W_O G, so attending by its scores contributes Σ_j A_j v_j; `attention`
splits the excess over uniform attention over the scores, and so over the parts of queries and keys.
All readers of a head are in layers above it, so one pass from the top layer down meets every node
after all its readers. The nodes of a head, one per position, are decomposed together.

Edges are kept from a floor on: `threshold` times the prediction, or times a part of what its direct
shares add up to before they cancel, if that is larger. The difference of two tokens
that nearly tie is close to zero, and every edge of the model would carry a large share of it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.options import batched
from pathsum.base.site import LOGITS, Side, Site
from pathsum.model import HeadId, Source
from pathsum.model.folding import Reads
from pathsum.model.weights import kv_head
from pathsum.paths.attention import Inputs, NodeAttention
from pathsum.paths.edges import edge_between, node_position, side_of
from pathsum.paths.flows import FrozenRow, direct_shares
from pathsum.paths.graph import GraphEdge, GraphNode, LeftOut
from pathsum.paths.target import PredictionRun

# What the prediction is compared with, as a part of the sum of its direct shares' magnitudes.
CANCELED = 0.5
# How much the floor is raised at a time if too many nodes are kept.
_RAISE = 1.5


def grow_circuit(
    of: PredictionRun,
    threshold: float,
    rival: int | None = None,
    max_nodes: int = 1000,
    only: Sequence[Site] | None = None,
    progress: Progress = silent,
) -> "Growth":
    """The circuit of a prediction; the floor is raised until it has few enough nodes.

    With `only`, these edges are kept, and no others.
    """
    growth = Growth(of, threshold, rival, only)
    while not growth.grow(max_nodes, progress):
        growth.restart(growth.floor * _RAISE)
    return growth


@dataclass(eq=False)
class _Opened:
    """A head node that edges leave: its gradient, and the sum of their shares.

    `common` is output · gradient minus that sum: what keys have in common with other sources.
    """

    gradient: Float[Tensor, " d"]
    value: float
    common: float


class Growth:
    """One prediction's circuit while it grows."""

    def __init__(
        self,
        of: PredictionRun,
        threshold: float,
        rival: int | None = None,
        only: Sequence[Site] | None = None,
    ) -> None:
        self.trace, self.row, self.rival = of.trace, of.sequence, rival
        self.target = of.target.rows(slice(self.row, self.row + 1))
        self.position = int(self.target.positions[0])
        self.run = FrozenRow.of(self.trace, self.row, of.length)
        logits = self.trace.uncapped_logits_at(self.position)[self.row : self.row + 1]
        self.total = float(self.target.of_rows(logits)[0])
        self.only: dict[tuple[Site, Side], list[Site]] | None = None
        if only is not None:
            self.only = {}
            for edge in only:
                self.only.setdefault((edge.end, side_of(edge)), []).append(edge.start)
        self.direct = self._direct()
        size = max(abs(self.total), CANCELED * float(self.direct.shares.abs().sum()))
        # Above zero, so that it can be raised.
        self.first_floor = 0.0 if only is not None else max(threshold * size, sys.float_info.min)
        self.restart(self.first_floor)

    def restart(self, floor: float) -> None:
        """Begin with the logits, and keep edges from this floor on."""
        self.floor = floor
        self.open: dict[Site, _Opened] = {}
        self.nodes: list[GraphNode] = []
        self.leaves: dict[Site, float] = {}
        self.edges: list[GraphEdge] = []
        self.left_out: list[LeftOut] = []
        self.quadrature_error = 0.0

    def grow(self, max_nodes: int, progress: Progress = silent) -> bool:
        """From the logits to the tokens; False, and not to the end, if there are more nodes."""
        self._logits()
        layers = self.run.frozen.n_layers
        for layer in reversed(range(layers)):
            progress(layers - 1 - layer, layers, "decomposing layers")
            heads: dict[HeadId, list[Site]] = {}
            for node in sorted(self.open, key=node_position):
                if node.head is not None and node.head.layer == layer:
                    heads.setdefault(node.head, []).append(node)
            reads = self.run.reads(layer) if heads else None
            for head, nodes in sorted(heads.items()):
                for some in batched(nodes, self._bytes_of_a_node(nodes[-1])):
                    assert reads is not None
                    self._head(head, some, reads)
                    if self._count > max_nodes:
                        return False
        progress(layers, layers, "decomposing layers")
        self.nodes += [
            GraphNode(node, self._text(node), value) for node, value in self.leaves.items()
        ]
        return self._count <= max_nodes

    @property
    def _count(self) -> int:
        return 1 + len(self.open) + len(self.leaves)

    @property
    def reconstruction_error(self) -> float:
        """|the sum of the direct shares − the prediction|."""
        return abs(float(self.direct.shares.sum()) - self.total)

    def _bytes_of_a_node(self, last: Site) -> int:
        """The memory of one node's candidate edges; the last node sees the most positions."""
        width = max(
            self.trace.model.config.d_model, len(self.run.writers(self.run.frozen.n_layers))
        )
        return 4 * width * self._visible(last) * self.run.streams[0].element_size()

    def _visible(self, node: Site) -> int:
        """The number of first positions that a head node can attend to."""
        config = self.trace.model.config
        return config.visible_length(node_position(node), self.run.length)

    def _direct(self) -> Inputs:
        """The direct contributions of all writers to the logits."""
        direction, bias = self.target.direction(self.trace.model.weights)
        gradient = direction * self.run.frozen.final_scale[:, self.position]
        writers = self.run.writers(self.run.frozen.n_layers)
        sources = len(self.run.sources)
        has_bias = bool(bias[0])
        if has_bias:
            writers = (*writers[:sources], Source("unembed_bias"), *writers[sources:])
        own, here = bias[:, None] if has_bias else None, self.target.positions[:, None]
        z = [each[None] for each in self.run.z]
        shares = direct_shares(self.run.frozen, gradient[:, None], own, here, z)[..., 0]
        return Inputs(
            Side.V,
            writers,
            shares[..., None],
            shares[..., None],
            gradient=lambda nodes, _: gradient.expand(len(nodes), -1),
            places=(self.position,),
        )

    def _logits(self) -> None:
        node = Site(LOGITS, at=self.position)
        self.left_out += self._keep([node], self.direct)
        predicted = self.trace.model.output_text(int(self.target.tokens[0]))
        self.nodes.append(GraphNode(node, predicted, self.total))

    def _head(self, head: HeadId, nodes: Sequence[Site], reads: Reads) -> None:
        """Decompose some nodes of a head."""
        layer, length = self.run.layers[head.layer], self._visible(nodes[-1])
        places = torch.tensor([node_position(node) for node in nodes], device=layer.W_O.device)
        opened = [self.open[node] for node in nodes]
        gradients = torch.stack([one.gradient for one in opened])
        kv = kv_head(self.trace.model.config, head.head)
        along = (gradients @ layer.W_O[head.head].T) @ layer.W_V[kv].T
        scale = layer.scale[0, :length]
        weight = layer.pattern[0, head.head, places, :length] * scale
        shares = self.run.writes_everywhere(head.layer, along, length) * weight[:, None]
        inputs = Inputs(
            Side.V,
            self.run.writers(head.layer),
            shares,
            shares,
            gradient=lambda nodes, places: weight[nodes, places][:, None] * along[nodes],
        )
        common = torch.tensor([one.common for one in opened], dtype=torch.float64)
        left_out = [[one] for one in self._keep(nodes, inputs, -common.to(shares.device))]
        values = scale * (along @ self.run.streams[head.layer][:length].T)
        values = values * self.trace.scales.write[head.layer][self.row, places][:, None]
        attention = NodeAttention(self.run, head, reads, places, values, self.rival)
        described = attention.described(self.floor, common.tolist())
        for number, (attended, note) in enumerate(described):
            text = self._text(nodes[number])
            value = opened[number].value
            self.nodes.append(GraphNode(nodes[number], text, value, attended, note))
            if attended is not None:
                self.quadrature_error = max(self.quadrature_error, attended.error)
        explained = attention.explained(self.floor)
        some = [nodes[number] for number in explained]
        for inputs in attention.inputs(explained):
            kept = self._keep(some, inputs, attention.score_weights.sink[explained])
            for number, one in zip(explained, kept, strict=True):
                left_out[number].append(one)
        self.left_out += [one for each in left_out for one in each]

    def _text(self, node: Site) -> str:
        return self.trace.model.token_text(int(self.trace.tokens[self.row, node_position(node)]))

    def _keep(
        self,
        readers: Sequence[Site],
        inputs: Inputs,
        no_edge: Float[Tensor, " node"] | None = None,
    ) -> list[LeftOut]:
        """Keep edges that carry enough; the rest is left out together.

        `no_edge` is part of the rest: a sink's share, or what keys have in common.
        """
        shares, exact = inputs.shares.double(), inputs.exact.double()
        kept = self._mask(readers, inputs, shares)
        unit = "logits" if inputs.side is Side.V else "score"
        into, writers, columns = kept.nonzero().T
        to_heads: dict[Site, list[int]] = {}
        numbers = (into, writers, columns, shares[kept], exact[kept])
        each = zip(*(values.tolist() for values in numbers), strict=True)
        for number, (reader, writer, column, share, own) in enumerate(each):
            place = column if inputs.places is None else inputs.places[reader]
            edge = edge_between(inputs.writers[writer], place, readers[reader], inputs.side)
            self.edges.append(GraphEdge(edge, own, unit, share))
            node = edge.start
            if node.head is None:
                self.leaves[node] = self.leaves.get(node, 0.0) + share
            else:
                to_heads.setdefault(node, []).append(number)
        if to_heads:
            common = torch.zeros_like(shares) if inputs.common is None else inputs.common.double()
            self._open(to_heads, inputs, into, columns, shares[kept], common[kept])
        rest, others = shares.masked_fill(kept, 0), exact.masked_fill(kept, 0)
        left = rest.sum((1, 2)) if no_edge is None else rest.sum((1, 2)) + no_edge
        sums = (others.sum((1, 2)), left, rest.count_nonzero((1, 2)))
        rows = zip(readers, *(values.tolist() for values in sums), strict=True)
        return [LeftOut(reader, inputs.side, *numbers) for reader, *numbers in rows]

    def _mask(
        self, readers: Sequence[Site], inputs: Inputs, shares: Float[Tensor, "node writer src"]
    ) -> Bool[Tensor, "node writer src"]:
        """The edges that are kept."""
        if self.only is None:
            # Exact zeros are dropped: a floor that underflows would keep every edge.
            return (shares.abs() >= self.floor) & (shares != 0)
        kept = torch.zeros_like(shares, dtype=torch.bool)
        for number, reader in enumerate(readers):
            for writer in self.only.get((reader, inputs.side), ()):
                if writer.writer in inputs.writers:
                    column = 0 if inputs.places is not None else node_position(writer)
                    kept[number, inputs.writers.index(writer.writer), column] = True
        return kept

    def _open(
        self,
        to_heads: dict[Site, list[int]],
        inputs: Inputs,
        into: Int[Tensor, " edge"],
        columns: Int[Tensor, " edge"],
        shares: Float[Tensor, " edge"],
        common: Float[Tensor, " edge"],
    ) -> None:
        """Add the gradients of kept edges, by their numbers, to the head nodes that they leave."""
        numbers = [number for each in to_heads.values() for number in each]
        gradients = inputs.gradient(into[numbers], columns[numbers])
        slots = [slot for slot, each in enumerate(to_heads.values()) for _ in each]
        totals = gradients.new_zeros(len(to_heads), gradients.shape[1])
        totals.index_add_(0, torch.tensor(slots, device=gradients.device), gradients)
        for (node, each), gradient in zip(to_heads.items(), totals, strict=True):
            opened = self.open.setdefault(node, _Opened(torch.zeros_like(gradient), 0.0, 0.0))
            opened.gradient = opened.gradient + gradient
            opened.value += float(shares[each].sum())
            opened.common += float(common[each].sum())
