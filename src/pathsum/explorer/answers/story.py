"""`story`: one prediction of a text, and why, in the numbers of a few sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pathsum.base import Node, Progress, Record, Side
from pathsum.base.errors import NotExactError
from pathsum.explorer.answers.prediction import THRESHOLD, position_of, token_of
from pathsum.explorer.answers.run import predictions, rank_telling
from pathsum.explorer.answers.without import direct_parts
from pathsum.explorer.params import TextParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import HeadId, Trace
from pathsum.model.edits import HeadOutput
from pathsum.model.forward import run_logits
from pathsum.paths.circuit import Circuit, CircuitEdge, find_circuit
from pathsum.paths.intervene.patching import without
from pathsum.paths.target import find_target

# Repeats that are tried, and the share of the first one's gain that another needs to be tried.
CANDIDATES, COMPARABLE = 4, 0.5
# A head looks at something if more than this share of its attention is there: most of it.
MOST = 0.5


@dataclass(frozen=True)
class MlpShare:
    """What MLPs write to the logit, the strongest of them, and all with the story's heads off."""

    total: float
    strongest: str
    strongest_share: float
    without_heads: float | None


@dataclass(frozen=True, eq=False)
class Story(Record, kind="page-story"):
    """One prediction of a text, and why.

    `token` was predicted at `position` with `probability`; where the same pair of tokens stood
    before, at `first`, with `probability_first` (None if the text repeats nothing). `heads` give
    most of their attention to what followed the earlier copies of the token at `position`, if
    `token` did: they do induction. `head` is the one of them whose removal costs most, or, if there
    are none, the head that adds most to the logit; it adds `share` of `total` directly, and looks
    at `source` with `weight`. It looks there because `writer` had written what it read at `wrote`
    into its key or query (`side`); with `writer` switched off, the weight and the probability are
    `weight_without` and `probability_without`. `mlps` is None for a model without MLPs.
    """

    position: int
    token: int
    probability: float
    first: int | None
    probability_first: float | None
    total: float
    heads: tuple[str, ...] = ()
    probability_without_heads: float | None = None
    head: str | None = None
    probability_without_head: float | None = None
    share: float = 0.0
    source: int | None = None
    weight: float = 0.0
    writer: str | None = None
    side: Side | None = None
    wrote: int | None = None
    weight_without: float | None = None
    probability_without: float | None = None
    mlps: MlpShare | None = None


@dataclass(frozen=True, kw_only=True)
class StoryParams(TextParams):
    """The position whose prediction is told; the most telling one, if that is left out."""

    position: int | None = None


def story(bench: Workbench, params: StoryParams) -> Story:
    """The prediction at a position, or of a repeated token that heads copy.

    Of the repeats that gain most, the one whose probability falls most without the heads that look
    at what followed before; the first of them if no head does.
    """
    found = bench.run(params)
    trace = found.trace
    probabilities = predictions(bench, params).next_log_prob.exp().tolist()
    ranked = rank_telling(found.ids, probabilities)
    if params.position is None:
        position, first = _most_telling(trace, probabilities, ranked)
    else:
        position = position_of(trace, params.position)
        first = dict(ranked)[position]
    return _Teller(trace, position, bench.progress).tell(first)


def _most_telling(
    trace: Trace, probabilities: Sequence[float], ranked: Sequence[tuple[int, int | None]]
) -> tuple[int, int | None]:
    gains = [
        (probabilities[position] - probabilities[first], position, first)
        for position, first in ranked[:CANDIDATES]
        if first is not None
    ]
    tried = [
        (position, first, heads)
        for gain, position, first in gains
        if gain >= COMPARABLE * gains[0][0]
        and (heads := _copying_heads(trace, position, token_of(trace, position, None)))
    ]
    if not tried:
        return ranked[0]
    places = [position for position, _, _ in tried]
    after = _probabilities_without(trace, [heads for _, _, heads in tried], places)
    lost = [probabilities[place] - left for place, left in zip(places, after, strict=True)]
    best = lost.index(max(lost))
    return tried[best][0], tried[best][1]


def _followers(trace: Trace, position: int, token: int) -> list[int]:
    """Where `token` stood before, right after an earlier copy of the token at `position`."""
    ids = trace.tokens[0].tolist()
    return [
        place
        for place in range(1, position + 1)
        if ids[place] == token and ids[place - 1] == ids[position]
    ]


def _copying_heads(trace: Trace, position: int, token: int) -> list[HeadId]:
    """The heads that give most of their attention to what followed before, the strongest first."""
    sources = _followers(trace, position, token)
    weights = {
        HeadId(layer, head): weight
        for layer, patterns in enumerate(trace.patterns)
        for head, weight in enumerate(patterns[0, :, position, sources].sum(-1).tolist())
    }
    return sorted(
        (head for head, weight in weights.items() if weight > MOST), key=lambda head: -weights[head]
    )


@torch.no_grad()
def _probabilities_without(
    trace: Trace, groups: Sequence[Sequence[HeadId]], positions: Sequence[int]
) -> list[float]:
    """The probability of the token at each position, in a run without each group of heads."""
    prefix = trace.prefix(0, max(positions) + 1)
    rows, length = len(groups), prefix.tokens.shape[1]
    edits: list[HeadOutput] = []
    for head in dict.fromkeys(head for group in groups for head in group):
        nothing = torch.zeros_like(prefix.head_z(head)).expand(rows, -1, -1)
        off = torch.tensor([head in group for group in groups], device=prefix.tokens.device)
        edits.append(HeadOutput(head, nothing, off[:, None].expand(rows, length)))
    at = torch.tensor(positions, device=prefix.tokens.device)
    logits = run_logits(prefix.weights, prefix.tokens, edits, prefix, at)[:, 0]
    tokens = torch.tensor([token_of(trace, position, None) for position in positions])
    return logits.softmax(-1).gather(-1, tokens.to(logits.device)[:, None])[:, 0].tolist()


