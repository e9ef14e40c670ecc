"""Gradients of a prediction at every edge: edge attribution patching (EAP and EAP-IG).

The score of an edge is (the writer's output − the reference) · the gradient of the prediction at
the reader's read, at the run itself (EAP) or averaged over runs between the reference's inputs and
its own (EAP-IG). MLPs are leaves, as in the circuit: they are inputs, and gradients do not pass
through them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Source
from pathsum.base.site import HEAD_SIDES, LOGITS, Component, Side, Site
from pathsum.model import Run, Trace, transformer
from pathsum.model.edit import Edit, Writes
from pathsum.model.forward import run
from pathsum.model.sites import writers_below
from pathsum.model.weights import LayerWeights, kv_head
from pathsum.paths.edges import (
    best_first,
    edge_between,
    node_position,
    read_positions,
    side_of,
)
from pathsum.paths.target import Target


def gradient_order(
    start: Trace, target: Target, reference: Writes, count: int, steps: int | None = None
) -> list[Site]:
    """The edges by |gradient · (written − reference)|, the largest into the circuit so far first.

    Without `steps`, gradients are those of the run itself (EAP). With them, they are averaged over
    that many runs whose inputs lie evenly between the reference's and this run's (EAP-IG).
    """
    scores = GradientScores(start, target, reference, steps)

    def inputs(node: Site) -> Iterator[tuple[Site, float]]:
        return ((edge, abs(score)) for edge, score in scores.into(node, count))

    return best_first(Site(LOGITS, at=scores.position), inputs, count)


def _between(start: Trace, own: Writes, reference: Writes, share: float) -> Run:
    """The run whose inputs are the reference's plus a share of the difference."""

    def mixed(source: Source) -> Edit:
        there, here = reference.source(source), own.source(source)
        return Edit(Site(source), there + share * (here - there))

    leaves = [Source("mlp", layer) for layer in range(len(own.mlp_outputs))]
    edits = [mixed(source) for source in (Source("embed"), *leaves)]
    return run(start.weights, start.tokens, edits)


@dataclass(frozen=True, eq=False)
class _LayerGradients:
    """Gradients of the prediction at a layer's z and at its scores before the cap."""

    z: Float[Tensor, "head pos k"]
    scores: Float[Tensor, "head dest src"]


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
        logits = transformer.unembed(self.run.weights, read[:, None])[0][:, 0]
        return torch.autograd.grad(target.of_runs(logits).sum(), read)[0][0]

    @torch.enable_grad()
    def _layer(
        self, layer: LayerWeights, above: Float[Tensor, "1 pos d"]
    ) -> tuple[_LayerGradients, Float[Tensor, "1 pos d"]]:
        """At a layer's z and scores, and what passes through its heads to the stream below."""
        config = self.config
        stream = self.run.streams[layer.index].detach().requires_grad_()
        read = transformer.attention_read(config, layer, stream)[0]
        query, key, _, _ = transformer.queries_and_keys(config, layer, read)
        scores = transformer.attention_scores(config, query, key)
        pattern = transformer.attention_pattern(config, layer, scores)
        z = transformer.mix(pattern, transformer.values(layer, read))
        written = transformer.write(config, layer, z)[0]
        at_z, at_scores, below = torch.autograd.grad(written, (z, scores, stream), above)
        return _LayerGradients(at_z[0], at_scores[0]), below

    @torch.enable_grad()
    def at_reads(self, node: Site) -> dict[Side, Float[Tensor, "pos d"]]:
        """At the stream, position by position, as the three reads of a head node see it."""
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
        found = self.scores_into(node)
        flat = torch.cat([scores.flatten() for scores in found.values()])
        names = [
            edge_between(writer, place, node, side)
            for side in found
            for writer in self._writers(node)
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
            writer = [str(one) for one in self._writers(edge.end)].index(str(edge.writer))
            scores = known[edge.end][side_of(edge)]
            found.append(float(scores[writer, node_position(edge.start) - first]))
        return found

    def scores_into(self, node: Site) -> dict[Side, Float[Tensor, "writer src"]]:
        """The scores of all edges into a node, by the side that reads them."""
        found: dict[Side, Tensor] = {}
        for side, along in self._directions(node).items():
            places = read_positions(self.config, node, side, self.length)
            directions = along[places.start : places.stop]
            found[side] = self._along(self._layer(node), directions, places)
        return found

    def _layer(self, node: Site) -> int:
        return self.config.n_layers if node.head is None else node.head.layer

    def _writers(self, node: Site) -> list[Component]:
        return list(writers_below(self.config, self._layer(node)))

    def _directions(self, node: Site) -> dict[Side, Float[Tensor, "pos d"]]:
        if node.head is None:
            mean = torch.stack([one.logits for one in self.gradients]).mean(0)
            directions = torch.zeros_like(self.embed)
            directions[node_position(node)] = mean
            return {Side.V: directions}
        each = [one.at_reads(node) for one in self.gradients]
        return {side: torch.stack([one[side] for one in each]).mean(0) for side in HEAD_SIDES}

    def _along(
        self, layer: int, directions: Float[Tensor, "src d"], places: range
    ) -> Float[Tensor, "writer src"]:
        """Writes below a layer minus the reference's, projected on one direction per position."""
        at = slice(places.start, places.stop)
        rows = [(self.embed[at] * directions).sum(-1)[None]]
        for below in range(layer):
            back = torch.einsum("hkd,sd->hsk", self.weights.layers[below].W_O, directions)
            rows.append((self.z[below][:, at] * back).sum(-1))
            if self.mlp_outputs:
                rows.append((self.mlp_outputs[below][at] * directions).sum(-1)[None])
        return torch.cat(rows)
