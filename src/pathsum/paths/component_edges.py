"""Edges between whole components, pooled over positions: runs with some of them, and scores.

The graph is the one of EAP and of the MIB benchmark. Writers are the embedding, every head and
every MLP. Readers are the queries, keys and values of every head, every MLP and the logits. An edge
is a writer as one reader sees it. It carries the writer's output in this run or in a reference run,
such as a run of a corrupted prompt. Every reader sees

    its stream in the reference run + Σ over the writers kept (their output − their reference)

so a circuit costs one product of a 0/1 matrix with all differences per layer, whatever its size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.shapes import Stream
from pathsum.base.site import HEAD_SIDES, LOGITS, Site
from pathsum.model import Config, Model, Trace
from pathsum.model.edit import Edit, Writes
from pathsum.model.forward import run
from pathsum.model.gating import mlp_stream
from pathsum.model.recording import ONLY_LOGITS
from pathsum.model.sites import writers_into
from pathsum.paths.graph import Graph, Method
from pathsum.paths.patching import check_runs
from pathsum.paths.prompts import Prompt, run_prompt
from pathsum.paths.target import Target, TokenName, Versus

EdgeScores = Float[Tensor, "reader writer"]
EdgeMask = Bool[Tensor, "reader writer"]


@dataclass(frozen=True)
class ComponentGraph:
    """Readers and writers of a model; an edge is an entry of a matrix [reader, writer]."""

    config: Config

    @cached_property
    def writers(self) -> tuple[Source | HeadId, ...]:
        """The embedding, then the heads and the MLP of each layer."""
        return tuple(writers_into(self.config, LOGITS))

    @cached_property
    def readers(self) -> tuple[Site, ...]:
        """Queries, keys and values of each layer's heads, then its MLP; last, the logits."""
        readers: list[Site] = []
        for layer in range(self.config.n_layers):
            heads = self.config.heads_of(layer)
            readers += [Site(None, head, side) for side in HEAD_SIDES for head in heads]
            if self.config.mlp != "none":
                readers.append(Site(None, Source("mlp", layer)))
        return (*readers, Site(None, LOGITS))

    def count_writers(self, reader: Site) -> int:
        """The number of writers, counted from the bottom, that a reader can read."""
        assert reader.reader is not None
        return len(writers_into(self.config, reader.reader))

    @cached_property
    def exists(self) -> EdgeMask:
        """The edges that the model has."""
        counts = torch.tensor([self.count_writers(reader) for reader in self.readers])
        return torch.arange(len(self.writers)) < counts[:, None]

    @cached_property
    def into_mlps(self) -> Bool[Tensor, " reader"]:
        """The readers that are MLPs."""
        readers = [read.reader for read in self.readers]
        return torch.tensor([isinstance(one, Source) and one != LOGITS for one in readers])

    def candidates(self, hold_mlps: bool) -> EdgeMask:
        """The edges that a circuit may contain; with MLPs held, edges into them do not count."""
        return self.exists & ~self.into_mlps[:, None] if hold_mlps else self.exists

    def edge(self, reader: int, writer: int) -> Site:
        """The edge at an entry of a matrix."""
        return replace(self.readers[reader], writer=self.writers[writer])

    def entry(self, edge: Site) -> tuple[int, int]:
        """The matrix entry of an edge; positions and the two sides of an MLP are ignored."""
        side = edge.side if isinstance(edge.reader, HeadId) else None
        read, writers = Site(None, edge.reader, side), list[object](self.writers)
        if read not in self.readers or edge.writer not in writers:
            raise InputError(f"{str(edge)!r} is not an edge between components of this model")
        return self.readers.index(read), writers.index(edge.writer)


