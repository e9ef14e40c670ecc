"""Skip-trigrams `[source] … [destination] → [out]`, ranked by loss saved on text or by weights.

On text they are ranked by the loss that they save there (`trigram_text`), and those that differ
only in space or case share a row. From weights alone the strongest are found exactly. A head scores
f₁(destination, source) · f₂(source, out): QK determines which destinations attend to a source, and
OV determines which logits the source raises. The score is the product:

    score = attention · effect · p(source)^0.1

    attention   full QK, row centered: how much more this destination attends to this source than
                to the average one (softmax is taken for each destination)
    effect      full OV, W_U centered: how far the source lifts `out` above the mean logit
    p(source)   frequency of the source in training text; 1 for all tokens if unknown

and only triples with attention > 0 and effect > 0 count. OV does not depend on the destination, so
a list of triples would repeat each (source, out) for every destination that attends to the source.
Triples are therefore de-duplicated on (source, out), keeping the destination that attends most.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Int
from rich.console import RenderableType
from torch import Tensor

from pathsum.algebra import Factored, extremes
from pathsum.base import (
    Column,
    Progress,
    Record,
    Table,
    parse_option,
    silent,
    stacked,
    text_column,
    token_column,
)
from pathsum.base.errors import InputError
from pathsum.base.options import checked, parse_count
from pathsum.base.table import rows_table
from pathsum.circuits.qk_ov import rotary_note, token_ov, token_qk
from pathsum.circuits.token_basis import (
    Token,
    common_tokens,
    hidden_note,
    joined,
    logit_cap_note,
    require_heads,
    require_logit_edges,
    require_score_edges,
    resolve_k,
    score_cap_note,
    token_of,
)
from pathsum.circuits.trigram_bugs import (
    Bug,
    BugCost,
    Bugs,
    Triple,
    bug_cost,
    find_bugs,
    source_weights,
)
from pathsum.circuits.trigram_text import (
    CANDIDATES,
    FIRES,
    Evidence,
    Ids,
    Occurrence,
    Pattern,
    PatternShare,
    TextEffect,
    effects_on_text,
    gather_evidence,
    pattern_of,
    written,
)
from pathsum.model import Head, HeadId, HeadName, Model
from pathsum.model.sequences import (
    Split,
    TextOrTokens,
    require_causal,
    require_text,
    require_tokens_out,
    split_corpus,
)
from pathsum.text.shards import spaced

TEXT_SEQUENCES = 32
"""At most so many sequences of the text are read, evenly spaced."""
BUGS_SHOWN = 10
"""At most so many bugs are listed below the table."""
PER_SOURCE = 4
"""At most so many destinations and outs are named for each source."""
SOURCES, SOURCES_SHOWN = 50, 12
"""So many source words are kept, and so many are listed below the table."""
_WORD = re.compile(r"[^\W\d_]{3}")
AROUND = 3
"""Tokens of the text quoted before a destination."""


class Rank(StrEnum):
    """The ranking of skip-trigrams: by their effect on text, or from weights alone."""

    TEXT = "text"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class TriplePlace:
    """An occurrence in the text: the tokens up to the predicted one, and two positions in them."""

    ids: tuple[int, ...]
    source: int
    destination: int


@dataclass(frozen=True, eq=False)
class SkipTrigram(Record, kind="skip-trigram"):
    """One `[source] … [destination] → [out]` of one head.

    `bug` is set if the triple is known to be a cross term that two other triples of the head force.
    `evidence` counts it in text: in the held-out part of the corpus if one was given, or, if
    triples are ranked on text, in sequences that the ranking did not read. In a ranking on text,
    `score` is the loss that a triple saves, in nats per prediction, `fires` how often it raises the
    right token, `variants` are triples merged into this one that differ only in space or case, and
    `occurrence` quotes a place in the text, whose tokens are in `place`.
    """

    head: Annotated[HeadId, text_column("head")]
    source: Annotated[Token, token_column("source")]
    destination: Annotated[Token, token_column("dest")]
    out: Annotated[Token, token_column("out")]
    attention: Annotated[float, Column("QK", ".2f")]
    effect: Annotated[float, Column("OV", ".2f")]
    score: Annotated[float, Column("score", ".4g")]
    pattern: Annotated[Pattern, text_column("pattern")]
    bug: Annotated[Bug | None, text_column("bug", lambda _: "bug")]
    evidence: Annotated[
        Evidence | None,
        Column("n", read="antecedents"),
        Column("lift", ".1f", read="lift"),
    ]
    fires: Annotated[int | None, Column("fires")] = None
    variants: tuple[str, ...] = ()
    occurrence: Annotated[str | None, token_column("in the text")] = None
    place: TriplePlace | None = None

    def __str__(self) -> str:
        return f"{self.source} … {self.destination} → {self.out}"


@dataclass(frozen=True)
class SourceGain:
    """The skip-trigrams of one source in one head: the paper's table, as measured on text.

    Destinations and outs are those of the skip-trigrams that save loss, the most important first.
    `score` is the sum of their scores.
    """

    head: Annotated[HeadId, text_column("head")]
    source: Annotated[str, token_column("source")]
    destinations: Annotated[tuple[str, ...], token_column("destinations", "  ".join)]
    outs: Annotated[tuple[str, ...], token_column("outs", "  ".join)]
    score: Annotated[float, Column("score", ".4g")]
    occurrence: Annotated[str, token_column("in the text")]


@dataclass(frozen=True, eq=False)
class SkipTrigrams(Record, kind="skip-trigrams"):
    """The strongest skip-trigrams, best first; a sequence of `SkipTrigram`.

    In a ranking on text, `classes` is the share of each pattern in the total gain of skip-trigrams
    where they are right, and `sources` are the words whose skip-trigrams save most.
    """

    triples: tuple[SkipTrigram, ...]
    bugs: tuple[Bug, ...]
    cost: BugCost | None
    note: str
    rank: Rank = Rank.WEIGHTS
    classes: tuple[PatternShare, ...] = ()
    sources: tuple[SourceGain, ...] = ()

    def __len__(self) -> int:
        return len(self.triples)

    def __iter__(self) -> Iterator[SkipTrigram]:
        return iter(self.triples)

    def __getitem__(self, index: int) -> SkipTrigram:
        return self.triples[index]

    @property
    def table_note(self) -> str:
        """The definition of the score, the cost of the bugs, and notes."""
        seen = any(triple.evidence is not None for triple in self.triples)
        legend = "score = QK (attention) · OV (effect) · p(source)^0.1"
        legend += "; n, lift: antecedents in held-out text, out's rate over the bigram's" * seen
        if self.rank is Rank.TEXT:
            legend = (
                "score: rise of the loss without it, in nats per prediction, over right and wrong "
                "positions; fires: positions where it adds 0.1 or more to the logit of the next "
                "token; n, lift: antecedents, and out's rate over the bigram's, in sequences not "
                "ranked on"
            )
        return joined((legend, "" if self.cost is None else str(self.cost), self.note))

    def classes_table(self) -> Table:
        """One row per pattern: its share of the gain of skip-trigrams where they are right."""
        return rows_table(self.classes, "by pattern", row=PatternShare)

    def sources_table(self) -> Table:
        """The paper's table: one row per source word, with a place in the text."""
        return rows_table(self.sources[:SOURCES_SHOWN], "by source word", row=SourceGain)

    def __rich__(self) -> RenderableType:
        parts = [self.to_table()]
        parts += [self.classes_table()] if self.classes else []
        parts += [self.sources_table()] if self.sources else []
        # The strongest, two of each source: those of one source often differ only in space.
        seen, various = Counter[tuple[HeadId, int]](), list[Bug]()
        for bug in sorted(self.bugs, key=lambda bug: -bug.score):
            seen[bug.head, bug.source.id] += 1
            various += [bug] if seen[bug.head, bug.source.id] <= 2 else []
        parts += [Bugs(tuple(various[:BUGS_SHOWN])).to_table()] if various else []
        return stacked(*parts)


