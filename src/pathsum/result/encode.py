"""Values as JSON: tensors as nested lists, complex numbers as pairs, NaN and infinity as null."""

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from pathsum.errors import FailedError


@cache
def has_json_form(kind: type) -> bool:
    """Whether values of a type have a JSON form of their own, as paths and labels of heads do."""
    return callable(getattr(kind, "to_json", None))


def jsonable(value: object) -> Any:
    """The JSON form of any value that a record may hold.

    NaN and infinities, which JSON cannot represent, become null: in a result NaN means that there
    is no value.

    >>> jsonable((1, float("nan"), 2 + 3j))
    [1, None, [2.0, 3.0]]
    """
    if value is None or isinstance(value, bool | int | str):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, complex):
        return [jsonable(value.real), jsonable(value.imag)]
    if isinstance(value, Tensor):
        return _tensor(value)
    if has_json_form(type(value)):
        return cast(Any, value).to_json()
    if dataclasses.is_dataclass(value):
        return {
            field.name: jsonable(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.name.startswith("_")
        }
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [jsonable(item) for item in value]
    raise FailedError(
        f"a result holds a {type(value).__name__}, which has no JSON form; "
        "give the type a to_json method or store a plain value"
    )


def _tensor(value: Tensor) -> Any:
    plain = value.detach().cpu()
    if plain.is_complex():
        return jsonable(torch.view_as_real(plain).tolist())
    if plain.is_floating_point() and not bool(torch.isfinite(plain).all()):
        return jsonable(plain.tolist())
    return plain.tolist()
