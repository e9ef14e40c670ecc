"""The base of every result."""

import dataclasses
import json
from typing import Any, ClassVar

from rich.console import RenderableType

from pathsum.result.encode import jsonable
from pathsum.result.table import Cell, Column, Table, text_column

_RECORDS: dict[str, type["Record"]] = {}


class Record:
    """A frozen dataclass with views.

    A subclass names its `kind` (which becomes the `format` of its JSON, `pathsum-<kind>`), and
    overrides `to_table` where a list of its plain fields is not the best table. Derive with
    `eq=False` where fields are tensors, whose equality is not a truth value.

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
        known = _RECORDS.get(kind)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise TypeError(f"two records are of kind {kind!r}: {known} and {cls}")
        cls.record_kind = kind
        _RECORDS[kind] = cls

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values, with its format and version."""
        fields = jsonable_fields(self)
        return {"format": f"pathsum-{self.record_kind}", "version": self.version, **fields}

    def to_json(self) -> dict[str, Any]:
        """The same inside another record, where the outer one carries format and version."""
        return jsonable_fields(self)

    def dumps(self, indent: int | None = 2) -> str:
        """The record as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def to_table(self) -> Table:
        """The record as a table; by default its plain fields, one a row."""
        rows: list[tuple[Cell, ...]] = []
        for name in _public_fields(self):
            value = getattr(self, name)
            if value is None or isinstance(value, bool | int | float | str):
                rows.append((name.replace("_", " "), value))
        return Table(
            columns=(text_column(""), Column("value", align="left")),
            rows=tuple(rows),
            title=self.record_kind.replace("-", " "),
        )

    def __rich__(self) -> RenderableType:
        return self.to_table()

    def _repr_html_(self) -> str:
        return self.to_table().to_html()


def records() -> dict[str, type[Record]]:
    """Every kind of record whose module has been imported, by kind."""
    return dict(sorted(_RECORDS.items()))


def _public_fields(record: Record) -> list[str]:
    if not dataclasses.is_dataclass(record):
        raise TypeError(f"{type(record).__name__} is a Record but no dataclass")
    return [f.name for f in dataclasses.fields(record) if not f.name.startswith("_")]


def jsonable_fields(record: Record) -> dict[str, Any]:
    """The public fields of a record as JSON-ready values."""
    return {name: jsonable(getattr(record, name)) for name in _public_fields(record)}