@torch.no_grad()
@checked
def skip_trigrams(
    model: Model,
    head: HeadName | None = None,
    k: int | None = None,
    *,
    corpus: TextOrTokens | None = None,
    rank: Rank | str | None = None,
    offset: int | None = None,
    sequences: int = TEXT_SEQUENCES,
    progress: Progress = silent,
) -> SkipTrigrams:
    """The k (default: 50) strongest skip-trigrams of one or all heads, over the whole vocabulary.

    `rank` is "text", the loss that they save on text (`corpus`, by default the held-out text that
    the model comes with), or "weights"; by default "text" if there is any. At most `sequences`
    sequences of the text are used for the ranking, evenly spaced. The ranking does not depend on k:
    the top k are the first k of the top 2k.

    >>> from pathsum.model import construct
    >>> model = construct.skip_trigrams([("keep", "in", "mind"), ("keep", "at", "bay")])
    >>> for triple in skip_trigrams(model, k=2):
    ...     print(triple.head, triple)
    L0H0 keep … in → mind
    L0H1 keep … at → bay

    The ranking by weights is exact: for each source the destination that attends most is found by
    streaming, which turns the score into a full OV circuit with scaled rows, whose largest entries
    are found by streaming too. It has fewer than k triples only if fewer have a positive score. On
    text, the 5,000 that gain most where they are right are measured. Tokens that are rare in
    training text (`model.token_pool().shown`) are hidden.

    With a `corpus` each triple carries its evidence in text, bugs are separated from correct
    triples by their lift, and their cost in loss is measured. One in five of its sequences is held
    out. Ranked by weights, the evidence is from the held-out part. Ranked on text, that part is
    used for the ranking, and the evidence is from other sequences, because triples selected for
    their effect on a text are biased toward a lift there.

    On a rotary model, QK is averaged over offsets or taken at `offset`. This applies only to the
    ranking by weights; on text, the attention of the run is used.

    On layers above 0 these are circuits of the direct path. Softmax makes sources compete, so even
    a one-layer model is more than a table of skip-trigrams.
    """
    check_trigrams(model, "a skip-trigram")
    common = common_tokens(model)
    text = model.held_out if corpus is None else corpus
    default = Rank.WEIGHTS if text is None else Rank.TEXT
    chosen = default if rank is None else parse_option(Rank, rank, "rank")
    if chosen is Rank.TEXT and offset is not None:
        raise InputError(
            f"offset={offset} chooses a QK circuit of the weights, but the ranking on text uses "
            "the attention of the run; leave it out, or use rank='weights'"
        )
    parse_count(sequences, "sequences", "sequences")
    k = resolve_k(k, 50, int(common.sum()) ** 2, "pairs of source and out")
    heads = list(model.heads) if head is None else [model.head(head)]
    if chosen is Rank.TEXT:
        read = require_text(model, text)
        return _ranked_on_text(model, heads, k, read, common, sequences, progress)
    return _ranked_by_weights(model, heads, k, corpus, common, offset, progress)


