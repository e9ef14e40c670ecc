"""`story`: one prediction of a text and its explanation, as numbers and as a sentence.

`StoryBuilder` measures the numbers; `WORDS` holds the clauses of the sentence, and `sentence_of`
chooses and fills them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import Tensor

from pathsum.base import Record
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
from pathsum.explorer.answers.model import shown_piece, token_label
from pathsum.explorer.answers.prediction import (
    circuit_at,
    find_position,
    find_target_token,
    find_versus,
)
from pathsum.explorer.answers.text import answer_run, rank_by_interest
from pathsum.explorer.params import TextParams, page_words
from pathsum.explorer.session import Session
from pathsum.model import HeadId, Trace
from pathsum.paths.graph import Graph
from pathsum.paths.graph_text import write_through, write_tokens
from pathsum.paths.lead import (
    AttentionKind,
    Lead,
    copying_heads,
    find_lead,
    probabilities_without,
    strongest_head,
)
from pathsum.paths.logit_effects import direct_parts
from pathsum.paths.patching import without
from pathsum.paths.reasons import Reason, write_reasons
from pathsum.paths.target import PredictionRun, Versus, find_target

# Repeats that are tried, and the share of the first one's gain that another needs to be tried.
CANDIDATES, COMPARABLE = 4, 0.5
# Heads that the sentence names one by one, and the longest beginning of a word that it quotes.
MOST_NAMED, LONGEST_START = 8, 12
# Strongest predictions among which a rival from the text is looked for.
RIVALS = 10

WORDS: dict[str, str] = page_words("story")
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

    `token` is predicted at `position` with `probability`; `expected` is the likeliest token, and
    `rival` the one to compare `token` with: the likeliest other one that stands in the text before,
    among the strongest predictions that begin alike. `versus` is the token whose logit is
    subtracted, None if it is none's. Where the same pair of tokens stood before, at `first`,
    `token` had `probability_first` (None if the text repeats nothing).
    `heads` give most of their attention to what followed the earlier copies of the token at
    `position`, if `token` did: they do induction. `head` is the one whose ablation costs most among
    them, or, if there are none, the head that adds most to the logit. It adds `share` of `total`
    directly, and attends to `source` with `weight`; `kind` says whether by induction or as to a
    sink. `reasons` are the parts of its key and query that decide this; `is_decomposed` is False if
    its attention matters too little for that. `writer` is the head that wrote the first reason,
    if a head did. With `writer` switched off, or without the first reason, the weight and the
    probability are `weight_without` and `probability_without`. `mlps` is None for a model without
    MLPs, and `coverage`, the share of the logit that the circuit's edges carry, if the model has no
    exact circuit.
    """

    position: int
    token: int
    expected: int
    rival: int | None
    versus: int | None
    probability: float
    first: int | None
    probability_first: float | None
    total: float
    coverage: float | None = None
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
    is_decomposed: bool = True
    mlps: MlpShare | None = None
    sentence: Sentence = ()


@dataclass(frozen=True, kw_only=True)
class StoryParams(TextParams):
    """The position of the prediction, by default the most interesting one, and the token.

    Without a token, the actual next one is explained, or at the end the model's prediction.
    `versus` is as in `PredictionParams`.
    """

    position: int | None = None
    token: int | None = None
    versus: str | int = "mean"


def story(session: Session, params: StoryParams) -> Story:
    """The prediction at a position, or of a repeated token that heads copy.

    Of the repeats that gain most, the one whose probability falls most without the heads that
    attend to what followed before; the first of them if no head does.
    """
    trace, run = session.run(params).trace, answer_run(session, params)
    probabilities = run.next_prob.tolist()
    ranked = rank_by_interest(run.ids, probabilities)
    if params.position is None:
        position, first = _most_interesting(trace, probabilities, ranked)
    else:
        position = find_position(len(run.ids), params.position)
        first = dict(ranked)[position]
    token = find_target_token(trace, position, params.token)
    versus = find_versus(trace.model, params.versus)
    graph = None
    with suppress(NotExactError):
        graph = circuit_at(session, params, position, token, versus)
    numbers = StoryBuilder(trace, position, token, versus).build(first, graph)
    sentence = sentence_of(numbers, trace)
    if graph is not None and trace.model.config.mlp != "none":
        # The head and the tokens that act through MLPs.
        through = write_through(graph) if strongest_head(graph) is None else ()
        sentence = concat(sentence, " " if through else "", through, write_tokens(graph))
    return replace(numbers, sentence=sentence)


def _most_interesting(
    trace: Trace, probabilities: Sequence[float], ranked: Sequence[tuple[int, int | None]]
) -> tuple[int, int | None]:
    gains = [
        (probabilities[position] - probabilities[first], position, first)
        for position, first in ranked[:CANDIDATES]
        if first is not None
    ]
    tried = {
        (position, first): heads
        for gain, position, first in gains
        if gain >= COMPARABLE * gains[0][0]
        and (heads := copying_heads(trace, position, find_target_token(trace, position)))
    }
    if not tried:
        return ranked[0]
    places = [position for position, _ in tried]
    tokens = [find_target_token(trace, position) for position in places]
    after = probabilities_without(trace, [*tried.values()], places, tokens)
    lost = [probabilities[place] - left for place, left in zip(places, after, strict=True)]
    return [*tried][lost.index(max(lost))]


