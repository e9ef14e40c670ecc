"""Views of a graph: a sentence, circuit-tracer's JSON, and the difference of two graphs."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pathsum.base import Column, Estimate, HeadId, Part, Record, Source, Table, text_column
from pathsum.base.errors import InputError
from pathsum.base.estimate import mean_estimate
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
from pathsum.paths.edges import node_position
from pathsum.paths.flows import flows
from pathsum.paths.frozen import Frozen, Gates
from pathsum.paths.graph import Graph, GraphEdge, LeftOut, Method, layer_of
from pathsum.paths.reasons import (
    COMPARABLE,
    LEAST_EFFECT,
    strongest_head,
    substitution_drops,
    write_reasons,
)


def circuit_tracer_graph(graph: Graph) -> dict[str, Any]:
    """The graph in circuit-tracer's JSON format: metadata, nodes, links.

    The omitted edges of a node start at a separate node, so that its inputs add up. Links
    have a weight, the share, as in that format; `kind`, `exact`, `unit` and `effect` are our own
    fields, and two nodes may have one link of each kind.
    """
    rests = dict[Site, list[LeftOut]]()
    for rest in graph.left_out:
        if rest.share or rest.exact:
            rests.setdefault(rest.node, []).append(rest)
    nodes = [*_kept_nodes(graph), *_rest_nodes(graph, rests)]
    for number, node in enumerate(nodes):
        # The viewer treats nodes with the same layer and feature as one feature at several tokens:
        # it gives them one text and deletes most of them. So every node has its own number; an
        # embedding has the number of its position, as in circuit-tracer.
        embedding = node["feature_type"] == "embedding"
        node["feature"] = node["ctx_idx"] if embedding else len(graph.tokens) + number
    _add_influence(nodes)
    links = [
        _link(str(edge.edge.start), str(edge.edge.end), edge.kind, edge, edge.effect)
        for edge in graph.edges
    ]
    for node, here in rests.items():
        links += [_link(f"omitted@{node}", str(node), rest.kind, rest, None) for rest in here]
    return {
        "metadata": {
            "slug": re.sub(r"[^A-Za-z0-9._-]+", "-", f"{graph.model}-{graph.top}"),
            "scan": graph.model,
            "transcoder_list": [],
            "prompt_tokens": list(graph.tokens),
            "prompt": "".join(graph.tokens),
            "node_threshold": graph.threshold,
            "schema_version": 1,
        },
        "qParams": {
            "pinnedIds": [],
            "supernodes": [],
            "linkType": "both",
            "clickedId": "",
            "sg_pos": "",
        },
        "nodes": nodes,
        "links": links,
    }


def _link(
    writer: str, reader: str, kind: Side, numbers: GraphEdge | LeftOut, effect: float | None
) -> dict[str, Any]:
    return {
        "source": writer,
        "target": reader,
        "weight": numbers.share,
        "kind": kind.value,
        "exact": numbers.exact,
        "unit": "score" if kind in (Side.Q, Side.K) else "logits",
        "effect": effect,
    }


def _kept_nodes(graph: Graph) -> Iterator[dict[str, Any]]:
    for node in graph.nodes:
        label = f"{node.node.writer} {node.text}".strip()
        probability = 0.0
        if node.node == graph.top:
            # The viewer parses token and probability from the label of the logit.
            token = graph.token_text.replace("(p=", "( p=").replace('"', "”")
            probability = graph.probability
            label = f'Output "{token}" (p={probability:.3f})'
        layer = layer_of(node.node, graph.n_layers)
        kind = _feature_type(node.node)
        column = node_position(node.node)
        yield _node(str(node), column, layer, kind, label, node.value, probability)


def _rest_nodes(graph: Graph, rests: dict[Site, list[LeftOut]]) -> Iterator[dict[str, Any]]:
    for node, here in rests.items():
        counts = ", ".join(f"{rest.kind.value.upper()} {rest.count}" for rest in here)
        # Without a reference, Q and K are other views of the number of V, and G is one of U.
        views = (Side.V, Side.U) if graph.by is Method.SHARE else tuple(Side)
        value = sum(rest.share for rest in here if rest.kind in views)
        layer, label = layer_of(node, graph.n_layers) - 1, f"omitted ({counts})"
        name = f"omitted@{node}"
        yield _node(name, node_position(node), layer, "omitted error", label, float(value), 0.0)


def _node(
    name: str, column: int, layer: int, kind: str, label: str, value: float, probability: float
) -> dict[str, Any]:
    return {
        "node_id": name,
        "feature": 0,
        "layer": "E" if layer < 0 else str(layer),
        "ctx_idx": column,
        "feature_type": kind,
        "token_prob": probability,
        "is_target_logit": kind == "logit",
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": name,
        "clerp": label,
        "influence": None,
        "activation": value,
    }


def _feature_type(node: Site) -> str:
    """The viewer recognizes `logit` and `embedding`; it shows `error` nodes as unexplained."""
    if isinstance(node.writer, HeadId):
        return "attention head"
    if isinstance(node.writer, Part):
        return node.writer.kind
    kinds = {"logits": "logit", "embed": "embedding"}
    return kinds.get(str(node.writer), str(node.writer))


def _add_influence(nodes: list[dict[str, Any]]) -> None:
    """The cumulative share of values, largest node first, as in circuit-tracer's format.

    The viewer's slider hides nodes above a number between 0 and 1. The logit is always shown.
    """
    ordered = sorted(nodes[1:], key=lambda node: -abs(node["activation"]))
    total, so_far = sum(abs(node["activation"]) for node in ordered), 0.0
    for node in ordered:
        so_far += abs(node["activation"])
        node["influence"] = min(1.0, so_far / total) if total else 1.0


@dataclass(frozen=True)
class EdgeDiff:
    """An edge of either graph: its shares, and the first minus the second.

    A share is None in the graph that does not keep the edge, and counts as 0 in the difference.
    """

    edge: str
    here: Estimate | None
    there: Estimate | None
    difference: Estimate

    @property
    def only_in(self) -> Literal["this", "other"] | None:
        """The graph that contains the edge, if only one does."""
        if self.here is None:
            return "other"
        return "this" if self.there is None else None


@dataclass(frozen=True, eq=False)
class GraphDiff(Record, kind="circuit-diff"):
    """Two graphs compared over the edges of either, the largest difference first."""

    this: str
    other: str
    edges: tuple[EdgeDiff, ...]

    def __getitem__(self, name: str) -> EdgeDiff:
        for found in self.edges:
            if found.edge == name:
                return found
        raise InputError(f"neither graph keeps the edge {name!r}; see .edges for those compared")

    @property
    def only_in_this(self) -> tuple[str, ...]:
        """Edges that the other circuit does not keep."""
        return tuple(found.edge for found in self.edges if found.only_in == "this")

    @property
    def only_in_other(self) -> tuple[str, ...]:
        """Edges that this circuit does not keep."""
        return tuple(found.edge for found in self.edges if found.only_in == "other")

    def to_table(self, rows: int = 30) -> Table:
        """One edge per row."""
        cells = tuple(
            (
                *(found.edge, found.here and found.here.value, found.there and found.there.value),
                *found.difference.with_interval,
                f"{found.only_in} only" if found.only_in else "both",
            )
            for found in self.edges[:rows]
        )
        columns = (
            *(text_column("edge"), Column("this", "+.3f"), Column("other", "+.3f")),
            *(Column("difference", "+.3f"), Column("low", "+.3f"), Column("high", "+.3f")),
            text_column("kept by"),
        )
        note = (
            f"shares in logits; {len(self.only_in_this)} edges in this circuit only, "
            f"{len(self.only_in_other)} in the other only, of {len(self.edges)}; –: below the "
            "threshold there"
        )
        return Table(columns, cells, f"{self.this} minus {self.other}", note)


def diff_graphs(this: Graph, other: Graph) -> GraphDiff:
    """The difference over the edges of either graph."""
    one_prompt = not (this.is_mean or other.is_mean)
    if one_prompt and len(this.tokens) != len(other.tokens):
        raise InputError(
            f"the circuits explain predictions after {len(this.tokens)} and "
            f"{len(other.tokens)} tokens, whose positions do not correspond; use prompts of "
            "one length, or mean_circuit, where positions correspond by name"
        )
    here, there = ({edge.name: edge.estimate() for edge in one.edges} for one in (this, other))
    paired = None
    if this.is_mean and this.prompts == other.prompts:
        paired = this.shares, other.shares
    none = [0.0] * len(this.prompts)
    found: list[EdgeDiff] = []
    for edge in dict.fromkeys([*here, *there]):
        mine, theirs = here.get(edge), there.get(edge)
        if paired is None:
            difference = _independent(mine, theirs)
        else:
            one, two = (torch.tensor(each.get(edge, none), dtype=torch.float64) for each in paired)
            difference = mean_estimate(one - two)
        found.append(EdgeDiff(edge, mine, theirs, difference))
    found.sort(key=lambda edge: -abs(edge.difference.value))
    names = [this.model, other.model]
    if one_prompt and names[0] == names[1]:
        names = [f"{one.token_text!r} of {one.model}" for one in (this, other)]
    return GraphDiff(names[0], names[1], tuple(found))


def _independent(mine: Estimate | None, theirs: Estimate | None) -> Estimate:
    """The difference of two means of different prompts."""
    known = [one for one in (mine, theirs) if one is not None]
    value = (0.0 if mine is None else mine.value) - (0.0 if theirs is None else theirs.value)
    errors = [one.stderr for one in known if one.stderr is not None]
    if len(errors) < len(known):
        return Estimate(value)
    return Estimate.around(value, math.hypot(*errors))


WORDS = {
    "no_head": "No head of the circuit adds to this prediction.",
    "adds": "{head} adds {share} of {total} logits{attends}{because}.{coverage}",
    "attends": ", attending to {token} ({weight}, position {position}{kind})",
    "induction": ", induction",
    "sink": ", attention sink",
    "because": " because {reasons}",
    "no_reason": "; no single part of its key or query explains why",
    "coverage": " The graph explains less than half of the prediction ({share}).",
}
"""Templates by name; `{name}` is a slot."""
# Below this coverage the sentence states it.
_HALF = 0.5


MLP_WORDS = {
    "through": "{head} contributes {share} of {total} logits through MLPs{attends}.",
    "tokens": " Tokens whose replacement costs most: {tokens}.",
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
        coverage = fill(WORDS["coverage"], share=percent(max(0.0, graph.coverage)))
    lead, strongest = graph.lead, strongest_head(graph)
    if lead is None and strongest is None:
        through = write_through(graph)
        return concat(through, coverage, write_tokens(graph)) if through else fill(WORDS["no_head"])
    attends = because = concat()
    if lead is not None and lead.source is not None and (not lead.note or _has_mlps(graph)):
        kind = "" if lead.kind is None else WORDS[lead.kind]
        attends = _write_attention(graph, lead.source, lead.weight, kind)
        because = fill("" if lead.note else WORDS["no_reason"])
        if lead.reasons:
            reasons = write_reasons(lead.reasons, lambda position: _token(graph, position))
            because = fill(WORDS["because"], reasons=reasons)
    head = strongest if lead is None else lead.head
    into_logits = {edge.edge.start.head: edge.share for edge in graph.inputs(graph.top)}
    adds = fill(
        WORDS["adds"],
        head=head_span(str(head)),
        share=signed(into_logits[head] if lead is None else lead.share),
        total=signed(graph.total),
        attends=attends,
        because=because,
        coverage=coverage,
    )
    return concat(adds, write_tokens(graph))


def _has_mlps(graph: Graph) -> bool:
    return any(edge.kind in MLP_SIDES for edge in graph.edges)


def _write_attention(graph: Graph, source: int, weight: float, kind: str = "") -> Sentence:
    token, where = _token(graph, source), str(source)
    return fill(WORDS["attends"], token=token, weight=percent(weight), position=where, kind=kind)


def write_through(graph: Graph) -> Sentence:
    """The head that contributes most where none adds to the prediction directly, if one does."""
    sign = 1 if graph.total > 0 else -1
    heads = [one for one in graph.nodes if one.node.head is not None and sign * one.value > 0]
    if not heads:
        return ()
    best = max(heads, key=lambda one: sign * one.value)
    attends = concat()
    if best.attended is not None:
        attends = _write_attention(graph, best.attended.source, best.attended.weight)
    return fill(
        MLP_WORDS["through"],
        head=head_span(str(best.node.head)),
        share=signed(best.value),
        total=signed(graph.total),
        attends=attends,
    )


def write_tokens(graph: Graph) -> Sentence:
    """The tokens whose replacement costs most, if the graph passes through MLPs.

    Candidates carry most in the graph, or in the sum over paths with gates held. Each is replaced
    by two other tokens of the text. A token is named if the prediction drops by more than 2%, and
    by at least half of the largest drop.
    """
    if graph.is_mean or not _has_mlps(graph):
        return ()
    sign = 1 if graph.total > 0 else -1
    in_graph = {
        node_position(one.node): sign * one.value
        for one in graph.nodes
        if one.node.writer == Source("embed")
    }
    places = {at for found in (in_graph, _by_token(graph, sign)) for at in _largest(found)}
    drops = {
        at: sign * drop for at, drop in substitution_drops(graph.prediction, [*places]).items()
    }
    least = max(LEAST_EFFECT * abs(graph.total), COMPARABLE * max(drops.values(), default=0.0))
    named = [at for at in sorted(drops, key=lambda at: -drops[at])[:_TOKENS] if drops[at] > least]
    if not named:
        return ()
    spans = [concat(_token(graph, at), f" ({signed(drops[at])})") for at in named]
    return fill(MLP_WORDS["tokens"], tokens=join_spans(spans))


def _by_token(graph: Graph, sign: int) -> dict[int, float]:
    """The contribution of each token but the first, with patterns and gates held fixed."""
    trace, target = graph.prediction.alone()
    frozen = Frozen(trace, gates=Gates(trace))
    values = flows(frozen, target).source[0, frozen.sources.index(Source("embed"))]
    return {at: sign * value for at, value in enumerate(values.tolist()) if at > 0}


def _largest(values: dict[int, float]) -> list[int]:
    """The positions of the largest values above zero."""
    return [at for at in sorted(values, key=lambda at: -values[at])[:_TOKENS] if values[at] > 0]


def _token(graph: Graph, position: int) -> Span:
    return Span(repr(graph.tokens[position]), "token", position=position)
