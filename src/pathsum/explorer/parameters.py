"""What a question may say: the parameters, flat, of strings, integers and booleans.

A parameter left out is one whose default is meant; so two ways to ask the same are one question,
and one key (`pathsum.explorer.answer_key`) names its answer wherever it is kept.
"""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

from pathsum.errors import InputError, near_misses

Asked = TypeVar("Asked", bound="AboutModel")


@dataclass(frozen=True, kw_only=True)
class AboutModel:
    """A question about a model: which of those served, and at which step of its training."""

    model: str | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class AboutText(AboutModel):
    """A question about a run: its text said in exactly one of three ways.

    `text` as typed, `ids` as "1,5,7", `example` as an index into the model's examples.
    """

    text: str | None = None
    ids: str | None = None
    example: int | None = None


@dataclass(frozen=True, kw_only=True)
class AboutHead(AboutModel):
    """A question about one head, by its label."""

    head: str


# What a question may hold at the most. A text is cut to the context anyway; this bounds the work
# of the tokenizer before that.
MOST_CHARACTERS = 200_000
MOST_NUMBER = 2**53 - 1


def parse(asked: type[Asked], said: Mapping[str, object]) -> Asked:
    """The parameters of a question, checked; an error says which one is wrong and what is right."""
    hints = typing.get_type_hints(asked)
    fields = {field.name: field for field in dataclasses.fields(asked)}
    for name in said:
        if name not in fields:
            raise InputError(
                f"there is no parameter {str(name)[:60]!r} here{near_misses(str(name), fields)}; "
                f"it may say {', '.join(fields)}"
            )
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in said:
            raise InputError(f"the question does not say {name!r}, and there is no default for it")
    values = {name: _checked(name, hints[name], value) for name, value in said.items()}
    return asked(**values)


def said(asked: AboutModel) -> dict[str, str | int | bool]:
    """What a question says beyond its defaults: the parameters that its key is made of."""
    return {
        field.name: getattr(asked, field.name)
        for field in dataclasses.fields(asked)
        if getattr(asked, field.name) != field.default
    }


def _checked(name: str, hint: Any, value: object) -> Any:
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    if choices:
        if value not in choices:
            raise InputError(
                f"{name} is {str(value)[:60]!r}, but it may be {', '.join(map(repr, choices))}"
            )
        return value
    wanted = str if hint in (str, str | None) else int
    if isinstance(value, bool) or not isinstance(value, wanted):
        what = "a string" if wanted is str else "a whole number"
        raise InputError(f"{name} is {str(value)[:60]!r}; {what} would be right")
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        raise InputError(
            f"{name} has {len(value):,} characters; at most {MOST_CHARACTERS:,} are taken"
        )
    if isinstance(value, int) and abs(value) > MOST_NUMBER:
        raise InputError(f"{name} is {str(value)[:60]}, which is no number that occurs here")
    return value