class _Teller:
    """What is told of the prediction at one position of a run."""

    def __init__(self, trace: Trace, position: int, progress: Progress) -> None:
        self.trace, self.position, self.progress = trace, position, progress
        self.token = token_of(trace, position, None)
        self.heads = _copying_heads(trace, position, self.token)

    def tell(self, first: int | None) -> Story:
        found = self._circuit()
        logits = self.trace.logits_at(self.position)[0]
        head, after_head = self._lead(found)
        source, weight = self._looks_at(found, head)
        placed = None if found is None else self._placed_by(found, head, source)
        writer = None if placed is None else placed.edge.writer.head
        cut = None if writer is None else self._without([writer])
        after_heads, mlps = self._without_heads(after_head)
        return Story(
            position=self.position,
            token=self.token,
            probability=float(logits.softmax(-1)[self.token]),
            first=first,
            probability_first=None if first is None else self._probability(self.trace, first),
            total=float(logits[self.token] - logits.mean()) if found is None else found.total,
            heads=tuple(map(str, self.heads)),
            probability_without_heads=after_heads,
            head=None if head is None else str(head),
            probability_without_head=after_head,
            share=0.0 if head is None else self._parts(self.trace)[str(head)],
            source=source,
            weight=weight,
            writer=None if writer is None else str(writer),
            side=None if placed is None else placed.kind,
            wrote=None if placed is None or found is None else _wrote(found, placed),
            weight_without=None if cut is None else self._weight(cut, head, source),
            probability_without=None if cut is None else self._probability(cut, self.position),
            mlps=mlps,
        )

    def _circuit(self) -> Circuit | None:
        try:
            return find_circuit(
                self.trace,
                self.position,
                self.token,
                threshold=THRESHOLD,
                effects=False,
                progress=self.progress,
            )
        except NotExactError:
            return None

    def _lead(self, found: Circuit | None) -> tuple[HeadId | None, float | None]:
        """The head that is told of, and the probability without it."""
        if self.heads:
            groups = [[head] for head in self.heads]
            after = _probabilities_without(self.trace, groups, [self.position] * len(groups))
            least = min(after)
            return self.heads[after.index(least)], least
        head = None if found is None else _top_head(found)
        if head is None:
            return None, None
        return head, _probabilities_without(self.trace, [[head]], [self.position])[0]

    def _looks_at(self, found: Circuit | None, head: HeadId | None) -> tuple[int | None, float]:
        if head is None:
            return None, 0.0
        if self.heads:
            row = self.trace.patterns[head.layer][0, head.head, self.position]
            source = max(
                _followers(self.trace, self.position, self.token), key=lambda at: float(row[at])
            )
            return source, float(row[source])
        assert found is not None
        attended = found.node(Node(head, self.position)).attended
        return (None, 0.0) if attended is None else (attended.source, attended.weight)

    def _placed_by(
        self, found: Circuit, head: HeadId | None, source: int | None
    ) -> CircuitEdge | None:
        """The lower head that moved a head's attention most, by its key there or by its query."""
        if head is None or source is None:
            return None
        reader = Node(head, self.position)
        edges = [
            edge
            for side, at in ((Side.K, source), (Side.Q, self.position))
            for edge in found.inputs(reader, side)
            if edge.edge.writer.head and edge.edge.writer.position == at and edge.share > 0
        ]
        return edges[0] if edges else None

    def _without_heads(self, after_head: float | None) -> tuple[float | None, MlpShare | None]:
        """The probability without all the heads that copy, and what MLPs write then."""
        has_mlps = self.trace.model.config.mlp != "none"
        cut = self._without(self.heads) if self.heads and has_mlps else None
        if cut is not None:
            after: float | None = self._probability(cut, self.position)
        elif len(self.heads) > 1:
            after = _probabilities_without(self.trace, [self.heads], [self.position])[0]
        else:
            after = after_head if self.heads else None
        if not has_mlps:
            return after, None
        written = self._mlps(self.trace)
        strongest = max(written, key=lambda name: written[name])
        return after, MlpShare(
            total=sum(written.values()),
            strongest=strongest,
            strongest_share=written[strongest],
            without_heads=None if cut is None else sum(self._mlps(cut).values()),
        )

    def _without(self, heads: Sequence[HeadId]) -> Trace:
        return without(self.trace.prefix(0, self.position + 1), [str(head) for head in heads])

    def _parts(self, trace: Trace) -> dict[str, float]:
        target = find_target(trace, self.position, self.token, "mean")
        names, values = direct_parts(trace, target)
        return dict(zip(names, values.tolist(), strict=True))

    def _mlps(self, trace: Trace) -> dict[str, float]:
        return {name: value for name, value in self._parts(trace).items() if name[:3] == "mlp"}

    def _probability(self, trace: Trace, position: int) -> float:
        return float(trace.logits_at(position)[0].softmax(-1)[self.token])

    def _weight(self, trace: Trace, head: HeadId | None, source: int | None) -> float:
        assert head is not None
        assert source is not None
        return float(trace.patterns[head.layer][0, head.head, self.position, source])


def _top_head(found: Circuit) -> HeadId | None:
    """The head that raises the prediction most."""
    edges = found.inputs(Node("logits", found.position))
    return next(
        (head for edge in edges if (head := edge.edge.writer.head) and edge.share > 0), None
    )


def _wrote(found: Circuit, edge: CircuitEdge) -> int | None:
    """The position of what a head wrote there: the strongest of its values."""
    values = found.inputs(edge.edge.writer, Side.V)
    return values[0].edge.writer.position if values else None
