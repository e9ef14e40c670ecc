"""A plain table: named columns, rows of values, and its views in a terminal, a page and a file.

Records describe their tables by their fields, so that few need a custom `to_table`. A field
of a record that fills rows is annotated with its column:

    @dataclass(frozen=True)
    class HeadCost:
        head: Annotated[HeadId, text_column("head")]
        cost: Annotated[Estimate, *interval_columns("cost", ".4f"), ProbabilityColumn()]
        samples: int                                    # no column: not in the table

`rows_table(costs, title=…, note=…)` is the table, one row per record. A record that holds such rows
in one field needs no method: `Record.to_table` finds the field, and takes the title and the note
from `table_title` and `table_note`. A field that is an `Estimate` fills each of its columns with
the column's `part` of it: the value, an end of the interval, the null mean or p.

A record whose table has one row per field labels them with `Row`:

    loss: Annotated[Estimate, Row("loss of the program", ".3f")]

Without `Row`, the label of a field is its name. `columns_table` is for rows whose columns are not
their fields in order. Columns for which no row has a value are omitted.

In a terminal that is too narrow, sentences wrap and tokens are shortened with an ellipsis; if that
is not enough, columns are dropped, the last first, and a note names them. A number or a label is
never truncated.
"""

import html
import io
import math
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, cast

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from pathsum.base.sentence import SafeConsole, printable

