"""The file of `pathsum why --prompts`: one JSON object per line, or one JSON string."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathsum.paths.circuit import Prompt

_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "token": (str, int),
    "versus": (str, int),
    "position": (str, int),
    "names": (dict,),
    "corrupted": (str,),
}


def read_prompts(file: Path) -> "list[Prompt]":
    """The prompts of a file; empty lines are skipped."""
    from pathsum.files import parse_json, read_text

    advice = "give one JSON object per line"
    return [
        _prompt(parse_json(line, where, advice), where)
        for number, line in enumerate(read_text(file).split("\n"), 1)
        if line.strip()
        for where in [f"{file}, line {number}"]
    ]


def _prompt(read: Any, where: str) -> "Prompt":
    from pathsum.errors import InputError, near_misses
    from pathsum.paths.circuit import Prompt

    given: dict[str, Any] = read if isinstance(read, dict) else {"text": read}
    if not isinstance(given.get("text"), str):
        raise InputError(f'{where}: give an object with a "text"')
    for key, value in given.items():
        if key not in _TYPES:
            raise InputError(f"{where}: {key!r} is not known{near_misses(key, _TYPES)}")
        if value is not None and (not isinstance(value, _TYPES[key]) or value is True):
            raise InputError(f"{where}: {key} cannot be {value!r}")
    names: dict[str, Any] = given.pop("names", None) or {}
    return Prompt(**given, names={name: _span(at, name, where) for name, at in names.items()})


def _span(at: Any, name: str, where: str) -> Any:
    from pathsum.errors import InputError

    numbers: list[Any] = at if isinstance(at, list) else [at]
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in numbers)
    if isinstance(at, str) or (whole and len(numbers) == (2 if isinstance(at, list) else 1)):
        return tuple(at) if isinstance(at, list) else at
    raise InputError(
        f"{where}: {name!r} is at {at!r}; give a position, a piece of the text, or two positions"
    )
