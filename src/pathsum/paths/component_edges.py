"""Edges between whole components, pooled over positions: runs with some of them, and scores.

The graph is the one of EAP and of the MIB benchmark. Writers are the embedding, every head and
every MLP. Readers are the queries, keys and values of every head, every MLP and the logits. An edge
is a writer as one reader sees it. It carries the writer's output in this run or in a reference run,
such as a run of a corrupted prompt. Every reader sees

    its stream in the reference run + Σ over the writers kept (their output − their reference)

so a circuit costs one product of a 0/1 matrix with all differences per layer, whatever its size.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.site import LOGITS, Side, Site
from pathsum.model import Config, Trace, transformer
from pathsum.model.edit import Writes
from pathsum.model.gating import mlp_stream
from pathsum.model.sites import writers_below
from pathsum.model.weights import LayerWeights, kv_head
from pathsum.paths.patching import check_runs
from pathsum.paths.target import Target

SIDES = (Side.Q, Side.K, Side.V)
EdgeScores = Float[Tensor, "reader writer"]
EdgeMask = Bool[Tensor, "reader writer"]


@dataclass(frozen=True)
class ComponentGraph:
    """Readers and writers of a model; an edge is an entry of a matrix [reader, writer]."""

    config: Config

    @cached_property
    def writers(self) -> tuple[Source | HeadId, ...]:
        """The embedding, then the heads and the MLP of each layer."""
        return tuple(writers_below(self.config, self.config.n_layers))

    @cached_property
    def readers(self) -> tuple[Site, ...]:
        """Queries, keys and values of each layer's heads, then its MLP; last, the logits."""
        found: list[Site] = []
        for layer in range(self.config.n_layers):
            heads = [HeadId(layer, head) for head in range(self.config.n_heads)]
            found += [Site(None, head, side) for side in SIDES for head in heads]
            if self.config.mlp != "none":
                found.append(Site(None, Source("mlp", layer)))
        return (*found, Site(None, LOGITS))

    @property
    def per_layer(self) -> tuple[int, int]:
        """The number of readers and of writers of a layer."""
        has_mlp = self.config.mlp != "none"
        return 3 * self.config.n_heads + has_mlp, self.config.n_heads + has_mlp

    def rows(self, layer: int) -> slice:
        """The readers of a layer's heads, sides first."""
        start = layer * self.per_layer[0]
        return slice(start, start + 3 * self.config.n_heads)

    def seen_by(self, reader: Site) -> int:
        """The number of writers, counted from the bottom, that a reader can read."""
        if reader.reader == LOGITS:
            return len(self.writers)
        assert isinstance(reader.reader, HeadId | Source)
        below = 1 + reader.reader.layer * self.per_layer[1]
        joins = isinstance(reader.reader, Source) and self.config.block == "serial"
        return below + self.config.n_heads * joins

    @cached_property
    def exists(self) -> EdgeMask:
        """The edges that the model has."""
        counts = torch.tensor([self.seen_by(reader) for reader in self.readers])
        return torch.arange(len(self.writers)) < counts[:, None]

    @cached_property
    def into_mlps(self) -> Bool[Tensor, " reader"]:
        """The readers that are MLPs."""
        kinds = [isinstance(one.reader, Source) and one.reader != LOGITS for one in self.readers]
        return torch.tensor(kinds)

    def name(self, reader: int, writer: int) -> Site:
        """The edge at an entry of a matrix."""
        read = self.readers[reader]
        return Site(self.writers[writer], read.reader, read.side)

    def place(self, edge: Site) -> tuple[int, int]:
        """The matrix entry of an edge; positions and the two sides of an MLP are ignored."""
        side = edge.side if isinstance(edge.reader, HeadId) else None
        read, writer = Site(None, edge.reader, side), edge.writer
        if read not in self.readers or writer not in self.writers:
            raise InputError(f"{str(edge)!r} is not an edge between components of this model")
        assert isinstance(writer, HeadId | Source)
        return self.readers.index(read), self.writers.index(writer)


