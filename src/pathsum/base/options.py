"""Options, counts and positions: one parser each, used where a value enters the library.

An option is an enum member or its string value. Every public function parses its options at entry,
so that a misspelled string is an error there and never a silent default further down.
Long-running functions also take a callback, `Progress`, and split their work by memory (`batched`).

`checked` compares each argument with its annotation and raises an `ArgumentError` that names the
function, the argument and what to give instead. Numbers and tensors of one element count as
numbers; an annotation that only type checkers can resolve is ignored.
"""

import enum
import inspect
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from itertools import chain
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Any,
    Literal,
    ParamSpec,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from jaxtyping import jaxtyped

from pathsum.base.errors import ArgumentError, InputError, near_misses
from pathsum.base.sentence import shorten

Option = TypeVar("Option", bound=enum.StrEnum)
Choice = TypeVar("Choice", bound=str)

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with (steps done, total steps, description of the current step)."""


def silent(done: int, total: int, what: str) -> None:
    """The default callback: does nothing."""


def parse_option(options: type[Option], value: object, name: str) -> Option:
    """The member of the enum `options` with this value, or `value` itself if it is a member.

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
    choices = tuple(map(str, options))
    if isinstance(value, enum.Enum) and not isinstance(value, options):
        raise _unknown(value, choices, name)
    return options(parse_choice(choices, value, name))


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
    return _either([repr(str(choice)) for choice in choices])


def _either(phrases: list[str]) -> str:
    *first, last = phrases
    return f"{', '.join(first)} or {last}" if first else last


def list_some(names: Sequence[str], k: int = 3) -> str:
    """The first names of a list that may be long, for messages.

    >>> list_some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:k]) + (f" and {len(names) - k} more" if len(names) > k else "")


def _unknown(value: object, choices: tuple[str, ...], name: str) -> InputError:
    text = str(value) if isinstance(value, str) else value
    hint = near_misses(text, map(str, choices)) if isinstance(text, str) else ""
    return InputError(f"{name} is {text!r}; choose {list_choices(choices)}{hint}")


def parse_position(
    position: int, length: int, noun: str = "position", of: str = "the sequence"
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
            f"{noun} {position} is out of range: {of} has {length} tokens, so positions go from 0 "
            f"to {length - 1}, or from -1 (the last) to -{length}"
        )
    return position % length


def parse_count(
    number: int, noun: str, name: str = "k", minimum: int = 1, maximum: int | None = None
) -> int:
    """A count from `minimum` to `maximum`; None stands for no upper limit.

    >>> parse_count(3, "edges")
    3
    >>> parse_count(0, "edges")
    Traceback (most recent call last):
    pathsum.base.errors.InputError: k=0 edges were requested; choose 1 or more
    >>> parse_count(9, "tokens", maximum=5)
    Traceback (most recent call last):
    pathsum.base.errors.InputError: k=9 tokens were requested, but there are 5; choose from 1 to 5
    """
    if number < minimum and maximum is None:
        raise InputError(f"{name}={number} {noun} were requested; choose {minimum} or more")
    if maximum is not None and not minimum <= number <= maximum:
        raise InputError(
            f"{name}={number} {noun} were requested, but there are {maximum}; choose from "
            f"{minimum} to {maximum}"
        )
    return number


def parse_probability(value: float, name: str) -> float:
    """A number between 0 and 1, both excluded."""
    if not 0 < value < 1:
        raise InputError(f"{name}={value} is not a probability; use a number between 0 and 1")
    return value


MOST_DRAWS = 100_000
"""Far more random draws than any estimate needs."""


def parse_draws(draws: int, minimum: int, noun: str = "random heads") -> int:
    """A number of random draws that is large enough for its null distribution.

    >>> parse_draws(19, minimum=99)
    Traceback (most recent call last):
    pathsum.base.errors.InputError: draws=19 random heads are too few: p could not fall below \
