"""Skip-trigrams on text: their patterns, how often they occur, and how much loss they save.

The paper's patterns:

    [b] … [a] → [b]      the source itself is repeated
    [b] … [a] → [b']     a variant of the source follows
    [ab] … [a] → [b]     the source, one token, is repeated as two pieces
    [ab] … [a] → [b']    the same, with a variant of the second piece

and, where none of these fits, by the structure of code and prose:

    brackets             out closes what the source opened
    indentation          the source and out are white space
    word ending          out continues the word of the destination
    names                the source and out begin with a capital letter

The paper's last two are artifacts of tokenizers: " Ralph" is one token and "Ralph" is "R" + "alph".
Variants are two different tokens whose texts are equal after removing surrounding white space,
letter case, and one plural ending (s, es, or ies for y) of a stem of at least three letters.

Where the destination comes after the source, a head adds to the logit of `out`, from that source
and with its attention there,

    c = Σ A[destination, source] · OV[source, out]      W_U centered, scales of the run

over the earlier copies of the source. Without it the loss there changes by

    c + log(1 − p + p e^−c)     where `out` comes next, p its probability
        log(1 − p + p e^−c)     where it does not, which is never above 0 for c > 0

A skip-trigram fires where c ≥ 0.1 and `out` comes next. The loss that it saves is the sum of these
changes over all positions, right and wrong, divided by the number of predictions. On a model of
several layers only the path straight from embeddings to logits counts.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Column, Progress, computed_field, prose_column, silent, text_column
from pathsum.model import Head, HeadId, Model, Path
from pathsum.model.folding import unembed_through
from pathsum.text import Tokenizer

Ids = tuple[int, int, int]
"""Source, destination, out."""
SHORTEST_STEM = 3
FIRES = 0.1
"""Logits that a head must add for a skip-trigram to count as firing."""
CANDIDATES = 5000
"""The skip-trigrams with the largest gain where they are right are measured and classified."""
EXAMPLES = 3
"""So many examples are named for each pattern."""


class Pattern(StrEnum):
    """The paper's pattern that a skip-trigram belongs to, or its pattern by structure."""

    COPY = "[b]…[a]→[b]"
    COPY_VARIANT = "[b]…[a]→[b']"
    PIECES = "[ab]…[a]→[b]"
    PIECES_VARIANT = "[ab]…[a]→[b']"
    BRACKETS = "brackets"
    INDENTATION = "indentation"
    WORD_ENDING = "word ending"
    NAMES = "names"
    OTHER = "other"


def pattern_of(tokenizer: Tokenizer | None, source: int, destination: int, out: int) -> Pattern:
    """The pattern of a triple of tokens; without a tokenizer only a copy can be recognized.

    >>> words = Tokenizer.of_words(["Ralph", "R", "alph", "ralph", "cat"])
    >>> print(pattern_of(words, 0, 1, 2), pattern_of(words, 0, 4, 3), pattern_of(words, 0, 4, 0))
    [ab]…[a]→[b] [b]…[a]→[b'] [b]…[a]→[b]
    """
    if source == out:
        return Pattern.COPY
    if tokenizer is None:
        return Pattern.OTHER
    whole, first, second = (tokenizer.text(token) for token in (source, destination, out))
    if are_variants(whole, second):
        return Pattern.COPY_VARIANT
    rest = _rest(whole, first)
    if rest and second == rest:
        return Pattern.PIECES
    # A second piece with a space before it would be the next word.
    if rest and second == second.lstrip() and are_variants(rest, second):
        return Pattern.PIECES_VARIANT
    return _structure(whole, first, second, not tokenizer.has_whole_words)


_CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">", '"': '"', "'": "'", "`": "`"}


def _structure(source: str, destination: str, out: str, pieces: bool = True) -> Pattern:
    """The structural pattern of a skip-trigram, from the texts of its tokens.

    Tokens that are whole words, not `pieces`, do not continue one another.

    >>> print(_structure(" (", "x", ")"), _structure("\\n    ", ":", "\\n        "))
    brackets indentation
    >>> print(_structure("abc", " re", "turn"), _structure(" Mary", " and", " John"))
    word ending names
    """
    if any(_CLOSES[letter] in out for letter in source if letter in _CLOSES):
        return Pattern.BRACKETS
    if source.isspace() and out.isspace():
        return Pattern.INDENTATION
    if pieces and out[:1].isalpha() and destination[-1:].isalpha():
        return Pattern.WORD_ENDING
    if source.strip()[:1].isupper() and out.strip()[:1].isupper():
        return Pattern.NAMES
    return Pattern.OTHER


