"""`circuit` and `story`: a prediction as a graph, and one prediction of a text in numbers."""

from dataclasses import dataclass

from pathsum.errors import NotExactError
from pathsum.explorer.answers.run import predictions, rank_telling
from pathsum.explorer.answers.why import WhyParams, find_versus, position_of, token_of
from pathsum.explorer.params import TextParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import HeadId, Trace
from pathsum.names import Node, Side
from pathsum.paths.circuit import Circuit, CircuitEdge, find_circuit
from pathsum.paths.intervene.patching import without
from pathsum.result import Progress, Record

# Edges from this share of the prediction on; the page shows the strongest first.
THRESHOLD = 0.02
# Repeats that are looked at for one that a head's attention explains.
CANDIDATES = 4
# One that gains less than this share of what the first of them gains is not told instead of it.
COMPARABLE = 0.5


def circuit(bench: Workbench, params: WhyParams) -> Circuit:
    """A prediction as a graph of V, Q and K edges, each with what cutting it costs."""
    trace = bench.run(params).trace
    position = position_of(trace, params.position)
    token = token_of(trace, position, params.token)
    versus = find_versus(trace.model, params.versus)
    return find_circuit(trace, position, token, versus, THRESHOLD, progress=bench.progress)


@dataclass(frozen=True, eq=False)
class Story(Record, kind="page-story"):
    """One prediction of a text, and why: numbers for one sentence.

    `token` was predicted at `position` with `probability`; where the same pair of tokens stood
    before, at `first`, with `probability_first` (None if the text repeats nothing). `head` adds
    most to its logit, looking at `source` with `weight`. It looks there because `writer` had
    written what it read at `wrote` into its key or query (`side`); with `writer` switched off, the
    weight and the probability are `weight_without` and `probability_without`.
    """

    position: int
    token: int
    probability: float
    first: int | None
    probability_first: float | None
    total: float
    head: str | None = None
    share: float = 0.0
    source: int | None = None
    weight: float = 0.0
    writer: str | None = None
    side: Side | None = None
    wrote: int | None = None
    weight_without: float | None = None
    probability_without: float | None = None


@dataclass(frozen=True, kw_only=True)
class StoryParams(TextParams):
    """The position whose prediction is told; the most telling one, if that is left out."""

    position: int | None = None


def story(bench: Workbench, params: StoryParams) -> Story:
    """The prediction at a position, or of the repeated token that gains most.

    Of several repeats that gain about as much, one that a composed head explains.
    """
    found = bench.run(params)
    trace = found.trace
    probabilities = predictions(bench, params).next_log_prob.exp().tolist()
    ranked = rank_telling(found.ids, probabilities)
    if params.position is not None:
        position = position_of(trace, params.position)
        return _story_at(trace, position, dict(ranked)[position], bench.progress)
    best: Story | None = None
    for position, first in ranked[:CANDIDATES]:
        if best is not None and (
            first is None
            or probabilities[position] - probabilities[first] < COMPARABLE * _gain(best)
        ):
            break
        found_story = _story_at(trace, position, first, bench.progress)
        if found_story.side is Side.K:
            return found_story
        best = best or found_story
    assert best is not None
    return best


def _gain(story: Story) -> float:
    """How much the probability has grown since the pair of tokens first stood there."""
    return story.probability - (story.probability_first or 0.0)


def _story_at(trace: Trace, position: int, first: int | None, progress: Progress) -> Story:
    token = token_of(trace, position, None)
    at_first = None if first is None else float(trace.logits_at(first)[0].softmax(-1)[token])
    try:
        found = find_circuit(
            trace, position, token, threshold=THRESHOLD, effects=False, progress=progress
        )
    except NotExactError:
        found = None
    logits = trace.logits_at(position)[0]
    probability = float(logits.softmax(-1)[token])
    top = None if found is None else _top_head(found)
    head = None if top is None else top.edge.writer.head
    if found is None or top is None or head is None:
        total = float(logits[token] - logits.mean())
        return Story(position, token, probability, first, at_first, total)
    attended = found.node(top.edge.writer).attended
    source = None if attended is None else attended.source
    placed = None if source is None else _placed_by(found, top.edge.writer, source)
    writer = None if placed is None else placed.edge.writer.head
    cut = None if writer is None else without(trace, [str(writer)])
    return Story(
        position=position,
        token=token,
        probability=probability,
        first=first,
        probability_first=at_first,
        total=found.total,
        head=str(head),
        share=top.share,
        source=source,
        weight=0.0 if attended is None else attended.weight,
        writer=None if writer is None else str(writer),
        side=None if placed is None else placed.kind,
        wrote=None if placed is None else _wrote(found, placed),
        weight_without=None if cut is None else _weight(cut, head, position, source),
        probability_without=None
        if cut is None
        else float(cut.logits_at(position)[0].softmax(-1)[token]),
    )


def _top_head(found: Circuit) -> CircuitEdge | None:
    """The head that raises the prediction most."""
    edges = found.inputs(Node("logits", found.position))
    return next((edge for edge in edges if edge.edge.writer.head and edge.share > 0), None)


def _placed_by(found: Circuit, reader: Node, source: int) -> CircuitEdge | None:
    """The lower head that moved a head's attention most, by its key there or by its query."""
    edges = [
        edge
        for side, at in ((Side.K, source), (Side.Q, reader.position))
        for edge in found.inputs(reader, side)
        if edge.edge.writer.head and edge.edge.writer.position == at and edge.share > 0
    ]
    return edges[0] if edges else None


def _wrote(found: Circuit, edge: CircuitEdge) -> int | None:
    """The position of what a head wrote there: the strongest of its values."""
    values = found.inputs(edge.edge.writer, Side.V)
    return values[0].edge.writer.position if values else None


def _weight(trace: Trace, head: HeadId, dest: int, source: int | None) -> float:
    assert source is not None
    return float(trace.patterns[head.layer][0, head.head, dest, source])
