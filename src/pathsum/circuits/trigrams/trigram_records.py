"""SkipTrigram and SkipTrigrams: the records of one triple and of a list of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.console import RenderableType

from pathsum.base import Column, Record, Table, stacked, text_column, token_column
from pathsum.circuits.tokens.token import Token, joined, token_of
from pathsum.circuits.trigrams.bugs import Bug, BugCost
from pathsum.circuits.trigrams.triple import Evidence, Pattern, Triple, pattern_of
from pathsum.model import HeadId, Model


class Rank(StrEnum):
    """The ranking of skip-trigrams: by their effect on text, or from weights alone."""

    TEXT = "text"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class PatternShare:
    """A pattern: how many of the strongest skip-trigrams have it, and its share of their gain."""

    pattern: Pattern
    count: int
    share: float


@dataclass(frozen=True)
class TriplePlace:
    """A place in the text: the tokens up to the predicted one, and two positions among them."""

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

    head: HeadId
    source: Token
    destination: Token
    out: Token
    attention: float
    effect: float
    score: float
    pattern: Pattern
    bug: Bug | None
    evidence: Evidence | None
    fires: int | None = None
    variants: tuple[str, ...] = ()
    occurrence: str = ""
    place: TriplePlace | None = None

    @classmethod
    def of(
        cls,
        model: Model,
        triple: Triple,
        bug: Bug | None,
        evidence: Evidence | None,
        **on_text: Any,
    ) -> "SkipTrigram":
        """The record of a triple; `on_text` are the fields of a ranking on text."""
        source, destination, out = (token_of(model, token) for token in triple.tokens)
        return cls(
            triple.head,
            source,
            destination,
            out,
            triple.attention,
            triple.effect,
            triple.score,
            pattern_of(model.tokenizer, *triple.tokens),
            bug,
            evidence,
            **on_text,
        )

    def __str__(self) -> str:
        return f"{self.source} … {self.destination} → {self.out}"


@dataclass(frozen=True, eq=False)
class SkipTrigrams(Record, kind="skip-trigrams"):
    """The strongest skip-trigrams, best first; a sequence of `SkipTrigram`.

    In a ranking on text, `classes` are the shares of each pattern in what all skip-trigrams gain
    where they are right.
    """

    triples: tuple[SkipTrigram, ...]
    bugs: tuple[Bug, ...]
    cost: BugCost | None
    note: str
    rank: Rank = Rank.WEIGHTS
    classes: tuple[PatternShare, ...] = ()

    def __len__(self) -> int:
        return len(self.triples)

    def __iter__(self) -> Iterator[SkipTrigram]:
        return iter(self.triples)

    def __getitem__(self, index: int) -> SkipTrigram:
        return self.triples[index]

    def to_table(self) -> Table:
        """One row per triple."""
        if self.rank is Rank.TEXT:
            return self._text_table()
        seen = any(triple.evidence is not None for triple in self.triples)
        columns = [text_column("head"), *map(token_column, ("source", "dest", "out"))]
        columns += [Column("QK", ".2f"), Column("OV", ".2f"), Column("score", ".2f")]
        columns += [text_column("pattern"), token_column("bug")]
        columns += [Column("n"), Column("lift", ".1f")] if seen else []
        rows = tuple(
            (
                *(one.head, one.source.text, one.destination.text, one.out.text),
                *(one.attention, one.effect, one.score),
                *(str(one.pattern), "bug" if one.bug else ""),
                *(_counts(one.evidence) if seen else ()),
            )
            for one in self.triples
        )
        legend = "score = QK (attention) · OV (effect) · p(source)^0.1"
        legend += "; n, lift: antecedents in held-out text, out's rate over the bigram's" * seen
        cost = "" if self.cost is None else str(self.cost)
        return Table(
            tuple(columns), rows, title="skip-trigrams", note=joined((legend, cost, self.note))
        )

    def _text_table(self) -> Table:
        bugs = any(one.bug is not None for one in self.triples)
        columns = (
            text_column("head"),
            *map(token_column, ("source", "dest", "out")),
            Column("mnat", ".3f"),
            Column("fires"),
            Column("lift", ".1f"),
            text_column("pattern"),
            *((text_column("bug"),) if bugs else ()),
            token_column("in the text"),
        )
        rows = tuple(
            (
                *(one.head, one.source.text, one.destination.text, one.out.text),
                *(1000 * one.score, one.fires, one.evidence.lift if one.evidence else None),
                *(str(one.pattern), *(("bug" if one.bug else "",) if bugs else ())),
                one.occurrence,
            )
            for one in self.triples
        )
        legend = (
            "mnat: rise of the loss without it, in 0.001 nats per prediction, over right and wrong "
            "places; fires: places where it adds 0.1 or more to the logit of what comes next; "
            "lift: out's rate over the bigram's, in sequences not ranked on"
        )
        cost = "" if self.cost is None else str(self.cost)
        note = joined((legend, cost, self.note))
        return Table(columns, rows, title="skip-trigrams on text", note=note)

    def classes_table(self) -> Table:
        """One row per pattern: its share of what skip-trigrams gain where they are right."""
        columns = (text_column("pattern"), Column("triples"), Column("share of gain", ".1%"))
        rows = tuple((str(one.pattern), one.count, one.share) for one in self.classes)
        return Table(columns, rows, title="by pattern")

    def __rich__(self) -> RenderableType:
        if not self.classes:
            return self.to_table()
        return stacked(self.to_table(), self.classes_table())


def _counts(known: Evidence | None) -> tuple[int | None, float | None]:
    return (known.antecedents, known.lift) if known else (None, None)
