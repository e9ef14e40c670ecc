"""Why a head attends to a position: the parts of its key and query, tested by cutting each.

A part of a key or a query is the output of one component in one read: a token, a position, a head,
an MLP. The largest parts are cut, whether the graph keeps them or not. A part is a reason if the
prediction drops by more than 2% and the head attends less there without it, and if its share or its
effect is at least half of the largest on its side.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pathsum.base import HeadId, Part, Source
from pathsum.base.sentence import Sentence, Slot, fill, head_span, join_spans, signed
from pathsum.base.site import Component, Side, Site
from pathsum.model import Trace
from pathsum.model.edit import Edit
from pathsum.model.forward import run
from pathsum.model.reference import Reference
from pathsum.model.transformer import attention_scores, head_pattern, head_read
from pathsum.paths.cuts import reference_writes
from pathsum.paths.edges import (
    GraphEdge,
    edge_between,
    is_written,
    layer_of,
    node_position,
    side_of,
)
from pathsum.paths.frozen import Frozen
from pathsum.paths.graph import Graph, Method
from pathsum.paths.growth import Growth
from pathsum.paths.score_sum import expand_scores

# Parts of at least this share of the largest are named with it.
COMPARABLE = 0.5
# A part without which the prediction drops by less than this share of it is no reason.
LEAST_EFFECT = 0.02
# Parts of a key or a query that are cut, the largest shares first.
PARTS = 12
# More than this share of a total is most of it.
MOST = 0.5

WORDS = {
    "wrote": "{writer} moved {token}{where} into its {read}{cut}",
    "wrote_something": "{writer} wrote to its {read}{cut}",
    "previous": " from the preceding position",
    "at_position": " from position {position}",
    "token": "its {read} encodes the token {token}{cut}",
    "position": "its {read} encodes position {position}{cut}",
    "bias": "its {read} has a bias{cut}",
    "cut": " (cut: {effect})",
}
"""Clauses of a reason; `{name}` is a slot."""


class _Effect(NamedTuple):
    """A run without one part: the drop of the prediction, the attention and the probability."""

    drop: float
    weight: float
    probability: float


@dataclass(frozen=True)
class Reason:
    """A part of a head's key at the attended source, or of its query, that decides its attention.

    `share` is the part's contribution to the prediction, in logits. Without the part, the
    prediction drops by `effect`, the head attends to the source with `weight`, and the predicted
    token has `probability`. `wrote` is the position from which a lower head moved it.
    """

    edge: Site
    share: float
    effect: float
    weight: float
    probability: float
    wrote: int | None

    @property
    def writer(self) -> Component | None:
        """The component whose output it is."""
        return self.edge.writer

    @property
    def side(self) -> Side:
        """Whether it is a part of the key or of the query."""
        return side_of(self.edge)


def find_reasons(graph: Graph, node: Site, source: int) -> tuple[Reason, ...]:
    """The reasons for a head's attention to a source, keys before queries."""
    sides = _largest_parts(graph, node, source)
    parts = [edge.edge for edges in sides for edge in edges]
    if not parts:
        return ()
    unedited, *cuts = _measure(graph, parts, source)
    effects = dict(zip(parts, cuts, strict=True))
    return tuple(
        reason
        for edges in sides
        for reason in _reasons_of_side(graph, edges, effects, unedited.weight)
    )


def _largest_parts(graph: Graph, node: Site, source: int) -> list[list[GraphEdge]]:
    """The largest parts of a head's key at a source, and of its query."""
    prediction, head = graph.prediction, node.head
    assert head is not None
    scores = expand_scores(prediction.isolate()[0], head)
    reads = ((Side.K, source, scores.key), (Side.Q, node_position(node), scores.query))
    heads = [
        below for below in prediction.trace.model.config.every_head if below.layer < head.layer
    ]
    sides = [
        [
            edge_between(part, at, node, side)
            for part in (*read.sources, *heads, *read.extra)
            if part != Part.bias("key") or not _shifts_all_scores(prediction.trace)
        ]
        for side, at, read in reads
    ]
    above = [
        edge.edge
        for edge in graph.edges
        if layer_of(edge.edge.end, graph.n_layers) >= head.layer and edge.edge.end != node
    ]
    start = prediction.other if graph.by is Method.INTEGRATED else None
    only, lowest = [*above, *(edge for edges in sides for edge in edges)], 2 * head.layer
    growth = Growth(prediction, graph.threshold, only=only, reference=start, lowest=lowest).grow()
    grown = {edge.edge: edge for edge in growth.edges}
    parts = [[grown[edge] for edge in edges if edge in grown] for edges in sides]
    return [sorted(edges, key=lambda edge: -abs(edge.share))[:PARTS] for edges in parts if edges]


def _shifts_all_scores(trace: Trace) -> bool:
    """Whether a bias of the keys adds the same number to all scores of a row: no effect."""
    config = trace.model.config
    is_same = config.positions != "rotary" and config.qk_norm == "none"
    return is_same and not config.sinks and config.score_cap is None


