"""How much memory a cached value holds."""

import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

# Shared by everything, or without contents of their own.
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, torch.dtype)


def bytes_held(value: object, shared: tuple[type, ...] = ()) -> int:
    """The bytes of everything reachable from a value, each tensor and object once.

    Objects of the types in `shared` are left out: they belong to somebody else.

    >>> bytes_held([torch.zeros(1000), torch.zeros(1000)]) // 1000
    8
    >>> row = torch.zeros(1000)
    >>> bytes_held({"same": [row, row[:10]]}) // 1000
    4
    """
    seen: set[int] = set()
    waiting: list[Any] = [value]
    total = 0
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, (*_SHARED, *shared)):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
        elif isinstance(item, np.ndarray):
            total += item.nbytes if item.base is None else 0
            waiting.append(item.base)
        else:
            total += sys.getsizeof(item)
            waiting.extend(_contents(item))
    return total


def _contents(item: object) -> Iterator[object]:
    if isinstance(item, str | bytes | bytearray | int | float | complex | None):
        return
    if isinstance(item, Mapping):
        yield from list(item.keys())
        yield from list(item.values())
    elif isinstance(item, list | tuple | set | frozenset):
        yield from list(item)
    if is_dataclass(item) and not hasattr(item, "__dict__"):
        yield from (getattr(item, field.name) for field in fields(item))
    yield from list(getattr(item, "__dict__", {}).values())
