"""The base of every result, the mapping protocol of collections of heads, and values as JSON.

Tensors become nested lists, complex numbers pairs, NaN and infinity null.
"""

import dataclasses
import html
import importlib
import io
import json
import math
import shutil
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from rich.console import Group, RenderableType
from torch import Tensor

from pathsum.base.errors import FailedError, HeadError
from pathsum.base.estimate import Estimate
from pathsum.base.options import checked_methods
from pathsum.base.path import HeadId, HeadName, Printed
from pathsum.base.sentence import SafeConsole
from pathsum.base.table import (
    Cell,
    Row,
    Table,
    field_rows,
    format_number,
    prose_column,
    rows_field,
    rows_table,
    text_column,
)

if TYPE_CHECKING:
    from pathsum.figures import Figure

Field = TypeVar("Field")


def _tensor(value: Tensor) -> Any:
    plain = torch.view_as_real(value) if value.is_complex() else value
    numbers = plain.tolist()
    return numbers if bool(torch.isfinite(plain).all()) else jsonable(numbers)


_PLAIN = frozenset((str, int, bool, type(None)))


def jsonable(
    value: Any, tensor: Callable[[Tensor], Any] = _tensor, digits: int | None = None
) -> Any:
    """The JSON form of any value that a record may hold; `tensor` converts tensors.

    NaN and infinities, which JSON cannot represent, become null: in a result NaN means that a
    value is missing. With `digits`, floats outside of tensors are rounded to so many digits.

    >>> jsonable((1, float("nan"), 2 + 3j))
    [1, None, [2.0, 3.0]]
    """

    def converted(value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, float):
            rounded = value if digits is None else float(f"{value:.{digits}g}")
            return rounded if math.isfinite(value) else None
        if isinstance(value, Tensor):
            return tensor(value)
        if getattr(kind, "to_json", Record.to_json) is not Record.to_json:
            return converted(value.to_json())
        names = _public_fields(kind)
        if names is not None:
            return {name: converted(getattr(value, name)) for name in names}
        if isinstance(value, int | str):
            return str(value) if isinstance(value, str) else value
        if isinstance(value, complex):
            return [converted(value.real), converted(value.imag)]
        if isinstance(value, Mapping):
            return {str(key): converted(item) for key, item in value.items()}
        if isinstance(value, Sequence | set | frozenset):
            return list(map(converted, value))
        raise FailedError(
            f"a result holds a {kind.__name__}, which has no JSON form; "
            "give the type a to_json method or store a plain value"
        )

    return converted(value)


class computed_field(cached_property[Field]):
    """A field of a record that is computed and cached when it is first read.

    It is written to JSON after the other fields; writing computes it, a repr does not.
    """


def computed_fields(kind: type) -> dict[str, "computed_field[Any]"]:
    """The computed fields of a record, by name."""
    attributes: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        attributes |= vars(base)
    return {name: value for name, value in attributes.items() if isinstance(value, computed_field)}


@cache
def _stored_fields(kind: type) -> tuple[str, ...] | None:
    """The public fields of a dataclass that its constructor takes; None for other types."""
    if not dataclasses.is_dataclass(kind):
        return None
    names = (field.name for field in dataclasses.fields(kind))
    return tuple(name for name in names if not name.startswith("_"))