def _reasons_of_side(
    graph: Graph, edges: Sequence[GraphEdge], effects: Mapping[Site, _Effect], before: float
) -> Iterator[Reason]:
    """The parts of a key or a query that matter when they are cut, in the order of their shares."""
    sign = 1 if graph.total > 0 else -1
    largest = max(abs(edge.share) for edge in edges)
    strongest = max(sign * effects[edge.edge].drop for edge in edges)
    for edge in edges:
        effect = effects[edge.edge]
        drop = sign * effect.drop
        is_large = sign * edge.share >= COMPARABLE * largest
        is_strong = drop >= COMPARABLE * strongest
        matters = drop > LEAST_EFFECT * abs(graph.total) and effect.weight < before
        if matters and (is_large or is_strong):
            origin = _moved_from(graph, edge.edge.start)
            yield Reason(edge.edge, edge.share, *effect, origin)


@torch.no_grad()
def _measure(graph: Graph, edges: Sequence[Site], source: int) -> list[_Effect]:
    """The unedited run, then the run without each part.

    Parts that no component writes (positions, biases) are left out of the query or the key, and the
    pattern that follows is an edit.
    """
    prediction = graph.prediction
    start, target = prediction.isolate()
    writes = reference_writes(
        prediction, Reference.ZERO if prediction.other is None else prediction.other
    )
    reader, dest = edges[0].reader, edges[0].to
    assert isinstance(reader, HeadId)
    edits: list[Edit] = []
    for row, edge in enumerate(edges, 1):
        if is_written(edge.start):
            edits.append(Edit(edge, writes, row))
        else:
            edits.append(Edit(Site(reader, value="pattern"), _pattern_without(start, edge), row))
    copies = 1 + len(edges)
    positions = target.positions.expand(copies)
    after = run(start.weights, start.tokens, edits, positions=positions, copies=copies)
    assert after.recorded_logits is not None
    logits = after.recorded_logits[:, 0]
    values = target.of_runs(logits)
    drops = (values[0] - values).tolist()
    weights = after.patterns[reader.layer][:, reader.head, dest, source].tolist()
    probabilities = logits.softmax(-1)[:, int(target.tokens[0])].tolist()
    return list(map(_Effect, drops, weights, probabilities))


def _pattern_without(trace: Trace, edge: Site) -> Tensor:
    """The pattern of the reading head if its row lacks one part of its key or its query."""
    reader, dest, at, side = edge.reader, edge.to, node_position(edge.start), edge.side
    assert isinstance(reader, HeadId)
    assert side is not None
    config, layer = trace.model.config, trace.weights.layers[reader.layer]
    stream, part = trace.streams[reader.layer], edge.writer
    reads = {read: head_read(config, layer, reader.head, read, stream) for read in (Side.Q, Side.K)}
    if isinstance(part, Source):
        stream = stream - Frozen(trace).source(part)
    elif part == Part.position(reader.layer):
        layer = replace(layer, W_pos=None)
    else:
        layer = replace(layer, ln1_b=None, b_Q=None, b_K=None)
    reads[side][:, at] = head_read(config, layer, reader.head, side, stream)[:, at]
    scores = attention_scores(config, reads[Side.Q][:, None], reads[Side.K][:, None])[:, 0]
    pattern = trace.patterns[reader.layer][:, reader.head].clone()
    pattern[:, dest] = head_pattern(trace.weights, reader, scores)[:, dest]
    return pattern


def _moved_from(graph: Graph, writer: Site) -> int | None:
    """The position from which a head moved most of its output there, if there is one."""
    moved: dict[int, float] = {}
    for edge in graph.inputs(writer, Side.V) if writer.head else ():
        at = node_position(edge.edge.start)
        moved[at] = moved.get(at, 0.0) + edge.share
    if not moved:
        return None
    value = graph.node(writer).value
    best = max(moved, key=lambda at: moved[at] * value)
    return best if moved[best] * value > MOST * value**2 else None


def write_reasons(
    reasons: Sequence[Reason], token: Callable[[int], Slot], cuts: bool = True
) -> Sentence:
    """Reasons in words, as a list; `token` gives the token at a position."""
    clauses = [_clause(reason, token, cuts) for reason in reasons]
    return join_spans(filter(None, (join_spans(clauses[:-1]), *clauses[-1:])), " and ")


def _clause(reason: Reason, token: Callable[[int], Slot], cuts: bool) -> Sentence:
    read = "key" if reason.side is Side.K else "query"
    cut = fill(WORDS["cut"], effect=signed(reason.effect)) if cuts else ()
    at, writer = node_position(reason.edge.start), reason.writer
    if isinstance(writer, HeadId) or (isinstance(writer, Source) and writer.kind == "mlp"):
        name = head_span(str(writer)) if isinstance(writer, HeadId) else str(writer)
        if reason.wrote is None:
            return fill(WORDS["wrote_something"], writer=name, read=read, cut=cut)
        where = WORDS["previous" if reason.wrote == at - 1 else "at_position"]
        slots = {"token": token(reason.wrote), "where": fill(where, position=str(reason.wrote))}
        return fill(WORDS["wrote"], writer=name, read=read, cut=cut, **slots)
    if writer == Source("embed"):
        return fill(WORDS["token"], read=read, token=token(at), cut=cut)
    kind = writer.kind if isinstance(writer, Part | Source) else ""
    if kind in ("position", "pos"):
        return fill(WORDS["position"], read=read, position=str(at), cut=cut)
    return fill(WORDS["bias"], read=read, cut=cut)
