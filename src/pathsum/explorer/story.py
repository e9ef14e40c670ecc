"""`story`: the explanation of one prediction, as numbers and as a sentence.

`StoryBuilder` measures the numbers; `sentence_of` selects clauses from `WORDS` and fills them in.
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
from pathsum.explorer.answers import prediction
from pathsum.explorer.answers.model import shown_piece, token_label
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

# The number of repeats to compare, and the least gain of a repeat as a share of the largest gain;
# the share of the logit below which the sentence mentions the coverage of the circuit.
CANDIDATES, COMPARABLE, MIN_COVERAGE = 4, 0.5, 0.5
# The largest number of heads listed in the sentence, the longest quoted start of a word, and the
# number of strongest predictions among which the rival is searched.
MAX_HEADS, MAX_START, RIVALS = 8, 12, 10

WORDS: dict[str, str] = page_words("story")
"""The clauses of the sentence, with slots in braces (`slots_of`)."""


@dataclass(frozen=True)
class MlpShare:
    """The direct contribution of MLPs to the logit: all, the strongest, and without the heads."""

    total: float
    strongest: str
    strongest_share: float
    without_heads: float | None


@dataclass(frozen=True, eq=False)
class Story(Record, kind="page-story"):
    """The explanation of one prediction; `sentence` is the explanation in words.

    `token` is predicted at `position` with `probability`; `expected` is the most likely token.
    `rival` is the token to compare with: the most likely other token that occurs earlier in the
    text, among the strongest predictions that begin alike. `versus` is the token whose logit is
    subtracted, if any. If the pair of tokens occurred before, at `first`, the probability of
    `token` there was `probability_first`.

    `heads` are the induction heads: they attend mostly to `token` after earlier copies of the token
    at `position`. `head` is the induction head whose ablation costs most or, without induction
    heads, the head that adds most to the logit. It adds `share` of `total` directly, and attends to
    `source` with `weight`; `kind` is the kind of this attention (induction, sink). `reasons` are
    the parts of its query and key that explain the attention; `is_decomposed` is False if the
    attention matters too little. `writer` is the head that wrote the first reason, if any. Without
    `writer`, or without the first reason, the weight and the probability are `weight_without` and
    `probability_without`.

    `mlps` is None for a model without MLPs. `coverage` is the share of the logit that the circuit's
    edges carry, None if the model has no exact circuit.
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
    """A prediction as in `PredictionParams`; its default position is the most interesting one."""

    position: int | None = None
    token: int | None = None
    versus: str | int = "mean"


def story(session: Session, params: StoryParams) -> Story:
    """Explain the prediction at a position, by default of a repeated token that heads copy.

    The default is the repeat whose probability falls most when the heads that copy it are ablated,
    among the repeats with the largest gain.
    """
    trace, run = session.run(params).trace, answer_run(session, params)
    probabilities = run.next_prob.tolist()
    ranked = rank_by_interest(run.ids, probabilities)
    if params.position is None:
        position, first = _most_interesting(trace, probabilities, ranked)
    else:
        position = prediction.find_position(len(run.ids), params.position)
        first = dict(ranked)[position]
    token = prediction.find_target_token(trace, position, params.token)
    versus = prediction.find_versus(trace.model, params.versus)
    graph = None
    with suppress(NotExactError):
        graph = prediction.circuit_at(session, params, position, token, versus)
    result = StoryBuilder(trace, position, token, versus).build(first, graph)
    sentence = sentence_of(result, trace)
    if graph is not None and trace.model.config.mlp != "none":
        # The head and the tokens whose effect goes through MLPs.
        through = write_through(graph) if strongest_head(graph) is None else ()
        effects = _quoted(concat(through, write_tokens(graph)), trace)
        sentence = concat(sentence, " " if through else "", effects)
    return replace(result, sentence=sentence)


def _quoted(sentence: Sentence, trace: Trace) -> Sentence:
    """A sentence of a graph with its tokens quoted as in the story."""
    ids = trace.tokens[0].tolist()

    def quote(span: Span) -> Sentence:
        if span.kind != "token" or span.position is None:
            return (span,)
        label = token_label(trace.model, ids[span.position])
        return concat("“", replace(span, text=label), "”")

    return concat(*map(quote, sentence))


def _most_interesting(
    trace: Trace, probabilities: Sequence[float], ranked: Sequence[tuple[int, int | None]]
) -> tuple[int, int | None]:
    gains = [
        (probabilities[position] - probabilities[first], position, first)
        for position, first in ranked[:CANDIDATES]
        if first is not None
    ]
    repeats = {
        (position, first): heads
        for gain, position, first in gains
        if gain >= COMPARABLE * gains[0][0]
        and (heads := copying_heads(trace, position, prediction.find_target_token(trace, position)))
    }
    if not repeats:
        return ranked[0]
    positions = [position for position, _ in repeats]
    tokens = [prediction.find_target_token(trace, position) for position in positions]
    after = probabilities_without(trace, [*repeats.values()], positions, tokens)
    drops = [probabilities[at] - ablated for at, ablated in zip(positions, after, strict=True)]
    return [*repeats][drops.index(max(drops))]


class StoryBuilder:
    """Measures the numbers of a story."""

    def __init__(self, trace: Trace, position: int, token: int, versus: Versus) -> None:
        self.trace, self.position, self.token, self.versus = trace, position, token, versus
        self.target = find_target(trace, position, token, versus)

    def build(self, first: int | None, graph: Graph | None) -> Story:
        """The numbers of the story; `first` is the earlier position of the same pair of tokens."""
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
        shares = self._mlps(self.trace)
        rest = None if without_heads is None else sum(self._mlps(without_heads).values())
        strongest = max(shares, key=shares.__getitem__)
        return MlpShare(sum(shares.values()), strongest, shares[strongest], rest)

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
    previous = trace.tokens[0, : position + 1].tolist()

    def kind(token: int) -> tuple[bool, bool]:
        # The rival of a name is a name, although "the" may be likelier.
        first = shown_piece(trace.model, token).lstrip()[:1]
        return first.isalpha(), first.isupper()

    others = (each for each in likeliest if each != token and each in previous)
    return next((each for each in others if kind(each) == kind(token)), None)


def sentence_of(story: Story, trace: Trace) -> Sentence:
    """The story in words."""
    names = [*_clauses(story, trace.tokens[0].tolist())]
    if story.coverage is not None and story.coverage < MIN_COVERAGE:
        names.append("coverage")
    return fill("".join(WORDS[name] for name in names), **slots_of(story, trace))


def _clauses(story: Story, ids: list[int]) -> Iterator[str]:
    """The names of the clauses of a story, in order."""
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
        # If much of the attention remains without the first reason, it is only part of the reason.
        is_part = (story.weight_without or 0.0) > story.weight / 3
        yield from ("partly_because" if is_part else "because", "without_writer")
    elif len(story.heads) <= 1 or not is_induction:
        yield from (("no_reason",) if story.is_decomposed else ())
        yield "without_head"
    if is_induction:
        yield from mlps


def _mlp_clauses(story: Story) -> Iterator[str]:
    """The clauses about MLPs, if they write most of the logit, or one writes more than the head."""
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
    others = len(story.heads) - MAX_HEADS
    return {
        "before": _word_start([shown_piece(model, each) for each in ids[: story.position + 1]]),
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
            join_spans(map(head_span, story.heads[:MAX_HEADS])),
            f" and {others} more" if others > 0 else "",
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
    # A long string of letters is a row of random tokens, not a word.
    return "" if len(text) > MAX_START else text
