"""Breakdown and Grid: named shares of a number, by one name or by two."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from jaxtyping import Float
from torch import Tensor

from pathsum.base import Column, Estimate, HeadId, HeadName, Record, Source, Table, text_column
from pathsum.base.errors import InputError
from pathsum.base.options import parse_count
from pathsum.base.table import Cell, rows_table

Name: TypeAlias = int | HeadId | Source | Literal["logits"]


@dataclass(frozen=True, eq=False)
class Breakdown(Record, kind="breakdown"):
    """Shares of a number by name; indexed by name, iterated as plain numbers.

    Over several sequences, shares are means, and `stderr` has their standard errors. It is None for
    one sequence.
    """

    what: str
    names: tuple[Name, ...]
    values: Float[Tensor, " name"]
    stderr: Float[Tensor, " name"] | None
    sequences: int

    @classmethod
    def over(
        cls, what: str, names: tuple[Name, ...], values: Float[Tensor, "batch name"]
    ) -> "Breakdown":
        """The mean over sequences."""
        return cls(what, names, *mean_and_error(values), len(values))

    def __getitem__(self, name: "int | HeadName | Source") -> float:
        return float(self.values[find_name(self.names, name)])

    def __iter__(self) -> Iterator[float]:
        return iter(self.values.tolist())

    def __len__(self) -> int:
        return len(self.names)

    def items(self) -> Iterator[tuple[Name, float]]:
        """Names with their shares, in order."""
        return zip(self.names, self.values.tolist(), strict=True)

    def ranked(self) -> list[tuple[Name, float]]:
        """Names with their shares, the largest magnitude first."""
        return sorted(self.items(), key=lambda item: -abs(item[1]))

    def sum(self) -> float:
        """The sum of all shares."""
        return float(self.values.sum())

    def estimate(self, name: "int | HeadName | Source") -> Estimate:
        """A share with its standard error and 95% interval over sequences."""
        return _estimate(self, find_name(self.names, name))

    def to_table(self) -> Table:
        """One row per share, the largest magnitude first (orders in their order)."""
        rows = [((str(name),), _estimate(self, at)) for at, name in enumerate(self.names)]
        if self.names and not isinstance(self.names[0], int):
            rows.sort(key=lambda row: -abs(row[1].value))
        return share_table((self.what,), rows)


@dataclass(frozen=True)
class NeuronShare:
    """The share of one neuron in a prediction."""

    neuron: Annotated[str, text_column("neuron")]
    share: Annotated[float, Column("logit", "+.3f")]


@dataclass(frozen=True, eq=False)
class NodeNeurons(Record, kind="node-neurons"):
    """The strongest neurons of an MLP node, and `rest`, the sum of the `others`."""

    node: str
    value: float
    neurons: tuple[NeuronShare, ...]
    rest: float
    others: int

    @classmethod
    def of(cls, node: str, split: Breakdown, k: int) -> "NodeNeurons":
        """The k largest parts of a `Graph.neurons`."""
        ranked = split.ranked()
        top = tuple(NeuronShare(str(name), value) for name, value in ranked[:k])
        rest = sum(value for _, value in ranked[k:])
        return cls(node, split.sum(), top, rest, len(ranked) - len(top))

    def to_table(self) -> Table:
        """One row per neuron, and one for the rest."""
        rest = NeuronShare(f"{self.others} others", self.rest)
        title = f"{self.node}: {self.value:+.3f} by neuron"
        return rows_table((*self.neurons, rest), title, "", NeuronShare)


@dataclass(frozen=True, eq=False)
class Grid(Record, kind="breakdown-grid"):
    """Shares of a number by two names, such as `grid["embed", 3]`.

    `stderr` is as in `Breakdown`.
    """

    what: str
    rows: tuple[Name, ...]
    columns: tuple[Name, ...]
    values: Float[Tensor, "row column"]
    stderr: Float[Tensor, "row column"] | None
    sequences: int

    @classmethod
    def over(
        cls,
        what: str,
        rows: tuple[Name, ...],
        columns: tuple[Name, ...],
        values: Float[Tensor, "batch row column"],
    ) -> "Grid":
        """The mean over sequences."""
        return cls(what, rows, columns, *mean_and_error(values), len(values))

    def __getitem__(self, at: "tuple[int | HeadName | Source, int | HeadName | Source]") -> float:
        return float(self.values[self._find(*at)])

    def _find(
        self, row: "int | HeadName | Source", column: "int | HeadName | Source"
    ) -> tuple[int, int]:
        return find_name(self.rows, row), find_name(self.columns, column)

    def sum(self) -> float:
        """The sum of all shares."""
        return float(self.values.sum())

    def ranked(self, k: int = 20) -> list[tuple[Name, Name, float]]:
        """The k shares of largest magnitude, each with its row and its column."""
        flat = self.values.flatten()
        parse_count(k, "shares")
        best = flat.abs().topk(min(k, flat.numel())).indices.tolist()
        width = len(self.columns)
        return [(self.rows[i // width], self.columns[i % width], float(flat[i])) for i in best]

    def estimate(
        self, row: "int | HeadName | Source", column: "int | HeadName | Source"
    ) -> Estimate:
        """A share with its standard error and 95% interval over sequences."""
        return _estimate(self, self._find(row, column))

    def to_table(self, k: int = 20) -> Table:
        """The k largest shares, one per row."""
        headings = self.what.split(" × ")
        pairs = [(row, column) for row, column, _ in self.ranked(k)]
        rows = [((str(row), str(column)), self.estimate(row, column)) for row, column in pairs]
        return share_table(headings, rows)


def _estimate(shares: Breakdown | Grid, at: int | tuple[int, int]) -> Estimate:
    stderr = None if shares.stderr is None else float(shares.stderr[at])
    return Estimate.around(float(shares.values[at]), stderr, shares.sequences)


def mean_and_error(values: Float[Tensor, "batch *rest"]) -> tuple[Tensor, Tensor | None]:
    """The mean over sequences and its standard error, which is None for one sequence."""
    count = len(values)
    if count == 1:
        return values[0], None
    mean = values.mean(0)
    variance = (values - mean).square().sum(0) / (count - 1)
    return mean, (variance / count).sqrt()


def share_table(
    headings: Sequence[str],
    rows: Sequence[tuple[tuple[str, ...], Estimate]],
    title: str = "",
    note: str = "",
) -> Table:
    """Named shares, with half of the 95% intervals if there are several sequences."""
    cells: list[tuple[Cell, ...]] = []
    for names, share in rows:
        half = () if share.high is None else (share.high - share.value,)
        cells.append((*names, share.value, *half))
    columns = (*map(text_column, headings), Column("logit", "+.3f"), Column("± 95%"))
    width = max(map(len, cells), default=len(columns) - 1)
    return Table(columns[:width], tuple(cells), title, note)


def find_name(names: tuple[Name, ...], name: "int | HeadName | Source") -> int:
    """The index of a name: a head by label or pair, a source by its text, anything by its index."""
    name = HeadId.parse(name) if isinstance(name, tuple) else name
    for index, candidate in enumerate(names):
        if candidate == name:
            return index
        if isinstance(name, str) and str(candidate).lower() == name.lower():
            return index
    has_numbers = any(isinstance(candidate, int) for candidate in names)
    if isinstance(name, int) and not has_numbers and -len(names) <= name < len(names):
        return name % len(names)
    listed = ", ".join(str(candidate) for candidate in names[:4])
    raise InputError(
        f"there is no share of {name!s} here; the names are {listed}"
        + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    )
