"""Wire format of an answer: a JSON header followed by its arrays in binary.

    uint32 n, little-endian · n bytes of UTF-8 JSON · zeros to a multiple of 8 · buffers

The header is the record's `to_dict()` with each tensor replaced by `{"$array": i}`, and a list
`"$arrays"` of `{dtype, shape, offset, length}`, offsets counted from the first buffer. Each buffer
begins at a multiple of 8 and is little-endian, so that the browser can view it without copying. The
tensor's dtype determines the encoding: a half float takes two bytes, an integer four.
"""

import json
import struct
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathsum.base import Record, jsonable
from pathsum.base.errors import FailedError, InputError

ALIGNMENT = 8
_TYPES: dict[str, str] = {"f2": "<f2", "f4": "<f4", "i4": "<i4", "u2": "<u2", "u1": "|u1"}

_ENCODED_AS: dict[torch.dtype, str] = {
    torch.float16: "f2",
    torch.float32: "f4",
    torch.float64: "f4",
    torch.bfloat16: "f4",
    torch.int64: "i4",
    torch.int32: "i4",
    torch.int16: "i4",
    torch.uint16: "u2",
    torch.uint8: "u1",
    torch.bool: "u1",
}


def encode(record: Record, digits: int | None = None) -> bytes:
    """A record as bytes; with `digits`, the numbers of its header are rounded, arrays are not.

    >>> from pathsum.explorer.answers.model import Vocabulary
    >>> answer = decode(encode(Vocabulary(("a", "<b>"), torch.tensor([3, 4]), torch.tensor([1]))))
    >>> answer["tokens"], answer["counts"].tolist()
    (['a', '<b>'], [3, 4])
    """
    arrays = _Arrays()
    header = {
        "format": f"pathsum-{record.record_kind}",
        "version": record.version,
        **jsonable(record, arrays.add, digits),
        "$arrays": arrays.listed,
    }
    text = json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A tokenizer may produce a lone surrogate, which UTF-8 cannot encode.
    return join(text.encode("utf-8", "replace"), b"".join(arrays.buffers))


def decode(wire: bytes) -> dict[str, Any]:
    """The header as a dictionary, with its arrays as numpy arrays."""
    head, buffers = split(wire)
    header = json.loads(head)
    arrays = [_array(buffers, entry) for entry in header.pop("$arrays")]
    return _restore(header, arrays)


def join(head: bytes, buffers: bytes) -> bytes:
    """An answer from its header, as JSON, and its buffers."""
    whole = struct.pack("<I", len(head)) + head
    return whole + bytes(-len(whole) % ALIGNMENT) + buffers


def split(wire: bytes) -> tuple[bytes, bytes]:
    """The inverse of `join`."""
    if len(wire) < 4:
        raise InputError(f"an answer has at least 4 bytes, and this one has {len(wire)}")
    (length,) = struct.unpack_from("<I", wire)
    begin = 4 + length + (-(4 + length) % ALIGNMENT)
    if len(wire) < begin:
        raise InputError(
            f"the header has {length} bytes, but the answer ends before that; it was truncated"
        )
    return wire[4 : 4 + length], wire[begin:]


class _Arrays:
    """Collects the tensors of a record."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self.buffers: list[bytes] = []
        self._offset = 0

    def add(self, tensor: Tensor) -> dict[str, int]:
        """A reference to a tensor, whose numbers are kept apart."""
        plain = tensor.detach().cpu()
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        kind = _ENCODED_AS.get(plain.dtype)
        if kind is None:
            raise FailedError(f"an answer holds a tensor of {plain.dtype}, which cannot be encoded")
        if plain.dtype == torch.bfloat16:
            plain = plain.float()
        data = np.ascontiguousarray(plain.numpy()).astype(_TYPES[kind]).tobytes()
        self.listed.append(
            {
                "dtype": kind,
                "shape": list(plain.shape),
                "offset": self._offset,
                "length": len(data),
            }
        )
        padded = data + bytes(-len(data) % ALIGNMENT)
        self.buffers.append(padded)
        self._offset += len(padded)
        return {"$array": len(self.listed) - 1}


def _array(buffers: bytes, entry: dict[str, Any]) -> NDArray[Any]:
    kind = np.dtype(_TYPES[entry["dtype"]])
    count = entry["length"] // kind.itemsize
    flat = np.frombuffer(buffers, kind, count, entry["offset"])
    return flat.reshape(entry["shape"])


def _restore(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"$array"}:
            return arrays[value["$array"]]
        return {key: _restore(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore(item, arrays) for item in value]
    return value