def are_variants(one: str, other: str) -> bool:
    """Whether two texts are the same word up to white space, case and a plural ending.

    >>> are_variants(" Keep", "keep"), are_variants("list", " lists"), are_variants("a", "as")
    (True, True, False)
    """
    if "\ufffd" in one + other:  # part of a character, which has no text to compare
        return False
    a, b = one.strip().casefold(), other.strip().casefold()
    if not a or not b:
        return False
    return a == b or _is_plural(a, b) or _is_plural(b, a)


def _is_plural(stem: str, word: str) -> bool:
    if len(stem) < SHORTEST_STEM or not stem.isalpha():
        return False
    return word in (stem + "s", stem + "es") or (stem[-1] == "y" and word == stem[:-1] + "ies")


def _rest(whole: str, first: str) -> str:
    """The rest of a token's text after its first piece; empty if it begins differently."""
    whole, first = whole.strip(), first.strip()
    if not first or "\ufffd" in whole + first or not whole.startswith(first):
        return ""
    return whole[len(first) :]


@dataclass(frozen=True)
class Evidence:
    """Counts of `[source] … [destination] → [out]` in a text.

    `antecedents` counts the places where the destination has the source somewhere before it in the
    sequence and a token after it, `followed` those where that token is `out`. `lift` is
    P(out | source … destination) / P(out | destination): above 1, the source helps.
    """

    antecedents: int
    followed: int
    bigram_rate: float

    @computed_field
    def rate(self) -> float:
        """P(out | source … destination); NaN where the antecedent never occurs."""
        return self.followed / self.antecedents if self.antecedents else math.nan

    @computed_field
    def lift(self) -> float:
        """P(out | source … destination) / P(out | destination)."""
        return self.rate / self.bigram_rate if self.bigram_rate > 0 else math.nan


def gather_evidence(
    parts: Sequence[Int[Tensor, "_ _"]], triples: Iterable[Ids], *, progress: Progress = silent
) -> dict[Ids, Evidence]:
    """Evidence for each triple, from one pass over the text for each distinct pair it names."""
    by_source = groupby(sorted(set(triples)), key=itemgetter(0))
    wanted = {source: list(same) for source, same in by_source}
    named = {ids for same in wanted.values() for ids in same}
    # Of each destination, with the source before it or not: next tokens, and those that are `out`.
    counts = dict.fromkeys(named, torch.zeros(4, dtype=torch.long))
    for index, part in enumerate(parts):
        progress(index, len(parts), "reading text")
        tokens, after = part[:, :-1], part[:, 1:].flatten()
        here = {one: (tokens == one).flatten().nonzero()[:, 0] for _, one, _ in named}
        for source, same in wanted.items():
            occurs = tokens == source
            before = ((occurs.cumsum(1) - occurs.long()) > 0).flatten()
            for ids in same:
                after_source, right = before[here[ids[1]]], after[here[ids[1]]] == ids[2]
                masks = (after_source, after_source & right, torch.ones_like(right), right)
                counts[ids] = counts[ids] + torch.stack(masks).sum(1).cpu()
    found: dict[Ids, Evidence] = {}
    for ids, numbers in counts.items():
        antecedents, followed, destinations, pairs = numbers.tolist()
        found[ids] = Evidence(antecedents, followed, pairs / max(destinations, 1))
    return found


@dataclass(frozen=True)
class Occurrence:
    """One position in the text: the sequence, and the positions of source and destination."""

    sequence: int
    source: int
    destination: int


@dataclass(frozen=True, eq=False)
class TextEffect:
    """One skip-trigram of one head on text, with the occurrence where its effect is largest.

    `gain` is the loss that it saves where it is right, in nats, and `saved` the loss that it saves
    over all positions, in nats per prediction.
    """

    head: HeadId
    ids: Ids
    gain: float
    fires: int
    occurrence: Occurrence
    saved: float = 0.0


@dataclass(frozen=True)
class PatternShare:
    """A pattern: how many of the strongest skip-trigrams have it, and its share of their gain.

    `examples` are those of different sources that save the most loss.
    """

    pattern: Annotated[Pattern, text_column("pattern")]
    count: Annotated[int, Column("triples")]
    share: Annotated[float, Column("share of gain", ".1%")]
    examples: Annotated[tuple[str, ...], prose_column("examples", ";  ".join)] = ()


