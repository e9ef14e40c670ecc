"""JSON schema of a record, generated from its fields.

Python, files and the browser share it: the TypeScript types of the front end are generated from it.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from torch import Tensor

from pathsum.base.errors import FailedError
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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": record.__name__,
        **body,
    }


def fields_schema(cls: type) -> Schema:
    """The JSON schema of a dataclass's public fields."""
    hints = typing.get_type_hints(cls)
    computed = computed_fields(cls)
    hints |= {name: typing.get_type_hints(each.func)["return"] for name, each in computed.items()}
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
    if origin is not None and isinstance(origin, type):
        return _container(hint, origin, args)
    if isinstance(hint, type):
        return _class(hint)
    raise FailedError(f"there is no JSON schema for a field of type {hint}")


def _container(hint: Any, origin: type, args: tuple[Any, ...]) -> Schema:
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _type(args[1])}
    if issubclass(origin, tuple) and not (len(args) == 2 and args[1] is Ellipsis):
        return {
            "type": "array",
            "prefixItems": [_type(arg) for arg in args],
            "minItems": len(args),
            "maxItems": len(args),
        }
    if issubclass(origin, Sequence | set | frozenset):
        return {"type": "array", "items": _type(args[0])}
    raise FailedError(f"there is no JSON schema for a field of type {hint}")


def _class(hint: type) -> Schema:
    own = getattr(hint, "json_schema", None)
    if own is not None:
        return dict(own())
    axes = getattr(hint, "dim_str", None)
    if axes is not None:  # a jaxtyping array: keep the names of its axes
        return {"type": "array", "x-axes": str(axes)}
    if issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if dataclasses.is_dataclass(hint):
        return {"title": hint.__name__, **fields_schema(hint)}
    raise FailedError(f"there is no JSON schema for a field of type {hint.__name__}")
