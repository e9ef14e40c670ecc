"""The head that explains most of a prediction, and the reasons for its attention.

`find_lead` chooses the head, for the sentence of a graph and for the explorer's story alike. A part
of its key or query is the output of one component in one read: a token, a position, a head, an MLP.
The largest parts are cut, whether the graph keeps them or not. A part is a reason if the prediction
drops by more than 2% and the head attends less there without it, and if its share or its effect is
at least half of the largest on its side.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, Part, Source
from pathsum.base.sentence import Sentence, Slot, fill, head_span, join_spans, signed
from pathsum.base.site import Component, Side, Site
from pathsum.model import Path, Trace
from pathsum.model.edit import Edit
from pathsum.model.forward import run, run_logits
from pathsum.model.transformer import head_pattern
from pathsum.paths.edges import (
    Reference,
    edge_between,
    is_written,
    node_position,
    reference_writes,
    side_of,
)
from pathsum.paths.score_sum import expand_scores
from pathsum.paths.target import PredictionRun, Target, find_target

if TYPE_CHECKING:
    from pathsum.paths.graph import Graph, GraphEdge

# Parts of at least this share of the largest are named with it.
COMPARABLE = 0.5
# A part without which the prediction drops by less than this share of it is no reason.
LEAST_EFFECT = 0.02
# Parts of a key or a query that are cut, the largest shares first.
PARTS = 12
# A head copies if more than this share of its attention is on earlier followers: most of it.
MOST = 0.5
# Attention to an earlier follower is induction if it exceeds this many times the usual attention,
# and the attention after the token before the follower is replaced by one of so many others.
TIMES_USUAL, REPLACEMENTS = 2.0, 4

AttentionKind: TypeAlias = Literal["induction", "sink"]

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


@dataclass(frozen=True)
class Lead:
    """The head that explains most of a prediction, and its attention at that position.

    `copying` are the heads that copy the token by induction, if they add at least half as much as
    the strongest head, and the token is less likely without them. Then the lead is the one whose
    ablation costs most; otherwise it is the head that adds most to the prediction. Without it, the
    predicted token has `probability`. It adds `share` directly, to the number that the graph
    explains, and attends to `source` with `weight`, the source whose attention matters most. `note`
    explains why its scores are not decomposed, if they are not.
    """

    head: HeadId
    share: float
    probability: float
    copying: tuple[HeadId, ...]
    source: int | None
    weight: float
    kind: AttentionKind | None
    reasons: tuple[Reason, ...]
    note: str


def find_lead(of: PredictionRun, graph: "Graph | None") -> Lead | None:
    """The lead of a prediction and its graph, if it has one; None if no head adds to it.

    >>> from pathsum.model import construct
    >>> lead = construct.induction().trace("a b c d a").circuit(token="b", effects=False).lead
    >>> str(lead.head), lead.source, lead.kind
    ('L1H0', 2, 'induction')
    >>> [str(reason.edge) for reason in lead.reasons]
    ['L0H0@2→L1H0@5.k', 'embed@5→L1H0@5.q']
    """
    trace, target = of.alone()
    position, token = int(target.positions[0]), int(target.tokens[0])
    copying = copying_heads(trace, position, token)
    if copying:
        sources = followers(trace, position, token)
        anew = _without_repeats(trace, position, sources)
        copying = [
            head
            for head in copying
            if float(trace.patterns[head.layer][0, head.head, position, sources].sum())
            > TIMES_USUAL * float(anew[head.layer][head.head, sources].sum())
        ]
    strongest, shares = None, {head: direct_share(trace, target, head) for head in copying}
    if graph is not None:
        strongest, shares = strongest_head(graph), head_shares(graph)
        copying = [head for head in copying if head in shares]
    if strongest and sum(shares[head] for head in copying) < COMPARABLE * shares[strongest]:
        copying = []  # other heads make this prediction
    if copying:
        (left,) = probabilities_without(trace, [copying], [position], [token])
        if left >= float(trace.logits_at(position)[0].softmax(-1)[token]):
            copying = []  # the prediction does not rely on them
    groups = [[head] for head in copying or ([] if strongest is None else [strongest])]
    if not groups:
        return None
    after = probabilities_without(trace, groups, [position] * len(groups), [token] * len(groups))
    (head,) = groups[after.index(min(after))]
    nodes = () if graph is None else graph.nodes
    node = next((one for one in nodes if one.node == Site(head, at=position)), None)
    row = trace.patterns[head.layer][0, head.head, position]
    source = None if node is None or node.attended is None else node.attended.source
    if copying:
        source = max(followers(trace, position, token), key=lambda at: float(row[at]))
    reasons, kind = (), "induction" if copying else None
    if source is not None and not copying:
        kind = attention_kind(trace, head, position, source)
    if graph is not None and node is not None and source is not None:
        sides = (graph.inputs(node.node, side) for side in (Side.K, Side.Q))
        if not node.note or any(sides):  # else its scores are not decomposed
            reasons = _find_reasons(graph, node.node, source)
    return Lead(
        head=head,
        share=shares[head],
        probability=min(after),
        copying=tuple(copying),
        source=source,
        weight=0.0 if source is None else float(row[source]),
        kind=kind,
        reasons=reasons,
        note="" if node is None else node.note,
    )


def strongest_head(graph: "Graph") -> HeadId | None:
    """The head that adds most to the prediction directly, or None if no head adds to it."""
    return next((h for h, share in head_shares(graph).items() if share * graph.explained > 0), None)


def head_shares(graph: "Graph") -> dict[HeadId, float]:
    """What each head that is kept adds to the prediction directly, the largest share first."""
    inputs = ((edge.edge.start.head, edge.share) for edge in graph.inputs(graph.top))
    return {head: share for head, share in inputs if head is not None}


def followers(trace: Trace, position: int, token: int) -> list[int]:
    """Earlier positions of `token` right after a copy of the token at `position`."""
    ids = trace.tokens[0].tolist()
    return [
        place
        for place in range(1, position + 1)
        if ids[place] == token and ids[place - 1] == ids[position]
    ]


def copying_heads(trace: Trace, position: int, token: int) -> list[HeadId]:
    """The heads that seem to copy the token by induction, the strongest attention first.

    They attend mostly to its earlier followers, more than in other rows of this run, and add more
    than 2% of its logit directly.
    """
    sources = followers(trace, position, token)
    target = find_target(trace, position, token, "mean")
    least = LEAST_EFFECT * float(target.of_rows(trace.uncapped_logits_at(position))[0])
    weights: dict[HeadId, float] = {}
    for layer, patterns in enumerate(trace.patterns):
        for number, row in enumerate(patterns[0, :, position, sources].tolist()):
            head = HeadId(layer, number)
            if sum(row) > MOST and direct_share(trace, target, head) > least:
                weights[head] = sum(
                    weight
                    for at, weight in zip(sources, row, strict=True)
                    if _exceeds_usual(trace, head, position, at)
                )
    return sorted((head for head in weights if weights[head] > MOST), key=lambda h: -weights[h])


def direct_share(trace: Trace, target: Target, head: HeadId) -> float:
    """A head's direct contribution to the target, in a run of one sequence."""
    return float(trace.written(head)[0, int(target.positions[0])] @ target.gradient(trace)[0])


