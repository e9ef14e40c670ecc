"""Composition as a list of edges: filtered, sorted, and beside what chance would give."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from pathsum.circuits.composition.composition_null import chance_of
from pathsum.errors import InputError, near_misses
from pathsum.names import Edge, HeadId, HeadRead, Side
from pathsum.result import Column, Record, Table, text_column
from pathsum.result.p_value import ProbabilityColumn

if TYPE_CHECKING:
    from pathsum.circuits.composition.composition import Composition, CompositionScores

CompositionKind: TypeAlias = Literal["q", "k", "v"]
OrderBy: TypeAlias = Literal["z", "p", "excess", "score"]
KINDS: tuple[CompositionKind, ...] = get_args(CompositionKind)

_COMMON = 0.01


@dataclass(frozen=True)
class ScoredEdge:
    """An edge between two heads with its composition score and the score's null."""

    edge: Edge
    score: float
    excess: float
    z: float
    p: float

    @property
    def writer(self) -> HeadId:
        """The head that writes."""
        assert isinstance(self.edge.writer, HeadId)
        return self.edge.writer

    @property
    def reader(self) -> HeadId:
        """The head that reads."""
        return self._read.head

    @property
    def kind(self) -> CompositionKind:
        """Which of its reads: `q`, `k` or `v`."""
        return self._read.side.value

    @property
    def _read(self) -> HeadRead:
        assert isinstance(self.edge.reader, HeadRead)
        return self.edge.reader


@dataclass(frozen=True)
class Edges(Record, kind="composition-edges"):
    """Edges that pass a threshold, best first.

    `tested` counts all pairs and kinds that were looked at, `found` those that pass, `expected` how
    many would pass if the stream were turned at random between any two heads. `unlikely` counts
    those tested with p < 0.01, of which chance would give one in a hundred. `edges` may hold fewer
    than `found` where a limit was asked for.
    """

    model: str
    edges: tuple[ScoredEdge, ...]
    tested: int
    found: int
    expected: float
    unlikely: int
    dimension: int
    notes: tuple[str, ...]

    def __iter__(self) -> Iterator[ScoredEdge]:
        return iter(self.edges)

    def __len__(self) -> int:
        return len(self.edges)

    def to_table(self) -> Table:
        """One row an edge."""
        columns = (
            *(text_column("writes"), text_column("reads"), text_column("by")),
            *(Column("score"), Column("excess", "+.3f"), Column("z", "+.1f"), ProbabilityColumn()),
        )
        rows = tuple(
            (e.writer, e.reader, e.kind.upper(), e.score, e.excess, e.z, e.p) for e in self.edges
        )
        return Table(columns, rows, f"composition, {self.model}", "\n".join(self._remarks()))

    def _remarks(self) -> Iterator[str]:
        shown = "" if len(self.edges) == self.found else f", {len(self.edges)} shown"
        yield (
            f"{self.found} of {self.tested} edges pass{shown}; "
            f"chance would give {_count(self.expected)}."
        )
        yield (
            f"{self.unlikely} of {self.tested} have p < {_COMMON:g}; "
            f"chance would give {_count(_COMMON * self.tested)}."
        )
        if self.dimension > 1:
            yield (
                f"A random rotation scores about 1/√{self.dimension} = "
                f"{self.dimension**-0.5:.3f}; z is that of score²."
            )
        yield from self.notes


def select(
    found: "Composition",
    kinds: Sequence[CompositionKind],
    min_z: float | None,
    max_p: float | None,
    min_excess: float | None,
    by: OrderBy,
    limit: int | None,
) -> Edges:
    """The edges of some kinds that pass every threshold given (see `Composition.edges`)."""
    _check(kinds, max_p, by, limit)
    asked = tuple(dict.fromkeys(kinds))
    tested = unlikely = 0
    expected = 0.0
    places: list[Tensor] = []
    keys: list[Tensor] = []
    for number, kind in enumerate(asked):
        scores = found.scores(kind)
        there = ~scores.score.isnan()
        tested += int(there.sum())
        unlikely += int((scores.p < _COMMON).sum())
        expected += float(_tails(scores, there, found.dimension, min_z, max_p, min_excess).sum())
        if min_z is not None:
            there = there & (scores.z >= min_z)
        if max_p is not None:
            there = there & (scores.p <= max_p)
        if min_excess is not None:
            there = there & (scores.excess >= min_excess)
        passing = there.nonzero()
        places.append(torch.cat((torch.full_like(passing[:, :1], number), passing), 1))
        value = getattr(scores, by)[there]
        # Ascending: best first, edges without a number last.
        keys.append((value if by == "p" else -value).nan_to_num(nan=math.inf))
    order = torch.cat(keys).sort(stable=True).indices[:limit]
    return Edges(
        model=found.model,
        edges=tuple(
            _edge(found, asked[number], writer, reader)
            for number, writer, reader in torch.cat(places)[order].tolist()
        ),
        tested=tested,
        found=sum(map(len, keys)),
        expected=expected,
        unlikely=unlikely,
        dimension=found.dimension,
        notes=found.notes,
    )


def _edge(found: "Composition", kind: CompositionKind, writer: int, reader: int) -> ScoredEdge:
    scores = found.scores(kind)
    score, excess, z, p = (
        float(part[writer, reader]) for part in (scores.score, scores.excess, scores.z, scores.p)
    )
    edge = Edge(found.heads[writer], HeadRead(found.heads[reader], Side(kind)))
    return ScoredEdge(edge, score, excess, z, p)


def _tails(
    scores: "CompositionScores",
    there: Tensor,
    d: int,
    min_z: float | None,
    max_p: float | None,
    min_excess: float | None,
) -> Tensor:
    """The probability of each pair to pass by chance."""
    spread = scores.spread[there]
    null = chance_of(spread, scores.skewness[there], d)
    tail = torch.ones_like(spread)
    if min_z is not None:
        tail = torch.minimum(tail, null.p(null.mean + min_z * spread))
    if min_excess is not None:
        least = max(0.0, min_excess + max(d, 1) ** -0.5) ** 2
        tail = torch.minimum(tail, null.p(torch.full_like(spread, least)))
    if max_p is not None:
        tail = tail.clamp(max=max_p)
    return tail


def _check(
    kinds: Sequence[CompositionKind], max_p: float | None, by: str, limit: int | None
) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"there is no {kind!r}-composition; kinds are 'q', 'k' and 'v'")
    if not kinds:
        raise InputError("no kind of composition was asked for; kinds are 'q', 'k' and 'v'")
    if by not in get_args(OrderBy):
        known = get_args(OrderBy)
        raise InputError(
            f"edges cannot be ordered by {by!r}{near_misses(by, known)}; "
            f"they have {', '.join(known)}"
        )
    if max_p is not None and not 0 <= max_p <= 1:
        raise InputError(f"max_p={max_p:g} is no probability; a number from 0 to 1 would be right")
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} leaves no edge; at least 1, or None, would be right")


def _count(expected: float) -> str:
    return f"{expected:.1f}" if expected >= 1 else f"{expected:.2g}"
