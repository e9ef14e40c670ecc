"""Breakdown and Grid: named shares of a number, by one name or by two."""

from collections.abc import Iterator
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

    Over several sequences a share is a mean. `values` and `stderr` are the fields of the same names
    of one `Estimate` per share, as arrays; `stderr` is None for one sequence.
    """

    what: str
    names: tuple[Name, ...]
    values: Float[Tensor, " name"]
    stderr: Float[Tensor, " name"] | None
    sequences: int

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
        """All shares together."""
        return float(self.values.sum())

    def estimate(self, name: "int | HeadName | Source") -> Estimate:
        """A share with its standard error and 95% interval over sequences."""
        place = find_name(self.names, name)
        stderr = None if self.stderr is None else float(self.stderr[place])
        return Estimate.around(float(self.values[place]), stderr, self.sequences)

    def to_table(self) -> Table:
        """One row per share, the largest magnitude first (orders in their order)."""
        several = self.stderr is not None
        rows: list[tuple[Cell, ...]] = []
        for name, value in self.items():
            rows.append(
                (str(name), value, *((half_width(self.estimate(name)),) if several else ()))
            )
        if self.names and not isinstance(self.names[0], int):
            rows.sort(key=lambda row: -abs(float(row[1] or 0)))
        columns = (text_column(self.what), Column("logit", "+.3f"))
        return Table((*columns, Column("± 95%")) if several else columns, tuple(rows))


@dataclass(frozen=True)
class NeuronShare:
    """The share of one neuron in a prediction."""

    neuron: Annotated[str, text_column("neuron")]
    share: Annotated[float, Column("logit", "+.3f")]


@dataclass(frozen=True, eq=False)
class NodeNeurons(Record, kind="node-neurons"):
    """The strongest neurons of an MLP node; with `rest`, that of `others` parts, they add up."""

    node: str
    value: float
    neurons: tuple[NeuronShare, ...]
    rest: float
    others: int

    @classmethod
    def of(cls, node: str, split: Breakdown, k: int) -> "NodeNeurons":
        """The k largest parts of a `Graph.neurons`."""
        ranked = sorted(split.items(), key=lambda item: -abs(item[1]))
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
    """Shares of a number by two names; `grid["embed", 3]` is one of them.

    `stderr` is as in `Breakdown`.
    """

    what: str
    rows: tuple[Name, ...]
    columns: tuple[Name, ...]
    values: Float[Tensor, "row column"]
    stderr: Float[Tensor, "row column"] | None
    sequences: int

    def __getitem__(self, at: "tuple[int | HeadName | Source, int | HeadName | Source]") -> float:
        row, column = find_name(self.rows, at[0]), find_name(self.columns, at[1])
        return float(self.values[row, column])

    def sum(self) -> float:
        """All shares together."""
        return float(self.values.sum())

    def ranked(self, k: int = 20) -> list[tuple[Name, Name, float]]:
        """The k shares of largest magnitude, each with its row and its column."""
        flat = self.values.flatten()
        parse_count(k, "shares")
        best = flat.abs().topk(min(k, flat.numel())).indices.tolist()
        wide = len(self.columns)
        return [(self.rows[i // wide], self.columns[i % wide], float(flat[i])) for i in best]

    def estimate(
        self, row: "int | HeadName | Source", column: "int | HeadName | Source"
    ) -> Estimate:
        """A share with its standard error and 95% interval over sequences."""
        at = find_name(self.rows, row), find_name(self.columns, column)
        stderr = None if self.stderr is None else float(self.stderr[at])
        return Estimate.around(float(self.values[at]), stderr, self.sequences)

    def to_table(self, k: int = 20) -> Table:
        """The k largest shares, one per row."""
        several = self.stderr is not None
        first, _, second = self.what.partition(" × ")
        rows = tuple(
            (
                *(str(row), str(column), value),
                *((half_width(self.estimate(row, column)),) if several else ()),
            )
            for row, column, value in self.ranked(k)
        )
        columns = (text_column(first), text_column(second), Column("logit", "+.3f"))
        return Table((*columns, Column("± 95%")) if several else columns, rows)


def half_width(estimate: Estimate) -> float | None:
    """Half of the 95% interval."""
    return None if estimate.high is None else estimate.high - estimate.value


def find_name(names: tuple[Name, ...], name: "int | HeadName | Source") -> int:
    """The index of a name: a head by label or pair, a source by its text, anything by its index."""
    wanted = HeadId.parse(name) if isinstance(name, tuple) else name
    for place, known in enumerate(names):
        if known == wanted or (isinstance(wanted, str) and str(known).lower() == wanted.lower()):
            return place
    named_by_number = any(isinstance(known, int) for known in names)
    if isinstance(wanted, int) and not named_by_number and -len(names) <= wanted < len(names):
        return wanted % len(names)
    listed = ", ".join(str(known) for known in names[:4])
    raise InputError(
        f"there is no share of {wanted!s} here; the names are {listed}"
        + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    )