@torch.no_grad()
def probabilities_without(
    trace: Trace,
    groups: Sequence[Sequence[HeadId]],
    positions: Sequence[int],
    tokens: Sequence[int],
) -> list[float]:
    """The probability of each token at its position, in a run without its group of heads."""
    prefix = trace.prefix(0, max(positions) + 1)
    zero = prefix.weights.W_E.new_zeros(trace.model.config.d_head)
    edits = [
        Edit(Site(head, value="z"), zero, row) for row, group in enumerate(groups) for head in group
    ]
    at = torch.tensor(positions, device=prefix.tokens.device)
    logits = run_logits(prefix.weights, prefix.tokens, edits, at, copies=len(groups))[:, 0]
    chosen = torch.tensor(tokens, device=logits.device)[:, None]
    return logits.softmax(-1).gather(-1, chosen)[:, 0].tolist()


def _find_reasons(graph: "Graph", node: Site, source: int) -> tuple[Reason, ...]:
    """The reasons for a head's attention to a source, keys before queries."""
    sides = _largest_parts(graph, node, source)
    parts = [edge.edge for edges in sides for edge in edges]
    if not parts:
        return ()
    (_, before, _), *after = _measure(graph, parts, source)
    found = iter(after)
    each = [(edges, [next(found) for _ in edges]) for edges in sides]
    return tuple(one for side in each for one in _reasons_of_side(graph, *side, before))


