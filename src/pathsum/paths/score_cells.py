"""The strongest terms of a head's scores, in one cell or over all rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.base import Column, Part, Record, Table, text_column
from pathsum.base.errors import InputError
from pathsum.base.options import parse_count, parse_position
from pathsum.base.table import rows_table
from pathsum.model import HeadId
from pathsum.model.transformer import pattern_at
from pathsum.paths.score_sum import Group, ScoreSum, SideSum, Vectors, group_of

PartKind: TypeAlias = Literal["paths", "writers"]


@dataclass(frozen=True, eq=False)
class CellTerm(Record, kind="cell-term"):
    """A term's share of one score, and the attention there without the term.

    `attention_without` is the softmax of the whole row with the term removed from all of it.
    """

    query: Annotated[Part, text_column("query part")]
    key: Annotated[Part, text_column("key part")]
    group: Annotated[Group, text_column("group")]
    score: Annotated[float, Column("score", "+.3f")]
    attention_without: Annotated[float, Column("attention without")]


@dataclass(frozen=True, eq=False)
class ScoreCell(Record, kind="score-cell"):
    """One score, of a destination for a source, as a sum of terms, largest magnitude first.

    `none + q + k + qk = score`, and `rest` is the sum of the omitted terms. `parts` is "paths" or,
    in deep models, "writers": the whole output of each lower head.
    """

    head: HeadId
    destination: int
    source: int
    destination_text: str
    source_text: str
    score: float
    attention: float
    none: float
    q: float
    k: float
    qk: float
    terms: tuple[CellTerm, ...]
    rest: float
    count: int
    parts: PartKind
    remainder: float

    @property
    def table_title(self) -> str:
        """The cell, its score and its attention."""
        return (
            f"{self.head}: {self.destination_text} at {self.destination} → "
            f"{self.source_text} at {self.source}, score {self.score:+.3f}, "
            f"attention {self.attention:.3f}"
        )

    @property
    def table_note(self) -> str:
        """The four groups, and the sum of the omitted terms."""
        return (
            f"none {self.none:+.3f}, q {self.q:+.3f}, k {self.k:+.3f}, qk {self.qk:+.3f}; "
            f"{len(self.terms)} of {self.count:,} terms, sum of the others {self.rest:+.3f}; "
            f"reconstruction error {self.remainder:.1e}"
        )


@dataclass(frozen=True, eq=False)
class SummaryTerm(Record, kind="summary-term"):
    """A term over all rows: its spread within rows, and its most extreme cell.

    `spread` is the root mean square of the term minus its row's mean, over visible cells; `largest`
    is the term's value at the cell that is farthest from its row's mean.
    """

    query: Annotated[str, text_column("query part")]
    key: Annotated[str, text_column("key part")]
    group: Annotated[str, text_column("group")]
    spread: Annotated[float, Column("spread")]
    largest: Annotated[float, Column("farthest", "+.3f")]
    destination: Annotated[int, Column("destination")]
    source: Annotated[int, Column("source")]


@dataclass(frozen=True, eq=False)
class ScoreSummary(Record, kind="score-summary"):
    """A head's scores over all rows: their sum, the four groups, and the strongest terms.

    Terms are ranked by `spread`, their variation within rows, because the softmax ignores constants
    along a row. Spreads do not add up, because terms may cancel.
    """

    head: HeadId
    groups: tuple[SummaryTerm, ...]
    terms: tuple[SummaryTerm, ...]
    count: int
    parts: PartKind
    remainder: float

    def to_table(self) -> Table:
        """Groups first, then terms."""
        note = (
            "spread: standard deviation within rows (softmax ignores a constant per row); "
            f"{len(self.terms)} of {self.count:,} terms; reconstruction error {self.remainder:.1e}"
        )
        return rows_table((*self.groups, *self.terms), f"{self.head}: terms of its scores", note)


def rank_cell(
    scores: ScoreSum, destination: int, source: int, k: int, sequence: int, max_parts: int
) -> ScoreCell:
    """The strongest terms of one cell."""
    destination, source, sequence = _parse_cell(scores, destination, source, sequence)
    parse_count(k, "terms")
    parts, rows = _part_kind(scores, max_parts), slice(sequence, sequence + 1)
    config = scores.trace.model.config
    length = config.visible_length(destination, scores.trace.tokens.shape[1])
    query_parts, queries = _stack_parts(scores.query.select(rows, length), parts)
    key_parts, keys = _stack_parts(scores.key.select(rows, length), parts)
    queries = queries[:, destination] * config.score_scale
    # [query part, key part] at the cell; rows are computed for the listed terms only.
    cell = queries @ keys[:, source].T
    best = cell.abs().flatten().topk(min(k, cell.numel())).indices
    at_query, at_key = best // cell.shape[1], best % cell.shape[1]
    row = scores.total()[sequence, destination, :length]
    term_rows = torch.einsum("tk,tsk->ts", queries[at_query], keys[at_key])
    without = _attention(scores, destination, row - term_rows)[:, source].tolist()
    values = cell[at_query, at_key].tolist()
    pairs = [(query_parts[i], key_parts[j]) for i, j in zip(at_query, at_key, strict=True)]
    terms = tuple(
        CellTerm(*pair, group_of(*pair), value, attention)
        for pair, value, attention in zip(pairs, values, without, strict=True)
    )
    model, tokens = scores.trace.model, scores.trace.tokens[sequence].tolist()
    total = float(row[source])
    at = (sequence, destination, source)
    return ScoreCell(
        head=scores.head,
        destination=destination,
        source=source,
        destination_text=model.token_text(tokens[destination]),
        source_text=model.token_text(tokens[source]),
        score=total,
        attention=float(_attention(scores, destination, row[None])[0, source]),
        none=float(scores.none[at]),
        q=float(scores.q[at]),
        k=float(scores.k[at]),
        qk=float(scores.qk[at]),
        terms=terms,
        rest=total - sum(values),
        count=cell.numel(),
        parts=parts,
        remainder=scores.remainder(),
    )


def summarize_scores(scores: ScoreSum, k: int, max_parts: int) -> ScoreSummary:
    """The terms with the largest spread within rows, one query part at a time."""
    parse_count(k, "terms")
    cells = _visible_cells(scores)
    groups = (
        _summary("all", "all", "all", scores.total(), cells),
        _summary("no head", "no head", "none", scores.none, cells),
        _summary("lower heads", "no head", "q", scores.q, cells),
        _summary("no head", "lower heads", "k", scores.k, cells),
        _summary("lower heads", "lower heads", "qk", scores.qk, cells),
    )
    parts = _part_kind(scores, max_parts)
    pairs, count = _rank_pairs(scores, parts, k)
    terms = tuple(
        _summary(str(query), str(key), group_of(query, key), scores.term(query, key), cells)
        for query, key in pairs
    )
    return ScoreSummary(
        head=scores.head,
        groups=groups,
        terms=terms,
        count=count,
        parts=parts,
        remainder=scores.remainder(),
    )


def _attention(
    scores: ScoreSum, destination: int, rows: Float[Tensor, "rows src"]
) -> Float[Tensor, "rows src"]:
    """The softmax of rows of scores of one destination, as the model computes it."""
    config, head = scores.trace.model.config, scores.head
    layer = scores.trace.model.weights.layers[head.layer]
    offsets = destination - torch.arange(rows.shape[1], device=rows.device)[None]
    numbers = torch.full((len(rows),), head.head, device=rows.device)
    return pattern_at(config, layer, numbers, offsets, rows)


def _rank_pairs(scores: ScoreSum, parts: PartKind, k: int) -> tuple[list[tuple[Part, Part]], int]:
    """The k pairs with the largest spread, and the number of pairs; one sequence at a time."""
    batch, length = scores.trace.tokens.shape
    cells = _visible_cells(scores)
    squares: dict[tuple[Part, Part], float] = {}
    for row in range(batch):
        rows = slice(row, row + 1)
        all_keys = list(_parts_with_vectors(scores.key.select(rows, length), parts))
        for query, queries in _parts_with_vectors(scores.query.select(rows, length), parts):
            for key, keys in all_keys:
                terms = _centered(scores.product(queries, keys), cells[rows])
                squares[query, key] = squares.get((query, key), 0.0) + float(terms.square().sum())
    ranked = sorted(squares, key=lambda pair: -squares[pair])
    return ranked[:k], len(ranked)


def _summary(
    query: str,
    key: str,
    group: str,
    scores: Float[Tensor, "batch dest src"],
    cells: Bool[Tensor, "batch dest src"],
) -> SummaryTerm:
    length, centered = scores.shape[-1], _centered(scores, cells)
    farthest = int(centered.abs().argmax())
    return SummaryTerm(
        query=query,
        key=key,
        group=group,
        spread=float((centered.square().sum() / cells.sum()).sqrt()),
        largest=float(scores.flatten()[farthest]),
        destination=farthest // length % length,
        source=farthest % length,
    )


def _visible_cells(scores: ScoreSum) -> Bool[Tensor, "batch dest src"]:
    """The cells of real tokens that can be attended to."""
    lengths, length = scores.trace.lengths, scores.trace.tokens.shape[1]
    real = torch.arange(length, device=lengths.device) < lengths[:, None]
    cells = real[:, :, None] & real[:, None, :]
    return cells.tril() if scores.trace.model.config.causal else cells


def _centered(
    scores: Float[Tensor, "batch dest src"], cells: Bool[Tensor, "batch dest src"]
) -> Float[Tensor, "batch dest src"]:
    """A term minus its row's mean over visible cells; 0 in all other cells."""
    inside = scores.where(cells, 0.0)
    mean = inside.sum(-1, keepdim=True) / cells.sum(-1, keepdim=True).clamp(min=1)
    return (inside - mean).where(cells, 0.0)


