"""`story`: one prediction of a text and its explanation, as numbers and as a sentence.

`StoryBuilder` measures the numbers; `WORDS` holds the clauses of the sentence, and `sentence_of`
chooses and fills them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pathsum.base import Progress, Record
from pathsum.base.errors import NotExactError
from pathsum.base.sentence import (
    Sentence,
    Span,
    concat,
    fill,
    head_span,
    join_spans,
    percent,
    signed,
    strong,
)
from pathsum.base.site import Site
from pathsum.explorer.answers.model import shown_piece, token_label
from pathsum.explorer.answers.prediction import (
    THRESHOLD,
    direct_parts,
    find_position,
    find_target_token,
)
from pathsum.explorer.answers.text import predictions, rank_by_interest
from pathsum.explorer.params import TextParams
from pathsum.explorer.session import Session
from pathsum.model import HeadId, Trace
from pathsum.model.edit import Edit
from pathsum.model.forward import run_logits
from pathsum.paths.circuit import find_circuit
from pathsum.paths.graph import Graph
from pathsum.paths.patching import without
from pathsum.paths.reasons import (
    AttentionKind,
    Reason,
    attention_kind,
    find_reasons,
    write_reasons,
)
from pathsum.paths.target import find_target

# Repeats that are tried, and the share of the first one's gain that another needs to be tried.
CANDIDATES, COMPARABLE = 4, 0.5
# A head attends to something if more than this share of its attention is there: most of it.
MOST = 0.5
# Heads that the sentence names one by one, and the longest beginning of a word that it quotes.
MOST_NAMED, LONGEST_START = 8, 12

WORDS = {
    "opening": "After “{before}{token}” the model gives “{predicted}” {probability}",
    "first": "; {probability_first} the first time",
    "first_rises": ", up from {probability_first} the first time",
    "stop": ".",
    "induction": " This is {induction}: ",
    "one_copies": "{head} attends to “{source}”, which followed “{token}” before",
    "comma": ",",
    "many_copy": "{count} heads attend mostly to “{source}”, which followed “{token}” before: "
    "{heads}. Without any one of them “{predicted}” keeps at least {least} ({head} matters most); "
    "without all {count} it would {without_heads}.",
    "attends_there": " {head} attends there",
    "adds_most": " {head} adds most to its logit ({share} of {total}) and attends to “{source}”",
    "adds_most_of_heads": " Of the heads, {head} adds most ({share}); it attends to “{source}”",
    "itself": " itself",
    "sink": ", the attention sink",
    "because": " because {reasons}",
    "partly_because": " partly because {reasons}",
    "no_reason": "; no single part of its key or query explains why",
    "without_writer": ". Without {writer_name}, its attention there would be {weight_without} "
    "instead of {weight}, and “{predicted}” would {without_writer}.",
    "without_head": ". Without {head_name}, “{predicted}” would {without_head}.",
    "mlps_most": " MLPs write most of the logit: {mlps} of {total}, {mlp} alone {mlp_share}",
    "mlps": " MLPs write {mlps} of {total} of the logit, {mlp} alone {mlp_share}",
    "mlps_without_head": "; without {head_name} they would write {mlps_left}",
    "mlps_without_heads": "; without these heads they would write {mlps_left}",
}
"""The clauses of the sentence; a slot in braces is a number, a token or a head (`slots_of`)."""


@dataclass(frozen=True)
class MlpShare:
    """The MLPs' direct contribution to the logit: in total, of the strongest, and without heads."""

    total: float
    strongest: str
    strongest_share: float
    without_heads: float | None


