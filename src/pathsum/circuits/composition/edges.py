"""Composition as a list of edges: filtered, sorted, and compared with what chance gives."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from pathsum.algebra.nulls import unit_null_from
from pathsum.base import Column, Edge, HeadId, HeadRead, Record, Side, Table, text_column
from pathsum.base.arguments import parse_choice
from pathsum.base.errors import InputError
from pathsum.base.p_value import LEAST_FITTED, ProbabilityColumn
from pathsum.circuits.composition.reads_and_writes import KINDS, CompositionKind

if TYPE_CHECKING:
    from pathsum.circuits.composition.composition import Composition, CompositionScores

OrderBy: TypeAlias = Literal["z", "p", "excess", "score"]

_UNLIKELY = 0.01
MEANING = (
    "A small p rejects that the two share no more directions than random ones do; it does not show "
    "a circuit, nor does a large p exclude one. Cut the edge to see (pathsum patch)."
)


@dataclass(frozen=True)
class ScoredEdge:
    """An edge with its composition score, and z and p of the score under random rotations."""

    edge: Edge
    score: float
    excess: float
    z: float
    p: float

    @property
    def writer(self) -> HeadId:
        """The head that writes."""
        return self.edge.heads[0]

    @property
    def reader(self) -> HeadId:
        """The head that reads."""
        return self.edge.heads[1].head

    @property
    def kind(self) -> CompositionKind:
        """Which of its reads: `q`, `k` or `v`."""
        return self.edge.heads[1].side.value


@dataclass(frozen=True)
class Edges(Record, kind="composition-edges"):
    """Edges that pass a threshold, best first.

    `tested` counts all pairs and kinds, `found` those that pass, `expected` how many would pass if
    the stream were rotated at random between any two heads. `unlikely` counts those tested with
    p < 0.01, which by chance is one in a hundred. `edges` holds the best k of those found.
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
        """One row per edge."""
        columns = (
            *(text_column("writes"), text_column("reads"), text_column("by")),
            *(Column("score"), Column("excess", "+.3f"), Column("z", "+.1f"), ProbabilityColumn()),
        )
        rows = tuple(
            (e.writer, e.reader, e.kind.upper(), e.score, e.excess, e.z, e.p) for e in self.edges
        )
        return Table(columns, rows, f"composition, {self.model}", "\n".join(self._remarks()))

    def _remarks(self) -> Iterator[str]:
        some = len(self.edges) < self.found
        if self.expected < self.tested:
            listed = f", {len(self.edges)} shown" if some else ""
            yield (
                f"{self.found} of {self.tested} edges pass{listed}; "
                f"chance would give {_count(self.expected)}."
            )
        elif some:
            yield f"{len(self.edges)} of {self.found} edges are shown."
        yield (
            f"{self.unlikely} of {self.tested} have p < {_UNLIKELY:g}; "
            f"chance would give {_count(_UNLIKELY * self.tested)}."
        )
        if self.dimension > 1:
            yield (
                f"A random rotation scores about 1/√{self.dimension} = "
                f"{self.dimension**-0.5:.3f}; z is that of score²."
            )
        yield MEANING
        yield from self.notes


def select(
    found: "Composition",
    kinds: Sequence[CompositionKind],
    min_z: float | None,
    max_p: float | None,
    min_excess: float | None,
    by: OrderBy,
    k: int | None,
) -> Edges:
    """The edges of some kinds that pass every threshold given (see `Composition.edges`)."""
    kinds, by = _parsed(kinds, max_p, by, k)
    tested = unlikely = 0
    expected = 0.0
    places: list[Tensor] = []
    keys: list[Tensor] = []
    for number, kind in enumerate(kinds):
        scores = found.scores(kind)
        there = ~scores.score.isnan()
        tested += int(there.sum())
        unlikely += int((scores.p < _UNLIKELY).sum())
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
    order = torch.cat(keys).sort(stable=True).indices[:k]
    return Edges(
        model=found.model,
        edges=tuple(
            _edge(found, kinds[number], writer, reader)
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
    """The probability that each pair passes by chance."""
    sd = scores.null_sd[there]
    null = unit_null_from(sd, scores.skewness[there], d)
    tail = torch.ones_like(sd)
    if min_z is not None:
        tail = torch.minimum(tail, null.log_p(null.mean + min_z * sd).exp())
    if min_excess is not None:
        least = max(0.0, min_excess + max(d, 1) ** -0.5) ** 2
        tail = torch.minimum(tail, null.log_p(torch.full_like(sd, least)).exp())
    if max_p is not None:
        tail = tail.clamp(max=max_p)
    return tail


def _parsed(
    kinds: Sequence[CompositionKind], max_p: float | None, by: OrderBy, k: int | None
) -> tuple[tuple[CompositionKind, ...], OrderBy]:
    each: list[CompositionKind] = [parse_choice(KINDS, kind, "kind") for kind in kinds]
    parsed = tuple(dict.fromkeys(each))
    if not parsed:
        raise InputError("kinds is empty; choose from 'q', 'k' and 'v'")
    if max_p is not None and not 0 <= max_p <= 1:
        raise InputError(f"max_p={max_p:g} is not a probability; choose a number from 0 to 1")
    if max_p is not None and max_p < LEAST_FITTED:
        raise InputError(
            f"max_p={max_p:g} is below {LEAST_FITTED:g}, the smallest p that the null supports; "
            "use min_z to go further"
        )
    if k is not None and k < 1:
        raise InputError(f"k={k} edges were requested; choose at least 1, or None for all")
    return parsed, parse_choice(get_args(OrderBy), by, "by")


def _count(expected: float) -> str:
    return f"{expected:.1f}" if expected >= 1 else f"{expected:.2g}"
