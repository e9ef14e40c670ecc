"""Options, counts and positions: one parser each, used where a value enters the library.

An option is an enum member or its string value. Every public function parses its options at entry,
so that a misspelled string is an error there and never a silent default further down.
Long-running functions also take a callback, `Progress`, and split their work by memory (`batched`).
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

from pathsum.base.errors import InputError, near_misses

Option = TypeVar("Option", bound=enum.Enum)
Choice = TypeVar("Choice", bound=str)

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with (steps done, total steps, description of the current step)."""


def silent(done: int, total: int, what: str) -> None:
    """The default callback: does nothing."""


def parse_option(options: type[Option], value: object, name: str) -> Option:
    """The member of the enum `options` that `value` is, or whose string value it is.

    `name` is the parameter's name, for the error.

    >>> class Color(enum.StrEnum):
    ...     RED = "red"
    ...     GREEN = "green"
    >>> parse_option(Color, "green", "color") is Color.GREEN
    True
    >>> parse_option(Color, "gren", "color")
    Traceback (most recent call last):
    pathsum.base.errors.InputError: color is 'gren'; choose 'red' or 'green'; did you mean 'green'?
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


def parse_choice(choices: tuple[Choice, ...], value: object, name: str) -> Choice:
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
    hint = near_misses(wrong, map(str, choices)) if isinstance(wrong, str) else ""
    return InputError(f"{name} is {wrong!r}; choose {list_choices(choices)}{hint}")


def parse_position(
    position: int, length: int, what: str = "position", of: str = "the sequence"
) -> int:
    """A position counted from 0; negative ones count from the end.

    >>> parse_position(-1, 5)
    4
    >>> parse_position(5, 5)
    Traceback (most recent call last):
    pathsum.base.errors.InputError: position 5 is out of range: the sequence has 5 tokens, so \
positions go from 0 to 4, or from -1 (the last) to -5
    """
    if not -length <= position < length:
        raise InputError(
            f"{what} {position} is out of range: {of} has {length} tokens, so positions go from 0 "
            f"to {length - 1}, or from -1 (the last) to -{length}"
        )
    return position % length


def parse_count(
    number: int, what: str, name: str = "k", least: int = 1, most: int | None = None
) -> int:
    """A number of things, from `least` to `most`; None stands for no upper limit.

    >>> parse_count(3, "edges")
    3
    >>> parse_count(0, "edges")
    Traceback (most recent call last):
    pathsum.base.errors.InputError: k=0 edges were requested; choose 1 or more
    >>> parse_count(9, "tokens", most=5)
    Traceback (most recent call last):
    pathsum.base.errors.InputError: k=9 tokens were requested, but there are 5; choose from 1 to 5
    """
    if number < least and most is None:
        raise InputError(f"{name}={number} {what} were requested; choose {least} or more")
    if most is not None and not least <= number <= most:
        raise InputError(
            f"{name}={number} {what} were requested, but there are {most}; choose from {least} to "
            f"{most}"
        )
    return number


def parse_probability(value: float, name: str) -> float:
    """A number between 0 and 1, both excluded."""
    if not 0 < value < 1:
        raise InputError(f"{name}={value} is not a probability; use a number between 0 and 1")
    return value


def parse_draws(draws: int, least: int, what: str = "random heads") -> int:
    """A number of random draws that is large enough for its null distribution.

    >>> parse_draws(19, least=99)
    Traceback (most recent call last):
    pathsum.base.errors.InputError: draws=19 random heads are too few: p could not fall below \
0.05; use at least 99
    """
    if draws < least:
        raise InputError(
            f"draws={draws} {what} are too few: p could not fall below "
            f"{1 / (1 + max(draws, 0)):.2g}; use at least {least}"
        )
    return draws


Item = TypeVar("Item")

BYTES = 1 << 26
"""Memory of one batch, unless a caller gives another bound: 64 MB."""


def batched(
    items: Sequence[Item], bytes_each: int, total_bytes: int | None = None
) -> Iterator[Sequence[Item]]:
    """Consecutive slices of `items` of at most `total_bytes` (by default `BYTES`), at least one.

    >>> list(batched(range(5), bytes_each=8, total_bytes=16))
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    size = batch_size(bytes_each, total_bytes)
    for first in range(0, len(items), size):
        yield items[first : first + size]


def batch_size(bytes_each: int, total_bytes: int | None = None) -> int:
    """The number of items that fit into one batch, at least 1."""
    return max(1, (BYTES if total_bytes is None else total_bytes) // max(1, bytes_each))