@dataclass(frozen=True, eq=False)
class Story(Record, kind="page-story"):
    """One prediction of a text, and its explanation; `sentence` is the explanation in words.

    `token` was predicted at `position` with `probability`; where the same pair of tokens stood
    before, at `first`, with `probability_first` (None if the text repeats nothing). `heads` give
    most of their attention to what followed the earlier copies of the token at `position`, if
    `token` did: they do induction. `head` is the one whose ablation costs most among them, or, if
    there are none, the head that adds most to the logit. It adds `share` of `total` directly, and
    attends to `source` with `weight`; `kind` says whether by induction or as to a sink. `reasons`
    are the parts of its key and query that decide this. `writer` is the head that wrote the first
    of them, if a head did. With `writer` switched off, or without the first reason, the weight and
    the probability are `weight_without` and `probability_without`. `mlps` is None for a model
    without MLPs.
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
    kind: AttentionKind | None = None
    reasons: tuple[Reason, ...] = ()
    writer: str | None = None
    weight_without: float | None = None
    probability_without: float | None = None
    mlps: MlpShare | None = None
    sentence: Sentence = ()


@dataclass(frozen=True, kw_only=True)
class StoryParams(TextParams):
    """The position of the prediction; by default the most interesting one."""

    position: int | None = None


def story(session: Session, params: StoryParams) -> Story:
    """The prediction at a position, or of a repeated token that heads copy.

    Of the repeats that gain most, the one whose probability falls most without the heads that
    attend to what followed before; the first of them if no head does.
    """
    found = session.run(params)
    trace = found.trace
    probabilities = predictions(session, params).next_log_prob.exp().tolist()
    ranked = rank_by_interest(found.ids, probabilities)
    if params.position is None:
        position, first = _most_interesting(trace, probabilities, ranked)
    else:
        position = find_position(len(found.ids), params.position)
        first = dict(ranked)[position]
    numbers = StoryBuilder(trace, position, session.progress).build(first)
    return replace(numbers, sentence=sentence_of(numbers, trace))


def _most_interesting(
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
        and (heads := _copying_heads(trace, position, find_target_token(trace, position)))
    ]
    if not tried:
        return ranked[0]
    places = [position for position, _, _ in tried]
    after = _probabilities_without(trace, [heads for _, _, heads in tried], places)
    lost = [probabilities[place] - left for place, left in zip(places, after, strict=True)]
    best = lost.index(max(lost))
    return tried[best][0], tried[best][1]


def _followers(trace: Trace, position: int, token: int) -> list[int]:
    """Earlier positions of `token` right after a copy of the token at `position`."""
    ids = trace.tokens[0].tolist()
    return [
        place
        for place in range(1, position + 1)
        if ids[place] == token and ids[place - 1] == ids[position]
    ]


def _copying_heads(trace: Trace, position: int, token: int) -> list[HeadId]:
    """The heads that attend mostly to the earlier followers, the strongest first."""
    sources = _followers(trace, position, token)
    weights = {
        HeadId(layer, head): weight
        for layer, patterns in enumerate(trace.patterns)
        for head, weight in enumerate(patterns[0, :, position, sources].sum(-1).tolist())
        if weight > MOST
    }
    return sorted(
        (
            head
            for head in weights
            if any(attention_kind(trace, head, position, at) == "induction" for at in sources)
        ),
        key=lambda head: -weights[head],
    )


@torch.no_grad()
def _probabilities_without(
    trace: Trace, groups: Sequence[Sequence[HeadId]], positions: Sequence[int]
) -> list[float]:
    """The probability of the token at each position, in a run without each group of heads."""
    prefix = trace.prefix(0, max(positions) + 1)
    zero = prefix.weights.W_E.new_zeros(trace.model.config.d_head)
    edits = [
        Edit(Site(head, value="z"), zero, row) for row, group in enumerate(groups) for head in group
    ]
    at = torch.tensor(positions, device=prefix.tokens.device)
    logits = run_logits(prefix.weights, prefix.tokens, edits, at, copies=len(groups))[:, 0]
    tokens = torch.tensor([find_target_token(trace, position) for position in positions])
    return logits.softmax(-1).gather(-1, tokens.to(logits.device)[:, None])[:, 0].tolist()


class StoryBuilder:
    """Measures the numbers of the story about one position of a run."""

    def __init__(self, trace: Trace, position: int, progress: Progress) -> None:
        self.trace, self.position, self.progress = trace, position, progress
        self.token = find_target_token(trace, position)
        self.heads = _copying_heads(trace, position, self.token)

    def build(self, first: int | None) -> Story:
        """The numbers of the story; `first` is where the same pair of tokens stood before."""
        found = self._circuit()
        logits = self.trace.logits_at(self.position)[0]
        head, after_head = self._lead(found)
        source, weight = self._attended(found, head)
        reasons = () if found is None or head is None else self._reasons(found, head, source)
        writer = reasons[0].edge.start.head if reasons else None
        after = self._after(reasons, writer, head, source)
        kind = None
        if head is not None and source is not None:
            kind = attention_kind(self.trace, head, self.position, source)
        without_heads = self._without(self.heads) if self.heads else None
        return Story(
            position=self.position,
            token=self.token,
            probability=float(logits.softmax(-1)[self.token]),
            first=first,
            probability_first=self._probability(self.trace, first),
            total=float(logits[self.token] - logits.mean()) if found is None else found.total,
            heads=tuple(map(str, self.heads)),
            probability_without_heads=self._probability(without_heads, self.position),
            head=None if head is None else str(head),
            probability_without_head=after_head,
            share=0.0 if head is None else self._parts(self.trace)[str(head)],
            source=source,
            weight=weight,
            kind=kind,
            reasons=reasons,
            writer=None if writer is None else str(writer),
            weight_without=after[0],
            probability_without=after[1],
            mlps=self._mlp_share(without_heads),
        )

    def _circuit(self) -> Graph | None:
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

    def _lead(self, found: Graph | None) -> tuple[HeadId | None, float | None]:
        """The head that the story is about, and the probability without it."""
        if self.heads:
            groups = [[head] for head in self.heads]
            after = _probabilities_without(self.trace, groups, [self.position] * len(groups))
            least = min(after)
            return self.heads[after.index(least)], least
        head = None if found is None else _top_head(found)
        if head is None:
            return None, None
        return head, _probabilities_without(self.trace, [[head]], [self.position])[0]

    def _attended(self, found: Graph | None, head: HeadId | None) -> tuple[int | None, float]:
        if head is None:
            return None, 0.0
        if self.heads:
            row = self.trace.patterns[head.layer][0, head.head, self.position]
            source = max(
                _followers(self.trace, self.position, self.token), key=lambda at: float(row[at])
            )
            return source, float(row[source])
        assert found is not None
        attended = found.node(Site(head, at=self.position)).attended
        return (None, 0.0) if attended is None else (attended.source, attended.weight)

    def _reasons(self, found: Graph, head: HeadId, source: int | None) -> tuple[Reason, ...]:
        """The reasons for a head's attention, if the circuit explains the same source."""
        node = Site(head, at=self.position)
        here = [one.attended for one in found.nodes if one.node == node and one.attended]
        return find_reasons(found, node) if here and here[0].source == source else ()

    def _after(
        self,
        reasons: Sequence[Reason],
        writer: HeadId | None,
        head: HeadId | None,
        source: int | None,
    ) -> tuple[float | None, float | None]:
        """Attention and probability without the first reason, or without the head that wrote it."""
        if writer is None:
            return (reasons[0].weight, reasons[0].probability) if reasons else (None, None)
        cut = self._without([writer])
        return self._weight(cut, head, source), self._probability(cut, self.position)

    def _mlp_share(self, without_heads: Trace | None) -> MlpShare | None:
        if self.trace.model.config.mlp == "none":
            return None
        written = self._mlps(self.trace)
        left = None if without_heads is None else sum(self._mlps(without_heads).values())
        strongest = max(written, key=lambda name: written[name])
        return MlpShare(
            total=sum(written.values()),
            strongest=strongest,
            strongest_share=written[strongest],
            without_heads=left,
        )

    def _without(self, heads: Sequence[HeadId]) -> Trace:
        return without(self.trace.prefix(0, self.position + 1), [str(head) for head in heads])

    def _parts(self, trace: Trace) -> dict[str, float]:
        target = find_target(trace, self.position, self.token, "mean")
        return direct_parts(trace, target)

    def _mlps(self, trace: Trace) -> dict[str, float]:
        return {name: value for name, value in self._parts(trace).items() if name[:3] == "mlp"}

    def _probability(self, trace: Trace | None, position: int | None) -> float | None:
        if trace is None or position is None:
            return None
        return float(trace.logits_at(position)[0].softmax(-1)[self.token])

    def _weight(self, trace: Trace | None, head: HeadId | None, source: int | None) -> float | None:
        if trace is None or head is None or source is None:
            return None
        return float(trace.patterns[head.layer][0, head.head, self.position, source])


