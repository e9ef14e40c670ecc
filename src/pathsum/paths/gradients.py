"""Gradients of a prediction at every edge: edge attribution patching (EAP and EAP-IG).

The score of an edge is (the writer's output − the reference) · the gradient of the prediction at
the reader's read, at the run itself (EAP) or averaged over runs between the reference's inputs and
its own (EAP-IG). MLPs are opened, as in the circuit: their values and their gates are two reads.
Gradients do not pass an MLP that is not a value times a gate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.site import HEAD_SIDES, LOGITS, MLP_SIDES, Side, Site
from pathsum.model import Run, Trace, transformer
from pathsum.model.edit import Edit, Writes
from pathsum.model.forward import run
from pathsum.model.gating import has_gates, mlp_of_sides, mlp_stream
from pathsum.model.sites import writers_into
from pathsum.model.weights import LayerWeights, kv_head
from pathsum.paths.edges import (
    best_first,
    component_of,
    edge_between,
    is_inner,
    node_position,
    read_positions,
    side_of,
    sides_of,
)
from pathsum.paths.target import Target


def gradient_order(
    start: Trace, target: Target, reference: Writes, count: int, steps: int | None = None
) -> list[Site]:
    """Edges in greedy order of |gradient · (output − reference)|, from the logits down.

    Without `steps`, gradients are taken at the run itself (EAP). With them, they are averaged over
    that many runs whose inputs lie evenly between the reference's and this run's (EAP-IG).
    """
    scores = GradientScores(start, target, reference, steps)

    def inputs(node: Site) -> Iterator[tuple[Site, float]]:
        return ((edge, abs(score)) for edge, score in scores.into(node, count))

    return best_first(Site(LOGITS, at=scores.position), inputs, count)


def _between(start: Trace, own: Writes, reference: Writes, share: float) -> Run:
    """The run whose inputs are the reference's plus a share of the difference."""
    mixed = reference.embed + share * (own.embed - reference.embed)
    return run(start.weights, start.tokens, [Edit(Site(Source("embed")), mixed)])


@dataclass(frozen=True, eq=False)
class _LayerGradients:
    """Gradients of the prediction at a layer's z, scores before the cap, and its MLP's reads."""

    z: Float[Tensor, "head pos k"]
    scores: Float[Tensor, "head dest src"]
    mlp: dict[Side, Float[Tensor, "pos d"]]


class _Gradients:
    """Gradients of the prediction in one run, taken layer by layer from the top."""

    def __init__(self, run: Run, target: Target, position: int) -> None:
        self.run, self.config = run, run.weights.config
        self.logits = self._at_logits(target, position)
        stream = torch.zeros_like(run.streams[-1])
        stream[0, position] = self.logits
        found: list[_LayerGradients] = []
        for layer in reversed(range(self.config.n_layers)):
            gradients, through = self._layer(run.weights.layers[layer], stream)
            found.append(gradients)
            stream = stream + through
        self.layers = found[::-1]

    @torch.enable_grad()
    def _at_logits(self, target: Target, position: int) -> Float[Tensor, " d"]:
        read = self.run.streams[-1][:, position].detach().requires_grad_()
        logits = transformer.unembed_uncapped(self.run.weights, read[:, None])[0][:, 0]
        return torch.autograd.grad(target.of_runs(logits).sum(), read)[0][0]

    @torch.enable_grad()
    def _layer(
        self, layer: LayerWeights, above: Float[Tensor, "1 pos d"]
    ) -> tuple[_LayerGradients, Float[Tensor, "1 pos d"]]:
        """At a layer's z, scores and MLP, and the part that passes through to the stream below."""
        config, at_mlp = self.config, dict[Side, Tensor]()
        through = torch.zeros_like(above)
        if config.mlp != "none" and has_gates(config):
            read = mlp_stream(self.run, layer.index).detach()
            reads = tuple(read.clone().requires_grad_() for _ in range(3))
            written = mlp_of_sides(self.run.weights, layer, reads[0], reads[1], reads[2])[0]
            router, *sides = torch.autograd.grad(written, reads, above, materialize_grads=True)
            at_mlp = {side: one[0] for side, one in zip(MLP_SIDES, sides, strict=True)}
            through = router + sides[0] + sides[1]
            above = above if config.block == "parallel" else above + through
        stream = self.run.streams[layer.index].detach().requires_grad_()
        read = transformer.attention_read(config, layer, stream)[0]
        query, key, _, _ = transformer.queries_and_keys(config, layer, read)
        scores = transformer.attention_scores(config, query, key)
        pattern = transformer.attention_pattern(config, layer, scores)
        z = transformer.mix(pattern, transformer.values(layer, read))
        written = transformer.write(config, layer, z)[0]
        at_z, at_scores, below = torch.autograd.grad(written, (z, scores, stream), above)
        return _LayerGradients(at_z[0], at_scores[0], at_mlp), below + through

    @torch.enable_grad()
    def at_reads(self, node: Site) -> dict[Side, Float[Tensor, "pos d"]]:
        """Gradients at the stream, by position, through each of the three reads of a head node."""
        head, here = node.head, node_position(node)
        assert head is not None
        config, layer = self.config, self.run.weights.layers[head.layer]
        at, kv = head.head, kv_head(config, head.head)
        stream = self.run.streams[head.layer].detach().requires_grad_()
        read = transformer.attention_read(config, layer, stream)[0]
        query, key, _, _ = transformer.queries_and_keys(config, layer, read)
        value = transformer.values(layer, read)
        gradients = self.layers[head.layer]
        at_z, at_scores = gradients.z[head.head, here], gradients.scores[head.head, here]
        moved = self.run.patterns[head.layer][0, head.head, here][:, None] * at_z
        scale = config.score_scale
        through = {
            Side.Q: (query[0, at, here], scale * at_scores @ key[0, kv].detach()),
            Side.K: (key[0, kv], scale * at_scores[:, None] * query[0, at, here].detach()),
            Side.V: (value[0, kv], moved),
        }
        return {
            side: torch.autograd.grad(vectors, stream, gradient, retain_graph=True)[0][0]
            for side, (vectors, gradient) in through.items()
        }