def _largest_parts(graph: "Graph", node: Site, source: int) -> "list[list[GraphEdge]]":
    """The largest parts of a head's key at a source, and of its query."""
    from pathsum.paths.graph import Method, layer_of
    from pathsum.paths.growth import Growth

    of, head = graph.prediction, node.head
    assert head is not None
    scores = expand_scores(of.alone()[0], head)
    reads = ((Side.K, source, scores.key), (Side.Q, node_position(node), scores.query))
    heads = [one for one in of.trace.model.config.every_head if one.layer < head.layer]
    sides = [
        [
            edge_between(part, at, node, side)
            for part in (*read.sources, *heads, *read.extra)
            if part != Part.bias("key") or not _shifts_all_scores(of.trace)
        ]
        for side, at, read in reads
    ]
    above = [
        each.edge
        for each in graph.edges
        if layer_of(each.edge.end, graph.n_layers) >= head.layer and each.edge.end != node
    ]
    start = of.other if graph.by is Method.INTEGRATED else None
    only, lowest = [*above, *(edge for edges in sides for edge in edges)], 2 * head.layer
    grown = Growth(of, graph.threshold, only=only, reference=start, lowest=lowest).grown()
    found = {each.edge: each for each in grown.edges}
    parts = [[found[edge] for edge in edges if edge in found] for edges in sides]
    return [sorted(some, key=lambda one: -abs(one.share))[:PARTS] for some in parts if some]


def _shifts_all_scores(trace: Trace) -> bool:
    """Whether a bias of the keys adds one number to all scores of a row, which changes nothing."""
    config = trace.model.config
    is_same = config.positions != "rotary" and config.qk_norm == "none"
    return is_same and not config.sinks and config.score_cap is None


def _reasons_of_side(
    graph: "Graph",
    edges: "Sequence[GraphEdge]",
    after: Sequence[tuple[float, float, float]],
    before: float,
) -> Iterator[Reason]:
    """The parts of a key or a query that survive being cut, in the order of their shares."""
    sign = 1 if graph.total > 0 else -1
    largest = max(abs(edge.share) for edge in edges)
    strongest = max(sign * effect for effect, _, _ in after)
    for edge, (effect, weight, probability) in zip(edges, after, strict=True):
        is_large = sign * edge.share >= COMPARABLE * largest
        is_strong = sign * effect >= COMPARABLE * strongest
        matters = sign * effect > LEAST_EFFECT * abs(graph.total) and weight < before
        if matters and (is_large or is_strong):
            wrote = _wrote(graph, edge.edge.start)
            yield Reason(edge.edge, edge.share, effect, weight, probability, wrote)


@torch.no_grad()
def _measure(
    graph: "Graph", edges: Sequence[Site], source: int
) -> list[tuple[float, float, float]]:
    """The effect of removing each part, and attention and probability without it.

    The first entry is the unedited run. Parts that no component writes (positions, biases) are
    subtracted from the scores.
    """
    of = graph.prediction
    start, target = of.alone()
    writes = reference_writes(of, Reference.ZERO if of.other is None else of.other)
    reader = edges[0].reader
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
    effects = (values[0] - values).tolist()
    dest = edges[0].to
    weights = after.patterns[reader.layer][:, reader.head, dest, source].tolist()
    token = int(target.tokens[0])
    return list(zip(effects, weights, logits.softmax(-1)[:, token].tolist(), strict=True))


def _pattern_without(trace: Trace, edge: Site) -> Tensor:
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
    """The position from which a head moved most of its output there, if there is one."""
    moved: dict[int, float] = {}
    for edge in graph.inputs(writer, Side.V) if writer.head else ():
        at = node_position(edge.edge.start)
        moved[at] = moved.get(at, 0.0) + edge.share
    if not moved:
        return None
    value = next(one.value for one in graph.nodes if one.node == writer)
    best = max(moved, key=lambda at: moved[at] * value)
    return best if moved[best] * value > MOST * value**2 else None