def _top_head(found: Graph) -> HeadId | None:
    """The head that raises the prediction most."""
    edges = found.inputs(found.top)
    return next((head for edge in edges if (head := edge.edge.start.head) and edge.share > 0), None)


def sentence_of(story: Story, trace: Trace) -> Sentence:
    """The story in words."""
    clauses = "".join(WORDS[name] for name in _clauses(story, trace.tokens[0].tolist()))
    return fill(clauses, **slots_of(story, trace))


def _clauses(story: Story, ids: list[int]) -> Iterator[str]:
    """The names of the clauses that tell a story, in order."""
    yield "opening"
    if story.probability_first is not None:
        yield "first_rises" if story.probability > 2 * story.probability_first else "first"
    yield "stop"
    mlps, source = list(_mlp_clauses(story)), story.source
    if story.head is None or source is None:
        yield from mlps
        return
    is_induction = story.kind == "induction" and ids[source] == story.token
    if not is_induction:
        yield from (*mlps, "adds_most_of_heads" if mlps else "adds_most")
        if source == story.position:
            yield "itself"
        if story.kind == "sink":
            yield "sink"
    elif len(story.heads) > 1:
        yield from ("induction", "many_copy")
        if story.reasons:
            yield "attends_there"
    else:
        yield from ("induction", "one_copies")
        if story.reasons:
            yield "comma"
    if story.reasons:
        # If most of the attention stays without the first reason, it is not the whole reason.
        is_part = (story.weight_without or 0.0) > story.weight / 3
        yield from ("partly_because" if is_part else "because", "without_writer")
    elif len(story.heads) <= 1 or not is_induction:
        yield from ("no_reason", "without_head")
    if is_induction:
        yield from mlps


