"""`head_places`: where in a text a head is most active.

A place is a destination of the text with the source that mattered there. There are two rankings:

    attention    the largest weight on a source after the first position, max_{s>0} A[d, s]
    effect       what the head adds to the logit of the actual next token, vocabulary mean removed,
                 Σ_s effect[d, s] (`pathsum.paths.logit_effects`), by magnitude; the source is the
                 one with the largest part of it

Heads rest on the first position, so attention to it counts as none. Of places with the same source
and destination tokens only the strongest is listed, with their number. The averages over all places
are given too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Column, Progress, Record, Table, silent, text_column
from pathsum.base.errors import InputError, NotExactError
from pathsum.circuits.token_basis import Token, check_k, token_of
from pathsum.circuits.trigrams import text_rows
from pathsum.model import HeadName, Model, Trace
from pathsum.model.sequences import TextOrTokens, require_text, token_batches
from pathsum.paths import logit_effects

# Places per ranking, sequences read, and tokens that tables show before and after a place.
K, SEQUENCES, CONTEXT = 10, 64, 6
MAX_K, MAX_SEQUENCES = 1000, 100_000
BATCH = 4


@dataclass(frozen=True)
class Place:
    """A destination in a text and the source that mattered there.

    `ids` are the tokens of the sequence from its start to a few after the destination, enough to
    run the place again. `weight` is the attention from the destination to the source, `off_first`
    all its attention after the first position, `effect` what the head adds to the logit of the next
    token (None if effects are not exact on the model, or nothing follows). `times` is the number of
    places with the same two tokens.
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
class HeadPlaces(Record, kind="head-places"):
    """The places of a text where a head is most active, by attention and by logit effect.

    `mean_weight` and `mean_effect` are averages over all places: of the largest weight after the
    first position, and of the magnitude of the effect. `tokens` are the texts of all tokens that
    occur in the places.
    """

    head: str
    by_attention: tuple[Place, ...]
    by_effect: tuple[Place, ...]
    sequences: int
    places: int
    mean_weight: float
    mean_effect: float | None
    tokens: tuple[Token, ...]
    note: str

    def to_table(self) -> Table:
        """Both rankings; the source is in ⟨⟩, the destination in [], the next token after →."""
        rows = [
            (order, self._words(place), place.weight, place.effect, place.times)
            for order, places in (("attention", self.by_attention), ("effect", self.by_effect))
            for place in places
        ]
        average = f"the average of {self.places} places: weight {self.mean_weight:.2f}"
        if self.mean_effect is not None:
            average += f", |effect| {self.mean_effect:.2f}"
        return Table(
            (
                text_column("by"),
                text_column("place: ⟨source⟩ … [destination] → next"),
                Column("weight", ".2f"),
                Column("effect, logits", "+.2f"),
                Column("times", "d"),
            ),
            tuple(rows),
            title=f"{self.head}: where it does most",
            note="\n".join(filter(None, (average, self.note))),
        )

    def _words(self, place: Place) -> str:
        texts = {token.id: token.text for token in self.tokens}
        first = max(0, place.destination - CONTEXT)
        shown = sorted({place.source, *range(first, place.destination + 1)})
        words: list[str] = []
        for at, before in zip(shown, [None, *shown], strict=False):
            text = texts[place.ids[at]]
            text = f"⟨{text}⟩" if at == place.source else text
            text = f"[{text}]" if at == place.destination else text
            words += ["…", text] if before is not None and at > before + 1 else [text]
        after = place.ids[place.destination + 1 : place.destination + 2]
        return " ".join([*words, *(f"→ {texts[token]}" for token in after)])