def check_trigrams(model: Model, what: str) -> None:
    """Raise an error if skip-trigrams cannot be read from this model's weights."""
    require_heads(model)
    require_score_edges(model, "skip-trigrams")
    require_logit_edges(model, "skip-trigrams")
    require_tokens_out(model, what)
    require_causal(model, what)


def note_on_weights(
    model: Model,
    heads: Sequence[Head],
    offset: int | None,
    common: Bool[Tensor, " vocab"],
) -> str:
    """A note on the terms that skip-trigrams from weights omit."""
    deeper = model.config.norm != "none" and any(each.id.layer > 0 for each in heads)
    return joined(
        (
            "layers above 0: direct path, scale omitted" if deeper else "",
            *(rotary_note(model, offset), score_cap_note(model.config)),
            *(logit_cap_note(model.config), hidden_note(model, common)),
        )
    )


def _ranked_by_weights(
    model: Model,
    heads: list[Head],
    k: int,
    corpus: TextOrTokens | None,
    common: Bool[Tensor, " vocab"],
    offset: int | None,
    progress: Progress,
) -> SkipTrigrams:
    """The k strongest triples of some heads, one per (source, out), with evidence in a corpus."""
    found: list[Triple] = []
    for index, each in enumerate(heads):
        progress(index, len(heads), f"skip-trigrams of {each.label}")
        found += _strongest(each, k, common, offset)
    progress(len(heads), len(heads), "skip-trigrams")
    kept: dict[tuple[int, int], Triple] = {}
    for triple in sorted(found, key=lambda triple: -triple.score):
        kept.setdefault((triple.tokens[0], triple.tokens[2]), triple)
    triples = list(kept.values())[:k]
    parts = None if corpus is None else split_corpus(model, corpus)
    counted = None if parts is None else parts.counted
    sources = [(triple.head, triple.tokens[0]) for triple in triples]
    bugs, undecided = find_bugs(
        model, sources, counted, common=common, offset=offset, progress=progress
    )
    ranked = [(triple, ()) for triple in triples]
    held_out = None if parts is None else parts.held_out
    result = _with_evidence(model, ranked, parts, held_out, bugs, progress)
    return SkipTrigrams(*result, joined((undecided, note_on_weights(model, heads, offset, common))))