def _mlp_clauses(story: Story) -> Iterator[str]:
    """The MLPs' part, if they write most of the logit, or one of them more than the head."""
    mlps = story.mlps
    if mlps is None or not (mlps.total > story.total / 2 or mlps.strongest_share > story.share):
        return
    yield "mlps_most" if mlps.total > story.total / 2 else "mlps"
    # Without the heads, the MLPs above them read less.
    if mlps.without_heads is not None and mlps.total - mlps.without_heads > mlps.total / 10:
        yield "mlps_without_heads" if len(story.heads) > 1 else "mlps_without_head"
    yield "stop"


def slots_of(story: Story, trace: Trace) -> dict[str, str | Span | Sentence]:
    """The slots of `WORDS` for a story."""
    model, ids = trace.model, trace.tokens[0].tolist()

    def token(position: int | None) -> Span:
        label = "" if position is None else token_label(model, ids[position])
        return Span(label, "token", position=position)

    def share(value: float | None) -> str:
        return "" if value is None else percent(value)

    def after(value: float | None) -> Sentence:
        drops = value is None or value < story.probability
        return concat("drop to " if drops else "rise to ", strong(share(value)))

    def quoted(position: int) -> Sentence:
        return concat("“", token(position), "”")

    head, mlps = story.head or "", story.mlps
    left = len(story.heads) - MOST_NAMED
    return {
        "before": _word_start([shown_piece(model, one) for one in ids[: story.position + 1]]),
        "token": token(story.position),
        "predicted": Span(token_label(model, story.token), "token"),
        "probability": strong(percent(story.probability)),
        "probability_first": share(story.probability_first),
        "induction": strong("induction"),
        "head": head_span(head),
        "head_name": head,
        "source": Span(token(story.source).text, "cell", head, story.position, story.source),
        "count": str(len(story.heads)),
        "heads": concat(
            join_spans(map(head_span, story.heads[:MOST_NAMED])),
            f" and {left} more" if left > 0 else "",
        ),
        "least": share(story.probability_without_head),
        "without_head": after(story.probability_without_head),
        "without_heads": after(story.probability_without_heads),
        "without_writer": after(story.probability_without),
        "share": signed(story.share, 1),
        "total": signed(story.total, 1),
        "writer_name": story.writer or "this part",
        "reasons": write_reasons(story.reasons, quoted, cuts=False),
        "weight": percent(story.weight),
        "weight_without": share(story.weight_without),
        "mlps": "" if mlps is None else signed(mlps.total, 1),
        "mlp": "" if mlps is None else mlps.strongest,
        "mlp_share": "" if mlps is None else signed(mlps.strongest_share, 1),
        "mlps_left": "" if mlps is None else signed(mlps.without_heads or 0.0, 1),
    }


def _word_start(pieces: list[str]) -> str:
    """The beginning of the word that the last piece continues."""
    start = len(pieces) - 1
    while start > 0 and pieces[start][:1].isalpha() and pieces[start - 1][-1:].isalpha():
        start -= 1
    text = "".join(pieces[start:-1]).lstrip()
    # Random tokens in a row are no word.
    return "" if len(text) > LONGEST_START else text
