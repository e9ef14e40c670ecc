"""Prompts: a text, the prediction to explain, and names of positions; files of prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from pathsum.base.errors import InputError, near_misses
from pathsum.base.files import parse_json, read_text, user_path
from pathsum.base.options import checked, checked_methods, list_choices
from pathsum.model import Model
from pathsum.model.sequences import OneSequence

Span: TypeAlias = int | str | tuple[int, int]
"""A position, a piece of the text, or the first position and the one after the last."""

LAST, FIRST, ELSEWHERE = "last", "first", "elsewhere"

# Keys of a prompt in a file of prompts, and their types.
_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "token": (str, int),
    "versus": (str, int),
    "position": (str, int),
    "names": (dict,),
    "corrupted": (str,),
    "template": (str,),
}


@checked_methods
@dataclass(frozen=True, eq=False)
class Prompt:
    """A text or token ids, with the prediction to explain.

    `names` assigns names to positions: `{"subject": "Mary"}` names the tokens of that substring;
    `{"subject": 3}` and `{"subject": (3, 5)}` name positions directly. `position` is a number or a
    name (the last token, if the name covers several); "last" and "first" are predefined. `token`
    and `versus` are as in `trace.circuit` and default to the values for all prompts. `corrupted` is
    a text of the same length that supplies the values of cut edges. `template` names the wording,
    which prompts may share: with several wordings, resampling accounts for their variation.
    """

    text: OneSequence
    token: int | str | None = None
    versus: int | str | None = None
    position: int | str | None = None
    names: Mapping[str, Span] = field(default_factory=dict[str, Span])
    corrupted: OneSequence | None = None
    template: str = ""

    def spans(self, model: Model, length: int) -> dict[str, range]:
        """The positions covered by each name, including "last" and "first"."""
        found = {name: self._span(model, name, span, length) for name, span in self.names.items()}
        return {
            **found,
            LAST: range(length - 1, length),
            FIRST: range(1),
        }

    def find_position(self, spans: Mapping[str, range], default: int | str) -> int:
        """The position of the prediction."""
        wanted = default if self.position is None else self.position
        if not isinstance(wanted, str):
            return wanted
        if wanted not in spans:
            known = list_choices(tuple(spans))
            raise InputError(
                f"position {wanted!r} is not defined: the names of this prompt's positions "
                f"are {known}{near_misses(wanted, spans)}; name it in `names`, or give a number"
            )
        return spans[wanted][-1]

    def _span(self, model: Model, name: str, span: Span, length: int) -> range:
        if isinstance(span, str):
            return self._find_piece(model, name, span)
        start, stop = span if isinstance(span, tuple) else (span, span + 1 if span != -1 else None)
        places = range(length)[start:stop]
        inside = all(-length <= at <= length for at in (start, start if stop is None else stop))
        if not places or not inside:
            raise InputError(
                f"{name!r} is at {span}, which is out of range: the prompt has {length} tokens, so "
                f"positions go from 0 to {length - 1}"
            )
        return places

    def _find_piece(self, model: Model, name: str, piece: str) -> range:
        if not isinstance(self.text, str) or model.tokenizer is None:
            raise InputError(
                f"{name!r} is a piece of text, {piece!r}, but the prompt is given as token ids; "
                "give the position"
            )
        times = self.text.count(piece) if piece else 0
        if times != 1:
            raise InputError(
                f"{name!r}, {piece!r}, occurs {times} times in the prompt {self.text!r}; give a "
                "piece that occurs once, or its position"
            )
        begin = self.text.index(piece)
        offsets = model.tokenizer.offsets(self.text)
        first = len(model.encode(self.text)) - len(offsets)
        inside = [
            at
            for at, (start, stop) in enumerate(offsets, first)
            if start < begin + len(piece) and stop > begin
        ]
        return range(inside[0], inside[-1] + 1)


@checked
def read_prompts(file: str | Path) -> list[Prompt]:
    """The prompts of a file, one JSON object or string per line; empty lines are skipped.

    An object has the fields of a `Prompt`: `{"text": …, "corrupted": …, "token": …, "versus": …,
    "position": …, "names": {…}, "template": …}`, of which only the text is required.
    """
    advice = "give one JSON object per line"
    return [
        _prompt(parse_json(line, where, advice), where)
        for number, line in enumerate(read_text(user_path(file)).split("\n"), 1)
        if line.strip()
        for where in [f"{file}, line {number}"]
    ]


def _prompt(read: Any, where: str) -> Prompt:
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
    numbers: list[Any] = at if isinstance(at, list) else [at]
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in numbers)
    if isinstance(at, str) or (whole and len(numbers) == (2 if isinstance(at, list) else 1)):
        return tuple(at) if isinstance(at, list) else at
    raise InputError(
        f"{where}: {name!r} is at {at!r}; give a position, a piece of the text, or two positions"
    )


def as_prompts(given: Sequence[Prompt | OneSequence]) -> list[Prompt]:
    """Prompts, or bare texts as prompts."""
    if isinstance(given, str | Prompt):
        given = [given]
    prompts = [one if isinstance(one, Prompt) else Prompt(one) for one in given]
    if not prompts:
        raise InputError("there are no prompts; give at least one text")
    return prompts


def as_pairs(model: Model, given: Sequence[Prompt | OneSequence]) -> list[Prompt]:
    """Prompts with corrupted partners: where none is given, the next prompt of the same length."""
    prompts = as_prompts(given)
    by_length: dict[int, list[Prompt]] = {}
    for prompt in prompts:
        text = prompt.text
        length = len(model.encode(text) if isinstance(text, str) else list(text))
        by_length.setdefault(length, []).append(prompt)
    following = {
        id(one): after.text
        for group in by_length.values()
        for one, after in zip(group, [*group[1:], group[0]], strict=True)
        if len(group) > 1
    }
    return [
        one if one.corrupted is not None else replace(one, corrupted=following.get(id(one)))
        for one in prompts
    ]


def place_names(
    spans: Sequence[Mapping[str, range]], lengths: Sequence[int], targets: Sequence[int]
) -> list[list[str]]:
    """A name for every position of every prompt; matching positions share a name.

    Given names take precedence, then "last" (the position of the prediction, if it has no other
    name) and "first". Other positions are numbered if all prompts have the same length; otherwise
    they do not correspond and are named "elsewhere".
    """
    numbered = len(set(zip(lengths, targets, strict=True))) == 1
    found: list[list[str]] = []
    for mine, length, target in zip(spans, lengths, targets, strict=True):
        names = [str(at) if numbered else ELSEWHERE for at in range(length)]
        names[0] = FIRST
        names[target] = LAST
        for name, places in mine.items():
            if name not in (LAST, FIRST):
                for at in places:
                    names[at] = name
        found.append(names)
    return found
