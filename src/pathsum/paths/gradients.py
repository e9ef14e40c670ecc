"""Gradients of a prediction at every edge: edge attribution patching (EAP and EAP-IG).

The score of an edge is (the writer's output − the reference) · the gradient of the prediction at
the reader's read, at the run (EAP) or averaged over runs whose inputs lie between those of the
reference and the run (EAP-IG). MLPs are opened, as in the circuit: their values and their gates are
two reads. Gradients do not pass an MLP that is not a value times a gate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.shapes import Stream
from pathsum.base.site import LOGITS, MLP_SIDES, Side, Site, Writer
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

    Without `steps`, gradients are taken at the run (EAP). Otherwise they are averaged over that
    many runs, with inputs evenly spaced between the reference and this run (EAP-IG).
    """
    scores = GradientScores(start, target, reference, steps)

    def inputs(node: Site) -> Iterator[tuple[Site, float]]:
        return ((edge, abs(score)) for edge, score in scores.into(node, count))

    return best_first(scores.top, inputs, count)


def _run_between(start: Trace, embed: Stream, reference: Stream, share: float) -> Run:
    """The run whose embeddings are the reference plus a share of the difference."""
    mixed = reference + share * (embed - reference)
    return run(start.weights, start.tokens, [Edit(Site(Source("embed")), mixed)])


@dataclass(frozen=True, eq=False)
class _LayerGradients:
    """Gradients of the prediction at a layer's z, scores before the cap, and its MLP's reads."""

    z: Float[Tensor, "head pos k"]
    scores: Float[Tensor, "head dest src"]
    mlp: dict[Side, Float[Tensor, "pos d"]]


class _Gradients:
    """Gradients of the prediction in one run, layer by layer from the top."""

    def __init__(self, run: Run, target: Target, position: int) -> None:
        self.run, self.config = run, run.weights.config
        stream = torch.zeros_like(run.streams[-1])
        stream[0, position] = self._at_logits(target, position)
        self.at_top = stream[0]
        layers: list[_LayerGradients] = []
        for layer in reversed(range(self.config.n_layers)):
            gradients, below = self._layer(run.weights.layers[layer], stream)
            layers.append(gradients)
            stream = stream + below
        self.layers = layers[::-1]

    @torch.enable_grad()
    def _at_logits(self, target: Target, position: int) -> Float[Tensor, " d"]:
        read = self.run.streams[-1][:, position].detach().requires_grad_()
        logits = transformer.unembed_uncapped(self.run.weights, read[:, None])[0][:, 0]
        return torch.autograd.grad(target.of_runs(logits).sum(), read)[0][0]

    @torch.enable_grad()
    def _layer(
        self, layer: LayerWeights, above: Float[Tensor, "1 pos d"]
    ) -> tuple[_LayerGradients, Float[Tensor, "1 pos d"]]:
        """Gradients at a layer's z, scores and MLP, and at the stream below through the layer."""
        config, at_mlp = self.config, dict[Side, Tensor]()
        through = torch.zeros_like(above)
        if config.mlp != "none" and has_gates(config):
            read = mlp_stream(self.run, layer.index).detach()
            reads = tuple(read.clone().requires_grad_() for _ in range(3))
            output = mlp_of_sides(self.run.weights, layer, reads[0], reads[1], reads[2])[0]
            router, *sides = torch.autograd.grad(output, reads, above, materialize_grads=True)
            at_mlp = {side: each[0] for side, each in zip(MLP_SIDES, sides, strict=True)}
            through = router + sides[0] + sides[1]
            above = above if config.block == "parallel" else above + through
        stream = self.run.streams[layer.index].detach().requires_grad_()
        read = transformer.attention_read(config, layer, stream)[0]
        query, key, _, _ = transformer.queries_and_keys(config, layer, read)
        scores = transformer.attention_scores(config, query, key)
        pattern = transformer.attention_pattern(config, layer, scores)
        z = transformer.mix(pattern, transformer.values(layer, read))
        output = transformer.write(config, layer, z)[0]
        at_z, at_scores, below = torch.autograd.grad(output, (z, scores, stream), above)
        return _LayerGradients(at_z[0], at_scores[0], at_mlp), below + through

    def at_reads(self, node: Site) -> dict[Side, Float[Tensor, "pos d"]]:
        """Gradients at the stream, by position, through each read of a node."""
        if node.head is not None:
            return self._at_head(node.head, node_position(node))
        if is_inner(node):
            assert isinstance(node.writer, Source)
            return self.layers[node.writer.layer].mlp
        return {Side.V: self.at_top}

    @torch.enable_grad()
    def _at_head(self, head: HeadId, position: int) -> dict[Side, Float[Tensor, "pos d"]]:
        config, layer = self.config, self.run.weights.layers[head.layer]
        at, kv = head.head, kv_head(config, head.head)
        stream = self.run.streams[head.layer].detach().requires_grad_()
        read = transformer.attention_read(config, layer, stream)[0]
        query, key, _, _ = transformer.queries_and_keys(config, layer, read)
        value = transformer.values(layer, read)
        gradients = self.layers[head.layer]
        at_scores = config.score_scale * gradients.scores[at, position]
        pattern = self.run.patterns[head.layer][0, at, position]
        vectors = {
            Side.Q: (query[0, at, position], at_scores @ key[0, kv].detach()),
            Side.K: (key[0, kv], at_scores[:, None] * query[0, at, position].detach()),
            Side.V: (value[0, kv], pattern[:, None] * gradients.z[at, position]),
        }
        return {
            side: torch.autograd.grad(vector, stream, gradient, retain_graph=True)[0][0]
            for side, (vector, gradient) in vectors.items()
        }


