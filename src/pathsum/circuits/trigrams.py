"""Skip-trigrams `[source] … [destination] → [out]`, ranked by loss saved on text or by weights.

On text they are ranked by the loss that they save (`trigram_text`), and variants that differ only
in space or case share a row. From weights alone the strongest are found exactly. A head scores
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

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

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
from pathsum.circuits import token_basis, trigram_text
from pathsum.circuits.qk_ov import note_on_weights, require_trigrams, token_ov, token_qk
from pathsum.circuits.token_basis import Token, common_tokens, join_notes
from pathsum.circuits.trigram_bugs import (
    Bug,
    BugCost,
    Bugs,
    Triple,
    bug_cost,
    find_bugs,
    source_weights,
)
from pathsum.circuits.trigram_text import PatternShare, SourceGain, TextEffect, TriplePlace
from pathsum.model import Head, HeadId, HeadName, Model
from pathsum.model.sequences import TextOrTokens, require_text, split_corpus
from pathsum.text.trigrams import Evidence, Ids, Pattern, gather_evidence, pattern_of

TEXT_SEQUENCES = 32
"""Evenly spaced sequences of the text used for the ranking, at most."""
BUGS_SHOWN = 10
"""Bugs listed below the table, at most."""
SOURCES_SHOWN = 12
"""Source words listed below the table, at most."""


class Rank(StrEnum):
    """The ranking of skip-trigrams: by their effect on text, or from weights alone."""

    TEXT = "text"
    WEIGHTS = "weights"


@dataclass(frozen=True, eq=False)
class SkipTrigram(Record, kind="skip-trigram"):
    """One `[source] … [destination] → [out]` of one head.

    `bug` is set if the triple is known to be a cross term that two other triples of the head force.
    `evidence` counts it in the held-out part of the corpus or, if triples are ranked on text, in
    sequences that the ranking did not use. In a ranking on text, `score` is the loss that a triple
    saves, in nats per prediction, `fires` how often it raises the right token, `variants` are
    merged triples that differ only in space or case, and `occurrence` quotes the text at `place`.
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
        if self.rank is Rank.WEIGHTS:
            legend = "score = QK (attention) · OV (effect) · p(source)^0.1"
            if any(triple.evidence is not None for triple in self.triples):
                legend += "; n, lift: antecedents in held-out text, out's rate over the bigram's"
        else:
            legend = (
                "score: rise of the loss without it, in nats per prediction, over right and wrong "
                "positions; fires: positions where it adds 0.1 or more to the logit of the next "
                "token; n, lift: antecedents, and out's rate over the bigram's, in sequences not "
                "ranked on"
            )
        return join_notes((legend, "" if self.cost is None else str(self.cost), self.note))

    def classes_table(self) -> Table:
        """One row per pattern: its share of the gain of skip-trigrams where they are right."""
        return rows_table(self.classes, "by pattern", row=PatternShare)

    def sources_table(self) -> Table:
        """The paper's table: one row per source word, with a place in the text."""
        return rows_table(self.sources[:SOURCES_SHOWN], "by source word", row=SourceGain)

    def __rich__(self) -> RenderableType:
        tables = [self.to_table()]
        tables += [self.classes_table()] if self.classes else []
        tables += [self.sources_table()] if self.sources else []
        # The strongest, two of each source: bugs of one source often differ only in space.
        counts, bugs = Counter[tuple[HeadId, int]](), list[Bug]()
        for bug in sorted(self.bugs, key=lambda bug: -bug.score):
            counts[bug.head, bug.source.id] += 1
            bugs += [bug] if counts[bug.head, bug.source.id] <= 2 else []
        tables += [Bugs(tuple(bugs[:BUGS_SHOWN])).to_table()] if bugs else []
        return stacked(*tables)


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
    """The strongest skip-trigrams of one or all heads, over the whole vocabulary.

    Args:
        model: The model.
        head: A label or pair, by default all heads.
        k: The number of skip-trigrams, 50 by default. The ranking does not depend on k.
        corpus: A text, sequences of token ids or a corpus, by default the held-out text that the
            model comes with. With a corpus, each triple carries its evidence in text, bugs are
            separated from correct triples by their lift, and their cost in loss is measured.
        rank: "text", the loss that they save on text, or "weights"; by default "text" if there is
            any.
        offset: On a rotary model ranked by weights, the offset of QK; by default an average.
        sequences: The largest number of sequences for the ranking on text, evenly spaced.
        progress: Called as the work proceeds.

    Returns:
        The skip-trigrams, strongest first, with their patterns, classes and bugs.

    Example:
        >>> from pathsum.model import construct
        >>> model = construct.skip_trigrams([("keep", "in", "mind"), ("keep", "at", "bay")])
        >>> for triple in skip_trigrams(model, k=2):
        ...     print(triple.head, triple)
        L0H0 keep … in → mind
        L0H1 keep … at → bay

    The ranking by weights is exact: streaming finds the destination that attends most to each
    source, and then the largest entries of a full OV circuit whose rows are scaled by that
    attention. On text, the 5,000 that gain most where they are right are measured, and evidence is
    counted on other sequences, because triples selected on a text are biased toward a lift there.
    Tokens that are rare in training text (`model.token_pool().in_tables`) are hidden.
    """
    require_trigrams(model, "a skip-trigram")
    common = common_tokens(model)
    text = model.held_out if corpus is None else corpus
    default = Rank.WEIGHTS if text is None else Rank.TEXT
    rank = default if rank is None else parse_option(Rank, rank, "rank")
    if rank is Rank.TEXT and offset is not None:
        raise InputError(
            f"offset={offset} chooses a QK circuit of the weights, but the ranking on text uses "
            "the attention of the run; leave it out, or use rank='weights'"
        )
    parse_count(sequences, "sequences", "sequences")
    k = token_basis.resolve_k(k, 50, int(common.sum()) ** 2, "pairs of source and out")
    heads = list(model.heads) if head is None else [model.head(head)]
    if rank is Rank.TEXT:
        text = require_text(model, text)
        return _rank_on_text(model, heads, k, text, common, sequences, progress)
    return _rank_by_weights(model, heads, k, corpus, common, offset, progress)