class ComponentRuns:
    """Runs of one sequence in which some edges keep their value and all others take a reference's.

    With `hold_mlps`, MLPs write their output in the clean run, whatever they read.
    """

    def __init__(self, trace: Trace, other: Trace, target: Target, hold_mlps: bool = False) -> None:
        check_runs(trace, other)
        config = trace.model.config
        if config.norm_place != "before" or config.qk_norm == "rms_all":
            raise NotExactError(
                "edges between whole components are measured only on models whose norms come "
                f"before each block and whose QK-norm is per head; norm_place is "
                f"{config.norm_place!r} and qk_norm {config.qk_norm!r}"
            )
        if trace.every_edit or other.every_edit:
            raise NotExactError(
                "edges between whole components are measured only where no edge or pattern was "
                "edited; use unedited runs of a model in which only heads, MLPs or embeddings were"
            )
        self.trace, self.other, self.target = trace, other, target
        self.graph, self.weights = ComponentGraph(config), trace.model.weights
        self.held = trace.mlp_outputs if hold_mlps else None
        self.own, self.reference = (_outputs(run) for run in (trace, other))

    def value(self, kept: EdgeMask | None) -> float:
        """The prediction with only these edges; None means all edges."""
        if kept is None:
            return float(self.target.of(self.trace.logits)[0])
        with torch.no_grad():
            return float(self._run(kept.to(self.own)))

    def _run(self, kept: EdgeScores) -> Tensor:
        config, graph, weights = self.graph.config, self.graph, self.weights
        # The output of each writer minus its reference, filled in as the run proceeds.
        changes = torch.zeros_like(self.reference)
        changes[0] = self.own[0] - self.reference[0]

        def seen(base: Tensor, rows: EdgeScores) -> Float[Tensor, "read pos d"]:
            count = rows.shape[1]
            return base + (rows @ changes[:count].flatten(1)).unflatten(1, base.shape)

        for index in range(config.n_layers):
            layer, rows = weights.layers[index], graph.rows(index)
            count = 1 + index * graph.per_layer[1]
            reads = seen(self.other.streams[index][0], kept[rows, :count])
            here = slice(count, count + config.n_heads)
            changes[here] = head_outputs(config, layer, reads) - self.reference[here]
            if config.mlp == "none":
                continue
            mlp = rows.stop
            if self.held is not None:
                output = self.held[index][0]
            else:
                width = graph.seen_by(graph.readers[mlp])
                read = seen(mlp_stream(self.other, index)[0], kept[mlp : mlp + 1, :width])
                output = transformer.mlp(config, layer, read)[0][0]
            changes[here.stop] = output - self.reference[here.stop]
        read = seen(self.other.streams[-1][0], kept[-1:])[0]
        return self.target.of(transformer.unembed(weights, read[None])[0])[0]

    # ---- gradients

    def eap(self, steps: int | None = None) -> EdgeScores:
        """(output − reference) · gradient at the read, of every edge: EAP, or EAP-IG with steps.

        With steps, gradients are averaged over runs whose embeddings lie between the reference's
        and the run's.
        """
        shares = [1.0] if steps is None else [(step + 0.5) / steps for step in range(steps)]
        gradients = torch.stack([self.gradients(share) for share in shares]).mean(0)
        scores = torch.einsum("rpd,wpd->rw", gradients, self.own - self.reference)
        return scores * self.graph.exists.to(scores.device)

    @torch.enable_grad()
    def gradients(self, share: float = 1.0) -> Float[Tensor, "reader pos d"]:
        """The gradient of the prediction at every read."""
        config, graph, weights = self.graph.config, self.graph, self.weights
        begin, end = self.other.streams[0][0], self.trace.streams[0][0]
        stream = (begin + share * (end - begin)).detach()
        probes = stream.new_zeros(len(graph.readers), *stream.shape, requires_grad=True)
        for index in range(config.n_layers):
            layer = weights.layers[index]
            written = head_outputs(config, layer, stream + probes[graph.rows(index)])
            attended = stream + written.sum(0)
            if layer.b_O is not None:
                attended = attended + layer.b_O
            if config.mlp == "none":
                stream = attended
                continue
            mlp = graph.rows(index).stop
            read = (stream if config.block == "parallel" else attended) + probes[mlp]
            if self.held is not None:
                stream = attended + self.held[index][0]
            else:
                stream = attended + transformer.mlp(config, layer, read[None])[0][0]
        logits = transformer.unembed(weights, (stream + probes[-1])[None])[0]
        return torch.autograd.grad(self.target.of(logits)[0], probes)[0]


def head_outputs(
    config: Config, layer: LayerWeights, reads: Float[Tensor, "read pos d"]
) -> Float[Tensor, "head pos d"]:
    """The output of each head; `reads` lists all queries, then all keys, then all values."""
    normal = transformer.attention_read(config, layer, reads)[0]
    query, key, value = normal.unflatten(0, (3, -1))
    served = [kv_head(config, head) for head in range(config.n_heads)]
    places = torch.arange(reads.shape[1], device=reads.device)
    if layer.W_pos is not None:
        query, key = query + layer.W_pos[places], key + layer.W_pos[places]

    def project(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        y = torch.einsum("hpd,hdk->hpk", x, W)
        return (y if b is None else y + b[:, None])[None]

    b_K, b_V = (None if b is None else b[served] for b in (layer.b_K, layer.b_V))
    q = project(query, layer.W_Q, layer.b_Q)
    k = project(key, layer.W_K[served], b_K)
    v = project(value, layer.W_V[served], b_V)
    q = transformer.normed_and_rotated(config, layer, Side.Q, q, places)[0]
    k = transformer.normed_and_rotated(config, layer, Side.K, k, places)[0]
    scores = transformer.attention_scores(config, q, k)
    pattern = transformer.attention_pattern(config, layer, scores)
    return torch.einsum("hpk,hkd->hpd", (pattern @ v)[0], layer.W_O)


def _outputs(run: Trace) -> Float[Tensor, "writer pos d"]:
    """The output of every writer of a run of one sequence."""
    writes, weights = Writes.of(run), run.weights
    found = [writes.embed]
    for layer, z in enumerate(writes.z):
        found.append(torch.einsum("hpk,hkd->hpd", z[0], weights.layers[layer].W_O))
        if writes.mlp_outputs:
            found.append(writes.mlp_outputs[layer])
    return torch.cat(found)


def strongest(graph: ComponentGraph, scores: EdgeScores, count: int, hold_mlps: bool) -> EdgeMask:
    """The edges with the largest |score|; with MLPs held, edges into them are not counted."""
    candidates = countable(graph, hold_mlps)
    ranked = scores.abs().masked_fill(~candidates, -1.0).flatten().argsort(descending=True)
    kept = torch.zeros_like(candidates).flatten()
    kept[ranked[:count]] = True
    return kept.view_as(candidates)


def countable(graph: ComponentGraph, hold_mlps: bool) -> EdgeMask:
    """The edges that a circuit may contain."""
    return graph.exists & ~graph.into_mlps[:, None] if hold_mlps else graph.exists
