"""Parameters of questions: flat records of strings, integers and booleans, parsed and named.

An omitted parameter has its default, so two ways to ask the same thing are one question
with one key (`answer_key`), in Python and in the browser. And the words of the page that are data.
"""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pathsum.base.errors import InputError
from pathsum.base.json_schema import read_record

PlainParams: TypeAlias = dict[str, str | int | bool]
"""Parameters as they are sent: names and plain values."""


@dataclass(frozen=True, kw_only=True)
class ModelParams:
    """An open model (by default the first), and a training step of it (by default the last)."""

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
    """The parameters of a question from plain values; an error names the one that is wrong."""
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
    """A section of `words.toml`: sentences of the page that are not computed."""
    file = Path(__file__).with_name("words.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))[section]
