"""`top_contexts`: the contexts of a text in which a head, or a neuron, is most active.

A context is a destination of the text with the source that mattered there. There are two rankings:

    attention    the largest weight on a source after the first position, max_{s>0} A[d, s]
    effect       the head's effect on the logit of the actual next token, vocabulary mean removed,
                 Σ_s effect[d, s] (`pathsum.paths.logit_effects`), by magnitude; the source has the
                 largest part of it

Heads rest on the first position, so attention to it is not counted. Among contexts with the same
source and destination tokens only the strongest is listed, with their number. The averages over all
contexts are given too.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Column, Progress, Record, Table, silent, text_column
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.options import parse_count
from pathsum.circuits.token_basis import Token, token_of
from pathsum.circuits.trigram_text import text_rows
from pathsum.model import HeadName, Model, Trace
from pathsum.model.sequences import TextOrTokens, require_text, token_batches
from pathsum.paths import logit_effects

# Contexts per ranking, sequences read, and tokens that tables show before and after a context.
K, SEQUENCES, SHOWN = 10, 64, 6
MAX_K, MAX_SEQUENCES = 1000, 100_000
BATCH = 4

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Context:
    """A destination in a text and the source that mattered there.

    `ids` are the tokens of the sequence from its start to a few after the destination, enough to
    run the context again. `weight` is the attention from the destination to the source, `off_first`
    all its attention after the first position, `effect` its effect on the logit of the next
    token (None if effects are not exact on the model, or nothing follows). `times` is the number of
    contexts with the same two tokens.
    """

    sequence: int
    destination: int
    source: int
    ids: tuple[int, ...]
    weight: float
    off_first: float
    effect: float | None
    times: int


@dataclass(frozen=True, eq=False)
class TopContexts(Record, kind="top-contexts"):
    """The contexts of a text in which a head is most active, by attention and by logit effect.

    `deciles` are ordinary contexts: those that 90%, 80%, … 10% of all are weaker than by attention.
    `mean_weight` and `mean_effect` are averages over all contexts: of the largest weight after the
    first position, and of the magnitude of the effect. `tokens` are the texts of all tokens that
    occur in them.
    """

    head: str
    by_attention: tuple[Context, ...]
    by_effect: tuple[Context, ...]
    deciles: tuple[Context, ...]
    sequences: int
    contexts: int
    mean_weight: float
    mean_effect: float | None
    tokens: tuple[Token, ...]
    note: str

    def to_table(self) -> Table:
        """Both rankings; the source is in ⟨⟩, the destination in [], the next token after →."""
        rows = [
            (order, self._words(one), one.weight, one.effect, one.times)
            for order, contexts in (("attention", self.by_attention), ("effect", self.by_effect))
            for one in contexts
        ]
        average = f"mean over {self.contexts} contexts: weight {self.mean_weight:.2f}"
        if self.mean_effect is not None:
            average += f", |effect| {self.mean_effect:.2f}"
        columns = (
            *(text_column("by"), text_column("context: ⟨source⟩ … [destination] → next")),
            *(Column("weight", ".2f"), Column("effect, logits", "+.2f"), Column("times")),
        )
        note = "\n".join(filter(None, (average, self.note)))
        return Table(columns, tuple(rows), f"{self.head}: top contexts", note)

    def _words(self, context: Context) -> str:
        texts = {token.id: token.text for token in self.tokens}
        first = max(0, context.destination - SHOWN)
        shown = sorted({context.source, *range(first, context.destination + 1)})
        words: list[str] = []
        for at, before in zip(shown, [None, *shown], strict=False):
            text = texts[context.ids[at]]
            text = f"⟨{text}⟩" if at == context.source else text
            text = f"[{text}]" if at == context.destination else text
            words += ["…", text] if before is not None and at > before + 1 else [text]
        after = context.ids[context.destination + 1 : context.destination + 2]
        return " ".join([*words, *(f"→ {texts[token]}" for token in after)])


def top_contexts(
    model: Model,
    head: HeadName,
    text: TextOrTokens | None = None,
    *,
    k: int = K,
    sequences: int = SEQUENCES,
    progress: Progress = silent,
) -> TopContexts:
    """The k contexts of a text in which a head is most active, by attention and by logit effect.

    `text` is anything that `model.loss` takes; by default the held-out text that the model comes
    with. Among more than `sequences` sequences, that many are read, evenly spaced. For several
    heads, `read_contexts` reads the text once.

    >>> import pathsum as ps
    >>> model = ps.load("hand-built-induction")
    >>> found = top_contexts(model, "L1H0", "a b c a b", k=1)
    >>> context = found.by_attention[0]
    >>> [model.token_text(context.ids[at]) for at in (context.destination, context.source)]
    ['a', 'b']

    Contexts are examples, not a description: see `atlas` for a head's general behavior, and
    `pathsum.paths.ablate` for its contribution.
    """
    parse_count(k, "contexts", most=MAX_K)
    return read_contexts(model, [head], text, sequences=sequences, progress=progress).top(head, k)


@dataclass(frozen=True, eq=False)
class ReadContexts:
    """A text, read for some heads: `top` ranks the contexts of one of them."""

    model: Model
    rows: "dict[str, list[_Row]]"

    def top(self, head: HeadName, k: int = K) -> TopContexts:
        """The k contexts in which one of the heads is most active."""
        parse_count(k, "contexts", most=MAX_K)
        label = self.model.head(head).label
        if label not in self.rows:
            raise InputError(
                f"the text was not read for {label}, only for {', '.join(self.rows)}; read it for "
                f"{label} too"
            )
        rows = self.rows[label]
        places, effective = (
            sorted((place for row in rows for place in ranking(row)), key=lambda one: -one.value)
            for ranking in (_Row.by_attention, _Row.by_effect)
        )
        by_attention, by_effect = _strongest(places, k), _strongest(effective, k)
        times, last = Counter(place.tokens for place in places), len(places) - 1
        ordinary = (places[round(last * ten / 10)] for ten in range(1, 10))
        deciles = tuple(place.context(times[place.tokens]) for place in ordinary)
        shown = (*by_attention, *by_effect, *deciles)
        used = sorted({token for context in shown for token in context.ids})
        return TopContexts(
            head=label,
            by_attention=by_attention,
            by_effect=by_effect,
            deciles=deciles,
            sequences=len(rows),
            contexts=len(places),
            mean_weight=fmean(place.value for place in places),
            mean_effect=fmean(place.value for place in effective) if effective else None,
            tokens=tuple(token_of(self.model, token) for token in used),
            note=next((row.note for row in rows if row.note), ""),
        )


def read_contexts(
    model: Model,
    heads: Sequence[HeadName],
    text: TextOrTokens | None = None,
    *,
    sequences: int = SEQUENCES,
    progress: Progress = silent,
) -> ReadContexts:
    """Read a text once for several heads; `text` and `sequences` are as for `top_contexts`."""
    parse_count(sequences, "sequences", "sequences", most=MAX_SEQUENCES)
    rows = text_rows(model, token_batches(model, require_text(model, text)), sequences)
    read: dict[str, list[_Row]] = {model.head(head).label: [] for head in heads}
    done = 0
    for _, same in groupby(rows, key=len):
        for batch in torch.stack(list(same)).split(BATCH):
            progress(done, len(rows), "reading the text")
            trace = model.trace(batch)
            for label, of_head in read.items():
                of_head += _read(trace, label, done)
            done += len(batch)
    progress(len(rows), len(rows), "reading the text")
    return ReadContexts(model, read)


@dataclass(frozen=True, eq=False)
class _Row:
    """A head's activity at each destination of one sequence except the first.

    `weight` and `source` are the largest attention and where it goes, `effect_source` has the
    largest part of the effect, and `effect_weight` is the attention there.
    """

    sequence: int
    ids: tuple[int, ...]
    note: str
    weight: list[float]
    source: list[int]
    off_first: list[float]
    effect: list[float]
    effect_source: list[int]
    effect_weight: list[float]

    def by_attention(self) -> "Iterator[_Place]":
        """The destinations by their largest weight."""
        for at, (weight, source) in enumerate(zip(self.weight, self.source, strict=True), start=1):
            yield _Place(self, at, weight, source, weight)

    def by_effect(self) -> "Iterator[_Place]":
        """The destinations by the magnitude of the effect, where it is known."""
        numbers = zip(self.effect, self.effect_source, self.effect_weight, strict=True)
        for at, (effect, source, weight) in enumerate(numbers, start=1):
            if not math.isnan(effect):
                yield _Place(self, at, abs(effect), source, weight)


@dataclass(frozen=True, eq=False)
class _Place:
    """A destination of a row, its value in a ranking, and the source and attention behind it."""

    row: _Row
    destination: int
    value: float
    source: int
    weight: float

    @property
    def tokens(self) -> tuple[int, int]:
        """The source token and the destination token."""
        return self.row.ids[self.source], self.row.ids[self.destination]

    def context(self, times: int) -> Context:
        """The place as a context."""
        row, effect = self.row, self.row.effect[self.destination - 1]
        return Context(
            sequence=row.sequence,
            destination=self.destination,
            source=self.source,
            ids=row.ids[: self.destination + 1 + SHOWN],
            weight=self.weight,
            off_first=row.off_first[self.destination - 1],
            effect=None if math.isnan(effect) else effect,
            times=times,
        )


def _alike(items: Iterable[_Item], key: Callable[[_Item], object]) -> list[list[_Item]]:
    """Items with the same key together, in the order in which keys first occur."""
    groups: dict[object, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _strongest(places: list[_Place], k: int) -> tuple[Context, ...]:
    """The strongest context of each (source, destination) pair of tokens, from ranked places."""
    alike = _alike(places, lambda place: place.tokens)
    return tuple(same[0].context(len(same)) for same in alike[:k])


def _read(trace: Trace, head: str, number: int) -> list[_Row]:
    patterns = trace.pattern(head)
    note = ""
    try:
        # The last destination has no next token and is NaN.
        effects = logit_effects(trace, head).total
    except NotExactError as error:
        effects, note = patterns * torch.nan, f"no logit effects: {error}"
    weight, source = patterns[:, 1:, 1:].max(-1)
    effect_source = effects[:, 1:].abs().nan_to_num(-1).argmax(-1)
    effect_weight = patterns[:, 1:].gather(-1, effect_source[..., None])[..., 0]
    off_first, effect = 1 - patterns[:, 1:, 0], effects[:, 1:].sum(-1)
    each = (weight, source + 1, off_first, effect, effect_source, effect_weight)
    return [
        _Row(number + at, tuple(ids), note, *(one[at].tolist() for one in each))
        for at, ids in enumerate(trace.tokens.tolist())
    ]


@dataclass(frozen=True)
class NeuronContext:
    """A position of a text at which a neuron is active.

    `tokens` are those up to the position, the last one included; `next` is the token that follows
    and `effect` the neuron's direct effect on its logit, relative to the mean over the vocabulary
    (None if nothing follows or a norm follows the MLP). `times` is the number of positions with the
    same last two tokens and the same sign.
    """

    sequence: int
    position: int
    tokens: tuple[str, ...]
    next: str | None
    activation: float
    effect: float | None
    times: int


def neuron_contexts(
    model: Model,
    rows: Sequence[Float[Tensor, " pos"]],
    ids: Sequence[list[int]],
    effects: Sequence[Float[Tensor, " next"]],
    k: int,
) -> tuple[NeuronContext, ...]:
    """The k contexts of largest |activation|; only the strongest of similar contexts.

    `effects` is empty where the neuron's effect on logits is not known.
    """
    places = [
        (act, sequence, position)
        for sequence, row in enumerate(rows)
        for position, act in enumerate(row.tolist())
        if position > 0 and act != 0
    ]
    places.sort(key=lambda place: -abs(place[0]))
    alike = _alike(places, lambda one: (one[0] > 0, *ids[one[1]][one[2] - 1 : one[2] + 1]))
    found: list[NeuronContext] = []
    for same in alike[:k]:
        act, sequence, position = same[0]
        tokens = ids[sequence]
        follows = position + 1 < len(tokens)
        found.append(
            NeuronContext(
                *(sequence, position),
                tokens=tuple(map(model.token_text, tokens[max(0, position - 15) : position + 1])),
                next=model.token_text(tokens[position + 1]) if follows else None,
                activation=act,
                effect=float(effects[sequence][position]) if effects and follows else None,
                times=len(same),
            )
        )
    return tuple(found)
