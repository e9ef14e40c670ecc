"""`top_contexts`: the contexts of a text in which a head, or a neuron, is most active.

A context is a destination of the text with its most important source. There are two rankings:

    attention    the largest weight on a source after the first position, max_{s>0} A[d, s]
    effect       the head's effect on the logit of the actual next token, vocabulary mean removed,
                 Σ_s effect[d, s] (`pathsum.paths.logit_effects`), by magnitude; the source has the
                 largest part of it

Many heads attend to the first position by default, so attention to it is excluded. Among contexts
with the same source and destination tokens only the strongest is listed, with their number. The
result includes averages over all contexts.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
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

# Contexts per ranking, sequences, and tokens printed before and after a context.
K, SEQUENCES, AROUND = 10, 64, 6
MAX_K, MAX_SEQUENCES = 1000, 100_000
BATCH = 4

_Item = TypeVar("_Item")
_value = attrgetter("value")


@dataclass(frozen=True)
class Context:
    """A destination in a text and its most important source.

    `ids` are the tokens of the sequence from its start to a few after the destination, enough to
    run the context again. `weight` is the attention from the destination to the source, `off_first`
    all its attention after the first position, and `effect` the head's effect on the logit of the
    next token (None if effects are not exact on the model, or no token follows). `times` is the
    number of contexts with the same two tokens.
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

    `deciles` are ordinary contexts, at the 90th, 80th, … 10th percentile of attention.
    `mean_weight` and `mean_effect` are averages over all contexts: of the largest weight after the
    first position, and of the magnitude of the effect. `tokens` has the texts of all tokens that
    occur in the listed contexts.
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
            (order, self._words(context), context.weight, context.effect, context.times)
            for order, contexts in (("attention", self.by_attention), ("effect", self.by_effect))
            for context in contexts
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
        first = max(0, context.destination - AROUND)
        positions = sorted({context.source, *range(first, context.destination + 1)})
        words: list[str] = []
        for at, before in zip(positions, [None, *positions], strict=False):
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

    `text` is anything that `model.loss` takes, by default the model's held-out text. At most
    `sequences` evenly spaced sequences are used. For several heads, `read_contexts` reads the text
    once.

    >>> import pathsum as ps
    >>> model = ps.load("hand-built-induction")
    >>> context = top_contexts(model, "L1H0", "a b c a b", k=1).by_attention[0]
    >>> [model.token_text(context.ids[at]) for at in (context.destination, context.source)]
    ['a', 'b']

    Contexts are examples, not a description: see `atlas` for a head's general behavior, and
    `pathsum.paths.ablate` for its contribution.
    """
    parse_count(k, "contexts", maximum=MAX_K)
    return read_contexts(model, [head], text, sequences=sequences, progress=progress).top(head, k)


@dataclass(frozen=True, eq=False)
class ReadContexts:
    """The activity of several heads on a text: `top` ranks the contexts of one head."""

    model: Model
    rows: "dict[str, list[_SequenceActivity]]"

    def top(self, head: HeadName, k: int = K) -> TopContexts:
        """The k contexts in which a head is most active."""
        parse_count(k, "contexts", maximum=MAX_K)
        label = self.model.head(head).label
        if label not in self.rows:
            raise InputError(
                f"the text was not read for {label}, only for {', '.join(self.rows)}; read it for "
                f"{label} too"
            )
        rows = self.rows[label]
        weights = sorted(chain(*(row.by_attention() for row in rows)), key=_value, reverse=True)
        effects = sorted(chain(*(row.by_effect() for row in rows)), key=_value, reverse=True)
        by_attention, by_effect = _strongest(weights, k), _strongest(effects, k)
        times, last = Counter(position.tokens for position in weights), len(weights) - 1
        ordinary = (weights[round(last * tenth / 10)] for tenth in range(1, 10))
        deciles = tuple(position.context(times[position.tokens]) for position in ordinary)
        listed = (*by_attention, *by_effect, *deciles)
        ids = sorted({token for context in listed for token in context.ids})
        return TopContexts(
            head=label,
            by_attention=by_attention,
            by_effect=by_effect,
            deciles=deciles,
            sequences=len(rows),
            contexts=len(weights),
            mean_weight=fmean(map(_value, weights)),
            mean_effect=fmean(map(_value, effects)) if effects else None,
            tokens=tuple(token_of(self.model, token) for token in ids),
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
    parse_count(sequences, "sequences", "sequences", maximum=MAX_SEQUENCES)
    rows = text_rows(model, token_batches(model, require_text(model, text)), sequences)
    activity: dict[str, list[_SequenceActivity]] = {model.head(head).label: [] for head in heads}
    done = 0
    for _, group in groupby(rows, key=len):
        for batch in torch.stack(list(group)).split(BATCH):
            progress(done, len(rows), "reading the text")
            trace = model.trace(batch)
            for label, of_head in activity.items():
                of_head += _head_activity(trace, label, done)
            done += len(batch)
    progress(len(rows), len(rows), "reading the text")
    return ReadContexts(model, activity)


@dataclass(frozen=True, eq=False)
class _SequenceActivity:
    """A head's activity at each destination of one sequence except the first.

    `weight` is the largest attention and `source` its source, `effect_source` has the largest part
    of the effect, and `effect_weight` is the attention there.
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

    def by_attention(self) -> "Iterator[_Activity]":
        """The destinations by their largest weight."""
        for at, (weight, source) in enumerate(zip(self.weight, self.source, strict=True), start=1):
            yield _Activity(self, at, weight, source, weight)

    def by_effect(self) -> "Iterator[_Activity]":
        """The destinations by the magnitude of the effect, if there is one."""
        numbers = zip(self.effect, self.effect_source, self.effect_weight, strict=True)
        for at, (effect, source, weight) in enumerate(numbers, start=1):
            if not math.isnan(effect):
                yield _Activity(self, at, abs(effect), source, weight)


