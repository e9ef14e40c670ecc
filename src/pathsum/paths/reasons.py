"""Why a head attends where it does: the parts of its key and query that matter, tested by cutting.

A part is the output of one component in one read: a token, a position, a head, an MLP. On each side
the candidates are the largest part and all parts of at least half its share, whatever they are. A
candidate is a reason if the prediction changes by more than 2% without it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from pathsum.base import HeadId, Part, Source
from pathsum.base.sentence import Sentence, Slot, fill, head_span, join_spans, signed
from pathsum.base.site import Component, Side, Site
from pathsum.model import Path, Trace
from pathsum.model.edit import Edit
from pathsum.model.forward import run
from pathsum.model.transformer import head_pattern
from pathsum.paths.edges import Reference, is_written, node_position, reference_writes, side_of
from pathsum.paths.score_sum import expand_scores

if TYPE_CHECKING:
    from pathsum.paths.graph import Graph, GraphEdge

# Parts of at least this share of the largest are named with it.
COMPARABLE = 0.5
# A part without which the prediction changes by less than this share of it is no reason.
LEAST_EFFECT = 0.02

AttentionKind: TypeAlias = Literal["induction", "sink"]

WORDS = {
    "wrote": "{writer} wrote {token}{where} into its {read}{cut}",
    "wrote_something": "{writer} wrote into its {read}{cut}",
    "previous": ", just before it,",
    "at_position": ", at position {position},",
    "token": "its {read} has the token {token}{cut}",
    "position": "its {read} has position {position}{cut}",
    "bias": "its {read} has a bias{cut}",
    "cut": " (cut: {effect})",
}
"""Clauses of a reason; `{name}` is a slot."""


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


def find_reasons(graph: "Graph", node: Site) -> tuple[Reason, ...]:
    """The reasons for the attention of a head node of one prompt's graph, keys before queries.

    Empty if no single part changes the prediction enough.

    >>> from pathsum.model import construct
    >>> found = construct.induction().trace("a b c d a").circuit(token="b", effects=False)
    >>> [str(reason.edge) for reason in find_reasons(found, Site.parse("L1H0@5"))]
    ['L0H0@2→L1H0@5.k', 'embed@5→L1H0@5.q']
    """
    here = next((one for one in graph.nodes if one.node == node), None)
    if graph.is_mean or here is None or here.attended is None or here.note:
        return ()
    source = here.attended.source
    candidates = [
        *_largest(graph, [e for e in graph.inputs(node, Side.K) if e.edge.at == source]),
        *_largest(graph, graph.inputs(node, Side.Q)),
    ]
    if not candidates:
        return ()
    found = _measure(graph, [edge.edge for edge in candidates], source)
    least = LEAST_EFFECT * abs(graph.total)
    reasons = [
        Reason(edge.edge, edge.share, *numbers, _wrote(graph, edge.edge.start))
        for edge, numbers in zip(candidates, found, strict=True)
    ]
    return tuple(reason for reason in reasons if abs(reason.effect) > least)


def _largest(graph: "Graph", edges: Sequence["GraphEdge"]) -> "list[GraphEdge]":
    """The largest part that adds to the prediction, and those comparable to it."""
    adding = [edge for edge in edges if edge.share * graph.total > 0]
    return [edge for edge in adding if abs(edge.share) >= COMPARABLE * abs(adding[0].share)]


@torch.no_grad()
def _measure(
    graph: "Graph", edges: Sequence[Site], source: int
) -> list[tuple[float, float, float]]:
    """The effect of removing each part, and attention and probability without it.

    Parts that no component writes (positions, biases) are taken out of the scores.
    """
    of = graph.prediction
    start, target = of.alone()
    writes = reference_writes(of, Reference.ZERO if of.other is None else of.other)
    reader, position = edges[0].reader, int(target.positions[0])
    assert isinstance(reader, HeadId)
    edits: list[Edit] = []
    for row, edge in enumerate(edges):
        if is_written(edge.start):
            edits.append(Edit(edge, writes, row))
        else:
            edits.append(Edit(Site(reader, value="pattern"), _pattern_without(start, edge), row))
    positions = target.positions.expand(len(edges))
    after = run(start.weights, start.tokens, edits, positions=positions, copies=len(edges))
    assert after.recorded_logits is not None
    logits = after.recorded_logits[:, 0]
    before = float(target.of_rows(start.logits_at(position))[0])
    effects = (before - target.of_runs(logits)).tolist()
    dest = edges[0].to
    weights = after.patterns[reader.layer][:, reader.head, dest, source].tolist()
    token = int(target.tokens[0])
    return list(zip(effects, weights, logits.softmax(-1)[:, token].tolist(), strict=True))


def _pattern_without(trace: Trace, edge: Site) -> torch.Tensor:
    """The pattern of the reading head if its row lacks one part of its key or its query."""
    reader, dest, at = edge.reader, edge.to, node_position(edge.start)
    assert isinstance(reader, HeadId)
    scores = expand_scores(trace, reader)
    part = edge.writer
    if isinstance(part, Source):
        part = Part.of_path(Path(part))
    assert isinstance(part, Part)
    query, key = scores.vectors()
    changed = scores.total()
    if edge.side is Side.K:
        found = scores.product(query, scores.key.vectors(part))
        changed[:, dest, at] -= found[:, dest, at]
    else:
        changed[:, dest] -= scores.product(scores.query.vectors(part), key)[:, dest]
    pattern = trace.patterns[reader.layer][:, reader.head].clone()
    pattern[:, dest] = head_pattern(trace.weights, reader, changed)[:, dest]
    return pattern


def _wrote(graph: "Graph", writer: Site) -> int | None:
    """The position from which a head moved most of its output there."""
    moved = [edge for edge in graph.inputs(writer, Side.V) if edge.share * graph.total > 0]
    return node_position(moved[0].edge.start) if writer.head and moved else None


def attention_kind(
    trace: Trace, head: HeadId, position: int, source: int, sequence: int = 0
) -> AttentionKind | None:
    """Whether a head attends to a source by induction, or as to a sink.

    Induction: the source follows an earlier copy of the token at the position, and gets more of the
    head's attention there than in rows without such a repeat, which see the same source or look as
    far back. An attention sink is the first token, attended to otherwise.
    """
    tokens = trace.tokens[sequence]
    pattern = trace.patterns[head.layer][sequence, head.head]
    if 0 < source < position and tokens[source - 1] == tokens[position]:
        offset, weight = position - source, float(pattern[position, source])
        rows = [row for row in range(1, position) if tokens[row] != tokens[position]]
        same_source = [pattern[row, source] for row in rows if row > source]
        same_offset = [pattern[row, row - offset] for row in rows if row > offset]
        means = [float(torch.stack(one).mean()) for one in (same_source, same_offset) if one]
        if means and weight > max(means):
            return "induction"
    return "sink" if source == 0 and position > 0 else None


def write_reasons(
    reasons: Sequence[Reason], token: Callable[[int], Slot], cuts: bool = True
) -> Sentence:
    """Reasons in words, joined by "and"; `token` gives the token at a position."""
    return join_spans([_clause(reason, token, cuts) for reason in reasons], " and ")


def _clause(reason: Reason, token: Callable[[int], Slot], cuts: bool) -> Sentence:
    read = "key" if reason.side is Side.K else "query"
    cut = fill(WORDS["cut"], effect=signed(reason.effect)) if cuts else ()
    at, writer = node_position(reason.edge.start), reason.writer
    if isinstance(writer, HeadId) or (isinstance(writer, Source) and writer.kind == "mlp"):
        name = head_span(str(writer)) if isinstance(writer, HeadId) else str(writer)
        if reason.wrote is None:
            return fill(WORDS["wrote_something"], writer=name, read=read, cut=cut)
        where = fill(WORDS["at_position"], position=str(reason.wrote))
        if reason.wrote == at - 1:
            where = fill(WORDS["previous"])
        shown = token(reason.wrote)
        return fill(WORDS["wrote"], writer=name, token=shown, where=where, read=read, cut=cut)
    if writer == Source("embed"):
        return fill(WORDS["token"], read=read, token=token(at), cut=cut)
    kind = writer.kind if isinstance(writer, Part | Source) else ""
    if kind in ("position", "pos"):
        return fill(WORDS["position"], read=read, position=str(at), cut=cut)
    return fill(WORDS["bias"], read=read, cut=cut)