Cell: TypeAlias = bool | int | float | str | None
Read: TypeAlias = str | Callable[[Any], Any]

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column: its name, the format of its numbers, and their unit.

    `fit` is how its cells adapt to a narrow terminal: "whole" shows them in full or not at all
    (numbers and labels), "shorten" ends them with an ellipsis, "wrap" breaks them between words.
    `part` is the attribute of an `Estimate` that it shows. `read` is an attribute, or a function,
    of the field's value (in `columns_table`, of the row), where the cell is not the value itself.
    """

    name: str
    format: str = ".3f"
    unit: str = ""
    align: Literal["left", "right"] = "right"
    fit: Literal["whole", "shorten", "wrap"] = "whole"
    part: Literal["value", "low", "high", "null", "p"] = "value"
    read: Read | None = None

    @property
    def heading(self) -> str:
        """Its name with the unit, printed above the numbers."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def stacked_heading(self) -> str:
        """The heading, one word per line where it would be wider than the numbers below it."""
        narrow = self.align == "right" and len(self.heading) > 8
        return self.heading.replace(" ", "\n") if narrow else self.heading

    def write(self, cell: Cell) -> str:
        """A cell as text: floats by the column's format, integers by ",", absent as a dash."""
        if cell is None:
            return MISSING
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        if isinstance(cell, float):
            return format_number(cell, self.format)
        if isinstance(cell, int) and self.format == ",":
            return f"{cell:,}"
        return printable(str(cell))

    def cell(self, value: Any) -> Cell:
        """The cell for the value of a field: a number, a label, an estimate or a token."""
        if value is not None and self.read is not None:
            value = getattr(value, self.read) if isinstance(self.read, str) else self.read(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if hasattr(value, "stderr"):  # an Estimate, whose module imports this one
            return getattr(value, self.part)
        text = getattr(value, "text", None)
        return str(value) if text is None else str(text)


def format_number(value: float, spec: str) -> str:
    """A number by its format; zero after rounding has no sign, and NaN is printed as missing.

    >>> format_number(-0.001, ".2f"), format_number(-0.01, ".2f")
    ('0.00', '-0.01')
    """
    text = MISSING if math.isnan(value) else format(value, spec)
    return text.lstrip("-") if not text.strip("-0.%") else text


def text_column(name: str, read: Read | None = None) -> Column:
    """A column of labels, such as heads, paths and kinds: left-aligned, never cut."""
    return Column(name, align="left", read=read)


def token_column(name: str, read: Read | None = None) -> Column:
    """A column of tokens or pieces of text: left-aligned, shortened with an ellipsis."""
    return Column(name, align="left", fit="shorten", read=read)


def prose_column(name: str, read: Read | None = None) -> Column:
    """A column of sentences: left-aligned, wrapped between words."""
    return Column(name, align="left", fit="wrap", read=read)


def interval_columns(name: str, spec: str) -> tuple[Column, Column, Column]:
    """Columns for `Estimate.with_interval`: a value and both ends of its interval."""
    return Column(name, spec), Column("low", spec, part="low"), Column("high", spec, part="high")


@dataclass(frozen=True)
class Row:
    """The label and the number format of a field in a table of one row per field."""

    label: str
    format: str = ".4g"


@dataclass(frozen=True)
class Table:
    """The table view of a record.

    `note` is printed below the table and helps to interpret the numbers.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    note: str = ""

    def to_dicts(self) -> list[dict[str, Cell]]:
        """One dictionary per row, keyed by column name."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def to_text(self, width: int = 100) -> str:
        """The terminal view without colors, as a string."""
        console = SafeConsole(width=width, no_color=True, file=io.StringIO(), record=True)
        console.print(self)
        return console.export_text()

    def to_html(self) -> str:
        """A table element with every string escaped and no external resources."""
        # Inline, because not every page that shows a table styles its cells.
        styles = [f'style="padding:2px 8px;text-align:{column.align}"' for column in self.columns]
        headings = zip(self.columns, styles, strict=True)
        head = "".join(f"<th {style}>{html.escape(c.heading)}</th>" for c, style in headings)
        body = ""
        for row in self.rows:
            cells = zip(self.columns, styles, row, strict=True)
            data = (f"<td {style}>{html.escape(c.write(x))}</td>" for c, style, x in cells)
            body += f"<tr>{''.join(data)}</tr>"
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return (
            f'<div class="pathsum"><table>{caption}<thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>{note}</div>"
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        layout = fit_columns(self, options.max_width)
        if self.title:
            yield Text(printable(self.title), style="bold")
            yield Text()
        if self.columns:
            yield _rich_table(self, layout)
        notes = [note for note in (self.note, layout.note) if note]
        if notes and self.columns:
            yield Text()
        yield from (Text(printable(note), style="italic") for note in notes)


@cache
def field_columns(row: type) -> dict[str, tuple[Column, ...]]:
    """The columns of each field of a row type that has any."""
    return _annotations(row, Column)


@cache
def field_rows(record: type) -> dict[str, Row]:
    """The labels of the fields of a record that have one."""
    return {name: labels[0] for name, labels in _annotations(record, Row).items()}


def _annotations(owner: type, kind: type[Any]) -> dict[str, tuple[Any, ...]]:
    """The instances of `kind` in the annotations of a class, by field."""
    annotated = {
        name: tuple(item for item in getattr(hint, "__metadata__", ()) if isinstance(item, kind))
        for name, hint in typing.get_type_hints(owner, include_extras=True).items()
    }
    return {name: items for name, items in annotated.items() if items}


@cache
def rows_field(record: type) -> tuple[str, type] | None:
    """The first field of a record that is a tuple of rows with columns, and the type of a row."""
    for name, hint in typing.get_type_hints(record).items():
        args = typing.get_args(hint)
        if typing.get_origin(hint) is tuple and is_dataclass(args[0]):
            row = cast("type", args[0])
            if field_columns(row):
                return name, row
    return None


def rows_table(
    rows: Sequence[object], title: str = "", note: str = "", row: type | None = None
) -> Table:
    """A table of one row per record, by the columns of their fields.

    `row` is the type of the records, needed where there may be none.

    >>> from typing import Annotated
    >>> @dataclass
    ... class Cost:
    ...     head: Annotated[str, text_column("head")]
    ...     cost: Annotated[float, Column("cost", ".1f")]
    >>> rows_table([Cost("L0H1", 0.25)]).to_dicts()
    [{'head': 'L0H1', 'cost': 0.25}]
    """
    kind = row or (type(rows[0]) if rows else None)
    described = {} if kind is None else field_columns(kind)
    pairs = [(name, column) for name, columns in described.items() for column in columns]
    cells = [[column.cell(getattr(record, name)) for name, column in pairs] for record in rows]
    used = [i for i in range(len(pairs)) if not cells or any(x[i] is not None for x in cells)]
    return Table(
        columns=tuple(pairs[i][1] for i in used),
        rows=tuple(tuple(x[i] for i in used) for x in cells),
        title=title,
        note=note,
    )


def columns_table(
    rows: Iterable[object], columns: Sequence[Column], title: str = "", note: str = ""
) -> Table:
    """A table of one row per record, where each column reads its cell from the record.

    >>> columns_table([3 + 4j], [Column("re", read="real"), Column("size", read=abs)]).rows
    ((3.0, 5.0),)
    """
    cells = tuple(tuple(column.cell(row) for column in columns) for row in rows)
    return Table(tuple(columns), cells, title, note)


def stacked(*parts: RenderableType) -> Group:
    """Tables or records one below the other, with an empty line between them."""
    # Text, not str: rich reads markup in a str, and a token may look like markup.
    views = [Text(part) if isinstance(part, str) else part for part in parts]
    lines = [line for part in views for line in (Text(), part)]
    return Group(*lines[1:])


@dataclass(frozen=True)
class Layout:
    """The widths of the columns that fit, and the columns that are omitted."""

    widths: tuple[int, ...]
    omitted: tuple[str, ...]
    needed: int

    @property
    def note(self) -> str:
        """A sentence that names the omitted columns and how to see them."""
        if not self.omitted:
            return ""
        names = ", ".join(self.omitted)
        columns = "column" if len(self.omitted) == 1 else "columns"
        return (
            f"{columns} omitted (the terminal is too narrow): {names} "
            f"(use --json, or at least {self.needed} characters)"
        )


def fit_columns(table: Table, width: int) -> Layout:
    """Choose the columns that fit into `width` and their widths."""
    natural: list[int] = []
    least: list[int] = []
    for index, column in enumerate(table.columns):
        cells = [column.write(row[index]) for row in table.rows]
        heading = _widest(column.stacked_heading.split("\n"))
        natural.append(max(heading, *(_widest(cell.split("\n")) for cell in cells), 1))
        parts = (_LABEL_PARTS.split(cell) for cell in cells if column.fit == "whole")
        smallest = max(heading, _LEAST_WIDTHS[column.fit], *map(_widest, parts))
        least.append(min(natural[-1], smallest))
    count = len(natural)
    while count > 1 and _total_width(least[:count]) > width:
        count -= 1
    # Text columns are shortened first; labels break only where that is not enough.
    fits = [column.fit for column in table.columns]
    preferred = [w if fit == "whole" else l for w, l, fit in zip(natural, least, fits, strict=True)]
    floor = preferred if _total_width(preferred[:count]) <= width else least
    widths = _shrink(natural[:count], floor[:count], width)
    omitted = tuple(column.heading or "(no name)" for column in table.columns[count:])
    return Layout(tuple(widths), omitted, _total_width(least))


# The width to which a column shrinks before another one is dropped. Only labels of paths and edges
# are longer, and these break between their parts.
_LEAST_WIDTHS = {"shorten": 8, "wrap": 18, "whole": 24}
_LABEL_PARTS = re.compile(r"(?<=[→·⊗,] )|(?<=[→·])(?! )|(?<= )(?=[(\[])")


def _shrink(natural: list[int], least: list[int], width: int) -> list[int]:
    """Natural widths, the widest reduced first until all fit or none may shrink further."""
    widths = list(natural)
    while _total_width(widths) > width:
        shrinkable = [index for index, size in enumerate(widths) if size > least[index]]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda index: widths[index])] -= 1
    return widths


def _total_width(widths: list[int]) -> int:
    """With a space of padding after each column and one between columns."""
    return sum(widths) + 2 * len(widths) - 1


def _widest(lines: list[str]) -> int:
    return max(map(cell_len, lines), default=0)


def _rich_table(table: Table, layout: Layout) -> RichTable:
    rich = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column, width in zip(table.columns, layout.widths, strict=False):
        rich.add_column(
            Text(column.stacked_heading),
            justify=column.align,
            no_wrap=column.fit == "shorten",
            overflow="ellipsis" if column.fit == "shorten" else "fold",
            width=width,
        )
    for row in table.rows:
        cells = zip(table.columns, row, layout.widths, strict=False)
        rich.add_row(*(_rich_cell(column, cell, width) for column, cell, width in cells))
    return rich


def _rich_cell(column: Column, cell: Cell, width: int) -> Text:
    """Text, not str: a token may contain what rich would read as markup."""
    text = column.write(cell)
    if column.fit != "whole" or cell_len(text) <= width:
        return Text(text)
    lines = [""]
    for part in _LABEL_PARTS.split(text):
        if lines[-1] and cell_len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return Text("\n".join(line.rstrip() for line in lines))
