"""Plain values of JSON or TOML as the types that fields are annotated with: `jsonable` reversed."""

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pathsum.base.errors import InputError, near_misses

_NOUNS = {int: "an integer", float: "a number", str: "a string"}


def read_record(
    kind: type[Any], values: Any, noun: str, where: str = "", *, finite: bool = False
) -> Any:
    """A dataclass from a table of names and values, nested tables included.

    `noun` and `where` name the record and the table in errors. Fields with a default may be absent.

    >>> @dataclasses.dataclass
    ... class Run:
    ...     steps: int
    ...     rate: float = 0.1
    >>> read_record(Run, {"steps": 3}, "a run")
    Run(steps=3, rate=0.1)
    >>> read_record(Run, {"steps": 3, "rato": 1}, "a run")
    Traceback (most recent call last):
    pathsum.base.errors.InputError: a run has no 'rato'; did you mean 'rate'? (it has steps, rate)
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{where} is {values!r:.40}, but must be a table of names and values")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind) if not f.name.startswith("_")}
    made: dict[str, Any] = {}
    for name, value in values.items():
        full = f"{where}.{name}" if where else str(name)
        if name not in fields:
            known = [field for field in fields if not dataclasses.is_dataclass(values.get(field))]
            near = near_misses(str(name), known)
            raise InputError(f"{noun} has no {full!r}{near} (it has {', '.join(known)})")
        made[str(name)] = read_as(hints[name], value, noun, full, finite=finite)
    missing = [
        name
        for name, field in fields.items()
        if name not in made
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InputError(f"{where or noun} lacks {', '.join(missing)}")
    return kind(**made)


def read_as(hint: Any, value: Any, noun: str, where: str, *, finite: bool = False) -> Any:
    """A plain value as the type that a field is annotated with; `where` names it in errors.

    >>> read_as(tuple[float, ...], [1, 2.5], "a run", "rates")
    (1.0, 2.5)
    >>> read_as(int, "7", "a run", "size")
    Traceback (most recent call last):
    pathsum.base.errors.InputError: size is '7', but must be an integer
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in inside:
            return None
        (hint,) = (each for each in inside if each is not types.NoneType)
        return read_as(hint, value, noun, where, finite=finite)
    if origin is tuple:
        if not isinstance(value, list):
            raise InputError(f"{where} is {value!r:.40}, but must be a list")
        items = enumerate(value)
        return tuple(read_as(inside[0], x, noun, f"{where}[{n}]", finite=finite) for n, x in items)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast("type", hint)):
            return value
        return read_record(typing.cast("type", hint), value, noun, where, finite=finite)
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        known = {getattr(choice, "value", choice): choice for choice in inside or hint}
        if not isinstance(value, str) or value not in known:
            raise InputError(f"{where} is {value!r:.40}; choose {', '.join(map(repr, known))}")
        return known[value]
    fits = isinstance(value, int | float if hint is float else hint) and not isinstance(value, bool)
    if not fits or (finite and hint is float and not math.isfinite(value)):
        raise InputError(f"{where} is {value!r:.40}, but must be {_NOUNS[hint]}")
    return hint(value)
