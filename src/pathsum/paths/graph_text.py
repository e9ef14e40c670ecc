"""A graph in words: the sentence about its leading head, its table, and the notes below it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from pathsum.base import ARROW, Column, Source, Table, text_column
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
from pathsum.base.site import MLP_SIDES, Side, Site
from pathsum.model.forward import run_logits
from pathsum.paths.edges import GraphEdge
from pathsum.paths.flows import flows
from pathsum.paths.frozen import Frozen, Gates
from pathsum.paths.graph import Graph, Method
from pathsum.paths.lead import head_shares, other_tokens, strongest_head
from pathsum.paths.reasons import COMPARABLE, LEAST_EFFECT, write_reasons

WORDS = {
    "no_head": "No head of the circuit adds to this prediction.",
    "adds": "{head} adds {share} of {total}{keeps}{attends}{because}.{coverage}",
    "keeps": " (but without it the probability does not fall: {after}, with it {before})",
    "attends": ", attending to {token} ({weight}, position {position}{kind})",
    "induction": ", induction",
    "sink": ", attention sink",
    "because": " because {reasons}",
    "no_reason": "; no single part of its key or query explains why",
    "coverage": " The graph explains less than half of the {total} ({share}).",
}
"""Templates by name; `{name}` is a slot."""
# Below this coverage the sentence states it.
_HALF = 0.5


MLP_WORDS = {
    "through": "{head} contributes {share} of {total} through MLPs{attends}.",
    "tokens": " Tokens whose replacement costs most{among}: {tokens}.",
    "among": ", of {count} tried",
}
"""Templates for models with MLPs."""
# Tokens that the sentence names at most.
_TOKENS = 3


def write_sentence(graph: Graph) -> Sentence:
    """Describe the leading head in words: its share, its attention and the reasons for it.

    Where MLPs are in the graph, the tokens whose replacement costs most are named too.
    """
    coverage = concat()
    if graph.coverage < _HALF:
        share = percent(max(0.0, graph.coverage))
        coverage = fill(WORDS["coverage"], share=share, total=_total(graph))
    lead = graph.lead
    head = strongest_head(graph) if lead is None else lead.head
    if head is None:
        through = write_through(graph)
        sentence = concat(through, coverage) if through else fill(WORDS["no_head"])
        return concat(sentence, write_tokens(graph))
    attends = because = keeps = concat()
    if lead is not None and lead.probability >= graph.probability and graph.explained > 0:
        before, after = percent(graph.probability), percent(lead.probability)
        keeps = fill(WORDS["keeps"], before=before, after=after)
    if lead is not None and lead.source is not None and (not lead.note or _has_mlps(graph)):
        attends = _write_attention(graph, lead.source, lead.weight, WORDS.get(lead.kind or "", ""))
        because = fill("" if lead.note else WORDS["no_reason"])
        if lead.reasons:
            reasons = write_reasons(lead.reasons, lambda position: _token(graph, position))
            because = fill(WORDS["because"], reasons=reasons)
    adds = fill(
        WORDS["adds"],
        head=head_span(str(head)),
        share=signed(head_shares(graph)[head] if lead is None else lead.share),
        total=_total(graph),
        keeps=keeps,
        attends=attends,
        because=because,
        coverage=coverage,
    )
    return concat(adds, write_tokens(graph))


def _total(graph: Graph) -> str:
    return f"{signed(graph.explained)} logits{' vs. reference' if graph.change else ''}"


def _has_mlps(graph: Graph) -> bool:
    return any(edge.kind in MLP_SIDES for edge in graph.edges)


def _write_attention(graph: Graph, source: int, weight: float, kind: str = "") -> Sentence:
    token, where = _token(graph, source), str(source)
    return fill(WORDS["attends"], token=token, weight=percent(weight), position=where, kind=kind)


def write_through(graph: Graph) -> Sentence:
    """The head that contributes most where none adds to the prediction directly, if one does."""
    sign = 1 if graph.explained > 0 else -1
    heads = [node for node in graph.nodes if node.node.head and sign * node.value > 0]
    if not heads:
        return ()
    best = max(heads, key=lambda node: sign * node.value)
    attends = concat()
    if best.attended is not None:
        attends = _write_attention(graph, best.attended.source, best.attended.weight)
    return fill(
        MLP_WORDS["through"],
        head=head_span(str(best.node.head)),
        share=signed(best.value),
        total=_total(graph),
        attends=attends,
    )


def write_tokens(graph: Graph) -> Sentence:
    """The tokens whose replacement costs most, if the graph passes through MLPs.

    Candidates are the last three, and those that carry most in the sum over paths with gates held.
    Each is replaced by two other tokens of the text. A token is named if the prediction drops by
    more than 2%, and by at least half of the largest drop.
    """
    if graph.is_mean or not _has_mlps(graph):
        return ()
    sign = 1 if graph.total > 0 else -1
    positions = {*range(1, graph.position + 1)[-_TOKENS:], *_largest_tokens(graph, sign)}
    drops = {at: sign * drop for at, drop in _substitution_drops(graph, positions).items()}
    least = max(LEAST_EFFECT * abs(graph.total), COMPARABLE * max(drops.values(), default=0.0))
    largest = sorted(drops, key=lambda at: -drops[at])[:_TOKENS]
    spans = [
        concat(_token(graph, at), f" ({signed(drops[at])})") for at in largest if drops[at] > least
    ]
    if not spans:
        return ()
    count = len(positions)
    among = MLP_WORDS["among"].format(count=count) if count < graph.position else ""
    return fill(MLP_WORDS["tokens"], tokens=join_spans(spans), among=among)


@torch.no_grad()
def _substitution_drops(graph: Graph, positions: Iterable[int]) -> dict[int, float]:
    """The mean drop of the prediction over two other tokens of the text, at each position."""
    trace, target = graph.prediction.isolate()
    last = graph.position
    changes = [(at, token) for at in positions for token in other_tokens(trace, last, at)[:2]]
    if not changes:
        return {}
    tokens = trace.tokens[:1, : last + 1].repeat(len(changes), 1)
    for row, (at, token) in enumerate(changes):
        tokens[row, at] = token
    rows = target.positions.expand(len(tokens))
    values = target.of_runs(run_logits(trace.weights, tokens, positions=rows)[:, 0])
    drops = (target.of_rows(trace.logits_at(last)) - values).cpu()
    replaced = torch.tensor([at for at, _ in changes])
    return {at: float(drops[replaced == at].mean()) for at in replaced.unique().tolist()}


def _largest_tokens(graph: Graph, sign: int) -> list[int]:
    """The tokens, but the first, that contribute most with patterns and gates held fixed."""
    trace, target = graph.prediction.isolate()
    frozen = Frozen(trace, gates=Gates(trace))
    values = sign * flows(frozen, target).source[0, frozen.sources.index(Source("embed"))]
    best = values[1:].topk(min(_TOKENS, len(values) - 1))
    return [at + 1 for at in best.indices[best.values > 0].tolist()]


def _token(graph: Graph, position: int) -> Span:
    return Span(repr(graph.tokens[position]), "token", position=position)


def graph_table(graph: Graph, rows: int | None = None) -> Table:
    """One edge per row; see `Graph.to_table`."""
    interval = (Column("low", "+.3f"), Column("high", "+.3f")) if graph.is_mean else ()
    columns = (
        *(text_column("edge"), text_column("kind"), Column("exact", "+.3f")),
        *(text_column("unit"), Column("share", "+.3f"), *interval, Column("cut", "+.3f")),
        *((Column("prompts"), Column("probability", ".2f")) if graph.is_mean else ()),
    )
    edges = sorted(_table_rows(graph), key=lambda row: -abs(row[1].share))
    cells = tuple(
        (
            *(name, edge.kind.value.upper(), edge.exact, edge.unit),
            *(edge.estimate().with_interval if graph.is_mean else (edge.share,)),
            *(edge.effect, *((edge.prompts, edge.probability) if graph.is_mean else ())),
        )
        for name, edge in edges[:rows]
    )
    return Table(columns, cells, graph.title, _note(graph, len(cells)))


def _table_rows(graph: Graph) -> Iterator[tuple[str, GraphEdge]]:
    """Edges by name; MLPs at the first position into one read of a later node are one row."""
    sinks: dict[tuple[Site, Side], list[GraphEdge]] = {}
    for edge in graph.edges:
        site = edge.edge
        if graph.is_mean or not site.to or site.at != 0 or not str(site.writer).startswith("mlp"):
            yield str(edge), edge
        else:
            sinks.setdefault((site.end, edge.kind), []).append(edge)
    for (reader, _), edges in sinks.items():
        first, side = edges[0], "" if edges[0].edge.side is None else f".{edges[0].kind.value}"
        if len(edges) == 1:
            yield str(first), first
            continue
        exact, share = sum(edge.exact for edge in edges), sum(edge.share for edge in edges)
        total = replace(first, exact=exact, share=share, effect=None, estimates=None)
        yield f"attention sink (position 0){ARROW}{reader}{side}", total


def print_graph(graph: Graph, k: int) -> RenderableType:
    """The sentence, the tree with the k strongest edges, and the notes."""
    if graph.is_mean:
        return Group(graph.tree(k), Text(), graph.to_table(rows=k))
    count = len(graph.edges)
    more = f" The {k} strongest of {count} edges are printed." if k < count else ""
    return Group(Text(graph.sentence), graph.tree(k), _note(graph) + more)


def _note(graph: Graph, rows: int = 0) -> str:
    if graph.is_mean:
        return (
            f"{rows} of {len(graph.edges)} edges. Means over prompts with 95% intervals; an "
            "edge below the threshold counts as 0. 'prompts' is the number of prompts that keep "
            "the edge, 'probability' the fraction of bootstrap samples of the prompts in which it "
            "belongs to the circuit, and 'cut' the drop of the prediction without it."
        )
    original = ""
    if graph.raised_from is not None:
        original = f" (not {graph.raised_from:.2g}, to keep at most {graph.max_nodes} nodes)"
    error = f"quadrature error {graph.quadrature_error:.1g} logits"
    if graph.by is Method.INTEGRATED:
        rule = (
            "Shares are of the difference from the reference run, with gradients of attention "
            f"and MLPs integrated between the runs ({error}); all shares into a node add up"
        )
    else:
        mlps = any(edge.kind in MLP_SIDES for edge in graph.edges)
        views = (
            "; U (gates held) and G (values held) are two views of an MLP and must not be "
            "added; each counts half in its writer's own inputs; edges whose removal from one read "
            "matters are kept whatever their share"
        )
        rule = (
            "V edges are exact with patterns and scales held fixed; Q and K shares are "
            f"integrated over the attention ({error}){views if mlps else ''}"
        )
    return (
        f"{rule}. Reconstruction error {graph.remainder:.1g}. Nodes below {graph.floor:.2g} "
        f"logits are omitted{original}."
    )
