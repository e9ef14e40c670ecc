import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pathsum.base import (
    Column,
    Estimate,
    HeadId,
    Record,
    Row,
    Table,
    interval_columns,
    prose_column,
    rows_table,
    schema,
    text_column,
    token_column,
)
from pathsum.base.estimate import ProbabilityColumn
from pathsum.base.table import Cell, fit_columns

NAMES = ("score", "built in", "z", "p", "probability of it", "OV", "cost (nats)")
LABELS = ("L0H4", "L11H10", "embed", "previous token", "L0H7→L1H4.k", "induction")
WORDS = st.text("abcdefghij", min_size=1, max_size=14)


def numbers() -> st.SearchStrategy[tuple[Column, Callable[[], st.SearchStrategy[Cell]]]]:
    formats = st.sampled_from((".2f", "+.3f", ".1e", ".4g"))
    column = st.builds(Column, st.sampled_from(NAMES), formats)
    cells = st.floats(-1e6, 1e6) | st.integers(-(10**9), 10**9) | st.none()
    return st.tuples(column | st.just(ProbabilityColumn()), st.just(lambda: cells))


def texts() -> st.SearchStrategy[tuple[Column, Callable[[], st.SearchStrategy[Cell]]]]:
    tokens = st.lists(WORDS, min_size=1, max_size=4).map("_".join)
    prose = st.lists(WORDS, min_size=1, max_size=20).map(" ".join)
    return st.sampled_from(
        (
            (text_column("head"), lambda: st.sampled_from(LABELS)),
            (token_column("token"), lambda: tokens),
            (prose_column("what it is"), lambda: prose),
        )
    )


@st.composite
def tables(draw: st.DrawFn) -> Table:
    parts = draw(st.lists(numbers() | texts(), min_size=1, max_size=12))
    columns = tuple(column for column, _ in parts)
    count = draw(st.integers(0, 5))
    rows = tuple(tuple(draw(cells()) for _, cells in parts) for _ in range(count))
    return Table(columns, rows, title="a title", note="a note")


@given(tables(), st.integers(40, 200))
def test_a_number_or_label_that_is_shown_is_whole(table: Table, width: int) -> None:
    layout = fit_columns(table, width)
    lines = table.to_text(width).splitlines()
    assert all(cell_len(line) <= width for line in lines)
    shown = table.columns[: len(layout.widths)]
    body = _cells(lines[2:], layout.widths)
    for place, column in enumerate(shown):
        if column.fit != "whole":
            continue
        assert " ".join(body.heading(place)) == column.heading
        expected = [column.write(row[place]) for row in table.rows]
        assert body.column(place) == expected
    for name in layout.omitted:
        assert name in layout.note
    if layout.omitted:
        found = re.sub(r"\s+", " ", " ".join(lines))
        assert layout.note in found
        assert not fit_columns(table, layout.needed).omitted


class _cells:
    """The cells of a printed table, read back by the widths of its columns."""

    def __init__(self, lines: list[str], widths: tuple[int, ...]) -> None:
        rule = next(place for place, line in enumerate(lines) if set(line.strip()) == {"─"})
        end = next((p for p, line in enumerate(lines) if p > rule and not line.strip()), None)
        starts = [sum(widths[:place]) + 2 * place for place in range(len(widths))]
        self.places = [slice(a, a + w) for a, w in zip(starts, widths, strict=True)]
        self.head, self.body = lines[:rule], lines[rule + 1 : end]

    def heading(self, place: int) -> list[str]:
        read = (line[self.places[place]].strip() for line in self.head)
        return [part for part in read if part]

    def column(self, place: int) -> list[str]:
        read = (line[self.places[place]].strip() for line in self.body)
        return [part for part in read if part]


def test_columns_are_left_out_last_first_and_named() -> None:
    columns = (text_column("head"), *(Column(f"number {n}", ".6f") for n in range(12)))
    table = Table(columns, (("L0H4", *(11.25 + n for n in range(12))),))
    text = table.to_text(60)
    assert "L0H4" in text and "11.250000" in text and "22.250000" not in text
    found = " ".join(text.split())
    assert "columns omitted (the terminal is too narrow):" in found
    assert "number 11 (use --json, or at least 137 characters)" in found
    assert "omitted" not in table.to_text(137)


def test_tokens_are_shortened_before_a_column_is_left_out() -> None:
    table = Table((token_column("token"), Column("logit")), (("a" * 60, 1.0),))
    text = table.to_text(40)
    assert "…" in text and "1.000" in text and "omitted" not in text


def test_sentences_wrap() -> None:
    table = Table((text_column("name"), prose_column("about")), (("one", "several words " * 10),))
    assert " ".join(table.to_text(40).split()).count("several words") >= 10
    assert "…" not in table.to_text(40)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_long_paths_break_between_heads(width: int) -> None:
    path = "embed→" + "→".join(f"L{layer}H{11 - layer}" for layer in range(12))
    table = Table((text_column("path"), Column("logit", "+.3f")), ((path, 0.25),))
    text = table.to_text(width)
    assert "+0.250" in text
    lines = [line.replace("+0.250", "").strip() for line in text.splitlines()]
    assert path in "".join(lines)
    assert all(re.fullmatch(r"(embed→)?(L\d+H\d+→?)+", part) for part in lines if "H" in part)


@dataclass(frozen=True)
class Cost:
    head: Annotated[HeadId, text_column("head")]
    cost: Annotated[Estimate, *interval_columns("cost", ".2f"), ProbabilityColumn(format=".2g")]
    share: Annotated[float | None, Column("share", ".0%")] = None
    samples: int = 3


@dataclass(frozen=True)
class Costs(Record, kind="test-table-costs"):
    costs: tuple[Cost, ...]
    note: str

    @property
    def table_title(self) -> str:
        return "costs of heads"


@dataclass(frozen=True)
class Losses(Record, kind="test-table-losses"):
    loss: Annotated[Estimate, Row("loss of the model", ".2f")]
    gain: Annotated[float, Row("gain", ".1%")]
    samples: int = 3


def test_columns_come_from_the_fields_of_rows() -> None:
    cost = Cost(HeadId(0, 1), Estimate(0.5, 0.1, 0.3, 0.7, p=1 / 401, draws=400))
    table = Costs((cost,), "over 3 samples").to_table()
    assert table.to_dicts() == [
        {"head": "L0H1", "cost": 0.5, "low": 0.3, "high": 0.7, "p": 1 / 401}
    ]
    assert (table.title, table.note) == ("costs of heads", "over 3 samples")
    assert "< 0.0025" in table.to_text()
    empty = Costs((), "none").to_table()
    assert [column.name for column in empty.columns] == [
        *("head", "cost", "low", "high"),
        *("p", "share"),
    ]
    assert schema(Costs)["properties"]["costs"]["items"]["properties"]["samples"]


def test_a_column_is_omitted_only_if_no_row_has_a_value() -> None:
    head, cost = HeadId(0, 1), Estimate(0.5)
    names = [
        column.name for column in rows_table([Cost(head, cost), Cost(head, cost, 0.5)]).columns
    ]
    assert names == ["head", "cost", "share"]


def test_labels_come_from_the_fields_of_a_record() -> None:
    table = Losses(Estimate(2.5, 0.1, 2.3, 2.7), 0.125).to_table()
    assert table.rows == (("loss of the model", "2.50 [2.30, 2.70]"), ("gain", "12.5%"))
