"""Reading records back from JSON: the inverse of `result.jsonable`, for records of plain fields."""

import dataclasses
import enum
import math
import types
import typing
from typing import Any, TypeVar, Union, get_args, get_origin

from pathsum.base.errors import FileError

Value = TypeVar("Value")


class Mismatch(FileError):
    """A value in a file that does not fit its field."""


def read_as(hint: Any, value: Any, where: str) -> Any:
    """A JSON value as the type that a field is annotated with; `where` names it in errors.

    >>> read_as(tuple[float, ...], [1, 2.5], "numbers")
    (1.0, 2.5)
    >>> read_as(int, "7", "size")
    Traceback (most recent call last):
    pathsum.program.reading.Mismatch: size is '7', not an integer
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in inside:
            return None
        (one,) = (each for each in inside if each is not types.NoneType)
        return read_as(one, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise Mismatch(f"{where} is {value!r:.40}, not a list")
        return tuple(read_as(inside[0], each, f"{where}[{n}]") for n, each in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return _record(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        known = {member.value: member for member in hint}
        if not isinstance(value, str) or value not in known:
            raise Mismatch(f"{where} is {value!r:.40}, not one of {', '.join(known)}")
        return known[value]
    return _plain(hint, value, where)


def _record(kind: Any, value: Any, where: str) -> Any:
    fields = record_hints(kind)
    if not isinstance(value, dict) or set(value) != set(fields):
        named = ", ".join(sorted(fields))
        raise Mismatch(f"{where} does not have the fields {named}")
    return kind(**{name: read_as(fields[name], value[name], f"{where}.{name}") for name in fields})


def record_hints(kind: Any) -> dict[str, Any]:
    """The annotations of a record's public fields."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: hints[name] for name in names if not name.startswith("_")}


def _plain(hint: Any, value: Any, where: str) -> Any:
    nouns = {int: "an integer", float: "a finite number", str: "a string"}
    fits = isinstance(value, hint if hint is not float else int | float)
    if isinstance(value, bool) or not fits or (hint is float and not math.isfinite(value)):
        raise Mismatch(f"{where} is {value!r:.40}, not {nouns[hint]}")
    return hint(value)
