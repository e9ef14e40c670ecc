"""The sentence that explains a prediction, from the numbers of its graph.

Templates are data: a page fills them with its own numbers where it lets the reader change them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pathsum.base import Node, Side

if TYPE_CHECKING:
    from pathsum.paths.graph import Graph, GraphEdge

TEMPLATES: Mapping[str, str] = {
    "no_head": "No head that is kept adds to this prediction.",
    "adds": "{head} adds {share:+.2f} of {total:+.2f} logits",
    "attends": "attending to {token!r} ({weight:.0%}, position {position})",
    "wrote_previous": "{writer} wrote {token!r}, just before it, into its {read}",
    "wrote_position": "{writer} wrote {token!r}, at position {position}, into its {read}",
    "wrote": "{writer} wrote into its {read}",
    "cut": "(cut: {effect:+.2f})",
}
"""Clauses by name, as Python format strings of their fields."""

# A reason whose cut changes less than this share of the prediction is no reason.
NO_EFFECT = 1e-3


@dataclass(frozen=True)
class Clause:
    """One clause of a sentence: the name of its template, and the fields that fill it."""

    template: str
    fields: Mapping[str, str | float]

    @property
    def text(self) -> str:
        """The template, filled."""
        return TEMPLATES[self.template].format(**self.fields)


@dataclass(frozen=True)
class Sentence:
    """A sentence and its clauses, in order: the head's share, its attention, the reasons."""

    text: str
    clauses: tuple[Clause, ...]

    def __str__(self) -> str:
        return self.text


def write_sentence(graph: "Graph") -> Sentence:
    """The part of the strongest head in words: what it adds, where it attends, and why there."""
    heads = [edge for edge in graph.inputs(graph.top) if edge.edge.writer.head]
    if not heads or heads[0].share * graph.total <= 0:
        none = Clause("no_head", {})
        return Sentence(none.text, (none,))
    top = graph.node(heads[0].edge.writer)
    fields = {"head": str(top.node.head), "share": heads[0].share, "total": graph.total}
    adds = Clause("adds", fields)
    if top.attended is None or top.note:
        return Sentence(f"{adds.text}.", (adds,))
    at, weight = top.attended.source, top.attended.weight
    attends = Clause("attends", {"token": graph.tokens[at], "weight": weight, "position": at})
    reasons = [*_reasons(graph, top.node, Side.K, at), *_reasons(graph, top.node, Side.Q, None)]
    texts = [" ".join(clause.text for clause in reason) for reason in reasons]
    because = f" because {' and '.join(texts)}" if texts else ""
    clauses = (adds, attends, *(clause for reason in reasons for clause in reason))
    return Sentence(f"{adds.text}, {attends.text}{because}.", clauses)


def _reasons(
    graph: "Graph", reader: Node, side: Side, at: int | None
) -> Iterator[tuple[Clause, ...]]:
    """The strongest lower head's write into the attended key, or into the query."""
    for edge in graph.inputs(reader, side):
        writer = edge.edge.writer
        if writer.head is None or at not in (None, writer.position) or not _counts(edge, graph):
            continue
        fields = {"writer": str(writer.head), "read": "key" if side is Side.K else "query"}
        moved = [one for one in graph.inputs(writer, Side.V) if one.share * graph.total > 0]
        template = "wrote"
        if moved:
            source = moved[0].edge.writer.position
            fields |= {"token": graph.tokens[source], "position": source}
            template = "wrote_previous" if source == writer.position - 1 else "wrote_position"
        wrote = Clause(template, fields)
        cut = () if edge.effect is None else (Clause("cut", {"effect": edge.effect}),)
        yield (wrote, *cut)
        return


def _counts(edge: "GraphEdge", graph: "Graph") -> bool:
    """Whether an edge raises what the prediction is, and cutting it does not show otherwise."""
    if edge.share * graph.total <= 0:
        return False
    return edge.effect is None or abs(edge.effect) >= NO_EFFECT * abs(graph.total)
