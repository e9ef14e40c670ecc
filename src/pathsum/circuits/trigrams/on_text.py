"""What skip-trigrams do for a model on text: how often they fire, and what they are worth in loss.

At a place where the destination comes after the source, a head adds to the logit of `out`, from
that source and with its attention in place,

    c = Σ A[destination, source] · OV[source, out]      W_U centered, scales of the run

over the earlier copies of the source. Without it the loss there changes by

    c + log(1 − p + p e^−c)     where `out` comes next, p its probability
        log(1 − p + p e^−c)     where it does not, which is never above 0 for c > 0

A skip-trigram fires where c ≥ 0.1 in the right place. What it is worth is the sum of these changes
over all places, right and wrong, divided by the number of predictions: frequency × effect. On a
model of several layers only what goes straight from embeddings to logits is counted.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.circuits.tokens.ov import token_ov
from pathsum.circuits.tokens.qk import token_qk
from pathsum.circuits.tokens.token import hidden_note, joined, token_of
from pathsum.circuits.trigrams.bug_cost import bug_cost
from pathsum.circuits.trigrams.bugs import find_bugs
from pathsum.circuits.trigrams.record import PatternShare, Rank, SkipTrigram, SkipTrigrams
from pathsum.circuits.trigrams.triple import (
    Ids,
    Pattern,
    Triple,
    gather_evidence,
    pattern_of,
    unscaled_effect,
)
from pathsum.model import Head, HeadId, Model, Path, Trace
from pathsum.model.folding import unembed_through
from pathsum.model.sequences import Split, TextOrTokens, split
from pathsum.result import Progress
from pathsum.text.shards import spaced

FIRES = 0.1
"""Logits that a head must add for a skip-trigram to count as firing."""
TEXT_SEQUENCES = 32
"""Sequences of the text that are read at most, evenly spaced."""
CANDIDATES_PER_RESULT = 8
AROUND = 3
"""Tokens of the text that are quoted before a destination."""
CLASSIFIED = 5000
"""Skip-trigrams, by their gain where they are right, whose patterns are counted."""


@dataclass(frozen=True)
class Occurrence:
    """One place in the text: the sequence, and the positions of source and destination."""

    sequence: int
    source: int
    destination: int


@dataclass(frozen=True, eq=False)
class TextEffect:
    """One skip-trigram of one head on text; `worth` in nats per prediction, right and wrong."""

    head: HeadId
    ids: Ids
    fires: int
    worth: float
    occurrence: Occurrence


@dataclass(frozen=True, eq=False)
class OnText:
    """Skip-trigrams by what they are worth; `covered` is the classified ones' share of all gain."""

    effects: tuple[TextEffect, ...]
    classes: tuple[PatternShare, ...]
    covered: float
    predictions: int


@torch.no_grad()
def effects_on_text(
    model: Model,
    heads: Sequence[Head],
    sequences: Sequence[Int[Tensor, " _"]],
    k: int,
    shown: Tensor,
    progress: Progress,
) -> OnText:
    """The k skip-trigrams worth most, among tokens that may be `shown`.

    Found by their gain where they are right, then measured wherever their antecedent occurs.
    """
    gathered = _Gains()
    predictions = 0
    for number, tokens in enumerate(sequences):
        progress(number, 2 * len(sequences), "skip-trigrams on text")
        predictions += len(tokens) - 1
        trace = model.trace(tokens[None])
        for head in heads:
            gathered.add(head.id, number, *_right_places(trace, head, shown))
    candidates = gathered.best(CANDIDATES_PER_RESULT * k)
    worth: dict[tuple[HeadId, Ids], float] = defaultdict(float)
    for number, tokens in enumerate(sequences):
        progress(len(sequences) + number, 2 * len(sequences), "skip-trigrams on text")
        _add_worth(model.trace(tokens[None]), candidates, worth)
    progress(1, 1, "skip-trigrams on text")
    effects = [
        TextEffect(
            head=head,
            ids=ids,
            fires=gathered.fires[head, ids],
            worth=worth[head, ids] / max(predictions, 1),
            occurrence=gathered.place[head, ids],
        )
        for head, ids in candidates
    ]
    effects = sorted((one for one in effects if one.worth > 0), key=lambda one: -one.worth)
    classes, covered = _classes(model, gathered)
    return OnText(tuple(effects[:k]), classes, covered, predictions)


def text_rows(
    model: Model, text: Sequence[Int[Tensor, "_ _"]], most: int = TEXT_SEQUENCES
) -> list[Int[Tensor, " _"]]:
    """The sequences of a text that are read, cut to the model's context."""
    rows = [row for part in text for row in part]
    return [rows[place][: model.config.n_ctx] for place in spaced(len(rows), most)]


