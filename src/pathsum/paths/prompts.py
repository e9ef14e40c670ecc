"""Prompts: a text, the prediction to explain, and names of positions; their runs and files."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from pathsum.base.errors import InputError, PathsumError, near_misses
from pathsum.base.files import parse_json, read_text, user_path
from pathsum.base.options import checked, checked_methods, list_choices
from pathsum.model import Model
from pathsum.model.sequences import OneSequence
from pathsum.paths.patching import check_runs
from pathsum.paths.target import PredictionRun, TokenName, Versus, find_target

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
    name (its last token, if the name covers several); "last" and "first" are predefined. `token`
    and `versus` are as in `trace.circuit` and default to the values for all prompts. `corrupted` is
    a text of the same length that supplies the values of cut edges. `template` names the wording,
    which prompts may share: with several wordings, resampling accounts for their variation.

    Example:
        >>> prompt = Prompt("a b c d a", token="b", corrupted="e b c d a", names={"answer": 2})
        >>> prompt.token, prompt.names
        ('b', {'answer': 2})
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
        spans = {name: self._span(model, name, span, length) for name, span in self.names.items()}
        return {**spans, LAST: range(length - 1, length), FIRST: range(1)}

    def find_position(self, spans: Mapping[str, range], default: int | str) -> int:
        """The position of the prediction."""
        position = default if self.position is None else self.position
        if not isinstance(position, str):
            return position
        if position not in spans:
            names = list_choices(tuple(spans))
            raise InputError(
                f"position {position!r} is not defined: the names of this prompt's positions "
                f"are {names}{near_misses(position, spans)}; name it in `names`, or give a number"
            )
        return spans[position][-1]

    def _span(self, model: Model, name: str, span: Span, length: int) -> range:
        if isinstance(span, str):
            return self._find_piece(model, name, span)
        start, stop = span if isinstance(span, tuple) else (span, span + 1 if span != -1 else None)
        positions = range(length)[start:stop]
        inside = all(-length <= at <= length for at in (start, start if stop is None else stop))
        if not positions or not inside:
            raise InputError(
                f"{name!r} is at {span}, which is out of range: the prompt has {length} tokens, so "
                f"positions go from 0 to {length - 1}"
            )
        return positions

    def _find_piece(self, model: Model, name: str, piece: str) -> range:
        if not isinstance(self.text, str) or model.tokenizer is None:
            raise InputError(
                f"{name!r} is a piece of text, {piece!r}, but the prompt is given as token ids; "
                "give the position"
            )
        count = self.text.count(piece) if piece else 0
        if count != 1:
            raise InputError(
                f"{name!r}, {piece!r}, occurs {count} times in the prompt {self.text!r}; give a "
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

    Args:
        file: A file whose objects have the fields of a `Prompt`: `{"text": …, "corrupted": …,
            "token": …, "versus": …, "position": …, "names": {…}, "template": …}`, of which only the
            text is required.

    Returns:
        The prompts, in the order of the file.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "prompts.jsonl")
        ...     _ = file.write_text('{"text": "a b c a", "token": "b"}')
        ...     print(read_prompts(file)[0].token)
        b
    """
    prompts: list[Prompt] = []
    for number, line in enumerate(read_text(user_path(file)).split("\n"), 1):
        if line.strip():
            where = f"{file}, line {number}"
            prompts.append(_prompt(parse_json(line, where, "give one JSON object per line"), where))
    return prompts


def _prompt(value: Any, where: str) -> Prompt:
    fields: dict[str, Any] = value if isinstance(value, dict) else {"text": value}
    if not isinstance(fields.get("text"), str):
        raise InputError(f'{where}: give an object with a "text"')
    for key, entry in fields.items():
        if key not in _TYPES:
            raise InputError(f"{where}: {key!r} is not known{near_misses(key, _TYPES)}")
        if entry is not None and (not isinstance(entry, _TYPES[key]) or entry is True):
            raise InputError(f"{where}: {key} cannot be {entry!r}")
    names: dict[str, Any] = fields.pop("names", None) or {}
    return Prompt(**fields, names={name: _span(span, name, where) for name, span in names.items()})


def _span(span: Any, name: str, where: str) -> Any:
    is_pair = isinstance(span, list)
    numbers: list[Any] = span if is_pair else [span]
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if isinstance(span, str) or (whole and len(numbers) == 1 + is_pair):
        return tuple(numbers) if is_pair else span
    raise InputError(
        f"{where}: {name!r} is at {span!r}; give a position, a piece of the text, or two positions"
    )


def as_prompts(texts: Sequence[Prompt | OneSequence]) -> list[Prompt]:
    """Prompts, from prompts or bare texts."""
    if isinstance(texts, str | Prompt):
        texts = [texts]
    prompts = [text if isinstance(text, Prompt) else Prompt(text) for text in texts]
    if not prompts:
        raise InputError("there are no prompts; give at least one text")
    return prompts


def as_pairs(model: Model, texts: Sequence[Prompt | OneSequence]) -> list[Prompt]:
    """Prompts with corrupted partners, by default the next prompt of the same length."""
    prompts = as_prompts(texts)
    by_length: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        text = prompt.text
        length = len(model.encode(text) if isinstance(text, str) else list(text))
        by_length.setdefault(length, []).append(number)
    for group in by_length.values():
        following = [prompts[number].text for number in (*group[1:], group[0])]
        for number, text in zip(group, following, strict=True):
            if len(group) > 1 and prompts[number].corrupted is None:
                prompts[number] = replace(prompts[number], corrupted=text)
    return prompts


def name_positions(
    spans: Sequence[Mapping[str, range]], lengths: Sequence[int], targets: Sequence[int]
) -> list[list[str]]:
    """A name for every position of every prompt; matching positions share a name.

    The names of `spans` take precedence, then "last" (the position of the prediction, if it has no
    other name) and "first". Other positions are numbered if all prompts have the same length;
    otherwise they do not correspond and are named "elsewhere".
    """
    is_numbered = len(set(zip(lengths, targets, strict=True))) == 1
    rows: list[list[str]] = []
    for named, length, target in zip(spans, lengths, targets, strict=True):
        row = [str(at) if is_numbered else ELSEWHERE for at in range(length)]
        row[0] = FIRST
        row[target] = LAST
        for name, positions in named.items():
            if name not in (LAST, FIRST):
                for at in positions:
                    row[at] = name
        rows.append(row)
    return rows


def run_prompt(
    model: Model,
    prompt: Prompt,
    position: int | str,
    token: TokenName | None,
    versus: Versus,
) -> PredictionRun:
    """The prediction of a prompt, with the run of its corrupted partner if it has one."""
    trace = model.trace(prompt.text)
    if len(trace.tokens) != 1:
        raise InputError(f"it has {len(trace.tokens)} sequences; give them one by one")
    at = prompt.find_position(prompt.spans(model, trace.tokens.shape[1]), position)
    token = token if prompt.token is None else prompt.token
    target = find_target(trace, at, token, versus if prompt.versus is None else prompt.versus)
    other = None if prompt.corrupted is None else model.trace(prompt.corrupted)
    if other is not None:
        check_runs(trace, other)
    return PredictionRun(trace, target, 0, other)


@contextmanager
def name_prompt(number: int) -> Generator[None]:
    """Prefix errors about one of many prompts with its number."""
    try:
        yield
    except PathsumError as error:
        raise type(error)(f"prompt {number}: {error}") from error
