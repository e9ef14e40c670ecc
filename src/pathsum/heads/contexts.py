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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Column, Progress, Record, Table, silent, text_column
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.options import parse_count
from pathsum.circuits.token_basis import Token, token_of
from pathsum.circuits.trigrams import text_rows
from pathsum.model import HeadName, Model, Trace
from pathsum.model.sequences import TextOrTokens, require_text, token_batches
from pathsum.paths import logit_effects

# Contexts per ranking, sequences read, and tokens that tables show before and after a context.
K, SEQUENCES, SHOWN = 10, 64, 6
MAX_K, MAX_SEQUENCES = 1000, 100_000
BATCH = 4


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
        average = f"the average of {self.contexts} contexts: weight {self.mean_weight:.2f}"
        if self.mean_effect is not None:
            average += f", |effect| {self.mean_effect:.2f}"
        return Table(
            (
                text_column("by"),
                text_column("context: ⟨source⟩ … [destination] → next"),
                Column("weight", ".2f"),
                Column("effect, logits", "+.2f"),
                Column("times", "d"),
            ),
            tuple(rows),
            title=f"{self.head}: top contexts",
            note="\n".join(filter(None, (average, self.note))),
        )

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
    """The activity of some heads at every position of a text."""

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
        attention = _Ranking.of(rows, lambda row: (row.weight, row.source, row.weight))
        by_attention, deciles = attention.strongest(k), attention.deciles()
        by_effect = _Ranking.of(
            rows, lambda row: (row.effect.abs(), row.effect_source, row.effect_weight)
        ).strongest(k)
        shown = (*by_attention, *by_effect, *deciles)
        used = sorted({token for context in shown for token in context.ids})
        effects = torch.cat([row.effect.abs() for row in rows])
        known = bool((~effects.isnan()).any())
        return TopContexts(
            head=label,
            by_attention=by_attention,
            by_effect=by_effect,
            deciles=deciles,
            sequences=len(rows),
            contexts=sum(len(row.weight) for row in rows),
            mean_weight=float(torch.cat([row.weight for row in rows]).mean()),
            mean_effect=float(effects.nanmean()) if known else None,
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
    for batch in _batches(rows):
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
    weight: Float[Tensor, " dest"]
    source: Int[Tensor, " dest"]
    off_first: Float[Tensor, " dest"]
    effect: Float[Tensor, " dest"]
    effect_source: Int[Tensor, " dest"]
    effect_weight: Float[Tensor, " dest"]
    note: str


def _batches(rows: Sequence[Int[Tensor, " _"]]) -> Iterator[Int[Tensor, "_ _"]]:
    """Consecutive sequences of one length, a few at a time."""
    for _, same in groupby(rows, key=len):
        yield from torch.stack(list(same)).split(BATCH)


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
    return [
        _Row(
            sequence=number + at,
            ids=tuple(ids),
            weight=weight[at],
            source=source[at] + 1,
            off_first=1 - patterns[at, 1:, 0],
            effect=effects[at, 1:].sum(-1),
            effect_source=effect_source[at],
            effect_weight=effect_weight[at],
            note=note,
        )
        for at, ids in enumerate(trace.tokens.tolist())
    ]


@dataclass(frozen=True, eq=False)
class _Ranking:
    """Every context of some rows by one measure, the strongest first."""

    contexts: list[tuple[float, _Row, int, int, float]]
    times: Counter[tuple[int, int]]

    @classmethod
    def of(
        cls, rows: Sequence[_Row], order: Callable[[_Row], tuple[Tensor, Tensor, Tensor]]
    ) -> "_Ranking":
        found: list[tuple[float, _Row, int, int, float]] = []
        for row in rows:
            values, sources, weights = (each.tolist() for each in order(row))
            found += [
                (value, row, destination, source, weight)
                for destination, (value, source, weight) in enumerate(
                    zip(values, sources, weights, strict=True), start=1
                )
                if not math.isnan(value)
            ]
        found.sort(key=lambda one: -one[0])
        return cls(found, Counter(cls._pair(one) for one in found))

    @staticmethod
    def _pair(one: tuple[float, _Row, int, int, float]) -> tuple[int, int]:
        _, row, destination, source, _ = one
        return row.ids[source], row.ids[destination]

    def strongest(self, k: int) -> tuple[Context, ...]:
        """The strongest context of each (source, destination) pair of tokens."""
        first = dict[tuple[int, int], tuple[float, _Row, int, int, float]]()
        for one in self.contexts:
            if len(first) == k:
                break
            first.setdefault(self._pair(one), one)
        return tuple(self._context(one) for one in first.values())

    def deciles(self) -> tuple[Context, ...]:
        """The contexts that 90%, 80%, … 10% of all contexts are weaker than."""
        last = len(self.contexts) - 1
        return tuple(self._context(self.contexts[round(last * ten / 10)]) for ten in range(1, 10))

    def _context(self, one: tuple[float, _Row, int, int, float]) -> Context:
        _, row, destination, source, weight = one
        effect = float(row.effect[destination - 1])
        return Context(
            sequence=row.sequence,
            destination=destination,
            source=source,
            ids=row.ids[: destination + 1 + SHOWN],
            weight=weight,
            off_first=float(row.off_first[destination - 1]),
            effect=None if math.isnan(effect) else effect,
            times=self.times[self._pair(one)],
        )


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
    alike: dict[tuple[bool, int, int], list[tuple[float, int, int]]] = {}
    for act, sequence, position in places:
        tokens = ids[sequence]
        key = act > 0, tokens[position - 1], tokens[position]
        alike.setdefault(key, []).append((act, sequence, position))
    found: list[NeuronContext] = []
    for same in list(alike.values())[:k]:
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
