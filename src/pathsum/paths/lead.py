"""The head that explains most of a prediction, and whether it attends by induction or to a sink.

`find_lead` chooses the head, for the sentence of a graph and for the explorer's story alike.
`reasons` explains its attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId
from pathsum.base.site import Side, Site
from pathsum.model import Trace
from pathsum.model.edit import Edit
from pathsum.model.forward import run, run_logits
from pathsum.paths.graph import Graph
from pathsum.paths.reasons import COMPARABLE, LEAST_EFFECT, MOST, Reason, find_reasons
from pathsum.paths.target import PredictionRun, Target, find_target

# Attention to an earlier follower is induction if it exceeds this many times the usual attention,
# and the attention left if the token before the follower is replaced by one of so many others.
TIMES_USUAL, REPLACEMENTS = 2.0, 4

AttentionKind: TypeAlias = Literal["induction", "sink"]


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


def find_lead(prediction: PredictionRun, graph: Graph | None) -> Lead | None:
    """The lead of a prediction and its graph, if it has one; None if no head adds to it.

    >>> from pathsum.model import construct
    >>> lead = construct.induction().trace("a b c d a").circuit(token="b", effects=False).lead
    >>> str(lead.head), lead.source, lead.kind
    ('L1H0', 2, 'induction')
    >>> [str(reason.edge) for reason in lead.reasons]
    ['L0H0@2→L1H0@5.k', 'embed@5→L1H0@5.q']
    """
    trace, target = prediction.isolate()
    position, token = int(target.positions[0]), int(target.tokens[0])
    copying = _need_repeats(trace, position, token, copying_heads(trace, position, token))
    strongest, shares = None, {head: direct_share(trace, target, head) for head in copying}
    if graph is not None:
        strongest, shares = strongest_head(graph), head_shares(graph)
        copying = [head for head in copying if head in shares]
    if strongest and sum(shares[head] for head in copying) < COMPARABLE * shares[strongest]:
        copying = []  # other heads make this prediction
    if copying:
        (without,) = probabilities_without(trace, [copying], [position], [token])
        if without >= float(trace.logits_at(position)[0].softmax(-1)[token]):
            copying = []  # the prediction does not rely on them
    heads = copying or ([] if strongest is None else [strongest])
    if not heads:
        return None
    count = len(heads)
    after = probabilities_without(trace, [[h] for h in heads], [position] * count, [token] * count)
    probability, head = min(zip(after, heads, strict=True), key=lambda pair: pair[0])
    nodes = () if graph is None else graph.nodes
    node = next((node for node in nodes if node.node == Site(head, at=position)), None)
    row = trace.patterns[head.layer][0, head.head, position]
    source = None if node is None or node.attended is None else node.attended.source
    kind: AttentionKind | None = None
    if copying:
        source = max(followers(trace, position, token), key=lambda at: float(row[at]))
        kind = "induction"
    elif source is not None:
        kind = attention_kind(trace, head, position, source)
    reasons: tuple[Reason, ...] = ()
    if graph is not None and node is not None and source is not None:
        is_split = any(graph.inputs(node.node, side) for side in (Side.K, Side.Q))
        if is_split or not node.note:  # else its scores are not decomposed
            reasons = find_reasons(graph, node.node, source)
    return Lead(
        head=head,
        share=shares[head],
        probability=probability,
        copying=tuple(copying),
        source=source,
        weight=0.0 if source is None else float(row[source]),
        kind=kind,
        reasons=reasons,
        note="" if node is None else node.note,
    )


def strongest_head(graph: Graph) -> HeadId | None:
    """The head that adds most to the prediction directly, or None if no head adds to it."""
    return next((h for h, share in head_shares(graph).items() if share * graph.explained > 0), None)


def head_shares(graph: Graph) -> dict[HeadId, float]:
    """The direct contribution of each head that is kept, the largest first."""
    inputs = ((edge.edge.start.head, edge.share) for edge in graph.inputs(graph.top))
    return {head: share for head, share in inputs if head is not None}


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
    columns = torch.tensor(tokens, device=logits.device)[:, None]
    return logits.softmax(-1).gather(-1, columns)[:, 0].tolist()


# ---- copying by induction


def followers(trace: Trace, position: int, token: int) -> list[int]:
    """Earlier positions of `token` right after a copy of the token at `position`."""
    ids = trace.tokens[0].tolist()
    return [
        at for at in range(1, position + 1) if ids[at] == token and ids[at - 1] == ids[position]
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
                    if exceeds_usual(trace, head, position, at)
                )
    return sorted((head for head in weights if weights[head] > MOST), key=lambda h: -weights[h])


def _need_repeats(trace: Trace, position: int, token: int, heads: Sequence[HeadId]) -> list[HeadId]:
    """The heads whose attention to earlier followers depends on the token before each of them."""
    if not heads:
        return []
    sources = followers(trace, position, token)
    without = _without_repeats(trace, position, sources)

    def attention(pattern: Tensor) -> float:
        return float(pattern[sources].sum())

    return [
        head
        for head in heads
        if attention(trace.patterns[head.layer][0, head.head, position])
        > TIMES_USUAL * attention(without[head.layer][head.head])
    ]


def attention_kind(trace: Trace, head: HeadId, position: int, source: int) -> AttentionKind | None:
    """Whether a head of a one-sequence run attends by induction, or to an attention sink.

    Induction: the source follows an earlier copy of the token at the position, and gets twice the
    attention that the head usually gives it, in rows without such a repeat that see the same
    source or look as far back, and twice the attention that is left if the token before the source
    is another one. An attention sink is the start token, or a first position that gets at least
    half as much with another token there.
    """
    is_first = source == 0 and position > 0
    is_start = is_first and int(trace.tokens[0, 0]) == trace.model.config.start_token
    if (is_first and not is_start) or exceeds_usual(trace, head, position, source):
        without = _without_repeats(trace, position, [max(source, 1)])
        left = float(without[head.layer][head.head, source])
        weight = float(trace.patterns[head.layer][0, head.head, position, source])
        if is_first != (weight > TIMES_USUAL * left):
            return "sink" if is_first else "induction"
    return "sink" if is_start else None


@torch.no_grad()
def _without_repeats(
    trace: Trace, position: int, sources: Sequence[int]
) -> list[Float[Tensor, "head src"]]:
    """Attention from a position, by layer, if other tokens precede the sources.

    The mean over a few replacements: the last other tokens of the text.
    """
    replacements = other_tokens(trace, position, position)
    tokens = trace.tokens[:1, : position + 1].repeat(len(replacements), 1)
    # In a run of one token, a source is the token before the next one.
    before = sorted({source - 1 for source in sources}.difference(sources)) or [min(sources) - 1]
    tokens[:, before] = torch.tensor(replacements, device=tokens.device)[:, None]
    patterns = run(trace.weights, tokens).patterns
    return [layer[:, :, position].mean(0) for layer in patterns]


def other_tokens(trace: Trace, position: int, at: int) -> list[int]:
    """A few tokens unlike the one at `at`: the last other ones of the text up to a position."""
    ids = trace.tokens[0, : position + 1].tolist()
    others = [*dict.fromkeys(token for token in reversed(ids) if token != ids[at])][:REPLACEMENTS]
    return others or [(ids[at] + 1) % trace.model.config.d_vocab]


def exceeds_usual(trace: Trace, head: HeadId, position: int, source: int) -> bool:
    """Whether a source after a copy of a token gets more attention than in rows without a copy."""
    ids = trace.tokens[0].tolist()
    pattern = trace.patterns[head.layer][0, head.head]
    if not (0 < source < position and ids[source - 1] == ids[position]):
        return False
    offset, weight = position - source, float(pattern[position, source])
    same_source = [
        pattern[row, source] for row in range(source + 1, position) if ids[row] != ids[position]
    ]
    same_offset = [
        pattern[row, row - offset]
        for row in range(offset + 1, position)
        if ids[row] != ids[row - offset - 1]
    ]
    usual = [float(torch.stack(row).mean()) for row in (same_source, same_offset) if row]
    return bool(usual) and weight > TIMES_USUAL * max(usual)
