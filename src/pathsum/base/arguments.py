"""Arguments of public functions: options are parsed at entry, wrong types give a clear error.

An option is an enum member or its string value. Every public function parses its options at entry,
so that a misspelled string is an error there and never a silent default further down. Long-running
ones also take a callback, `Progress`.

Types are duck-typed: any argument that works is accepted. Only when a call fails with an error that
pathsum did not raise are its arguments compared with the annotations; the error then names the
first that does not fit. A call that succeeds is not checked and costs nothing.
"""

import enum
import inspect
import math
import sys
import typing
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin

from pathsum.base.errors import ArgumentError, InputError, PathsumError, near_misses
from pathsum.base.terminal import shorten

Option = TypeVar("Option", bound=enum.Enum)
Choice = TypeVar("Choice", bound=str)

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
# Errors that Python and torch raise for unusable arguments.
_FROM_INSIDE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_SPECIAL = ("__call__", "__getitem__", "__contains__", "__mul__", "__matmul__")
_LONGEST = 60
_INT64 = 2**63
_NOUNS = {
    int: "an integer of at most 64 bits",
    float: "a finite number",
    bool: "True or False",
    str: "a string",
    NoneType: "None",
    Path: "a path",
}


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


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make errors of a function name the argument that does not fit its annotation.

    >>> @checked
    ... def first(words: list[str], k: int = 1) -> list[str]:
    ...     return [word.upper() for word in words[:k]]
    >>> first(["a", "b"])
    ['A']
    >>> first(["a", "b"], "2")
    Traceback (most recent call last):
    pathsum.base.errors.ArgumentError: first: k is '2'; give an integer of at most 64 bits
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except PathsumError as error:
            if not isinstance(error, ArgumentError):
                raise
            # Raised by a function that this one called: name this one's argument instead.
            raise ArgumentError(_wrong(function, args, kwargs) or str(error)) from error
        except _FROM_INSIDE as error:
            wrong = _wrong(function, args, kwargs)
            if wrong is None:
                raise
            raise ArgumentError(wrong) from error

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


def _wrong(function: Callable[..., Any], args: Any, kwargs: Any) -> str | None:
    """A sentence about the first argument that does not fit its annotation."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None  # too many arguments or too few; Python's own message says so
    hints = _hints(function)
    for name, given in bound.arguments.items():
        several = bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        for value in given if several else (given,):
            if name in hints and not fits(value, hints[name]):
                return f"{function.__name__}: {name} is {_shown(value)}; give {_noun(hints[name])}"
    return None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations; names that modules import only for type checkers are looked up."""
    names: dict[str, Any] = {}
    for title, module in list(sys.modules.items()):
        if title.startswith("pathsum."):
            names |= {
                name: value for name, value in vars(module).items() if isinstance(value, type)
            }
    try:
        return typing.get_type_hints(function, localns=names | dict(function.__globals__))
    except NameError:
        return {}


def fits(value: object, hint: Any) -> bool:
    """Whether a value is what an annotation says; True if that cannot be decided.

    >>> fits([1, 2], list[int]), fits([1, "2"], list[int]), fits(None, int | None)
    (True, False, True)
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inside)
    if origin is Literal:
        return isinstance(value, str) and value in inside
    if hint in (int, float, bool):
        return _is_number(value, hint)
    kind = hint if origin is None else origin
    try:
        if isinstance(kind, type) and not isinstance(value, kind):
            return False
    except TypeError:  # a protocol, for example
        return True
    if not isinstance(value, Collection):
        return True
    if isinstance(value, str):
        return not inside or fits("", inside[0])
    if isinstance(value, Mapping):
        keys, values = inside if len(inside) == 2 else (Any, Any)
        return all(fits(key, keys) and fits(value[key], values) for key in value)
    if origin is tuple and Ellipsis not in inside:
        return len(value) == len(inside) and all(map(fits, value, inside))
    return not inside or origin is type or all(fits(one, inside[0]) for one in value)


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


def _shown(value: object) -> str:
    """A value in a sentence."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits, which Python does not print
        return "a number that is too long to print"
    # The address of an object says nothing.
    return f"a {type(value).__name__}" if text.startswith("<") else shorten(text, _LONGEST)


def _noun(hint: Any) -> str:
    """The values that an annotation accepts, in words."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        nouns = list(dict.fromkeys(_noun(one) for one in inside))
        return nouns[0] if len(nouns) == 1 else f"{', '.join(nouns[:-1])} or {nouns[-1]}"
    if origin is Literal:
        return list_choices(inside)
    if hint in _NOUNS:
        return _NOUNS[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return list_choices(tuple(str(member.value) for member in hint))
    if hasattr(hint, "dim_str"):
        return f"a tensor [{hint.dim_str}]"
    if origin is tuple:
        return f"a tuple ({', '.join(map(_noun, inside))})"
    if origin is Callable or hint is Callable:
        return "a function"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping from {_noun(inside[0])} to {_noun(inside[1])}"
    if isinstance(origin, type) and inside:
        return f"a {origin.__name__.lower()} of {_noun(inside[0])}"
    name = str(getattr(hint, "__name__", hint))
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