class GradientScores:
    """Scores of edges: gradients, averaged over runs, times the difference of outputs."""

    def __init__(
        self, start: Trace, target: Target, reference: Writes, steps: int | None = None
    ) -> None:
        own, runs = Writes.of(start), list[Run]([start])
        if steps is not None:
            shares = [(step + 0.5) / steps for step in range(steps)]
            runs = [_run_between(start, own.embed, reference.embed, share) for share in shares]
        self.config, self.weights = start.model.config, start.weights
        self.length, position = start.tokens.shape[1], int(target.positions[0])
        self.top = Site(LOGITS, at=position)
        self.gradients = [_Gradients(run, target, position) for run in runs]
        pairs = zip(own.tensors, reference.tensors, strict=True)
        embed, *rest = ((value - other)[0] for value, other in pairs)
        n_layers = self.config.n_layers
        self.embed, self.z, self.mlp_outputs = embed, rest[:n_layers], rest[n_layers:]

    def into(self, node: Site, count: int) -> Iterator[tuple[Site, float]]:
        """The edges into a node with the largest scores, in magnitude."""
        if not sides_of(self.config, node):
            return
        scores = self.scores_into(node)
        flat = torch.cat([matrix.flatten() for matrix in scores.values()])
        edges = [
            edge_between(writer, position, node, side)
            for side in scores
            for writer in writers_into(self.config, component_of(node))
            for position in read_positions(self.config, node, side, self.length)
        ]
        for number in flat.abs().topk(min(count, len(flat))).indices.tolist():
            yield edges[number], float(flat[number])

    def of(self, edges: Sequence[Site]) -> list[float]:
        """The scores of some edges."""
        matrices: dict[Site, dict[Side, Tensor]] = {}
        scores: list[float] = []
        for edge in edges:
            node, side = edge.end, side_of(edge)
            if node not in matrices:
                matrices[node] = self.scores_into(node)
            first = read_positions(self.config, node, side, self.length).start
            writers = [str(writer) for writer in writers_into(self.config, component_of(node))]
            row = writers.index(str(edge.writer))
            scores.append(float(matrices[node][side][row, node_position(edge.start) - first]))
        return scores

    def scores_into(self, node: Site) -> dict[Side, Float[Tensor, "writer src"]]:
        """The scores of all edges into a node, by the side that reads them."""
        reads = [gradients.at_reads(node) for gradients in self.gradients]
        scores: dict[Side, Tensor] = {}
        for side in reads[0]:
            positions = read_positions(self.config, node, side, self.length)
            at = slice(positions.start, positions.stop)
            mean = torch.stack([gradients[side][at] for gradients in reads]).mean(0)
            scores[side] = self._project(writers_into(self.config, component_of(node)), mean, at)
        return scores

    def _project(
        self, writers: Sequence[Writer], directions: Float[Tensor, "src d"], at: slice
    ) -> Float[Tensor, "writer src"]:
        """Differences of outputs, projected on one direction per position."""
        heads: dict[int, Float[Tensor, "head src"]] = {}
        rows: list[Tensor] = []
        for writer in writers:
            if isinstance(writer, HeadId):
                if writer.layer not in heads:
                    W_O = self.weights.layers[writer.layer].W_O
                    at_z = torch.einsum("hkd,sd->hsk", W_O, directions)
                    heads[writer.layer] = (self.z[writer.layer][:, at] * at_z).sum(-1)
                rows.append(heads[writer.layer][writer.head])
            else:
                output = self.mlp_outputs[writer.layer] if writer.kind == "mlp" else self.embed
                rows.append((output[at] * directions).sum(-1))
        return torch.stack(rows)