def _part_kind(scores: ScoreSum, max_parts: int) -> PartKind:
    count = max(scores.query.count, scores.key.count)
    return "paths" if count <= max_parts else "writers"


def _parts_with_vectors(side: SideSum, parts: PartKind) -> Iterator[tuple[Part, Vectors]]:
    return side.expand() if parts == "paths" else side.writers()


def _stack_parts(side: SideSum, parts: PartKind) -> tuple[list[Part], Float[Tensor, "part pos k"]]:
    """The parts of a side and their vectors in its first sequence."""
    names, vectors = zip(*_parts_with_vectors(side, parts), strict=True)
    return list(names), torch.stack([part[0] for part in vectors])


def _parse_cell(
    scores: ScoreSum, destination: int, source: int, sequence: int
) -> tuple[int, int, int]:
    batch, length = scores.trace.tokens.shape
    destination = parse_position(destination, length, "destination")
    source = parse_position(source, length, "source")
    if not -batch <= sequence < batch:
        raise InputError(
            f"sequence {sequence} is out of range: the trace has sequences 0 to {batch - 1}"
        )
    if source > destination and scores.trace.model.config.causal:
        raise InputError(
            f"position {destination} cannot attend to {source}, which comes after it; give a "
            "source at or before the destination"
        )
    return destination, source, sequence % batch