class _Run:
    """A traced sequence: its distinct tokens `known`, and the index of each position's token.

    `total[d]` is log Σ exp of the logits at destination d.
    """

    def __init__(self, model: Model, tokens: Int[Tensor, " pos"]) -> None:
        self.trace = model.trace(tokens[None])
        self.tokens = self.trace.tokens[0]
        self.known, self.place = self.tokens.unique(return_inverse=True)
        self.total = self.trace.logits[0, :-1].logsumexp(-1).double()

    def pattern(self, head: HeadId) -> Float[Tensor, "dest src"]:
        """A head's pattern but its last row, times the normalization scales to the logits."""
        return Path("embed", (head,)).pattern(self.trace)[0, :-1]

    def log_p(self, at: Int[Tensor, " some"], out: Int[Tensor, " some"]) -> Float[Tensor, " some"]:
        """Log-probabilities of tokens after some positions, in float64."""
        return self.trace.logits[0, at, out].double() - self.total[at]

    def by_source(self, each: Float[Tensor, "dest src"]) -> Float[Tensor, "dest known"]:
        """Sums over the earlier copies of each token, which act together."""
        copies = torch.nn.functional.one_hot(self.place, len(self.known)).to(each)
        return each.tril(-1) @ copies


@torch.no_grad()
def effects_on_text(
    model: Model,
    heads: Sequence[Head],
    rows: Sequence[Int[Tensor, " _"]],
    shown: Tensor,
    progress: Progress,
) -> tuple[list[TextEffect], tuple[PatternShare, ...], float]:
    """Skip-trigrams that save loss, most first, among tokens that may be `shown`; their patterns.

    The `CANDIDATES` with the largest gain where they are right are measured wherever their
    antecedent occurs. The last number is their share of all gain.
    """
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    ovs = {head.id: unembed_through(model.weights, head.W_O) for head in heads}
    for number, tokens in enumerate(rows):
        progress(number, 2 * len(rows), "skip-trigrams on text")
        text = _Run(model, tokens)
        for index, head in enumerate(heads):
            ids, places, c, gain = _right_places(text, head, ovs[head.id], shown)
            where = torch.tensor([[index, number]]).expand(len(ids), -1)
            found.append((torch.cat((ids, where, places), 1), c, gain))
    gained, ranked = _ranked(found, heads, model.config.d_vocab) if found else (0.0, [])
    candidates = [_Candidates(head, ovs[head.id], ranked) for head in heads]
    for number, tokens in enumerate(rows):
        progress(len(rows) + number, 2 * len(rows), "skip-trigrams on text")
        text = _Run(model, tokens)
        for one in candidates:
            one.measure(text)
    progress(1, 1, "skip-trigrams on text")
    predictions = sum(len(tokens) - 1 for tokens in rows)
    saved = {
        (one.head.id, tuple(ids)): nats / max(predictions, 1)
        for one in candidates
        for ids, nats in zip(one.ids.tolist(), one.saved.tolist(), strict=True)
    }
    effects = [replace(one, saved=saved[one.head, one.ids]) for one in ranked]
    effects = sorted((one for one in effects if one.saved > 0), key=lambda one: -one.saved)
    return effects, *_classes(model, ranked, gained, effects)


def _right_places(
    text: _Run, head: Head, ov: Float[Tensor, "k vocab"], shown: Tensor
) -> tuple[Tensor, Tensor, Float[Tensor, " found"], Float[Tensor, " found"]]:
    """(source, destination, out), both positions, c and gain where `out` comes next."""
    tokens, known, place = text.tokens, text.known, text.place
    after = tokens[1:]
    value = text.trace.model.weights.W_E[tokens] @ head.W_V
    effect = value @ ov[:, after]  # [source, destination]
    pattern = text.pattern(head.id)
    c = text.by_source(pattern * effect.mT)
    allowed = shown.to(tokens.device)
    fires = (c >= FIRES) & allowed[known][None] & (allowed[tokens[:-1]] & allowed[after])[:, None]
    at, which = fires.nonzero().T
    c = c[at, which]
    p = text.log_p(at, after[at]).exp().to(c)
    gain = c + torch.log1p(p * torch.expm1(-c))
    places = torch.arange(len(tokens), device=at.device)
    # Among the copies before the destination, take the one with the most attention.
    copies = (place[None] == which[:, None]) & (places < at[:, None])
    source_at = pattern[at].masked_fill(~copies, -torch.inf).argmax(1)
    ids = torch.stack((known[which], tokens[at], after[at]), 1)
    return ids.cpu(), torch.stack((source_at, at), 1).cpu(), c.cpu(), gain.double().cpu()