def head_places(
    model: Model,
    head: HeadName,
    text: TextOrTokens | None = None,
    *,
    k: int = K,
    sequences: int = SEQUENCES,
    reading: "Reading | None" = None,
    progress: Progress = silent,
) -> HeadPlaces:
    """The k places of a text where a head is most active, by attention and by logit effect.

    `text` is anything that `model.loss` takes; by default the held-out text that the model comes
    with. Of more than `sequences` sequences, that many are read, evenly spaced. Instead of a text,
    several calls can share a `reading` of it.

    >>> import pathsum as ps
    >>> model = ps.load("hand-built-induction")
    >>> found = head_places(model, "L1H0", "a b c a b", k=1)
    >>> place = found.by_attention[0]
    >>> [model.token_text(place.ids[at]) for at in (place.destination, place.source)]
    ['a', 'b']

    Places are examples, not a description: for what the head does in general see `atlas`, for what
    it is worth `pathsum.paths.ablate`.
    """
    check_k(k, MAX_K, "places")
    found = model.head(head).label
    if reading is None:
        reading = read_places(model, [head], text, sequences=sequences, progress=progress)
    read = reading.rows(found)
    by_attention = _strongest(read, k, lambda row: (row.weight, row.source, row.weight))
    by_effect = _strongest(
        read, k, lambda row: (row.effect.abs(), row.effect_source, row.effect_weight)
    )
    used = sorted({token for place in (*by_attention, *by_effect) for token in place.ids})
    effects = torch.cat([row.effect.abs() for row in read])
    known = bool((~effects.isnan()).any())
    return HeadPlaces(
        head=found,
        by_attention=by_attention,
        by_effect=by_effect,
        sequences=len(read),
        places=sum(len(row.weight) for row in read),
        mean_weight=float(torch.cat([row.weight for row in read]).mean()),
        mean_effect=float(effects.nanmean()) if known else None,
        tokens=tuple(token_of(model, token) for token in used),
        note=next((row.note for row in read if row.note), ""),
    )


@dataclass(frozen=True, eq=False)
class Reading:
    """What some heads do at every place of a text, shared by several calls of `head_places`."""

    _rows: "dict[str, list[_Row]]"

    def rows(self, head: str) -> "list[_Row]":
        """What one of the heads does, sequence by sequence."""
        if head not in self._rows:
            raise InputError(
                f"{head} is not in this reading of the text, which has {', '.join(self._rows)}; "
                "read the text for it, or leave reading out"
            )
        return self._rows[head]


def read_places(
    model: Model,
    heads: Sequence[HeadName],
    text: TextOrTokens | None = None,
    *,
    sequences: int = SEQUENCES,
    progress: Progress = silent,
) -> Reading:
    """Read a text once for several heads; `text` and `sequences` are as for `head_places`."""
    check_k(sequences, MAX_SEQUENCES, "sequences")
    rows = text_rows(model, token_batches(model, require_text(model, text)), sequences)
    found: dict[str, list[_Row]] = {model.head(head).label: [] for head in heads}
    done = 0
    for batch in _batches(rows):
        progress(done, len(rows), "reading the text")
        trace = model.trace(batch)
        for label, read in found.items():
            read += _read(trace, label, done)
        done += len(batch)
    progress(len(rows), len(rows), "reading the text")
    return Reading(found)


@dataclass(frozen=True, eq=False)
class _Row:
    """What a head does at each destination of one sequence except the first.

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


def _strongest(
    read: Sequence[_Row], k: int, order: Callable[[_Row], tuple[Tensor, Tensor, Tensor]]
) -> tuple[Place, ...]:
    """The strongest place of each (source, destination) pair of tokens, and how often it occurs."""
    values, pairs, places = list[Tensor](), list[Tensor](), list[tuple[int, int]]()
    for number, row in enumerate(read):
        value, source, _ = order(row)
        ids = torch.tensor(row.ids)
        values.append(value.cpu())
        pairs.append(torch.stack((ids[source.cpu()], ids[1:]), 1))
        places += ((number, at) for at in range(len(value)))
    size = torch.cat(values)
    ranked = (-size).argsort(stable=True)
    ranked = ranked[~size[ranked].isnan()]
    _, which, times = torch.cat(pairs)[ranked].unique(
        dim=0, return_inverse=True, return_counts=True
    )
    found: dict[int, Place] = {}
    for number, pair in zip(ranked.tolist(), which.tolist(), strict=True):
        if pair not in found:
            if len(found) == k:
                break
            row, at = read[places[number][0]], places[number][1]
            _, source, weight = order(row)
            effect = float(row.effect[at])
            found[pair] = Place(
                sequence=row.sequence,
                destination=at + 1,
                source=int(source[at]),
                ids=row.ids[: at + 2 + CONTEXT],
                weight=float(weight[at]),
                off_first=float(row.off_first[at]),
                effect=None if math.isnan(effect) else effect,
                times=int(times[pair]),
            )
    return tuple(found.values())
