"""The browser's types, generated from the records: one description on both sides.

`python -m pathsum.explorer.typescript FILE` writes them; a test fails when the file is stale.
"""

import dataclasses
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pathsum.errors import FailedError
from pathsum.explorer.questions import QUESTIONS
from pathsum.result import schema

_HEAD = """\
// Generated from the records in src/pathsum/pages/answers by pathsum.explorer.typescript.
// Do not edit: change the record and run `make types`.

/** A decoded array, row-major. Half floats arrive as Float32Array. NaN means "no such number". */
export interface Matrix {
  shape: number[];
  data: Float32Array | Int32Array | Uint16Array | Uint8Array;
}
"""


def typescript() -> str:
    """The text of the generated file."""
    found: dict[str, str] = {}
    for question in QUESTIONS:
        _interface(schema(question.answer), found)
    parameters = {question.asked.__name__: _parameters(question.asked) for question in QUESTIONS}
    questions = "".join(
        f"  {question.name}: {{ params: {question.asked.__name__}; "
        f"answer: {question.answer.__name__} }};\n"
        for question in QUESTIONS
    )
    tail = (
        f"/** Every question: what it may say, and what answers it. */\n"
        f"export interface Questions {{\n{questions}}}\n\n"
        "export type QuestionName = keyof Questions;\n\n"
        "export type Answers = { [N in QuestionName]: Questions[N]['answer'] };\n\n"
        "export type Params = { [N in QuestionName]: Questions[N]['params'] };\n"
    )
    return "\n".join([_HEAD, *found.values(), *parameters.values(), tail])


def _interface(node: dict[str, Any], found: dict[str, str]) -> str:
    """Write the interface of an object, after those it is made of; gives its name."""
    name = str(node["title"])
    lines = [f"  {field}: {_type(inner, found)};\n" for field, inner in node["properties"].items()]
    text = f"export interface {name} {{\n{''.join(lines)}}}\n"
    if found.setdefault(name, text) != text:
        raise FailedError(f"two records of the pages are called {name}, and differ; rename one")
    return name


def _type(node: dict[str, Any], found: dict[str, str]) -> str:
    if "const" in node:
        return _literal(node["const"])
    if "enum" in node:
        return " | ".join(map(_literal, node["enum"]))
    if "anyOf" in node:
        return " | ".join(dict.fromkeys(_type(inner, found) for inner in node["anyOf"]))
    kind = node["type"]
    if kind == "object":
        return _interface(node, found)
    if kind == "array":
        # An array without a word about its items is a tensor, which travels as bytes.
        return f"{_bracketed(_type(node['items'], found))}[]" if "items" in node else "Matrix"
    # An answer's plain float is finite; one that may be absent is declared so.
    plain = "number" if isinstance(kind, list) else str(kind)
    return {"integer": "number"}.get(plain, plain)


def _bracketed(inner: str) -> str:
    return f"({inner})" if " " in inner else inner


def _literal(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _parameters(asked: type) -> str:
    hints = typing.get_type_hints(asked)
    lines: list[str] = []
    for field in dataclasses.fields(asked):
        absent = field.default is not dataclasses.MISSING
        lines.append(f"  {field.name}{'?' if absent else ''}: {_parameter(hints[field.name])};\n")
    return f"export interface {asked.__name__} {{\n{''.join(lines)}}}\n"


def _parameter(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(_literal, get_args(hint)))
    if get_origin(hint) is types.UnionType:
        return " | ".join(_parameter(arg) for arg in get_args(hint) if arg is not type(None))
    return {str: "string", int: "number", bool: "boolean"}[hint]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(typescript(), encoding="utf-8")