def _ranked(
    found: Sequence[tuple[Tensor, Tensor, Tensor]], heads: Sequence[Head], d_vocab: int
) -> tuple[float, list[TextEffect]]:
    """The total gain, and the `CANDIDATES` with the largest gains, largest first.

    From what `_right_places` found in each sequence. Ties keep the order in which they were found.
    """
    rows, c, gain = (torch.cat(column) for column in zip(*found, strict=True))
    pairs = (rows[:, 3] * d_vocab + rows[:, 0]) * d_vocab + rows[:, 1]
    # The number of each row's head and triple, in two steps: one number for all may overflow.
    _, pair = pairs.unique(return_inverse=True)
    keys = pair * d_vocab + rows[:, 2]
    _, which, fires = keys.unique(return_inverse=True, return_counts=True)
    total = torch.zeros(len(fires), dtype=torch.float64).index_add_(0, which, gain)
    # Occurrences of each together, in order; and again, the largest effect first.
    starts = fires.cumsum(0) - fires
    first = which.argsort(stable=True)[starts]
    by_effect = c.argsort(descending=True, stable=True)
    most = by_effect[which[by_effect].argsort(stable=True)][starts]
    order = first.argsort()
    order = order[total[order].argsort(descending=True, stable=True)][:CANDIDATES]
    numbers = (rows[most[order]].tolist(), total[order].tolist(), fires[order].tolist())
    return float(total.sum()), [
        TextEffect(heads[head].id, (s, d, o), nats, times, Occurrence(number, source_at, at))
        for (s, d, o, head, number, source_at, at), nats, times in zip(*numbers, strict=True)
    ]


class _Candidates:
    """The candidates of one head, and the loss that each has saved so far, in nats.

    `effect` is the change of the out token's logit per unit of attention to the source.
    """

    def __init__(
        self, head: Head, ov: Float[Tensor, "k vocab"], ranked: Sequence[TextEffect]
    ) -> None:
        mine = [one.ids for one in ranked if one.head == head.id]
        ids = torch.tensor(mine, dtype=torch.long, device=ov.device).view(-1, 3)
        value = head.model.weights.W_E[ids[:, 0]] @ head.W_V
        self.head, self.ids = head, ids
        self.effect = (value * ov[:, ids[:, 2]].T).sum(-1).double()
        self.saved = torch.zeros_like(self.effect)

    def measure(self, text: _Run) -> None:
        """Add the loss that each saves on one sequence, wherever its antecedent occurs."""
        tokens, known = text.tokens, text.known
        column = torch.searchsorted(known, self.ids[:, 0].contiguous()).clamp(max=len(known) - 1)
        here = (known[column] == self.ids[:, 0]).nonzero()[:, 0]
        which, at = (tokens[:-1] == self.ids[here, 1, None]).nonzero().T
        which = here[which]
        moved = text.by_source(text.pattern(self.head.id))
        c = moved[at, column[which]].double() * self.effect[which]
        out = self.ids[which, 2]
        change = torch.log1p(text.log_p(at, out).exp() * torch.expm1(-c))
        self.saved.index_add_(0, which, change + torch.where(tokens[at + 1] == out, c, 0.0))


def written(model: Model, ids: Ids) -> str:
    """A skip-trigram in the paper's notation."""
    source, destination, out = map(model.token_text, ids)
    return f"{source} … {destination} → {out}"


def _classes(
    model: Model, strongest: Sequence[TextEffect], total: float, saving: Sequence[TextEffect]
) -> tuple[tuple[PatternShare, ...], float]:
    """Shares of the gain by pattern among the strongest skip-trigrams, and their share of all.

    Examples are the first of those that save loss over all positions.
    """
    counts, sums = Counter[Pattern](), defaultdict[Pattern, float](float)
    for one in strongest:
        pattern = pattern_of(model.tokenizer, *one.ids)
        counts[pattern] += 1
        sums[pattern] += one.gain
    covered = sum(sums.values())
    if covered <= 0:
        return (), 0.0
    examples = defaultdict[Pattern, dict[str, str]](dict)
    for one in saving:
        known = examples[pattern_of(model.tokenizer, *one.ids)]
        source = model.token_text(one.ids[0]).strip("·").casefold()
        if len(known) < EXAMPLES:
            known.setdefault(source, written(model, one.ids))
    ranked = sorted(sums, key=lambda pattern: -sums[pattern])
    shares = tuple(
        PatternShare(each, counts[each], sums[each] / covered, tuple(examples[each].values()))
        for each in ranked
    )
    return shares, covered / total