@cache
def _public_fields(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass that are written; None for other types."""
    stored = _stored_fields(kind)
    return None if stored is None else (*stored, *computed_fields(kind))


_RECORDS: dict[str, type["Record"]] = {}


@checked_methods
class Record:
    """A frozen dataclass with views.

    A subclass names its `kind` (which becomes the `format` of its JSON, `pathsum-<kind>`), and
    overrides `to_table` if a list of its plain fields is not the best table. Use `eq=False` if
    fields are tensors, whose equality is not a boolean.

        @dataclass(frozen=True, eq=False)
        class Profile(Record, kind="profile"):
            head: HeadId
            weights: Tensor
    """

    record_kind: ClassVar[str]
    version: ClassVar[int] = 1

    def __init_subclass__(cls, *, kind: str = "", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if not kind:
            return
        other = _RECORDS.get(kind)
        if other is not None and other.__qualname__ != cls.__qualname__:
            raise TypeError(f"two records have the kind {kind!r}: {other} and {cls}")
        cls.record_kind = kind
        _RECORDS[kind] = cls
        # A dataclass generates a repr of all fields if the class defines none; large tensors
        # would fill the screen.
        if "__repr__" not in vars(cls):
            cls.__repr__ = Record.__repr__
        checked_methods(cls)

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values, with its format and version."""
        header = {"format": f"pathsum-{self.record_kind}", "version": self.version}
        return header | self.to_json()

    def to_json(self) -> dict[str, Any]:
        """The fields without format and version, for use inside another record."""
        names = _public_fields(type(self)) or ()
        return {name: jsonable(getattr(self, name)) for name in names}

    def dumps(self, indent: int | None = 2) -> str:
        """The record as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    @property
    def table_title(self) -> str:
        """The title of the table; by default the kind of record."""
        return self.record_kind.replace("-", " ")

    @property
    def table_note(self) -> str:
        """The note below the table; by default the record's field `note`, if it has one."""
        return str(getattr(self, "note", ""))

    def to_table(self) -> Table:
        """The record as a table, as its fields describe it (see `pathsum.base.table`).

        One row per item of the first field that holds rows with columns; otherwise one row per
        plain field.
        """
        holds_rows = rows_field(type(self))
        if holds_rows is not None:
            name, row_type = holds_rows
            return rows_table(getattr(self, name), self.table_title, self.table_note, row_type)
        labels = field_rows(type(self))
        rows: list[tuple[Cell, ...]] = []
        for name in labels or _stored_fields(type(self)) or ():
            row = labels.get(name) or Row(name.replace("_", " "))
            value = getattr(self, name)
            if isinstance(value, Estimate):
                value = value.format(row.format)
            elif isinstance(value, float) and name in labels:
                value = format_number(value, row.format)
            elif isinstance(value, int) and name in labels:
                value = format(value, row.format)
            elif isinstance(value, Printed):
                value = str(value)
            if _is_plain(value):
                rows.append((row.label, value))
        columns = (text_column(""), prose_column("value"))
        return Table(columns, tuple(rows), self.table_title, self.table_note if labels else "")

    def __rich__(self) -> RenderableType:
        return self.to_table()

    def __str__(self) -> str:
        """The terminal view without color."""
        return as_text(self.__rich__())

    def __repr__(self) -> str:
        """The plain fields on one line; `print` shows the table."""
        stored = {name: getattr(self, name) for name in _stored_fields(type(self)) or ()}
        plain = [f"{name}={value!r}" for name, value in stored.items() if _is_plain(value)]
        omitted = [] if len(plain) == len(_public_fields(type(self)) or ()) else ["…"]
        return f"{type(self).__name__}({', '.join(plain + omitted)})"

    def figure(self, **options: Any) -> "Figure":
        """The figure of this result, to show in a notebook or to `save`.

        Args:
            options: `width` in inches, `theme` ("light" or "dark"), and the options of the figure's
                function in `pathsum.figures`.

        Returns:
            The figure; InputError for results without one.
        """
        from pathsum.figures import figure_of

        return figure_of(self, **options)

    def to_html(self) -> str:
        """Everything that `print` shows, as HTML without external resources."""
        return as_html(self.__rich__())

    def _repr_html_(self) -> str:
        """The figure, if there is one, and everything that `print` shows, for a notebook."""
        from pathsum.figures import show_figure

        return show_figure(self) + self.to_html()


def records() -> dict[str, type[Record]]:
    """Every kind of record whose module has been imported, by kind."""
    return dict(sorted(_RECORDS.items()))


def as_html(view: RenderableType) -> str:
    """The terminal view as HTML: tables as tables, everything else as it is printed.

    >>> as_html("a < b")
    '<pre>a &lt; b</pre>'
    """
    if isinstance(view, Table):
        return view.to_html()
    if isinstance(view, Record):
        return as_html(view.__rich__())
    if isinstance(view, Group):
        return "".join(map(as_html, view.renderables))
    text = as_text(view)
    return f"<pre>{html.escape(text)}</pre>" if text.strip() else ""


def as_text(view: RenderableType) -> str:
    """The terminal view as plain text, at the width of the terminal."""
    file = io.StringIO()
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    SafeConsole(file=file, width=width, color_system=None, highlight=False).print(view)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


Entry = TypeVar("Entry")


class HeadMapping(Generic[Entry]):
    """A mixin for records with a field `heads`: a mapping from head label to record.

    A mapping of something else names its field of records, and the field of each that is its label,
    in `ENTRIES` and `LABEL` (neurons: `neurons` and `neuron`).

        >>> from pathsum.circuits import copying
        >>> from pathsum.model import construct
        >>> ratios = copying(construct.induction())
        >>> len(ratios), list(ratios)
        (4, ['L0H0', 'L0H1', 'L1H0', 'L1H1'])
        >>> ratios["L1H0"] is ratios[(1, 0)]
        True
        >>> ratios.to_dicts()[2]["ratio"] > 0.9
        True

    Iteration yields labels, as for any mapping; `x.heads` is the tuple of records. A lookup takes a
    label or a pair (layer, head). Subclasses may override `missing` to explain an absent head.

        @dataclass(frozen=True, eq=False)
        class Copying(Record, HeadMapping[HeadCopying], kind="copying"):
            heads: tuple[HeadCopying, ...]
    """

    ENTRIES: ClassVar[str] = "heads"
    LABEL: ClassVar[str] = "head"

    def entries(self) -> tuple[Entry, ...]:
        """The records."""
        return getattr(self, self.ENTRIES)

    def by_label(self) -> dict[str, Entry]:
        """The records in a plain dictionary, in order of the heads."""
        return {str(getattr(entry, self.LABEL)): entry for entry in self.entries()}

    def __len__(self) -> int:
        return len(self.entries())

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_label())

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str | tuple):
            return False
        try:
            return self.label_of(name) in self.by_label()  # pyright: ignore[reportUnknownArgumentType]
        except HeadError:
            return False

    def __getitem__(self, name: HeadName) -> Entry:
        label = self.label_of(name)
        entries = self.by_label()
        if label not in entries:
            raise self.missing(label)
        return entries[label]

    def label_of(self, name: HeadName) -> str:
        """The label that a name means, whether or not there is a record for it."""
        return HeadId.parse(name)

    def missing(self, label: str) -> HeadError:
        """The error for a head without a record."""
        labels = list(self)
        names = ", ".join([*labels[:8], *(["…"] if len(labels) > 8 else [])]) or "no head"
        return HeadError(f"there is no result for {label}, only for {names}")

    def keys(self) -> KeysView[str]:
        """The labels."""
        return self.by_label().keys()

    def values(self) -> ValuesView[Entry]:
        """The records."""
        return self.by_label().values()

    def items(self) -> ItemsView[str, Entry]:
        """Pairs of label and record."""
        return self.by_label().items()

    def to_dicts(self) -> list[dict[str, Cell]]:
        """One flat dictionary per head, with numbers as numbers.

        An `Estimate` named `x` gives `x`, and where they are known `x_stderr`, `x_null` and `x_p`;
        a mapping contributes one value per key. Tensors and lists are omitted.
        """
        rows: list[dict[str, Cell]] = []
        for entry in self.entries():
            names = _stored_fields(type(entry)) or ()
            rows.append(dict(cell for name in names for cell in _cells(name, getattr(entry, name))))
        return rows

    def to_pandas(self) -> Any:
        """`to_dicts` as a pandas DataFrame with one row per head, indexed by label."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise FailedError(
                "pandas is not installed; run `pip install pandas`, or use to_dicts()"
            ) from None
        return pandas.DataFrame(self.to_dicts()).set_index(self.LABEL)


def _cells(name: str, value: Any) -> Iterator[tuple[str, Cell]]:
    """The cells of one field: several for an estimate or a mapping, none for a tensor or list."""
    if isinstance(value, Estimate):
        parts = ((f"{name}_{part}", getattr(value, part)) for part in ("stderr", "null", "p"))
        yield name, value.value
        yield from ((part, number) for part, number in parts if number is not None)
    elif isinstance(value, Mapping):
        yield from (cell for key, inner in value.items() for cell in _cells(str(key), inner))
    elif isinstance(value, str | Printed):
        yield name, str(value)
    elif _is_plain(value):
        yield name, value
