"""Growing a circuit: from the prediction down, keeping the edges that carry enough of it.

Each head node has a gradient G at what it writes: the sum, over the kept edges that leave it, of
what a unit of its write is worth to the prediction. Its V inputs split write · G exactly. What it
moves from source j is worth v_j = (read at j) · W_V W_O G, so attending by its scores is worth
Σ_j A_j v_j; `score_weights` splits what that is above uniform attention over the scores, and so
over the parts of queries and keys. All readers of a head are in layers above it, so one pass from
the top layer down meets every node after all its readers. The nodes of a head, one per position,
are taken apart together.

Edges are kept from a floor on: `threshold` times the prediction, or times a part of what its direct
shares add up to before they cancel, if that is larger. Of two tokens that nearly tie, the
difference is close to nothing, and every edge of the model would carry a large share of it.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pathsum.base import Node, NodeEdge, Progress, Side, silent
from pathsum.model import HeadId, Source, Trace
from pathsum.model.grouped_query import kv_head
from pathsum.paths.circuit.attention import Attention
from pathsum.paths.circuit.circuit import CircuitEdge, CircuitNode, LeftOut
from pathsum.paths.circuit.frozen_row import Inputs, frozen_row
from pathsum.paths.target import Target

# What the prediction is compared with, as a part of the sum of its direct shares' magnitudes.
CANCELED = 0.5
# How much the floor is raised at a time if too many nodes are kept.
_RAISE = 1.5
# Numbers in the candidate edges of the nodes that are taken apart together: 16 MB in float32.
_TOGETHER = 1 << 22


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
class _Opened:
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
        self.open: dict[Node, _Opened] = {}
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
            for head in sorted({node.head for node in nodes if node.head}):
                own = sorted((node for node in nodes if node.head == head), key=_position)
                for some in self._in_parts(own):
                    progress(layers - 1 - layer, layers, "taking layers apart")
                    self._head(head, some)
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

    def _in_parts(self, nodes: list[Node]) -> Iterator[list[Node]]:
        """As many nodes at a time as fit into memory; the last ones see the most positions."""
        config = self.trace.model.config
        width = max(config.d_model, len(self.run.writers(self.run.n_layers)))
        at_once = max(1, _TOGETHER // (width * (nodes[-1].position + 1)))
        for first in range(0, len(nodes), at_once):
            yield nodes[first : first + at_once]

    def _direct(self) -> "Inputs":
        """The direct contributions of all writers to the logits."""
        here = torch.tensor([self.position], device=self.direction.device)
        shares = self.run.writes_at(self.run.n_layers, self.direction[None], here)[..., None]
        writers = self.run.writers(self.run.n_layers)
        if self.bias:
            shares = torch.cat([shares, shares.new_tensor([[[self.bias]]])], 1)
            writers = (*writers, Source("unembed_bias"))
        return Inputs(
            Side.V,
            writers,
            shares,
            shares,
            gradient=lambda nodes, _: self.direction.expand(len(nodes), -1),
            places=(self.position,),
        )

    def _logits(self) -> None:
        node = Node("logits", self.position)
        self.left_out += self._keep([node], self.direct)
        predicted = self.trace.model.output_text(int(self.target.tokens[0]))
        self.nodes.append(CircuitNode(node, predicted, self.total))

    def _head(self, head: HeadId, nodes: list[Node]) -> None:
        """Take some nodes of a head apart."""
        layer, length = self.run.layers[head.layer], nodes[-1].position + 1
        places = torch.tensor([node.position for node in nodes], device=layer.W_O.device)
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
        left_out = [[one] for one in self._keep(nodes, inputs)]
        values = scale * (along @ self.run.streams[head.layer][:length].T)
        values = values * self.trace.scales.write[head.layer][self.row, places][:, None]
        attention = Attention(self.run, head, places, values, self.rival)
        for number, (attended, note) in enumerate(attention.described(self.floor)):
            value = opened[number].value
            text = self._text(nodes[number])
            self.nodes.append(CircuitNode(nodes[number], text, value, attended, note))
            if attended is not None:
                self.quadrature_error = max(self.quadrature_error, attended.error)
        explained = attention.explained(self.floor)
        some = [nodes[number] for number in explained]
        for inputs in attention.inputs(explained):
            kept = self._keep(some, inputs, attention.sink_shares[explained])
            for number, one in zip(explained, kept, strict=True):
                left_out[number].append(one)
        self.left_out += [one for each in left_out for one in each]

    def _text(self, node: Node) -> str:
        return self.trace.model.token_text(int(self.trace.tokens[self.row, node.position]))

    def _keep(
        self, readers: list[Node], inputs: Inputs, sinks: NDArray[np.float64] | None = None
    ) -> list[LeftOut]:
        """Keep edges that carry enough; the rest, a sink's share included, is left out together."""
        # In numpy, whose operations on a few hundred numbers take a tenth of the time.
        shares, exact = (given.double().cpu().numpy() for given in (inputs.shares, inputs.exact))
        # A floor that is rounded to zero keeps nothing that is worth nothing.
        kept = (np.abs(shares) >= self.floor) & (shares != 0)
        unit = "logits" if inputs.side is Side.V else "score"
        into, writers, columns = np.nonzero(kept)
        found: dict[Node, list[int]] = {}
        numbers = (into.tolist(), writers.tolist(), columns.tolist())
        each = zip(*numbers, shares[kept].tolist(), exact[kept].tolist(), strict=True)
        for number, (reader, writer, column, share, own) in enumerate(each):
            place = column if inputs.places is None else inputs.places[reader]
            node = Node(inputs.writers[writer], place)
            edge = NodeEdge(node, readers[reader], inputs.side)
            self.edges.append(CircuitEdge(edge, own, unit, share))
            if node.head is None:
                self.leaves[node] = self.leaves.get(node, 0.0) + share
            else:
                found.setdefault(node, []).append(number)
        if found:
            self._add_to_open(found, inputs, into, columns, shares[kept])
        rest, others = np.where(kept, 0, shares), np.where(kept, 0, exact)
        counts = np.count_nonzero(rest, axis=(1, 2)).tolist()
        left = rest.sum((1, 2)) if sinks is None else rest.sum((1, 2)) + sinks
        sums = zip(readers, others.sum((1, 2)).tolist(), left.tolist(), counts, strict=True)
        return [LeftOut(reader, inputs.side, *numbers) for reader, *numbers in sums]

    def _add_to_open(
        self,
        found: dict[Node, list[int]],
        inputs: Inputs,
        into: NDArray[np.intp],
        columns: NDArray[np.intp],
        shares: NDArray[np.float64],
    ) -> None:
        """Add what kept edges are worth, by their numbers, to the head nodes that they leave."""
        numbers = [number for each in found.values() for number in each]
        device = inputs.shares.device
        pairs = (torch.from_numpy(each[numbers]).to(device) for each in (into, columns))
        gradients = inputs.gradient(*pairs)
        slots = torch.tensor(
            [slot for slot, each in enumerate(found.values()) for _ in each], device=device
        )
        totals = gradients.new_zeros(len(found), gradients.shape[1])
        totals.index_add_(0, slots, gradients)
        for (node, each), gradient in zip(found.items(), totals, strict=True):
            opened = self.open.get(node)
            value = float(shares[each].sum())
            if opened is None:
                self.open[node] = _Opened(gradient, value)
            else:
                opened.gradient = opened.gradient + gradient
                opened.value += value


def _position(node: Node) -> int:
    return node.position