def _with_evidence(
    model: Model,
    ranked: Sequence[tuple[Triple, tuple[Any, ...]]],
    parts: Split | None,
    text: Sequence[Int[Tensor, "_ _"]] | None,
    bugs: dict[tuple[HeadId, Ids], Bug],
    progress: Progress,
) -> tuple[tuple[SkipTrigram, ...], tuple[Bug, ...], BugCost | None]:
    """Triples, with the last fields of their records, as records; the bugs, and their cost."""
    named = [triple.tokens for triple, _ in ranked]
    evidence = {} if text is None else gather_evidence(text, named, progress=progress)
    records: list[SkipTrigram] = []
    for (head, ids, *numbers), on_text in ranked:
        source, destination, out = (token_of(model, token) for token in ids)
        attention, effect, score = numbers
        known = (pattern_of(model.tokenizer, *ids), bugs.get((head, ids)), evidence.get(ids))
        named_by = (head, source, destination, out, attention, effect, score)
        records.append(SkipTrigram(*named_by, *known, *on_text))
    every = tuple(bugs.values())
    cost = None if parts is None else bug_cost(model, every, parts.held_out, progress=progress)
    return tuple(records), every, cost


def _strongest(
    head: Head, k: int, common: Bool[Tensor, " vocab"], offset: int | None
) -> list[Triple]:
    """The triples of the k best (source, out) of one head among common tokens."""
    model = head.model
    ids = common.nonzero().squeeze(1).to(model.weights.device)
    qk = token_qk(model, head.id, offset=offset)
    # For each source the destination that attends most: the row maxima of the transpose.
    best = extremes.argmax_rows(Factored(qk.B.mT[ids], qk.A[ids].mT))
    weight = best.values.clamp(min=0) * source_weights(model).to(best.values)[ids]
    ov = token_ov(model, head.id)
    top = extremes.topk(Factored(ov.A[ids] * weight[:, None], ov.B[:, ids]), k)
    real = top.values > 0
    rows, columns = top.rows[real], top.columns[real]
    tokens = torch.stack((ids[rows], ids[best.columns[rows]], ids[columns]), 1)
    effect = ov.entries(ids[rows], ids[columns])
    numbers = torch.stack((best.values[rows], effect, top.values[real]), 1)
    return [
        Triple(head.label, (source, destination, out), *scored)
        for (source, destination, out), scored in zip(
            tokens.tolist(), numbers.tolist(), strict=True
        )
    ]


def text_rows(
    model: Model, text: Sequence[Int[Tensor, "_ _"]], most: int = TEXT_SEQUENCES
) -> list[Int[Tensor, " _"]]:
    """At most so many sequences of a text, evenly spaced and cut to the model's context."""
    rows = [row for part in text for row in part]
    return [rows[place][: model.config.n_ctx] for place in spaced(len(rows), most)]


def _read_text(
    model: Model, corpus: TextOrTokens, most: int
) -> tuple[list[Int[Tensor, " _"]], tuple[Int[Tensor, "_ _"], ...], Split]:
    """The sequences of a text used for ranking, those not read, and its two parts for bugs."""
    parts, held_out = split_corpus(model, corpus), model.held_out
    if held_out is None or corpus is not held_out:
        return text_rows(model, parts.held_out, most), parts.counted, parts
    # The model was not trained on its own held-out text, so all of that text can be used.
    unread = torch.ones(len(held_out), dtype=torch.bool)
    unread[spaced(len(unread), most)] = False
    left = (held_out[unread],) if bool(unread.any()) else ()
    return text_rows(model, [held_out], most), left, parts


