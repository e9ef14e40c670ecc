"""Arguments of public functions, checked by their annotations when a function is called.

`checked` compares each argument with its annotation and raises an `ArgumentError` that names the
function, the argument and what to give instead. Numbers and tensors of one element count as
numbers; an annotation that only type checkers can resolve is not checked. Values are parsed by the
functions of `pathsum.base.options`. A callback such as `progress` may be None.
"""

import enum
import inspect
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, wraps
from itertools import chain
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from pathsum.base.errors import ArgumentError
from pathsum.base.options import list_choices
from pathsum.base.terminal import shorten

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
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
        for name, value in chain(_positional(function, args), kwargs.items()):
            if name in hints and not fits(value, hints[name]):
                what = f"{function.__name__}: {name} is {_shown(value)}"
                raise ArgumentError(f"{what}; give {_noun(hints[name])}")
        return function(*args, **kwargs)

    if callbacks:
        vars(call)["__signature__"] = _with_optional(inspect.signature(function), callbacks)
    return call


def _with_optional(signature: inspect.Signature, names: list[str]) -> inspect.Signature:
    """A signature as `help` shows it, with None as the default of these parameters."""
    parameters = dict(signature.parameters)
    for name in names:
        optional = parameters[name].annotation | None
        parameters[name] = parameters[name].replace(annotation=optional, default=None)
    return signature.replace(parameters=list(parameters.values()))


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


def _positional(function: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Positional arguments with their names; those of `*names` share one."""
    names, rest = _names(function)
    yield from zip(names, args, strict=False)
    yield from ((rest, value) for value in args[len(names) :])


@cache
def _names(function: Callable[..., Any]) -> tuple[tuple[str, ...], str]:
    """The names of positional parameters, and that of `*names`, if there is one."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = [each.name for each in parameters if each.kind is inspect.Parameter.VAR_POSITIONAL]
    return tuple(each.name for each in parameters if each.kind in kinds), "".join(rest)


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations that can be resolved at run time, by parameter."""
    found: dict[str, Any] = {}
    for name, annotation in function.__annotations__.items():
        one = SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= typing.get_type_hints(one, inspect.unwrap(function).__globals__)
        except NameError:  # imported for type checkers only
            continue
    return {name: hint for name, hint in found.items() if hint is not Any}


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
    if getattr(value, "ndim", 1) == 0:  # an array that cannot be iterated over
        return not inside
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
        return f"{_with_article(origin.__name__.lower())} of {_noun(inside[0])}"
    name = str(getattr(hint, "__name__", hint))
    if name == "Model":
        return "a Model (ps.load returns one)"
    return _with_article(name)


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOUaeio' else 'a'} {name}"
