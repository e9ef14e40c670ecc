"""The sentence that explains a prediction, from the numbers of its graph.

`WORDS` holds the templates: a page fills them with its own numbers where the reader changes them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pathsum.base.sentence import (
    Sentence,
    Span,
    concat,
    fill,
    head_span,
    join_spans,
    percent,
    signed,
)
from pathsum.base.site import Side, Site
from pathsum.paths.edges import node_position

if TYPE_CHECKING:
    from pathsum.paths.graph import Graph, GraphEdge

WORDS = {
    "no_head": "No head that is kept adds to this prediction.",
    "adds": "{head} adds {share} of {total} logits{attends}{because}.",
    "attends": ", attending to {token} ({weight}, position {position})",
    "because": " because {reasons}",
    "wrote": "{writer} wrote {token}{where} into its {read}{cut}",
    "wrote_something": "{writer} wrote into its {read}{cut}",
    "previous": ", just before it,",
    "at_position": ", at position {position},",
    "cut": " (cut: {effect})",
}
"""Templates by name; `{name}` is a slot."""

# A reason whose cut changes less than this share of the prediction is no reason.
NO_EFFECT = 1e-3


def write_sentence(graph: "Graph") -> Sentence:
    """The part of the strongest head in words: its share, its attention and the reasons for it."""
    heads = [edge for edge in graph.inputs(graph.top) if edge.edge.start.head]
    if not heads or heads[0].share * graph.total <= 0:
        return fill(WORDS["no_head"])
    top = graph.node(heads[0].edge.start)
    attends = because = concat()
    if top.attended is not None and not top.note:
        at, reader = top.attended.source, top.node
        attends = fill(
            WORDS["attends"],
            token=_token(graph, at),
            weight=percent(top.attended.weight),
            position=str(at),
        )
        reasons = [*_reasons(graph, reader, Side.K, at), *_reasons(graph, reader, Side.Q, None)]
        if reasons:
            because = fill(WORDS["because"], reasons=join_spans(reasons, " and "))
    return fill(
        WORDS["adds"],
        head=head_span(str(top.node.head)),
        share=signed(heads[0].share),
        total=signed(graph.total),
        attends=attends,
        because=because,
    )


def _reasons(graph: "Graph", reader: Site, side: Side, at: int | None) -> Iterator[Sentence]:
    """The strongest lower head's write into the attended key, or into the query."""
    for edge in graph.inputs(reader, side):
        writer = edge.edge.start
        if writer.head is None or at not in (None, writer.at) or not _counts(edge, graph):
            continue
        read, cut = "key" if side is Side.K else "query", concat()
        if edge.effect is not None:
            cut = fill(WORDS["cut"], effect=signed(edge.effect))
        head = head_span(str(writer.head))
        moved = [one for one in graph.inputs(writer, Side.V) if one.share * graph.total > 0]
        if not moved:
            yield fill(WORDS["wrote_something"], writer=head, read=read, cut=cut)
            return
        source = node_position(moved[0].edge.start)
        where = fill(WORDS["at_position"], position=str(source))
        if source == node_position(writer) - 1:
            where = fill(WORDS["previous"])
        token = _token(graph, source)
        yield fill(WORDS["wrote"], writer=head, token=token, where=where, read=read, cut=cut)
        return


def _token(graph: "Graph", position: int) -> Span:
    return Span(repr(graph.tokens[position]), "token", position=position)


def _counts(edge: "GraphEdge", graph: "Graph") -> bool:
    """Whether an edge adds to the prediction, and cutting it changes the prediction."""
    if edge.share * graph.total <= 0:
        return False
    return edge.effect is None or abs(edge.effect) >= NO_EFFECT * abs(graph.total)