class ComponentRuns:
    """Runs of one sequence in which some edges keep their value and all others take a reference's.

    With `hold_mlps`, MLPs write their output in the clean run, whatever they read.
    """

    def __init__(self, trace: Trace, other: Trace, target: Target, hold_mlps: bool = False) -> None:
        check_runs(trace, other)
        config = trace.model.config
        if config.norm_place != "before":
            raise NotExactError(
                "edges between whole components are measured only on models whose norms come "
                f"before each block; norm_place is {config.norm_place!r}"
            )
        if trace.every_edit or other.every_edit:
            raise NotExactError(
                "edges between whole components are measured only where no edge or pattern was "
                "edited; use unedited runs of a model in which only heads, MLPs or embeddings were"
            )
        self.trace, self.other, self.target = trace, other, target
        self.graph, self.weights = ComponentGraph(config), trace.model.weights
        self.mlp_outputs = trace.mlp_outputs if hold_mlps else None
        self.outputs, self.reference = (_outputs(run) for run in (trace, other))

    def value(self, edges: EdgeMask | EdgeScores | None) -> float:
        """The prediction with only these edges, or these parts of edges; None means all edges."""
        if edges is None:
            return float(self.target.of(self.trace.logits)[0])
        # The output of each writer minus its reference, filled in as the run proceeds.
        changes = torch.zeros_like(self.reference)
        changes[0] = self.outputs[0] - self.reference[0]
        rows = edges.to(changes)

        def read(reader: int, stream: Stream) -> Stream:
            count = self.graph.count_writers(self.graph.readers[reader])
            base = self._reference_stream(self.graph.readers[reader])
            return base + torch.tensordot(rows[reader, :count], changes[:count], 1).view_as(stream)

        def record(writer: int, output: Stream) -> None:
            changes[writer] = output[0] - self.reference[writer]

        return float(self._predict(read, record)[0])

    def _reference_stream(self, reader: Site) -> Stream:
        """The stream that a component reads in the reference run."""
        component = reader.reader
        if component == LOGITS:
            return self.other.streams[-1]
        if isinstance(component, HeadId):
            return self.other.streams[component.layer]
        assert component is not None
        return mlp_stream(self.other, component.layer)

    def _predict(
        self,
        read: Callable[[int, Stream], Stream],
        record: Callable[[int, Stream], None] | None = None,
        embed: Stream | None = None,
        requires_grad: bool = False,
    ) -> Float[Tensor, " sequence"]:
        """The prediction of a run with other streams for its readers; `record` gets its outputs."""
        edits = [Edit(site, partial(read, at)) for at, site in enumerate(self.graph.readers)]
        if embed is not None:
            edits.append(Edit(Site(Source("embed")), embed))
        for at, writer in enumerate(self.graph.writers[1:], 1):
            if self.mlp_outputs is not None and isinstance(writer, Source):
                edits.append(Edit(Site(writer), self.mlp_outputs[writer.layer]))
            if record is not None:
                edits.append(Edit(Site(writer), partial(record, at)))
        positions = self.target.positions
        after = run(self.weights, self.trace.tokens, edits, ONLY_LOGITS, positions, requires_grad)
        assert after.recorded_logits is not None
        return self.target.of_runs(after.recorded_logits[:, 0])

    # ---- gradients

    def eap(self, steps: int | None = None) -> EdgeScores:
        """(output − reference) · gradient at the read, of every edge: EAP, or EAP-IG with steps.

        With steps, gradients are averaged over runs whose embeddings lie between the reference's
        and the run's.
        """
        shares = [1.0] if steps is None else [(step + 0.5) / steps for step in range(steps)]
        gradients = torch.stack([self.gradients(share) for share in shares]).mean(0)
        scores = torch.einsum("rpd,wpd->rw", gradients, self.outputs - self.reference)
        return scores * self.graph.exists.to(scores.device)

    @torch.enable_grad()
    def gradients(self, share: float = 1.0) -> Float[Tensor, "reader pos d"]:
        """The gradient of the prediction at every read."""
        embed = torch.lerp(self.reference[:1], self.outputs[:1], share)
        # One leaf per read: the gradient of an entry of one tensor would be as large as all of it.
        probes = [torch.zeros_like(embed, requires_grad=True) for _ in self.graph.readers]
        value = self._predict(
            lambda reader, stream: stream + probes[reader], embed=embed, requires_grad=True
        )
        return torch.cat(torch.autograd.grad(value[0], probes, materialize_grads=True))


def _outputs(run: Trace) -> Float[Tensor, "writer pos d"]:
    """The output of every writer of a run of one sequence."""
    writes, weights = Writes.of(run), run.weights
    outputs = [writes.embed]
    for layer, z in enumerate(writes.z):
        outputs.append(torch.einsum("hpk,hkd->hpd", z[0], weights.layers[layer].W_O))
        if writes.mlp_outputs:
            outputs.append(writes.mlp_outputs[layer])
    return torch.cat(outputs)


def strongest(graph: ComponentGraph, scores: EdgeScores, count: int, hold_mlps: bool) -> EdgeMask:
    """The edges with the largest |score|; with MLPs held, edges into them do not count."""
    candidates = graph.candidates(hold_mlps)
    order = scores.abs().masked_fill(~candidates, -1.0).flatten().argsort(descending=True)
    mask = torch.zeros_like(candidates).flatten()
    mask[order[:count]] = True
    return mask.view_as(candidates)


def component_runs(
    model: Model,
    prompt: Prompt,
    position: int | str,
    token: TokenName | None,
    versus: Versus,
    hold_mlps: bool = False,
) -> ComponentRuns:
    """The runs of a prompt and of its corrupted partner."""
    if prompt.corrupted is None:
        raise InputError("it has no corrupted partner; give corrupted= of the same length")
    prediction = run_prompt(model, prompt, position, token, versus)
    assert prediction.other is not None
    return ComponentRuns(prediction.trace, prediction.other, prediction.target, hold_mlps)


def score_matrix(graph: ComponentGraph, scores: Mapping[str, float] | Graph) -> EdgeScores:
    """Scores by name, or of a graph, as a matrix; positions and sides of MLPs are summed.

    Shares between two runs add up, so opposite signs cancel, as they do in EAP.
    """
    matrix = torch.zeros(graph.exists.shape, dtype=torch.float64)
    if isinstance(scores, Graph):
        for edge in scores.edges:
            if edge.edge.writer in graph.writers:
                adds_up = edge.effect is None and scores.by is Method.INTEGRATED
                value = edge.share if edge.effect is None else edge.effect
                matrix[graph.entry(edge.edge)] += value if adds_up else abs(value)
        return matrix
    for name, value in scores.items():
        reader, writer = graph.entry(Site.parse(name))
        if not bool(graph.exists[reader, writer]):
            raise InputError(f"{name!r} does not exist: the reader comes before the writer")
        matrix[reader, writer] += float(value)
    return matrix