@dataclass(frozen=True, eq=False)
class _ReadText:
    """A text for ranking: the sequences ranked on, those not read, and its two parts for bugs."""

    rows: list[Int[Tensor, " _"]]
    unread: tuple[Int[Tensor, "_ _"], ...]
    parts: Split

    @classmethod
    def of(cls, model: Model, corpus: TextOrTokens, most: int) -> "_ReadText":
        parts = split(model, corpus)
        held_out = model.held_out
        if held_out is None or corpus is not held_out:
            return cls(text_rows(model, parts.held_out, most), parts.counted, parts)
        # No part of it was trained on, so all of it can be read.
        read = torch.zeros(len(held_out), dtype=torch.bool)
        read[spaced(len(read), most)] = True
        unread = () if bool(read.all()) else (held_out[~read],)
        return cls(text_rows(model, [held_out], most), unread, parts)


def _scaled_pattern(trace: Trace, head: HeadId) -> Float[Tensor, "dest src"]:
    """What a value is multiplied by on its way to the logits, scales included."""
    return Path("embed", (head,)).pattern(trace)[0]


def _right_places(
    trace: Trace, head: Head, shown: Tensor
) -> tuple[Tensor, Float[Tensor, " found"], Float[Tensor, " found"]]:
    """(source, destination, out, position, source's position), c and gain, where out comes next."""
    tokens, weights = trace.tokens[0], trace.model.weights
    after = tokens[1:]
    value = weights.W_E[tokens] @ head.W_V
    effect = value @ unembed_through(weights, head.W_O)[:, after]  # [source, destination]
    each = (_scaled_pattern(trace, head.id)[:-1] * effect.mT).tril(-1)
    known, place = tokens.unique(return_inverse=True)
    # Earlier copies of one source act together.
    copies = torch.nn.functional.one_hot(place, len(known)).to(each)
    c = each @ copies
    p = trace.logits[0, :-1].softmax(-1).gather(1, after[:, None])
    gain = c + torch.log1p(p * torch.expm1(-c))
    allowed = shown.to(tokens.device)
    fires = (c >= FIRES) & allowed[known][None] & (allowed[tokens[:-1]] & allowed[after])[:, None]
    at, which = fires.nonzero().T
    places = torch.arange(len(tokens), device=at.device)
    # The last copy before the destination.
    before = (place[None] == which[:, None]) & (places < at[:, None])
    source_at = before.long().cumsum(1).argmax(1)
    rows = torch.stack((known[which], tokens[at], after[at], at, source_at), 1)
    return rows, c[at, which], gain[at, which]


class _Gains:
    """Gains where skip-trigrams are right, summed over the text."""

    def __init__(self) -> None:
        self.gain: dict[tuple[HeadId, Ids], float] = defaultdict(float)
        self.fires: dict[tuple[HeadId, Ids], int] = defaultdict(int)
        self.place: dict[tuple[HeadId, Ids], Occurrence] = {}
        self._largest: dict[tuple[HeadId, Ids], float] = {}

    def add(
        self, head: HeadId, number: int, rows: Tensor, c: Tensor, gain: Float[Tensor, " found"]
    ) -> None:
        for (s, d, o, at, source_at), added, worth in zip(
            rows.tolist(), c.tolist(), gain.tolist(), strict=True
        ):
            key = (head, (s, d, o))
            self.gain[key] += worth
            self.fires[key] += 1
            if added > self._largest.get(key, 0.0):
                self._largest[key] = added
                self.place[key] = Occurrence(number, source_at, at)

    def best(self, count: int) -> list[tuple[HeadId, Ids]]:
        return sorted(self.gain, key=lambda key: -self.gain[key])[:count]


def _add_worth(
    trace: Trace,
    candidates: Sequence[tuple[HeadId, Ids]],
    worth: dict[tuple[HeadId, Ids], float],
) -> None:
    """What each candidate is worth on one sequence, in nats, wherever its antecedent occurs."""
    tokens = trace.tokens[0]
    log_p = trace.logits[0, :-1].double().log_softmax(-1)
    patterns: dict[HeadId, Tensor] = {}
    present = set(tokens.tolist())
    for name, (source, destination, out) in candidates:
        if source not in present or destination not in present:
            continue
        head = trace.model.head(name)
        if name not in patterns:
            patterns[name] = _scaled_pattern(trace, name)
        here = (tokens[:-1] == destination).nonzero()[:, 0]
        earlier = torch.arange(len(tokens), device=here.device)[None] < here[:, None]
        from_source = (patterns[name][here] * ((tokens == source)[None] & earlier)).sum(-1)
        c = from_source.double() * float(unscaled_effect(head, source, out))
        change = torch.log1p(log_p[here, out].exp() * torch.expm1(-c))
        worth[name, (source, destination, out)] += float(
            (change + torch.where(tokens[here + 1] == out, c, 0.0)).sum()
        )


