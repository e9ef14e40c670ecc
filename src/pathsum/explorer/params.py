"""Parameters of questions, the keys of answers, and their wire format.

Parameters are flat records of strings, integers and booleans. Parameters equal to their defaults
are dropped from the key of an answer (`answer_key`), in Python and in the browser.

Wire format of an answer: a JSON header followed by its arrays in binary.

    uint32 n, little-endian · n bytes of UTF-8 JSON · zeros to a multiple of 8 · buffers

The header is the record's `to_dict()` with each tensor replaced by `{"$array": i}`, and a list
`"$arrays"` of `{dtype, shape, offset, length}`, offsets counted from the first buffer. Each buffer
begins at a multiple of 8 and is little-endian, so that the browser can view it without copying. The
tensor's dtype determines the encoding: a half float takes two bytes, an integer four.
"""

import dataclasses
import json
import struct
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathsum.base import Record, jsonable
from pathsum.base.errors import FailedError, InputError
from pathsum.base.json_schema import read_record

PlainParams: TypeAlias = dict[str, str | int | bool]
"""Parameters as sent by a client: plain values by name."""


@dataclass(frozen=True, kw_only=True)
class ModelParams:
    """An open model (by default the first), and its training step (by default the last)."""

    model: str | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class TextParams(ModelParams):
    """A text to run, given in exactly one of three ways.

    `text` as typed, `ids` as "1,5,7", `example` as an index into the model's examples.
    """

    text: str | None = None
    ids: str | None = None
    example: int | None = None


@dataclass(frozen=True, kw_only=True)
class HeadParams(ModelParams):
    """One head, by its label."""

    head: str


Params = TypeVar("Params", bound=ModelParams)

# A text is truncated to the context anyway; this bounds the tokenizer's work before that.
MAX_CHARACTERS = 200_000
# The largest integer that JSON numbers hold exactly in a browser.
MAX_INTEGER = 2**53 - 1


def parse_params(cls: type[Params], values: Mapping[str, object]) -> Params:
    """The parameters of a question from plain values; an error names the invalid parameter."""
    for name, value in values.items():
        if value is None:
            raise InputError(f"{name} is null; leave it out")
        if isinstance(value, str) and len(value) > MAX_CHARACTERS:
            raise InputError(
                f"{name} has {len(value):,} characters; at most {MAX_CHARACTERS:,} are allowed"
            )
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise InputError(f"{name} is {str(value)[:60]}, which is out of range")
    return read_record(cls, values, "the question")


def non_default_params(params: ModelParams) -> PlainParams:
    """The parameters that differ from their defaults."""
    return {
        field.name: getattr(params, field.name)
        for field in dataclasses.fields(params)
        if getattr(params, field.name) != field.default
    }


def answer_key(name: str, params: Mapping[str, str | int | bool]) -> str:
    """The key of an answer: the question's name and its non-default parameters, sorted, as JSON.

    The browser makes the same string with `JSON.stringify`.

    >>> answer_key("run", {"text": "é", "step": 4})
    'run:{"step":4,"text":"é"}'
    """
    text = json.dumps(dict(params), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{name}:{text}"


def page_words(section: str) -> Any:
    """A section of `words.toml`: the fixed sentences of the page."""
    file = Path(__file__).with_name("words.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))[section]


ALIGNMENT = 8
_ENCODED_AS = {
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
    """A record as bytes; with `digits`, numbers in the header are rounded, but not arrays.

    >>> from pathsum.explorer.answers.model import Vocabulary
    >>> answer = decode(encode(Vocabulary(("a", "<b>"), torch.tensor([3, 4]), torch.tensor([1]))))
    >>> answer["tokens"], answer["counts"].tolist()
    (['a', '<b>'], [3, 4])
    """
    arrays: list[dict[str, Any]] = []
    buffers = bytearray()

    def add(tensor: Tensor) -> dict[str, int]:
        kind, data = _little_endian(tensor.detach().cpu())
        shape = [*tensor.shape, 2] if tensor.is_complex() else [*tensor.shape]
        arrays.append({"dtype": kind, "shape": shape, "offset": len(buffers), "length": len(data)})
        buffers.extend(data + bytes(-len(data) % ALIGNMENT))
        return {"$array": len(arrays) - 1}

    header = {
        "format": f"pathsum-{record.record_kind}",
        "version": record.version,
        **jsonable(record, add, digits),
        "$arrays": arrays,
    }
    text = json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A tokenizer may produce a lone surrogate, which UTF-8 cannot encode.
    head = text.encode("utf-8", "replace")
    start = struct.pack("<I", len(head)) + head
    return start + bytes(-len(start) % ALIGNMENT) + bytes(buffers)


def _little_endian(tensor: Tensor) -> tuple[str, bytes]:
    """The name of a tensor's wire type, and its numbers in that type."""
    numbers = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    kind = _ENCODED_AS.get(numbers.dtype)
    if kind is None:
        raise FailedError(
            f"an answer contains a tensor of {numbers.dtype}, which cannot be encoded"
        )
    numbers = numbers.float() if numbers.dtype == torch.bfloat16 else numbers
    return kind, numbers.numpy().astype(f"<{kind}").tobytes()


def decode(wire: bytes) -> dict[str, Any]:
    """The inverse of `encode`: the header as a dictionary, with numpy arrays."""
    if len(wire) < 4:
        raise InputError(f"an answer has at least 4 bytes, and this one has {len(wire)}")
    (length,) = struct.unpack_from("<I", wire)
    begin = 4 + length + (-(4 + length) % ALIGNMENT)
    if len(wire) < begin:
        raise InputError(
            f"the header has {length} bytes, but the answer ends before that; it was truncated"
        )
    text = wire[4 : 4 + length]
    arrays = [_array(wire, begin, entry) for entry in json.loads(text)["$arrays"]]

    def restore(value: dict[str, Any]) -> Any:
        return arrays[value["$array"]] if "$array" in value else value

    header = json.loads(text, object_hook=restore)
    del header["$arrays"]
    return header


def _array(wire: bytes, begin: int, entry: dict[str, Any]) -> NDArray[Any]:
    kind = np.dtype(f"<{entry['dtype']}")
    flat = np.frombuffer(wire, kind, entry["length"] // kind.itemsize, begin + entry["offset"])
    return flat.reshape(entry["shape"])