def attention_kind(trace: Trace, head: HeadId, position: int, source: int) -> AttentionKind | None:
    """Whether a head of a one-sequence run attends by induction, or to an attention sink.

    Induction: the source follows an earlier copy of the token at the position, and gets twice the
    attention that the head usually gives it, in rows without such a repeat that see the same
    source or look as far back, and twice what is left if the token before the source is another
    one. An attention sink is the start token, or a first position that gets at least half as much
    with another token there.
    """
    is_first = source == 0 and position > 0
    is_start = is_first and int(trace.tokens[0, 0]) == trace.model.config.start_token
    if (is_first and not is_start) or _exceeds_usual(trace, head, position, source):
        left = _without_repeats(trace, position, [max(source, 1)])[head.layer][head.head, source]
        weight = float(trace.patterns[head.layer][0, head.head, position, source])
        if is_first != (weight > TIMES_USUAL * float(left)):
            return "sink" if is_first else "induction"
    return "sink" if is_start else None


@torch.no_grad()
def _without_repeats(
    trace: Trace, position: int, sources: Sequence[int]
) -> list[Float[Tensor, "head src"]]:
    """Attention from a position, by layer, if the tokens before some sources are other ones.

    The mean over a few replacements: the last other tokens of the text.
    """
    others = _other_tokens(trace, position, position)
    tokens = trace.tokens[:1, : position + 1].repeat(len(others), 1)
    # In a run of one token, a source is the token before the next one.
    places = sorted({source - 1 for source in sources}.difference(sources)) or [min(sources) - 1]
    tokens[:, places] = torch.tensor(others, device=tokens.device)[:, None]
    patterns = run(trace.weights, tokens).patterns
    return [layer[:, :, position].mean(0) for layer in patterns]


def _other_tokens(trace: Trace, position: int, at: int) -> list[int]:
    """A few tokens unlike the one at `at`: the last other ones of the text up to a position."""
    ids = trace.tokens[0, : position + 1].tolist()
    others = [*dict.fromkeys(one for one in reversed(ids) if one != ids[at])][:REPLACEMENTS]
    return others or [(ids[at] + 1) % trace.model.config.d_vocab]


@torch.no_grad()
def substitution_drops(of: PredictionRun, places: Sequence[int]) -> dict[int, float]:
    """The mean drop of a prediction over two other tokens of the text, at each of some places."""
    trace, target = of.alone()
    position = int(target.positions[0])
    changes = [(at, one) for at in places for one in _other_tokens(trace, position, at)[:2]]
    if not changes:
        return {}
    tokens = trace.tokens[:1, : position + 1].repeat(len(changes), 1)
    for row, (at, one) in enumerate(changes):
        tokens[row, at] = one
    rows = target.positions.expand(len(tokens))
    values = target.of_runs(run_logits(trace.weights, tokens, positions=rows)[:, 0])
    before = target.of_rows(trace.logits_at(position))
    drops, changed = (before - values).cpu(), torch.tensor([at for at, _ in changes])
    return {at: float(drops[changed == at].mean()) for at in places}


def _exceeds_usual(trace: Trace, head: HeadId, position: int, source: int) -> bool:
    """Whether a source after a copy of a token gets more attention than in rows without a copy."""
    ids = trace.tokens[0].tolist()
    pattern = trace.patterns[head.layer][0, head.head]
    if 0 < source < position and ids[source - 1] == ids[position]:
        offset, weight = position - source, float(pattern[position, source])
        same_source = [
            pattern[row, source] for row in range(source + 1, position) if ids[row] != ids[position]
        ]
        same_offset = [
            pattern[row, row - offset]
            for row in range(offset + 1, position)
            if ids[row] != ids[row - offset - 1]
        ]
        usual = [float(torch.stack(one).mean()) for one in (same_source, same_offset) if one]
        return bool(usual) and weight > TIMES_USUAL * max(usual)
    return False


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