def _rank_by_weights(
    model: Model,
    heads: list[Head],
    k: int,
    corpus: TextOrTokens | None,
    common: Bool[Tensor, " vocab"],
    offset: int | None,
    progress: Progress,
) -> SkipTrigrams:
    """The k strongest triples of the heads, one per (source, out), with evidence in a corpus."""
    candidates: list[Triple] = []
    for index, head in enumerate(heads):
        progress(index, len(heads), f"skip-trigrams of {head.label}")
        candidates += _strongest(head, k, common, offset)
    progress(len(heads), len(heads), "skip-trigrams")
    by_pair: dict[tuple[int, int], Triple] = {}
    for triple in sorted(candidates, key=lambda triple: -triple.score):
        by_pair.setdefault((triple.tokens[0], triple.tokens[2]), triple)
    triples = list(by_pair.values())[:k]
    split = None if corpus is None else split_corpus(model, corpus)
    counted, held_out = (split.train, split.held_out) if split else (None, None)
    sources = [(triple.head, triple.tokens[0]) for triple in triples]
    by_ids, undecided = find_bugs(
        model, sources, counted, common=common, offset=offset, progress=progress
    )
    bugs = tuple(by_ids.values())
    return SkipTrigrams(
        triples=tuple(_records(model, triples, by_ids, held_out, progress)),
        bugs=bugs,
        cost=None if held_out is None else bug_cost(model, bugs, held_out, progress=progress),
        note=join_notes((undecided, note_on_weights(model, heads, offset, common))),
    )


def _records(
    model: Model,
    triples: Sequence[Triple],
    bugs: dict[tuple[HeadId, Ids], Bug],
    text: Sequence[Int[Tensor, "_ _"]] | None,
    progress: Progress,
) -> Iterator[SkipTrigram]:
    """The records of triples, with their patterns, bugs and evidence in a text."""
    ids = [triple.tokens for triple in triples]
    evidence = {} if text is None else gather_evidence(text, ids, progress=progress)
    for head, ids, *numbers in triples:
        source, destination, out = (token_basis.token_of(model, token) for token in ids)
        attention, effect, score = numbers
        pattern, bug = pattern_of(model.tokenizer, *ids), bugs.get((head, ids))
        yield SkipTrigram(
            *(head, source, destination, out, attention, effect, score),
            *(pattern, bug, evidence.get(ids)),
        )