class GradientScores:
    """Scores of edges: gradients, averaged over runs, times the difference of outputs."""

    def __init__(
        self, start: Trace, target: Target, reference: Writes, steps: int | None = None
    ) -> None:
        own, runs = Writes.of(start), list[Run]([start])
        if steps is not None:
            shares = [(step + 0.5) / steps for step in range(steps)]
            runs = [_between(start, own, reference, share) for share in shares]
        self.config, self.weights = start.model.config, start.weights
        self.position, self.length = int(target.positions[0]), start.tokens.shape[1]
        self.gradients = [_Gradients(one, target, self.position) for one in runs]
        self.embed = (own.embed - reference.embed)[0]
        pairs = zip(own.z, reference.z, strict=True)
        self.z = [(here - there)[0] for here, there in pairs]
        outputs = zip(own.mlp_outputs, reference.mlp_outputs, strict=True)
        self.mlp_outputs = [(here - there)[0] for here, there in outputs]

    def into(self, node: Site, count: int) -> Iterator[tuple[Site, float]]:
        """The edges into a node with the largest scores, in magnitude."""
        if not sides_of(self.config, node):
            return
        found = self.scores_into(node)
        flat = torch.cat([scores.flatten() for scores in found.values()])
        names = [
            edge_between(writer, place, node, side)
            for side in found
            for writer in writers_into(self.config, component_of(node))
            for place in read_positions(self.config, node, side, self.length)
        ]
        for number in flat.abs().topk(min(count, len(flat))).indices.tolist():
            yield names[number], float(flat[number])

    def of(self, edges: Sequence[Site]) -> list[float]:
        """The scores of some edges."""
        known: dict[Site, dict[Side, Tensor]] = {}
        found: list[float] = []
        for edge in edges:
            if edge.end not in known:
                known[edge.end] = self.scores_into(edge.end)
            first = read_positions(self.config, edge.end, side_of(edge), self.length).start
            writers = [str(one) for one in writers_into(self.config, component_of(edge.end))]
            writer = writers.index(str(edge.writer))
            scores = known[edge.end][side_of(edge)]
            found.append(float(scores[writer, node_position(edge.start) - first]))
        return found

    def scores_into(self, node: Site) -> dict[Side, Float[Tensor, "writer src"]]:
        """The scores of all edges into a node, by the side that reads them."""
        found: dict[Side, Tensor] = {}
        for side, along in self._directions(node).items():
            places = read_positions(self.config, node, side, self.length)
            directions = along[places.start : places.stop]
            found[side] = self._along(node, directions, places)
        return found

    def _directions(self, node: Site) -> dict[Side, Float[Tensor, "pos d"]]:
        if is_inner(node) and node.head is None:
            assert isinstance(node.writer, Source)
            at = [one.layers[node.writer.layer].mlp for one in self.gradients]
            return {side: torch.stack([one[side] for one in at]).mean(0) for side in MLP_SIDES}
        if node.head is None:
            mean = torch.stack([one.logits for one in self.gradients]).mean(0)
            directions = torch.zeros_like(self.embed)
            directions[node_position(node)] = mean
            return {Side.V: directions}
        each = [one.at_reads(node) for one in self.gradients]
        return {side: torch.stack([one[side] for one in each]).mean(0) for side in HEAD_SIDES}

    def _along(
        self, node: Site, directions: Float[Tensor, "src d"], places: range
    ) -> Float[Tensor, "writer src"]:
        """Writes into a node minus the reference's, projected on one direction per position."""
        at = slice(places.start, places.stop)
        through_heads: dict[int, Float[Tensor, "head src"]] = {}
        rows: list[Tensor] = []
        for writer in writers_into(self.config, component_of(node)):
            if isinstance(writer, HeadId):
                if writer.layer not in through_heads:
                    W_O = self.weights.layers[writer.layer].W_O
                    back = torch.einsum("hkd,sd->hsk", W_O, directions)
                    through_heads[writer.layer] = (self.z[writer.layer][:, at] * back).sum(-1)
                rows.append(through_heads[writer.layer][writer.head])
            else:
                mlp = writer.kind == "mlp"
                written = self.mlp_outputs[writer.layer] if mlp else self.embed
                rows.append((written[at] * directions).sum(-1))
        return torch.stack(rows)