def _classes(model: Model, gathered: _Gains) -> tuple[tuple[PatternShare, ...], float]:
    """Shares of the gain by pattern, over the strongest skip-trigrams, and their share of all."""
    total = sum(gathered.gain.values())
    strongest = gathered.best(CLASSIFIED)
    counts: dict[Pattern, int] = defaultdict(int)
    sums: dict[Pattern, float] = defaultdict(float)
    for key in strongest:
        pattern = pattern_of(model.tokenizer, *key[1])
        counts[pattern] += 1
        sums[pattern] += gathered.gain[key]
    covered = sum(sums.values())
    if covered <= 0:
        return (), 0.0
    ranked = sorted(sums, key=lambda pattern: -sums[pattern])
    shares = tuple(PatternShare(each, counts[each], sums[each] / covered) for each in ranked)
    return shares, covered / total


@torch.no_grad()
def ranked_on_text(
    model: Model,
    heads: list[Head],
    k: int,
    corpus: TextOrTokens,
    common: Bool[Tensor, " vocab"],
    rare: int,
    sequences: int,
    progress: Progress,
) -> SkipTrigrams:
    """Skip-trigrams by what they are worth on text, variants in one row."""
    text = _ReadText.of(model, corpus, sequences)
    shown = common.clone()
    shown[list(model.token_pool(rare).excluded)] = False
    # More than are shown, because variants share a row.
    found = effects_on_text(model, heads, text.rows, 3 * k, shown, progress)
    groups: dict[tuple[str, ...], list[TextEffect]] = {}
    for effect in found.effects:
        groups.setdefault(_group(model, effect), []).append(effect)
    ranked = sorted(groups.values(), key=lambda group: -sum(one.worth for one in group))[:k]
    if not ranked:
        return SkipTrigrams((), (), None, _silence(found.predictions), Rank.TEXT, found.classes)
    triples = [Triple(one.head, *one.ids, 0.0, 0.0, 0.0) for one in found.effects[:k]]
    search = find_bugs(model, triples, text.parts.counted, common=common, progress=progress)
    bugs = {(bug.head, bug.source.id, bug.destination.id, bug.out.id): bug for bug in search.bugs}
    named = [group[0].ids for group in ranked]
    evidence = gather_evidence(text.unread, named, progress=progress) if text.unread else {}
    records = tuple(
        replace(
            _text_record(model, group, text.rows),
            bug=bugs.get((group[0].head, *group[0].ids)),
            evidence=evidence.get(group[0].ids),
        )
        for group in ranked
    )
    note = joined(
        (
            f"{len(text.rows)} sequences with {found.predictions} predictions",
            f"patterns: of the strongest {CLASSIFIED}, with {found.covered:.0%} of the gain"
            if found.classes
            else "",
            "" if text.unread else "no lift: every sequence was ranked on",
            "layers above 0: straight from the embedding" if model.config.n_layers > 1 else "",
            *(hidden_note(common, rare), search.note),
        )
    )
    cost = bug_cost(model, search.bugs, text.parts.held_out, progress=progress)
    return SkipTrigrams(records, tuple(search.bugs), cost, note, Rank.TEXT, found.classes)


def _silence(predictions: int) -> str:
    return (
        f"no skip-trigram fires: nowhere in {predictions} predictions does a head add {FIRES} to "
        "the logit of what comes next, from one source, and gain by it in total; rank='weights' "
        "lists the strongest in the weights"
    )


def _group(model: Model, effect: TextEffect) -> tuple[str, ...]:
    """What triples that differ by space or case have in common."""
    texts = [model.token_text(token) for token in effect.ids]
    if model.tokenizer is not None:
        plain = [model.tokenizer.text(token) for token in effect.ids]
        texts = [text.strip().casefold() or text for text in plain]
    return (effect.head, *texts)


def _text_record(
    model: Model, group: list[TextEffect], rows: Sequence[Int[Tensor, " pos"]]
) -> SkipTrigram:
    best = group[0]
    source, destination, out = (token_of(model, token) for token in best.ids)
    s, d, o = (torch.tensor([token]) for token in best.ids)
    others = (
        " … ".join(map(model.token_text, one.ids[:2])) + f" → {model.token_text(one.ids[2])}"
        for one in group[1:]
    )
    return SkipTrigram(
        head=best.head,
        source=source,
        destination=destination,
        out=out,
        attention=float(token_qk(model, best.head).entries(d, s)),
        effect=float(token_ov(model, best.head).entries(s, o)),
        score=sum(one.worth for one in group),
        pattern=pattern_of(model.tokenizer, *best.ids),
        bug=None,
        evidence=None,
        fires=sum(one.fires for one in group),
        variants=tuple(others),
        occurrence=_quoted(model, rows[best.occurrence.sequence], best.occurrence),
    )


def _quoted(model: Model, tokens: Int[Tensor, " pos"], at: Occurrence) -> str:
    """The source with what is around it, an ellipsis, and the destination with what comes next."""

    def words(first: int, last: int) -> str:
        return "".join(map(model.token_text, tokens[max(first, 0) : last].tolist()))

    after = words(at.destination + 1, at.destination + 2)
    if at.destination - at.source <= AROUND + 2:
        return f"{words(at.source - 1, at.destination + 1)}→{after}"
    before = words(at.source - 1, at.source + 2)
    return f"{before} … {words(at.destination - AROUND + 1, at.destination + 1)}→{after}"
