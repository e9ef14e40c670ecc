"""JSON schema of a record, generated from its fields; and plain values read as those types.

Python, files and the browser share it: the TypeScript types of the front end are generated from it.
`read_record` is `jsonable` reversed: values of JSON or TOML as a dataclass.
"""

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, Union, cast, get_args, get_origin

from torch import Tensor

from pathsum.base.errors import FailedError, InputError, near_misses
from pathsum.base.options import parse_choice, parse_option
from pathsum.base.record import Record, computed_fields

Schema: TypeAlias = dict[str, Any]

_PLAIN: dict[object, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    # NaN and infinities are written as null.
    float: {"type": ["number", "null"]},
    str: {"type": "string"},
    type(None): {"type": "null"},
    complex: {"type": "array", "items": {"type": ["number", "null"]}, "x-complex": True},
    Tensor: {"type": "array"},
    Any: {},
}


def schema(record: type[Record]) -> Schema:
    """The JSON schema of one kind of record."""
    body = fields_schema(record)
    header: Schema = {
        "format": {"const": f"pathsum-{record.record_kind}"},
        "version": {"const": record.version},
    }
    body["properties"] = {**header, **body["properties"]}
    body["required"] = [*header, *body["required"]]
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": record.__name__, **body}


def fields_schema(cls: type) -> Schema:
    """The JSON schema of a dataclass's public fields."""
    hints = typing.get_type_hints(cls)
    computed = computed_fields(cls)
    hints |= {name: typing.get_type_hints(field.func)["return"] for name, field in computed.items()}
    stored = [f.name for f in dataclasses.fields(cls) if not f.name.startswith("_")]
    names = [*stored, *computed]
    return {
        "type": "object",
        "properties": {name: _type(hints[name]) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _type(hint: Any) -> Schema:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(arg) for arg in args]}
    kind = origin or hint
    if origin is tuple and Ellipsis not in args:
        size = len(args)
        items = [_type(arg) for arg in args]
        return {"type": "array", "prefixItems": items, "minItems": size, "maxItems": size}
    if hasattr(hint, "json_schema"):
        return dict(hint.json_schema())
    if hasattr(hint, "dim_str"):  # a jaxtyping array: keep the names of its axes
        return {"type": "array", "x-axes": str(hint.dim_str)}
    if dataclasses.is_dataclass(kind):
        return {"title": hint.__name__, **fields_schema(hint)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if args and issubclass(kind, Mapping):
        return {"type": "object", "additionalProperties": _type(args[1])}
    if args and issubclass(kind, Sequence | set | frozenset):
        return {"type": "array", "items": _type(args[0])}
    raise FailedError(f"there is no JSON schema for a field of type {hint}")


_NOUNS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def read_record(
    kind: type[Any], values: Any, noun: str, path: str = "", *, finite: bool = False
) -> Any:
    """A dataclass from a table of names and values, nested tables included.

    `noun` and `path` name the record and the table in errors. Fields with a default may be absent.

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
        raise InputError(f"{path} is {values!r:.40}, but must be a table of names and values")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind) if not f.name.startswith("_")}
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        full = f"{path}.{name}" if path else str(name)[:60]
        if name not in fields:
            near = near_misses(str(name), fields)
            raise InputError(f"{noun} has no {full!r}{near} (it has {', '.join(fields)})")
        arguments[str(name)] = read_as(hints[name], value, noun, full, finite=finite)
    absent = [field for name, field in fields.items() if name not in arguments]
    unset = dataclasses.MISSING
    missing = [f.name for f in absent if f.default is unset and f.default_factory is unset]
    if missing:
        raise InputError(f"{path or noun} lacks {', '.join(missing)}")
    return kind(**arguments)


def read_as(hint: Any, value: Any, noun: str, path: str, *, finite: bool = False) -> Any:
    """A plain value as the type that a field is annotated with; `path` names it in errors.

    >>> read_as(tuple[float, ...], [1, 2.5], "a run", "rates")
    (1.0, 2.5)
    >>> read_as(int, "7", "a run", "size")
    Traceback (most recent call last):
    pathsum.base.errors.InputError: size is '7', but must be an integer
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in args:
            return None
        args = tuple(each for each in args if each is not types.NoneType)
        if len(args) == 1:
            return read_as(args[0], value, noun, path, finite=finite)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{path} is {value!r:.40}, but must be a list")
        items = enumerate(cast("Sequence[Any]", value))
        return tuple(read_as(args[0], x, noun, f"{path}[{n}]", finite=finite) for n, x in items)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, cast("type", hint)):
            return value
        return read_record(cast("type", hint), value, noun, path, finite=finite)
    if origin is Literal:
        return parse_choice(args, value, path)
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return parse_option(hint, value, path)
    for kind in args or (hint,):
        if _fits(kind, value, finite):
            return kind(value)
    nouns = " or ".join(_NOUNS[kind] for kind in args or (hint,))
    raise InputError(f"{path} is {value!r:.40}, but must be {nouns}")


def _fits(kind: type, value: Any, finite: bool) -> bool:
    if kind is not float:
        return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 10**300  # a larger integer of a file is no float
    return isinstance(value, float) and (math.isfinite(value) or not finite)
