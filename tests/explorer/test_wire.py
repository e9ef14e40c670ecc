"""An answer as bytes: what goes in comes out."""

import struct
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pathsum.base import Record
from pathsum.base.errors import FailedError, InputError
from pathsum.explorer.params import ALIGNMENT, decode, encode


@dataclass(frozen=True, eq=False)
class Part:
    name: str
    values: Tensor


@dataclass(frozen=True, eq=False)
class Answer(Record, kind="test-wire"):
    text: str
    number: float
    absent: float | None
    parts: tuple[Part, ...]
    whole: Tensor | None
    _hidden: int = 0


DTYPES = {
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float32,
    torch.int64: np.int32,
    torch.int32: np.int32,
    torch.uint16: np.uint16,
    torch.uint8: np.uint8,
    torch.bool: np.uint8,
}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(list(DTYPES)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    return torch.randint(0, 200, shape, generator=generator).to(dtype)


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.floats(allow_nan=True),
    st.lists(tensors(), max_size=4),
)
def test_round_trip(text: str, number: float, values: list[Tensor]) -> None:
    parts = tuple(Part(text, value) for value in values)
    got = decode(encode(Answer(text, number, None, parts, None)))
    assert got["format"] == "pathsum-test-wire"
    assert got["text"] == text
    assert got["number"] == (number if np.isfinite(number) else None)
    assert got["absent"] is None and got["whole"] is None
    assert "_hidden" not in got
    for value, back in zip(values, got["parts"], strict=True):
        array = back["values"]
        assert array.dtype == DTYPES[value.dtype]
        assert list(array.shape) == list(value.shape)
        np.testing.assert_array_equal(array, value.numpy())


@given(st.text(max_size=9), st.lists(tensors(), max_size=3))
def test_buffers_begin_at_multiples_of_eight(text: str, values: list[Tensor]) -> None:
    parts = tuple(Part("", value) for value in values)
    wire = encode(Answer(text, 0.0, None, parts, None))
    (length,) = struct.unpack_from("<I", wire)
    begin = 4 + length + (-(4 + length) % ALIGNMENT)
    assert begin % 8 == 0 and len(wire) % 8 == 0
    assert set(wire[4 + length : begin]) <= {0}
    assert b'"$arrays"' in wire[4 : 4 + length]


def test_numbers_that_json_cannot_say_stay_in_buffers() -> None:
    values = torch.tensor([1.0, float("nan"), float("inf")])
    back = decode(encode(Answer("", float("nan"), None, (), values)))
    assert back["number"] is None
    np.testing.assert_array_equal(back["whole"], values.numpy())


def test_complex_numbers_travel_as_pairs() -> None:
    back = decode(encode(Answer("", 0.0, None, (), torch.tensor([1 + 2j]).conj())))
    assert back["whole"].tolist() == [[1.0, -2.0]]


def test_a_view_of_a_tensor_travels_as_it_looks() -> None:
    values = torch.arange(6).reshape(2, 3).T
    back = decode(encode(Answer("", 0.0, None, (), values)))
    assert back["whole"].tolist() == values.tolist()


def test_a_lone_surrogate_does_not_break_the_page() -> None:
    assert decode(encode(Answer("\ud800", 0.0, None, (), None)))["text"] == "?"


def test_an_answer_that_was_cut_short() -> None:
    with pytest.raises(InputError, match="at least 4 bytes, and this one has 2"):
        decode(b"ab")
    with pytest.raises(InputError, match="it was truncated"):
        decode(encode(Answer("long enough", 0.0, None, (), None))[:20])


def test_a_tensor_that_cannot_travel() -> None:
    with pytest.raises(FailedError, match="float8_e5m2, which cannot be encoded"):
        encode(Answer("", 0.0, None, (), torch.zeros(1).to(torch.float8_e5m2)))


def test_numbers_are_rounded_if_asked_for_and_arrays_are_not() -> None:
    exact = torch.tensor([1 / 3], dtype=torch.float32)
    record = Answer("a", 16.98114776611328, None, (Part("b", exact),), None)
    found = decode(encode(record, digits=6))
    assert found["number"] == 16.9811
    assert found["parts"][0]["values"].tolist() == exact.tolist()
    assert decode(encode(record))["number"] == 16.98114776611328