@dataclass(frozen=True, eq=False)
class _Activity:
    """A destination of a sequence, its value in a ranking, and its source and attention."""

    row: _SequenceActivity
    destination: int
    value: float
    source: int
    weight: float

    @property
    def tokens(self) -> tuple[int, int]:
        """The source token and the destination token."""
        return self.row.ids[self.source], self.row.ids[self.destination]

    def context(self, times: int) -> Context:
        """The record of this destination."""
        row, effect = self.row, self.row.effect[self.destination - 1]
        return Context(
            sequence=row.sequence,
            destination=self.destination,
            source=self.source,
            ids=row.ids[: self.destination + 1 + AROUND],
            weight=self.weight,
            off_first=row.off_first[self.destination - 1],
            effect=None if math.isnan(effect) else effect,
            times=times,
        )


def _group(items: Iterable[_Item], key: Callable[[_Item], object]) -> list[list[_Item]]:
    """Groups of items with the same key, in the order in which keys first occur."""
    groups: dict[object, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _strongest(positions: list[_Activity], k: int) -> tuple[Context, ...]:
    """The strongest context of each (source, destination) pair of tokens, from ranked ones."""
    groups = _group(positions, lambda position: position.tokens)
    return tuple(group[0].context(len(group)) for group in groups[:k])


def _head_activity(trace: Trace, head: str, number: int) -> list[_SequenceActivity]:
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
    columns = (weight, source + 1, off_first, effect, effect_source, effect_weight)
    rows = zip(trace.tokens.tolist(), *(column.tolist() for column in columns), strict=True)
    return [
        _SequenceActivity(number + index, tuple(ids), note, *values)
        for index, (ids, *values) in enumerate(rows)
    ]


@dataclass(frozen=True)
class NeuronContext:
    """A position of a text at which a neuron is active.

    `tokens` are the tokens up to and including the position; `next` is the token that follows and
    `effect` the neuron's direct effect on its logit, relative to the mean over the vocabulary (None
    if no token or a norm follows). `times` is the number of positions with the same last two tokens
    and the same sign.
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

    `effects` is empty if the neuron has no direct effect on logits.
    """
    active = [
        (act, sequence, position)
        for sequence, row in enumerate(rows)
        for position, act in enumerate(row.tolist())
        if position > 0 and act != 0
    ]
    active.sort(key=lambda key: -abs(key[0]))
    groups = _group(active, lambda key: (key[0] > 0, *ids[key[1]][key[2] - 1 : key[2] + 1]))
    contexts: list[NeuronContext] = []
    for group in groups[:k]:
        act, sequence, position = group[0]
        tokens = ids[sequence]
        follows = position + 1 < len(tokens)
        contexts.append(
            NeuronContext(
                *(sequence, position),
                tokens=tuple(map(model.token_text, tokens[max(0, position - 15) : position + 1])),
                next=model.token_text(tokens[position + 1]) if follows else None,
                activation=act,
                effect=float(effects[sequence][position]) if effects and follows else None,
                times=len(group),
            )
        )
    return tuple(contexts)
