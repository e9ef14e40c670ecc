"""Growing a circuit: from the prediction down, keeping the edges that carry enough of it.

Each head node has a gradient G at what it writes: the sum, over the kept edges that leave it, of
what a unit of its write is worth to the prediction. Its V inputs split write · G exactly. What it
moves from source j is worth v_j = (read at j) · W_V W_O G, so attending by its scores is worth
Σ_j A_j v_j; `score_weights` splits what that is above uniform attention over the scores, and so
over the parts of queries and keys. All readers of a head are in layers above it, so one pass from
the top layer down meets every node after all its readers.

Edges are kept from a floor on: `threshold` times the prediction, or times a part of what its direct
shares add up to before they cancel, if that is larger. Of two tokens that nearly tie, the
difference is close to nothing, and every edge of the model would carry a large share of it.
"""

import sys
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import HeadId, Source, Trace
from pathsum.model.grouped_query import kv_head
from pathsum.names import Node, NodeEdge, Side
from pathsum.paths.circuit.circuit import Attended, CircuitEdge, CircuitNode, LeftOut
from pathsum.paths.circuit.frozen_row import Inputs, frozen_row
from pathsum.paths.circuit.score_weights import score_weights
from pathsum.paths.target import Target
from pathsum.result import Progress, silent

# What the prediction is compared with, as a part of the sum of its direct shares' magnitudes.
CANCELED = 0.5
# How much the floor is raised at a time if too many nodes are kept.
_RAISE = 1.5


def grow_circuit(
    trace: Trace,
    target: Target,
    row: int,
    threshold: float,
    rival: int | None = None,
    max_nodes: int = 1000,
    progress: Progress = silent,
) -> "Growth":
    """The circuit of one sequence's target; the floor is raised until it has few enough nodes."""
    growth = Growth(trace, target, row, threshold, rival)
    while not growth.grow(max_nodes, progress):
        growth.restart(growth.floor * _RAISE)
    return growth


@dataclass(eq=False)
class _Open:
    """A head node that edges leave: its gradient, and the sum of their shares."""

    gradient: Float[Tensor, " d"]
    value: float