0.05; use at least 99
    """
    if draws < minimum:
        raise InputError(
            f"draws={draws} {noun} are too few: p could not fall below "
            f"{1 / (1 + max(draws, 0)):.2g}; use at least {minimum}"
        )
    if draws > MOST_DRAWS:
        raise InputError(f"draws={draws} is out of range; use {minimum} to {MOST_DRAWS:,} {noun}")
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


P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
_SPECIAL = ("__call__", "__getitem__", "__contains__", "__mul__", "__matmul__")
_MAX_VALUE_LENGTH = 60
_INT64 = 2**63
_NOUNS = {
    int: "an integer of at most 64 bits",
    SupportsIndex: "an integer",
    float: "a finite number",
    bool: "True or False",
    str: "a string",
    NoneType: "None",
    Path: "a path",
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Compare the arguments of a function with its annotations at each call.

    >>> @checked
    ... def first(words: list[str], k: int = 1) -> list[str]:
    ...     return words[:k]
    >>> first(["a", "b"])
    ['a']
    >>> first(["a", "b"], "2")
    Traceback (most recent call last):
    pathsum.base.errors.ArgumentError: first: k is '2'; give an integer of at most 64 bits
    """

    defaults = inspect.unwrap(function).__kwdefaults__ or {}
    callbacks = [name for name, value in defaults.items() if inspect.isfunction(value)]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in callbacks:
            if kwargs.get(name, name) is None:
                del kwargs[name]
        hints = _hints(function)
        names = _names(function, len(args))
        for name, value in chain(zip(names, args, strict=False), kwargs.items()):
            if name in hints and not fits(value, hints[name]):
                problem = f"{function.__name__}: {name} is {_describe(value)}"
                raise ArgumentError(f"{problem}; give {_noun(hints[name])}")
        return function(*args, **kwargs)

    if callbacks:  # `help` shows None as their default
        signature = inspect.signature(function)
        parameters = dict(signature.parameters)
        for name in callbacks:
            hint = parameters[name].annotation | None
            parameters[name] = parameters[name].replace(annotation=hint, default=None)
        vars(call)["__signature__"] = signature.replace(parameters=list(parameters.values()))
    return call


def checked_methods(cls: type[C]) -> type[C]:
    """A class decorator that makes public methods `checked`."""
    for name, value in list(vars(cls).items()):
        if name.startswith("_") and name not in _SPECIAL:
            continue
        if inspect.isfunction(value):
            setattr(cls, name, checked(value))
        elif isinstance(value, classmethod | staticmethod):
            setattr(cls, name, type(value)(checked(value.__func__)))
    return cls


@cache
def _names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of the first `count` positional arguments; all of `*names` share one name."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [parameter.name] * (count - len(names))
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return tuple(names)


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations that can be resolved at run time, by parameter."""
    hints: dict[str, Any] = {}
    for name, annotation in function.__annotations__.items():
        holder = SimpleNamespace(__annotations__={name: annotation})
        with suppress(NameError):  # imported for type checkers only
            hints |= typing.get_type_hints(holder, inspect.unwrap(function).__globals__)
    return {name: hint for name, hint in hints.items() if hint is not Any}


def fits(value: object, hint: Any) -> bool:
    """Whether a value has the annotated type; True if that cannot be decided.

    >>> fits([1, 2], list[int]), fits([1, "2"], list[int]), fits(None, int | None)
    (True, False, True)
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, option) for option in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if hint in (int, float, bool):
        return _is_number(value, hint)
    kind = hint if origin is None else origin
    try:
        # Sizes that a caller's own checks have given to names of dimensions do not apply here.
        with jaxtyped("context"):
            if isinstance(kind, type) and not isinstance(value, kind):
                return False
    except TypeError:  # a protocol, for example
        return True
    if not isinstance(value, Collection):
        return True
    if getattr(value, "ndim", 1) == 0:  # an array that cannot be iterated over
        return not args
    if isinstance(value, str):
        return not args or fits("", args[0])
    if isinstance(value, Mapping):
        keys, values = args if len(args) == 2 else (Any, Any)
        return all(fits(key, keys) and fits(value[key], values) for key in value)
    if origin is tuple and Ellipsis not in args:
        return len(value) == len(args) and all(map(fits, value, args))
    return not args or origin is type or all(fits(item, args[0]) for item in value)


def _is_number(value: Any, kind: type) -> bool:
    """Whether a value can stand for a number: numpy's and tensors of one element can."""
    if kind is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")
    try:
        if kind is int:
            return not isinstance(value, bool) and -_INT64 <= value.__index__() < _INT64
        return not isinstance(value, str | bytes) and math.isfinite(float(value))
    except (AttributeError, ArithmeticError, RuntimeError, TypeError, ValueError):
        return False


def _describe(value: object) -> str:
    """A value in a message."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits, which Python does not print
        return "a number that is too long to print"
    # The address of an object would not help.
    return f"a {type(value).__name__}" if text.startswith("<") else shorten(text, _MAX_VALUE_LENGTH)


def _noun(hint: Any) -> str:
    """The values that an annotation accepts, in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _either(list(dict.fromkeys(map(_noun, args))))
    if origin is Literal:
        return list_choices(args)
    if hint in _NOUNS:
        return _NOUNS[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return list_choices(tuple(map(str, hint)))
    if hasattr(hint, "dim_str"):
        return f"a tensor [{hint.dim_str}]"
    if origin is tuple:
        return f"a tuple ({', '.join(map(_noun, args))})"
    if origin is Callable or hint is Callable:
        return "a function"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping from {_noun(args[0])} to {_noun(args[1])}"
    if isinstance(origin, type) and args:
        return f"{_with_article(origin.__name__.lower())} (each item {_noun(args[0])})"
    name = str(getattr(hint, "__name__", hint))
    return _with_article(name) + (" (ps.load returns one)" if name == "Model" else "")


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOUaeio' else 'a'} {name}"
