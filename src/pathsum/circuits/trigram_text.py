"""Skip-trigrams on text: how often they occur, how much loss they save, and examples.

Where the destination comes after the source, a head adds to the logit of `out`, from that source
and with its attention there,

    c = Σ A[destination, source] · OV[source, out]      W_U centered, scales of the run

over the earlier copies of the source. Without it the loss there changes by

    c + log(1 − p + p e^−c)     where `out` comes next, p its probability
        log(1 − p + p e^−c)     elsewhere, which is never above 0 for c > 0

A skip-trigram fires where c ≥ 0.1 and `out` comes next. The loss that it saves is the sum of these
changes over all positions, right and wrong, divided by the number of predictions. On a model of
several layers only the path straight from embeddings to logits counts.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Column, Progress, prose_column, text_column, token_column
from pathsum.model import Head, HeadId, Model, Path
from pathsum.model.folding import unembed_through
from pathsum.model.sequences import Split, TextOrTokens, split_corpus
from pathsum.text.shards import spaced
from pathsum.text.trigrams import Ids, Pattern, pattern_of

FIRES = 0.1
"""Logits that a head must add for a skip-trigram to count as firing."""
CANDIDATES = 5000
"""The skip-trigrams with the largest gain where they are right are measured and classified."""
EXAMPLES = 3
"""Examples listed for each pattern."""
PER_SOURCE = 4
"""Destinations and outs listed for each source, at most."""
SOURCES = 50
"""Source words in a result, at most."""
AROUND = 3
"""Tokens of the text quoted before a destination."""
_WORD = re.compile(r"[^\W\d_]{3}")


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
    """A pattern: its number of strong skip-trigrams, and its share of their gain.

    `examples` are those of different sources that save the most loss.
    """

    pattern: Annotated[Pattern, text_column("pattern")]
    count: Annotated[int, Column("triples")]
    share: Annotated[float, Column("share of gain", ".1%")]
    examples: Annotated[tuple[str, ...], prose_column("examples", ";  ".join)] = ()


class _TracedText:
    """A traced sequence: its `distinct` tokens, and the `index` of each position's token in them.

    `total[d]` is log Σ exp of the logits at destination d.
    """

    def __init__(self, model: Model, tokens: Int[Tensor, " pos"]) -> None:
        self.trace = model.trace(tokens[None])
        self.tokens = self.trace.tokens[0]
        self.distinct, self.index = self.tokens.unique(return_inverse=True)
        self.total = self.trace.logits[0, :-1].logsumexp(-1).double()

    def pattern(self, head: HeadId) -> Float[Tensor, "dest src"]:
        """A head's pattern without its last row, times the normalization scales to the logits."""
        return Path("embed", (head,)).pattern(self.trace)[0, :-1]

    def log_p(self, at: Int[Tensor, " n"], out: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Log-probabilities of tokens after the positions `at`, in float64."""
        return self.trace.logits[0, at, out].double() - self.total[at]

    def sum_by_source(self, terms: Float[Tensor, "dest src"]) -> Float[Tensor, "dest distinct"]:
        """Sums over the earlier copies of each token, which act together."""
        copies = torch.nn.functional.one_hot(self.index, len(self.distinct)).to(terms)
        return terms.tril(-1) @ copies


@torch.no_grad()
def effects_on_text(
    model: Model,
    heads: Sequence[Head],
    rows: Sequence[Int[Tensor, " _"]],
    mask: Tensor,
    progress: Progress,
) -> tuple[list[TextEffect], tuple[PatternShare, ...], float]:
    """Skip-trigrams that save loss, most first, among the tokens of a mask; their patterns.

    The `CANDIDATES` with the largest gain where they are right are measured wherever their
    antecedent occurs. The last number is their share of all gain.
    """
    firings: list[tuple[Tensor, Tensor, Tensor]] = []
    ovs = {head.id: unembed_through(model.weights, head.W_O) for head in heads}
    for number, tokens in enumerate(rows):
        progress(number, 2 * len(rows), "skip-trigrams on text")
        text = _TracedText(model, tokens)
        for index, head in enumerate(heads):
            ids, positions, c, gain = _firings(text, head, ovs[head.id], mask)
            origin = torch.tensor([[index, number]]).expand(len(ids), -1)
            firings.append((torch.cat((ids, origin, positions), 1), c, gain))
    total, ranked = _rank_by_gain(firings, heads, model.config.d_vocab) if firings else (0.0, [])
    candidates = [_Candidates(head, ovs[head.id], ranked) for head in heads]
    for number, tokens in enumerate(rows):
        progress(len(rows) + number, 2 * len(rows), "skip-trigrams on text")
        text = _TracedText(model, tokens)
        for of_head in candidates:
            of_head.measure(text)
    progress(1, 1, "skip-trigrams on text")
    predictions = sum(len(tokens) - 1 for tokens in rows)
    saved = {
        (of_head.head.id, tuple(ids)): nats / max(predictions, 1)
        for of_head in candidates
        for ids, nats in zip(of_head.ids.tolist(), of_head.saved.tolist(), strict=True)
    }
    effects = [replace(effect, saved=saved[effect.head, effect.ids]) for effect in ranked]
    effects = [effect for effect in effects if effect.saved > 0]
    effects.sort(key=lambda effect: -effect.saved)
    return effects, *_pattern_shares(model, ranked, total, effects)


def _firings(
    text: _TracedText, head: Head, ov: Float[Tensor, "k vocab"], mask: Tensor
) -> tuple[Tensor, Tensor, Float[Tensor, " n"], Float[Tensor, " n"]]:
    """(source, destination, out), both positions, c and gain where `out` comes next."""
    tokens, distinct = text.tokens, text.distinct
    after = tokens[1:]
    value = text.trace.model.weights.W_E[tokens] @ head.W_V
    effect = value @ ov[:, after]  # [source, destination]
    pattern = text.pattern(head.id)
    c = text.sum_by_source(pattern * effect.mT)
    mask = mask.to(tokens.device)
    fires = (c >= FIRES) & mask[distinct][None] & (mask[tokens[:-1]] & mask[after])[:, None]
    at, source = fires.nonzero().T
    c = c[at, source]
    p = text.log_p(at, after[at]).exp().to(c)
    gain = c + torch.log1p(p * torch.expm1(-c))
    positions = torch.arange(len(tokens), device=at.device)
    # Among the copies before the destination, take the one with the most attention.
    copies = (text.index[None] == source[:, None]) & (positions < at[:, None])
    source_at = pattern[at].masked_fill(~copies, -torch.inf).argmax(1)
    ids = torch.stack((distinct[source], tokens[at], after[at]), 1)
    return ids.cpu(), torch.stack((source_at, at), 1).cpu(), c.cpu(), gain.double().cpu()


def _rank_by_gain(
    firings: Sequence[tuple[Tensor, Tensor, Tensor]], heads: Sequence[Head], d_vocab: int
) -> tuple[float, list[TextEffect]]:
    """The total gain, and the `CANDIDATES` with the largest gains; ties in order of occurrence."""
    rows, c, gain = (torch.cat(column) for column in zip(*firings, strict=True))
    pairs = (rows[:, 3] * d_vocab + rows[:, 0]) * d_vocab + rows[:, 1]
    # The number of each row's head and triple, in two steps: one number for all may overflow.
    _, pair = pairs.unique(return_inverse=True)
    _, triple, fires = (pair * d_vocab + rows[:, 2]).unique(return_inverse=True, return_counts=True)
    total = torch.zeros(len(fires), dtype=torch.float64).index_add_(0, triple, gain)
    # Rows grouped by triple, in order of occurrence; and again, the largest effect first.
    starts = fires.cumsum(0) - fires
    first = triple.argsort(stable=True)[starts]
    by_effect = c.argsort(descending=True, stable=True)
    strongest = by_effect[triple[by_effect].argsort(stable=True)][starts]
    order = first.argsort()
    order = order[total[order].argsort(descending=True, stable=True)][:CANDIDATES]
    columns = (rows[strongest[order]].tolist(), total[order].tolist(), fires[order].tolist())
    return float(total.sum()), [
        TextEffect(heads[head].id, (s, d, o), nats, count, Occurrence(number, source_at, at))
        for (s, d, o, head, number, source_at, at), nats, count in zip(*columns, strict=True)
    ]


class _Candidates:
    """The candidates of one head, and the loss that each has saved so far, in nats.

    `effect` is the change of the out token's logit per unit of attention to the source.
    """

    def __init__(
        self, head: Head, ov: Float[Tensor, "k vocab"], ranked: Sequence[TextEffect]
    ) -> None:
        triples = [effect.ids for effect in ranked if effect.head == head.id]
        ids = torch.tensor(triples, dtype=torch.long, device=ov.device).view(-1, 3)
        value = head.model.weights.W_E[ids[:, 0]] @ head.W_V
        self.head, self.ids = head, ids
        self.effect = (value * ov[:, ids[:, 2]].T).sum(-1).double()
        self.saved = torch.zeros_like(self.effect)

    def measure(self, text: _TracedText) -> None:
        """Add the loss that each saves on one sequence, wherever its antecedent occurs."""
        tokens, distinct = text.tokens, text.distinct
        sources = self.ids[:, 0].contiguous()
        column = torch.searchsorted(distinct, sources).clamp(max=len(distinct) - 1)
        present = (distinct[column] == sources).nonzero()[:, 0]
        triple, at = (tokens[:-1] == self.ids[present, 1, None]).nonzero().T
        triple = present[triple]
        attention = text.sum_by_source(text.pattern(self.head.id))
        c = attention[at, column[triple]].double() * self.effect[triple]
        out = self.ids[triple, 2]
        change = torch.log1p(text.log_p(at, out).exp() * torch.expm1(-c))
        self.saved.index_add_(0, triple, change + torch.where(tokens[at + 1] == out, c, 0.0))


def triple_text(model: Model, ids: Ids) -> str:
    """A skip-trigram in the paper's notation."""
    source, destination, out = map(model.token_text, ids)
    return f"{source} … {destination} → {out}"


def _pattern_shares(
    model: Model, strongest: Sequence[TextEffect], total: float, saving: Sequence[TextEffect]
) -> tuple[tuple[PatternShare, ...], float]:
    """Shares of the gain by pattern among the strongest skip-trigrams, and their share of `total`.

    Examples are the first skip-trigrams in `saving`, which save loss over all positions.
    """
    counts, sums = Counter[Pattern](), defaultdict[Pattern, float](float)
    for effect in strongest:
        pattern = pattern_of(model.tokenizer, *effect.ids)
        counts[pattern] += 1
        sums[pattern] += effect.gain
    covered = sum(sums.values())
    if covered <= 0:
        return (), 0.0
    examples = defaultdict[Pattern, dict[str, str]](dict)
    for effect in saving:
        by_source = examples[pattern_of(model.tokenizer, *effect.ids)]
        source = model.token_text(effect.ids[0]).strip("·").casefold()
        if len(by_source) < EXAMPLES:
            by_source.setdefault(source, triple_text(model, effect.ids))
    ranked = sorted(sums, key=lambda pattern: -sums[pattern])
    shares = (
        PatternShare(name, counts[name], sums[name] / covered, tuple(examples[name].values()))
        for name in ranked
    )
    return tuple(shares), covered / total


def text_rows(
    model: Model, text: Sequence[Int[Tensor, "_ _"]], most: int
) -> list[Int[Tensor, " _"]]:
    """At most `most` sequences of a text, evenly spaced and cut to the model's context."""
    rows = [row for batch in text for row in batch]
    return [rows[index][: model.config.n_ctx] for index in spaced(len(rows), most)]


def split_for_ranking(
    model: Model, corpus: TextOrTokens, most: int
) -> tuple[list[Int[Tensor, " _"]], tuple[Int[Tensor, "_ _"], ...], Split]:
    """The sequences of a text used for ranking, the unused ones, and its two parts for bugs."""
    split, held_out = split_corpus(model, corpus), model.held_out
    if held_out is None or corpus is not held_out:
        return text_rows(model, split.held_out, most), split.train, split
    # The model was not trained on its own held-out text, so all of that text can be used.
    unread = torch.ones(len(held_out), dtype=torch.bool)
    unread[spaced(len(unread), most)] = False
    rest = (held_out[unread],) if bool(unread.any()) else ()
    return text_rows(model, [held_out], most), rest, split


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


def merge_variants(model: Model, effects: Sequence[TextEffect]) -> list[list[TextEffect]]:
    """Groups of effects that differ only in spaces or case, largest saved loss first."""
    groups: dict[tuple[str, ...], list[TextEffect]] = {}
    for effect in effects:
        groups.setdefault(_variant_key(model, effect), []).append(effect)
    return sorted(groups.values(), key=lambda group: -sum(effect.saved for effect in group))


def _variant_key(model: Model, effect: TextEffect) -> tuple[str, ...]:
    texts = [model.token_text(token) for token in effect.ids]
    if model.tokenizer is not None:
        plain = [model.tokenizer.text(token) for token in effect.ids]
        texts = [text.strip().casefold() or text for text in plain]
    return (effect.head, *texts)


def gains_by_source(
    model: Model, rows: Sequence[Int[Tensor, " pos"]], groups: Sequence[list[TextEffect]]
) -> tuple[SourceGain, ...]:
    """Groups of skip-trigrams, best first, by head and source word; the best source first."""
    by_source: dict[tuple[str, ...], list[list[TextEffect]]] = {}
    for group in groups:
        if _WORD.search(model.token_text(group[0].ids[0])):
            by_source.setdefault(_variant_key(model, group[0])[:2], []).append(group)
    gains: list[SourceGain] = []
    for groups_of in by_source.values():
        best, saved = groups_of[0][0], sum(effect.saved for group in groups_of for effect in group)
        texts = zip(*(map(model.token_text, group[0].ids) for group in groups_of), strict=True)
        source, to, outs = (tuple(dict.fromkeys(column))[:PER_SOURCE] for column in texts)
        quotation = quote(model, rows, best.occurrence)
        gains.append(SourceGain(best.head, source[0], to, outs, saved, quotation))
    return tuple(sorted(gains, key=lambda gain: -gain.score)[:SOURCES])


@dataclass(frozen=True)
class TriplePlace:
    """An occurrence in the text: the tokens up to the predicted one, and two positions in them."""

    ids: tuple[int, ...]
    source: int
    destination: int


def place_of(rows: Sequence[Int[Tensor, " pos"]], at: Occurrence) -> TriplePlace:
    """The occurrence with the tokens up to the predicted one."""
    tokens = rows[at.sequence][: at.destination + 2].tolist()
    return TriplePlace(tuple(tokens), at.source, at.destination)


def quote(model: Model, rows: Sequence[Int[Tensor, " pos"]], at: Occurrence) -> str:
    """The source with its neighbors, an ellipsis, and the destination with the next token."""

    def words(start: int, stop: int) -> str:
        tokens = rows[at.sequence][max(start, 0) : stop]
        return "".join(map(model.token_text, tokens.tolist()))

    after = words(at.destination + 1, at.destination + 2)
    if at.destination - at.source <= AROUND + 2:
        return f"{words(at.source - 1, at.destination + 1)}→{after}"
    before = words(at.source - 1, at.source + 2)
    return f"{before} … {words(at.destination - AROUND + 1, at.destination + 1)}→{after}"