def _strongest(
    head: Head, k: int, common: Bool[Tensor, " vocab"], offset: int | None
) -> list[Triple]:
    """The triples of the k best (source, out) of one head among common tokens."""
    model = head.model
    ids = common.nonzero().squeeze(1).to(model.weights.device)
    qk = token_qk(model, head.id, offset=offset)
    # For each source the destination that attends most: the row maxima of the transpose.
    attention = extremes.argmax_rows(Factored(qk.B.mT[ids], qk.A[ids].mT))
    weight = attention.values.clamp(min=0) * source_weights(model).to(attention.values)[ids]
    ov = token_ov(model, head.id)
    top = extremes.topk(Factored(ov.A[ids] * weight[:, None], ov.B[:, ids]), k)
    positive = top.values > 0
    rows, columns = top.rows[positive], top.columns[positive]
    tokens = torch.stack((ids[rows], ids[attention.columns[rows]], ids[columns]), 1)
    effect = ov.entries(ids[rows], ids[columns])
    numbers = torch.stack((attention.values[rows], effect, top.values[positive]), 1)
    pairs = zip(tokens.tolist(), numbers.tolist(), strict=True)
    return [Triple(head.label, (s, d, o), *scores) for (s, d, o), scores in pairs]


def _rank_on_text(
    model: Model,
    heads: list[Head],
    k: int,
    corpus: TextOrTokens,
    common: Bool[Tensor, " vocab"],
    sequences: int,
    progress: Progress,
) -> SkipTrigrams:
    """Skip-trigrams by the loss that they save on text, variants in one row."""
    rows, unread, split = trigram_text.split_for_ranking(model, corpus, sequences)
    mask = common.clone()
    mask[list(model.token_pool().excluded)] = False
    effects, classes, covered = trigram_text.effects_on_text(model, heads, rows, mask, progress)
    predictions = sum(len(tokens) - 1 for tokens in rows)
    groups = trigram_text.merge_variants(model, effects)
    if not groups:
        note = (
            f"no skip-trigram fires: nowhere in {predictions} predictions does a head add "
            f"{trigram_text.FIRES} to the logit of the next token from one source and gain in "
            "total; rank='weights' lists the strongest by weights"
        )
        return SkipTrigrams((), (), None, note, Rank.TEXT, classes)
    ranked = groups[:k]
    sources = [(effect.head, effect.ids[0]) for group in ranked for effect in group]
    bugs, undecided = find_bugs(model, sources, split.train, common=common, progress=progress)
    triples = _triples(model, ranked)
    records = _records(model, triples, bugs, unread or None, progress)
    patterns = (
        f"patterns: of the strongest {trigram_text.CANDIDATES}, with {covered:.0%} of the gain"
    )
    notes = (
        f"{len(rows)} sequences with {predictions} predictions",
        patterns if classes else "",
        "" if unread else "no lift: every sequence was ranked on",
        "layers above 0: straight from the embedding" if model.config.n_layers > 1 else "",
        *(token_basis.hidden_note(model, common), undecided),
    )
    return SkipTrigrams(
        triples=tuple(
            replace(
                record,
                fires=sum(effect.fires for effect in group),
                variants=tuple(trigram_text.triple_text(model, effect.ids) for effect in group[1:]),
                occurrence=trigram_text.quote(model, rows, group[0].occurrence),
                place=trigram_text.place_of(rows, group[0].occurrence),
            )
            for record, group in zip(records, ranked, strict=True)
        ),
        bugs=tuple(bugs.values()),
        cost=bug_cost(model, tuple(bugs.values()), split.held_out, progress=progress),
        note=join_notes(notes),
        rank=Rank.TEXT,
        classes=classes,
        sources=trigram_text.gains_by_source(model, rows, groups),
    )


def _triples(model: Model, groups: Sequence[list[TextEffect]]) -> list[Triple]:
    """The strongest triple of each group, with its QK and OV and the loss that the group saves."""
    heads = dict.fromkeys(group[0].head for group in groups)
    circuits = {head: (token_qk(model, head), token_ov(model, head)) for head in heads}
    triples: list[Triple] = []
    for group in groups:
        head, ids = group[0].head, group[0].ids
        qk, ov = circuits[head]
        s, d, o = (torch.tensor([token]) for token in ids)
        saved = sum(effect.saved for effect in group)
        triples.append(Triple(head, ids, float(qk.entries(d, s)), float(ov.entries(s, o)), saved))
    return triples
