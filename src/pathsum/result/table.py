"""A plain table: named columns, rows of values, and views of it for terminal, page and file."""

import csv
import html
import io
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rich import box
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

Cell: TypeAlias = bool | int | float | str | None

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column: its name, how its numbers are written, and what they are measured in."""

    name: str
    format: str = ".3f"
    unit: str = ""
    align: Literal["left", "right"] = "right"
    wrap: Literal["never", "words"] = "never"

    @property
    def heading(self) -> str:
        """Its name with the unit, as it stands above the numbers."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def stacked_heading(self) -> str:
        """The heading in lines, where it would make a column of numbers wider than they are."""
        narrow = self.align == "right" and len(self.heading) > 8
        return self.heading.replace(" ", "\n") if narrow else self.heading

    def write(self, cell: Cell) -> str:
        """A cell as text: floats by the column's format, absent values as a dash."""
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return MISSING
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        if isinstance(cell, float):
            written = format(cell, self.format)
            # What rounds to zero has no sign.
            return written.lstrip("-") if not written.strip("-0.%") else written
        return str(cell)


def text_column(name: str) -> Column:
    """A column of names or tokens: aligned to the left, never broken."""
    return Column(name, align="left")


def prose_column(name: str) -> Column:
    """A column of sentences, broken between words where the terminal is narrow."""
    return Column(name, align="left", wrap="words")


@dataclass(frozen=True)
class Table:
    """A table that a record makes of itself.

    `note` stands below the table and says what a reader must know to read the numbers right.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise AssertionError(f"{len(self.columns)} columns and a row of {len(row)} cells")

    def to_dicts(self) -> list[dict[str, Cell]]:
        """One dictionary a row, keyed by column name."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def to_csv(self) -> str:
        """Comma-separated values with a header; numbers in full, absent values empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.heading for column in self.columns])
        writer.writerows(self.rows)
        return out.getvalue()

    def to_text(self, width: int = 100) -> str:
        """The terminal view without colors, as a string."""
        console = Console(width=width, no_color=True, file=io.StringIO(), record=True)
        console.print(self)
        return console.export_text()

    def to_html(self) -> str:
        """A table element; every string escaped, nothing loaded from anywhere."""
        head = "".join(map(_html_heading, self.columns))
        body = "".join(
            "<tr>" + "".join(map(_html_cell, self.columns, row)) + "</tr>" for row in self.rows
        )
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return (
            f'<div class="pathsum"><table>{caption}<thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>{note}</div>"
        )

    def __rich__(self) -> Group:
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for column in self.columns:
            never = column.wrap == "never"
            table.add_column(
                Text(column.stacked_heading),
                justify=column.align,
                no_wrap=never,
                overflow="fold",
            )
        for row in self.rows:
            # Text, not str: a token may contain what rich would read as markup.
            cells = zip(self.columns, row, strict=True)
            table.add_row(*(Text(column.write(cell)) for column, cell in cells))
        above = [Text(self.title, style="bold"), Text()] if self.title else []
        below = [Text(), Text(self.note, style="italic")] if self.note else []
        return Group(*above, table, *below)


# Not every page that shows a table gives its cells room.
_HTML_STYLE = "padding:2px 8px;text-align:"


def _html_heading(column: Column) -> str:
    return f'<th style="{_HTML_STYLE}{column.align}">{html.escape(column.heading)}</th>'


def _html_cell(column: Column, cell: Cell) -> str:
    return f'<td style="{_HTML_STYLE}{column.align}">{html.escape(column.write(cell))}</td>'