def _ranked_on_text(
    model: Model,
    heads: list[Head],
    k: int,
    corpus: TextOrTokens,
    common: Bool[Tensor, " vocab"],
    sequences: int,
    progress: Progress,
) -> SkipTrigrams:
    """Skip-trigrams by the loss that they save on text, variants in one row."""
    rows, unread, parts = _read_text(model, corpus, sequences)
    shown = common.clone()
    shown[list(model.token_pool().excluded)] = False
    effects, classes, covered = effects_on_text(model, heads, rows, shown, progress)
    predictions = sum(len(tokens) - 1 for tokens in rows)
    groups: dict[tuple[str, ...], list[TextEffect]] = {}
    for effect in effects:
        groups.setdefault(_group(model, effect), []).append(effect)
    every = sorted(groups.values(), key=lambda group: -sum(one.saved for one in group))
    ranked = every[:k]
    if not ranked:
        silence = (
            f"no skip-trigram fires: nowhere in {predictions} predictions does a head add {FIRES} "
            "to the logit of the next token from one source and gain in total; rank='weights' "
            "lists the strongest by weights"
        )
        return SkipTrigrams((), (), None, silence, Rank.TEXT, classes)
    sources = [(one.head, one.ids[0]) for group in ranked for one in group]
    bugs, undecided = find_bugs(model, sources, parts.counted, common=common, progress=progress)
    heads_of = dict.fromkeys(group[0].head for group in ranked)
    circuits = {head: (token_qk(model, head), token_ov(model, head)) for head in heads_of}
    records: list[tuple[Triple, tuple[Any, ...]]] = []
    for group in ranked:
        at, (qk, ov) = group[0].occurrence, circuits[group[0].head]
        place = tuple(rows[at.sequence][: at.destination + 2].tolist()), at.source, at.destination
        variants = tuple(written(model, one.ids) for one in group[1:])
        fires, quoted = sum(one.fires for one in group), _quoted(model, rows, at)
        on_text = (fires, variants, quoted, TriplePlace(*place))
        s, d, o = (torch.tensor([token]) for token in group[0].ids)
        strength = float(qk.entries(d, s)), float(ov.entries(s, o))
        saved = sum(one.saved for one in group)
        records.append((Triple(group[0].head, group[0].ids, *strength, saved), on_text))
    note = joined(
        (
            f"{len(rows)} sequences with {predictions} predictions",
            f"patterns: of the strongest {CANDIDATES}, with {covered:.0%} of the gain"
            if classes
            else "",
            "" if unread else "no lift: every sequence was ranked on",
            "layers above 0: straight from the embedding" if model.config.n_layers > 1 else "",
            *(hidden_note(model, common), undecided),
        )
    )
    found = _with_evidence(model, records, parts, unread or None, bugs, progress)
    return SkipTrigrams(*found, note, Rank.TEXT, classes, _by_source(model, rows, every))


def _by_source(
    model: Model, rows: Sequence[Int[Tensor, " pos"]], groups: Sequence[list[TextEffect]]
) -> tuple[SourceGain, ...]:
    """Groups of skip-trigrams, best first, by head and source word; the best source first."""
    found: dict[tuple[str, ...], list[list[TextEffect]]] = {}
    for group in groups:
        if _WORD.search(model.token_text(group[0].ids[0])):
            found.setdefault(_group(model, group[0])[:2], []).append(group)
    gains: list[SourceGain] = []
    for same in found.values():
        first, saved = same[0][0], sum(each.saved for group in same for each in group)
        texts = zip(*(map(model.token_text, group[0].ids) for group in same), strict=True)
        source, to, outs = (tuple(dict.fromkeys(each))[:PER_SOURCE] for each in texts)
        quoted = _quoted(model, rows, first.occurrence)
        gains.append(SourceGain(first.head, source[0], to, outs, saved, quoted))
    return tuple(sorted(gains, key=lambda gain: -gain.score)[:SOURCES])


def _group(model: Model, effect: TextEffect) -> tuple[str, ...]:
    """A key shared by triples that differ only in spaces or case."""
    texts = [model.token_text(token) for token in effect.ids]
    if model.tokenizer is not None:
        plain = [model.tokenizer.text(token) for token in effect.ids]
        texts = [text.strip().casefold() or text for text in plain]
    return (effect.head, *texts)


def _quoted(model: Model, rows: Sequence[Int[Tensor, " pos"]], at: Occurrence) -> str:
    """The source with its neighbors, an ellipsis, and the destination with the next token."""

    def words(first: int, last: int) -> str:
        tokens = rows[at.sequence][max(first, 0) : last]
        return "".join(map(model.token_text, tokens.tolist()))

    after = words(at.destination + 1, at.destination + 2)
    if at.destination - at.source <= AROUND + 2:
        return f"{words(at.source - 1, at.destination + 1)}→{after}"
    before = words(at.source - 1, at.source + 2)
    return f"{before} … {words(at.destination - AROUND + 1, at.destination + 1)}→{after}"
