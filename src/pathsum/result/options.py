"""Parsing of options: an enum member or its string value, and an error for anything else.

Every public function parses its options at entry, so that a misspelled string is an error there
and never a silent default further down. Long ones also take a callback, `Progress`.
"""

import enum
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from pathsum.errors import InputError, near_misses

Option = TypeVar("Option", bound=enum.Enum)
Choice = TypeVar("Choice", bound=str)


def parse_option(options: type[Option], value: Option | str, name: str) -> Option:
    """The member of the enum `options` that `value` is, or whose string value it is.

    `name` is the parameter's name, for the error.

    >>> class Color(enum.StrEnum):
    ...     RED = "red"
    ...     GREEN = "green"
    >>> parse_option(Color, "green", "color") is Color.GREEN
    True
    >>> parse_option(Color, "gren", "color")
    Traceback (most recent call last):
    pathsum.errors.InputError: color is 'gren'; choose 'red' or 'green'; did you mean 'green'?
    """
    # A member of another StrEnum is a string too, but equal strings of different enums are not the
    # same option.
    if isinstance(value, options):
        return value
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        for member in options:
            if member.value == value:
                return member
    raise _unknown(value, tuple(str(member.value) for member in options), name)


def parse_choice(choices: tuple[Choice, ...], value: str, name: str) -> Choice:
    """`parse_option` for plain strings: `value` if it is one of `choices`.

    >>> parse_choice(("q", "k", "v"), "k", "kind")
    'k'
    """
    for choice in choices:
        if isinstance(value, str) and choice == value:
            return choice
    raise _unknown(value, choices, name)


def list_choices(choices: tuple[str, ...]) -> str:
    """Choices as a phrase for messages.

    >>> list_choices(("zero", "mean", "resample"))
    "'zero', 'mean' or 'resample'"
    """
    quoted = [repr(str(choice)) for choice in choices]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _unknown(value: object, choices: tuple[str, ...], name: str) -> InputError:
    wrong = str(value) if isinstance(value, enum.Enum) else value
    hint = near_misses(wrong, choices) if isinstance(wrong, str) else ""
    return InputError(f"{name} is {wrong!r}; choose {list_choices(choices)}{hint}")


Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with (steps done, total steps, description of the current step)."""


def silent(done: int, total: int, what: str) -> None:
    """The default callback: does nothing."""
