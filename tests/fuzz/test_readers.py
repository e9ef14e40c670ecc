"""Every reader on malformed inputs: it succeeds, or says what is wrong in one error.

`make fuzz` draws more inputs. An input that failed once is kept in failures/, as READER--WHAT, and
is read in every test run.
"""

import copy
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.readers import READERS

from pathsum.base.errors import PathsumError

INPUTS = int(os.environ.get("PATHSUM_FUZZ", "200"))
FAILURES = sorted((Path(__file__).parent / "failures").iterdir())

_DEEP: Any = json.loads("[" * 80 + "]" * 80)
_ODD = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**64, 10**9, 10**30, -(10**400)),
        *(0.5, -0.0, 1e-320, 1e308, math.inf, -math.inf, math.nan),
        *("", "x", "0", "\x1b[31m", "\ud800", "a" * 300, "L9H9", "../../etc/passwd", "nan"),
        *([], {}, [None], [[]], {"": {}}, [1, "a", None], ["a"] * 40, _DEEP),
    ]
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(inner)[:40]:
        if isinstance(item, dict | list):
            yield from _places(item, (*at, key))
        else:
            yield (*at, key)


@st.composite
def _changed_json(draw: st.DrawFn, base: bytes) -> bytes:
    """A JSON object of which some values are odd, missing or unexpected."""
    value = json.loads(base)
    places = list(_places(value))
    for _ in range(draw(st.integers(1, 3))):
        *outer, key = draw(st.sampled_from(places))
        inside: Any = value
        try:
            for step in outer:
                inside = inside[step]
            match draw(st.sampled_from(["odd", "odd", "odd", "missing", "more"])):
                case "odd":
                    inside[key] = copy.deepcopy(draw(_ODD))
                case "missing":
                    del inside[key]
                case _:
                    inside[draw(st.text(max_size=5))] = copy.deepcopy(draw(_ODD))
        except (LookupError, TypeError):
            continue  # an earlier change removed the place
    return json.dumps(value).encode("utf-8", "surrogatepass")


@st.composite
def _changed_bytes(draw: st.DrawFn, base: bytes) -> bytes:
    """Bytes that were cut, overwritten or repeated, mostly near the beginning."""
    data = bytearray(base)
    for _ in range(draw(st.integers(1, 4))):
        early = draw(st.booleans())
        at = draw(st.integers(0, max(0, min(len(data), 400 if early else len(data)) - 1)))
        match draw(st.sampled_from(["byte", "number", "cut", "insert", "remove"])):
            case "byte" if data:
                data[at] = draw(st.integers(0, 255))
            case "number":
                length = draw(st.sampled_from([1, 4, 8]))
                edge = draw(st.sampled_from([0, 1, 2**31, 2**63, 2**64 - 1]))
                data[at : at + length] = (edge % 256**length).to_bytes(length, "little")
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=12))
            case _:
                del data[at : at + draw(st.integers(1, 40))]
    return bytes(data)


def _read(name: str, content: bytes) -> None:
    folder = Path(tempfile.mkdtemp(prefix="pathsum-fuzz-", dir=_memory()))
    try:
        with suppress(PathsumError):
            READERS[name].read(content, folder)
    finally:
        shutil.rmtree(folder)


def _memory() -> str | None:
    """A file system in memory, if there is one: thousands of folders are written."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.mark.parametrize("name", READERS)
def test_a_valid_input_is_read(name: str, tmp_path: Path) -> None:
    READERS[name].read(READERS[name].base(), tmp_path)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=INPUTS)
@given(data=st.data())
def test_no_input_is_a_crash(name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    changed = [_changed_bytes(reader.base())]
    if reader.json:
        changed += [_changed_json(reader.base())] * 3
    _read(name, data.draw(st.one_of(changed)))


@pytest.mark.parametrize("file", FAILURES, ids=lambda file: file.name)
def test_what_failed_once(file: Path) -> None:
    _read(file.name.partition("--")[0], file.read_bytes())