class Growth:
    """One prediction's circuit while it grows."""

    def __init__(
        self, trace: Trace, target: Target, row: int, threshold: float, rival: int | None = None
    ) -> None:
        self.trace, self.row, self.target = trace, row, target.rows(slice(row, row + 1))
        self.position = int(self.target.positions[0])
        self.rival = rival
        self.run = frozen_row(trace, row, self.position + 1)
        direction, bias = self.target.direction(trace.model.weights)
        self.total = float(
            self.target.of_rows(trace.uncapped_logits_at(self.position)[row : row + 1])[0]
        )
        self.direction = direction[0] * self.run.frozen.final_scale[0, self.position]
        self.bias = float(bias[0])
        self.direct = self._direct()
        size = max(abs(self.total), CANCELED * float(self.direct.shares.abs().sum()))
        # Above zero, so that it can be raised.
        self.first_floor = max(threshold * size, sys.float_info.min)
        self.restart(self.first_floor)

    def restart(self, floor: float) -> None:
        """Begin with the logits, and keep edges from this floor on."""
        self.floor = floor
        self.open: dict[Node, _Open] = {}
        self.nodes: list[CircuitNode] = []
        self.leaves: dict[Node, float] = {}
        self.edges: list[CircuitEdge] = []
        self.left_out: list[LeftOut] = []
        self.quadrature_error = 0.0

    def grow(self, max_nodes: int, progress: Progress = silent) -> bool:
        """From the logits to the tokens; False, and not to the end, if there are more nodes."""
        self._logits()
        layers = self.run.n_layers
        for layer in reversed(range(layers)):
            nodes = [node for node in self.open if node.head and node.head.layer == layer]
            for node in sorted(nodes, key=lambda node: (node.head or "", node.position)):
                progress(layers - 1 - layer, layers, "taking layers apart")
                self._head(node, self.open[node])
                if self._count > max_nodes:
                    return False
        progress(layers, layers, "taking layers apart")
        self.nodes += [
            CircuitNode(node, self._text(node), value) for node, value in self.leaves.items()
        ]
        return self._count <= max_nodes

    @property
    def _count(self) -> int:
        return 1 + len(self.open) + len(self.leaves)

    @property
    def added_up(self) -> float:
        """The sum of the shares of everything that writes into the logits."""
        return float(self.direct.shares.sum())

    def _direct(self) -> "Inputs":
        """The direct contributions of all writers to the logits."""
        here = slice(self.position, self.position + 1)
        shares = self.run.writes_along(self.run.n_layers, self.direction[None], here)
        writers = self.run.writers(self.run.n_layers)
        if self.bias:
            shares = torch.cat([shares, shares.new_tensor([[self.bias]])])
            writers = (*writers, Source("unembed_bias"))
        return Inputs(Side.V, writers, shares, shares, self.direction[None], (self.position,))

    def _logits(self) -> None:
        node = Node("logits", self.position)
        self._keep(node, self.direct)
        predicted = self.trace.model.output_text(int(self.target.tokens[0]))
        self.nodes.append(CircuitNode(node, predicted, self.total))

    def _head(self, node: Node, opened: _Open) -> None:
        head, here = node.head, node.position
        assert head is not None
        layer, many = self.run.layers[head.layer], here + 1
        kv = kv_head(self.trace.model.config, head.head)
        along = layer.W_V[kv] @ (layer.W_O[head.head] @ opened.gradient)
        scale = layer.scale[0, :many]
        weight = layer.pattern[0, head.head, here, :many] * scale
        positions = tuple(range(many))
        gradient = weight[:, None] * along
        # One direction for all sources, so that it goes through each W_O once.
        shares = self.run.writes_along(head.layer, along[None], slice(many)) * weight
        writers = self.run.writers(head.layer)
        self._keep(node, Inputs(Side.V, writers, shares, shares, gradient, positions))
        values = scale * (self.run.streams[head.layer][:many] @ along)
        values = values * self.trace.scales.write[head.layer][self.row, here]
        attended, note = self._attention(node, head, values)
        self.nodes.append(CircuitNode(node, self._text(node), opened.value, attended, note))

    def _attention(
        self, node: Node, head: HeadId, values: Float[Tensor, " src"]
    ) -> tuple[Attended | None, str]:
        """Q and K edges of a node, if the effect of its attention is large enough."""
        window, here = self.trace.model.config.window(head.layer), node.position
        sinks = self.trace.weights.layers[head.layer].sinks
        first = 0 if window is None else max(0, here + 1 - window)
        values = values[first:]
        if len(values) == 1 and sinks is None:
            return None, "there is nothing else to attend to"
        query, keys = self.run.query(head, here), self.run.keys(head, here)[first:]
        scores = keys @ query
        sink = None if sinks is None else float(sinks[head.head])
        found = score_weights(scores, values, self.trace.model.config.score_cap, sink)
        self.quadrature_error = max(self.quadrature_error, found.error)
        pattern = self.trace.patterns[head.layer][self.row, head.head, here, first : here + 1]
        source = int((pattern * (values - values.mean())).abs().argmax())
        rival = None if self.rival is None else self.rival - first
        rival = rival if rival is not None and 0 <= rival < len(values) else None
        rival = None if rival == source else rival
        contrast = _contrast(pattern, source, rival)
        attended = Attended(
            source=source + first,
            weight=float(pattern[source]),
            score=float(scores[source]),
            contrast=float(contrast @ scores),
            rival=None if rival is None else rival + first,
            uniform=found.uniform,
            effect=found.effect,
            error=found.error,
        )
        if sink is None and _are_alike(scores):
            return attended, (
                f"it attends to all {len(scores)} sources equally, so no scores need explaining"
            )
        if abs(found.effect) < self.floor:
            return attended, "where it looks matters too little to take its scores apart"
        positions = slice(first, here + 1)
        by_key = self.run.key_inputs(head, query, positions, found.weights, contrast)
        by_query = self.run.query_inputs(head, here, keys, found.weights, contrast)
        self._keep(node, by_key, found.sink)
        self._keep(node, by_query, found.sink)
        return attended, ""

    def _text(self, node: Node) -> str:
        return self.trace.model.token_text(int(self.trace.tokens[self.row, node.position]))

    def _keep(self, reader: Node, inputs: Inputs, sink: float = 0.0) -> None:
        """Edges that carry enough; the rest, a sink's share included, is left out together."""
        # In numpy, whose operations on a few hundred numbers take a tenth of the time.
        shares, exact = (given.double().cpu().numpy() for given in (inputs.shares, inputs.exact))
        # A floor that is rounded to zero keeps nothing that is worth nothing.
        kept = (np.abs(shares) >= self.floor) & (shares != 0)
        unit = "logits" if inputs.side is Side.V else "score"
        places = np.argwhere(kept).tolist()
        for (writer, place), share, own in zip(
            places, shares[kept].tolist(), exact[kept].tolist(), strict=True
        ):
            node = Node(inputs.writers[writer], inputs.positions[place])
            edge = NodeEdge(node, reader, inputs.side)
            self.edges.append(CircuitEdge(edge, own, unit, share))
            if node.head is None:
                self.leaves[node] = self.leaves.get(node, 0.0) + share
                continue
            gradient = inputs.gradient[place]
            opened = self.open.get(node)
            if opened is None:
                self.open[node] = _Open(gradient, share)
            else:
                opened.gradient = opened.gradient + gradient
                opened.value += share
        rest, others = np.where(kept, 0, shares), np.where(kept, 0, exact)
        there = int(np.count_nonzero(rest))
        self.left_out.append(
            LeftOut(reader, inputs.side, float(others.sum()), float(rest.sum()) + sink, there)
        )


def _are_alike(scores: Float[Tensor, " src"]) -> bool:
    """Whether scores are equal up to rounding, so that attention is uniform."""
    low, high = (float(bound) for bound in scores.aminmax())
    rounding = 16 * torch.finfo(scores.dtype).eps * max(1.0, abs(low), abs(high))
    return high - low <= rounding


def _contrast(
    pattern: Float[Tensor, " src"], source: int, rival: int | None
) -> Float[Tensor, " src"]:
    """Coefficients of a score minus the alternatives: a rival's, or the weighted mean of all."""
    if rival is not None:
        contrast = torch.zeros_like(pattern)
        contrast[source], contrast[rival] = 1, -1
        return contrast
    others = pattern.clone()
    others[source] = 0
    # Attention that is all on one source leaves no weights for the others: take their plain mean.
    total = others.sum()
    if float(total) == 0:
        others = torch.ones_like(pattern) / (len(pattern) - 1)
        others[source] = 0
        total = others.sum()
    contrast = -others / total
    contrast[source] = 1
    return contrast