class StoryBuilder:
    """Measures the numbers of the story about one position of a run."""

    def __init__(self, trace: Trace, position: int, token: int, versus: Versus) -> None:
        self.trace, self.position, self.token, self.versus = trace, position, token, versus
        self.target = find_target(trace, position, token, versus)

    def build(self, first: int | None, graph: Graph | None) -> Story:
        """The numbers of the story; `first` is where the same pair of tokens stood before."""
        run = PredictionRun(self.trace, self.target)
        lead = find_lead(run, None) if graph is None else graph.lead
        logits = self.trace.logits_at(self.position)[0]
        copying = () if lead is None else lead.copying
        without_heads = self._without(copying) if copying else None
        numbers = Story(
            position=self.position,
            token=self.token,
            expected=int(logits.argmax()),
            rival=_find_rival(self.trace, self.position, logits, self.token),
            versus=self.versus if isinstance(self.versus, int) else None,
            probability=float(logits.softmax(-1)[self.token]),
            first=first,
            probability_first=self._probability(self.trace, first),
            total=float(self.target.of_rows(logits[None])[0]) if graph is None else graph.total,
            coverage=None if graph is None else graph.coverage,
            heads=tuple(map(str, copying)),
            probability_without_heads=self._probability(without_heads, self.position),
            mlps=self._mlp_share(without_heads),
        )
        return numbers if lead is None else self._with_lead(numbers, lead)

    def _with_lead(self, numbers: Story, lead: Lead) -> Story:
        writer, weight, probability = None, None, None
        if lead.reasons:
            writer = lead.reasons[0].edge.start.head
            weight, probability = lead.reasons[0].weight, lead.reasons[0].probability
        if writer is not None and lead.source is not None:
            cut = self._without([writer])
            row = cut.patterns[lead.head.layer][0, lead.head.head, self.position]
            weight, probability = float(row[lead.source]), self._probability(cut, self.position)
        return replace(
            numbers,
            head=str(lead.head),
            probability_without_head=lead.probability,
            share=lead.share,
            source=lead.source,
            weight=lead.weight,
            kind=lead.kind,
            reasons=lead.reasons,
            writer=None if writer is None else str(writer),
            weight_without=weight,
            probability_without=probability,
            is_decomposed=not lead.note,
        )

    def _mlp_share(self, without_heads: Trace | None) -> MlpShare | None:
        if self.trace.model.config.mlp == "none":
            return None
        written = self._mlps(self.trace)
        left = None if without_heads is None else sum(self._mlps(without_heads).values())
        strongest = max(written, key=written.__getitem__)
        return MlpShare(sum(written.values()), strongest, written[strongest], left)

    def _without(self, heads: Sequence[HeadId]) -> Trace:
        return without(self.trace.prefix(0, self.position + 1), [str(head) for head in heads])

    def _mlps(self, trace: Trace) -> dict[str, float]:
        parts = direct_parts(trace, self.target)
        return {name: value for name, value in parts.items() if name.startswith("mlp")}

    def _probability(self, trace: Trace | None, position: int | None) -> float | None:
        if trace is None or position is None:
            return None
        return float(trace.logits_at(position)[0].softmax(-1)[self.token])


def _find_rival(trace: Trace, position: int, logits: Tensor, token: int) -> int | None:
    likeliest = logits.topk(min(RIVALS, len(logits))).indices.tolist()
    seen = trace.tokens[0, : position + 1].tolist()

    def kind(token: int) -> tuple[bool, bool]:
        # The rival of a name is a name, although "the" may be likelier.
        first = shown_piece(trace.model, token).lstrip()[:1]
        return first.isalpha(), first.isupper()

    others = (one for one in likeliest if one != token and one in seen)
    return next((one for one in others if kind(one) == kind(token)), None)


def sentence_of(story: Story, trace: Trace) -> Sentence:
    """The story in words."""
    names = [*_clauses(story, trace.tokens[0].tolist())]
    if story.coverage is not None and story.coverage < COMPARABLE:
        names.append("coverage")
    return fill("".join(WORDS[name] for name in names), **slots_of(story, trace))


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
        yield from (("no_reason",) if story.is_decomposed else ())
        yield "without_head"
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
    model, ids, versus = trace.model, trace.tokens[0].tolist(), story.versus

    def label(token: int) -> Span:
        return Span(token_label(model, token), "token")

    def token(position: int | None) -> Span:
        text = "" if position is None else token_label(model, ids[position])
        return Span(text, "token", position=position)

    def share(value: float | None) -> str:
        return "" if value is None else percent(value)

    def after(value: float | None) -> Sentence:
        drops = value is None or value < story.probability
        return concat("drop to " if drops else "rise to ", strong(share(value)))

    head, mlps = story.head or "", story.mlps or MlpShare(0.0, "", 0.0, None)
    left = len(story.heads) - MOST_NAMED
    return {
        "before": _word_start([shown_piece(model, one) for one in ids[: story.position + 1]]),
        "token": token(story.position),
        "predicted": label(story.token),
        "probability": strong(percent(story.probability)),
        "probability_first": share(story.probability_first),
        "logit": "logit" if versus is None else concat("lead over “", label(versus), "”"),
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
        "reasons": write_reasons(story.reasons, lambda at: concat("“", token(at), "”"), cuts=False),
        "weight": percent(story.weight),
        "weight_without": share(story.weight_without),
        "coverage": share(max(0.0, story.coverage or 0.0)),
        "mlps": signed(mlps.total, 1),
        "mlp": mlps.strongest,
        "mlp_share": signed(mlps.strongest_share, 1),
        "mlps_left": signed(mlps.without_heads or 0.0, 1),
    }


def _word_start(pieces: list[str]) -> str:
    """The beginning of the word that the last piece continues."""
    start = len(pieces) - 1
    while start > 0 and pieces[start][:1].isalpha() and pieces[start - 1][-1:].isalpha():
        start -= 1
    text = "".join(pieces[start:-1]).lstrip()
    # Random tokens in a row are no word.
    return "" if len(text) > LONGEST_START else text
