"""TypeScript types of questions and answers, and the templates of sentences, from Python.

`python scripts/typescript.py FOLDER` writes `answers.ts` and `words.ts`; a test fails if
one of them is stale.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from pathsum.base.errors import FailedError
from pathsum.base.json_schema import fields_schema, schema
from pathsum.explorer import story
from pathsum.explorer.explorer import QUESTIONS
from pathsum.paths import graph_text, reasons

_HEADER = """\
// Generated from the records in src/pathsum by scripts/typescript.py.
// Do not edit: change the record and run `make types`.

/** A decoded array, row-major. Half floats arrive as Float32Array. NaN means "no value". */
export interface Matrix {
  shape: number[];
  data: Float32Array | Int32Array | Uint16Array | Uint8Array;
}
"""

_FOOTER = """
export type QuestionName = keyof Questions;

export type Answers = { [N in QuestionName]: Questions[N]["answer"] };

export type Params = { [N in QuestionName]: Questions[N]["params"] };
"""


def typescript() -> str:
    """The text of the generated file."""
    interfaces: dict[str, str] = {}
    for question in QUESTIONS:
        _interface(schema(question.answer), interfaces)
    params = {question.params.__name__: _params(question.params) for question in QUESTIONS}
    questions = "".join(
        f"  {question.name}: {{ params: {question.params.__name__}; "
        f"answer: {question.answer.__name__} }};\n"
        for question in QUESTIONS
    )
    registry = (
        "/** Every question: its parameters, and the record that answers it. */\n"
        f"export interface Questions {{\n{questions}}}\n"
    )
    return "\n".join([_HEADER, *interfaces.values(), *params.values(), registry]) + _FOOTER


def words() -> str:
    """The templates of the sentences that the page fills with numbers that it computed itself."""
    templates = {
        "story": story.WORDS,
        "reasons": reasons.WORDS,
        "circuit": graph_text.WORDS,
    }
    text = json.dumps(templates, ensure_ascii=False, indent=2)
    return f"{_HEADER.splitlines()[0]}\n\nexport const WORDS = {text} as const;\n"


def _interface(node: dict[str, Any], found: dict[str, str]) -> str:
    """Add the interface of an object, after those it refers to; returns its name."""
    name = str(node["title"])
    lines = [f"  {field}: {_type(inner, found)};\n" for field, inner in node["properties"].items()]
    text = f"export interface {name} {{\n{''.join(lines)}}}\n"
    if found.setdefault(name, text) != text:
        raise FailedError(f"two different records of answers are called {name}; rename one")
    return name


def _params(cls: type) -> str:
    """The interface of a question's parameters; those with a default are optional."""
    optional = {f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
    lines = [
        f"  {name}{'?' if name in optional else ''}: {_type(node, {}, or_null=False)};\n"
        for name, node in fields_schema(cls)["properties"].items()
    ]
    return f"export interface {cls.__name__} {{\n{''.join(lines)}}}\n"


def _type(node: dict[str, Any], found: dict[str, str], *, or_null: bool = True) -> str:
    if "const" in node:
        return _literal(node["const"])
    if "enum" in node:
        return " | ".join(map(_literal, node["enum"]))
    if "anyOf" in node:
        options = [inner for inner in node["anyOf"] if or_null or inner != {"type": "null"}]
        return " | ".join(dict.fromkeys(_type(inner, found) for inner in options))
    kind = node["type"]
    if kind == "array":
        return _array(node, found)
    if kind == "object":
        if "title" in node:
            return _interface(node, found)
        if "properties" in node:
            fields = (f"{name}: {_type(each, found)}" for name, each in node["properties"].items())
            return f"{{ {'; '.join(fields)} }}"
        return f"Record<string, {_type(node['additionalProperties'], found)}>"
    # The schema allows null for a float, because NaN is written as null. Answers hold no NaN
    # outside of tensors: a number that may be absent is declared as `float | None`.
    plain = "number" if isinstance(kind, list) else str(kind)
    return {"integer": "number"}.get(plain, plain)


def _array(node: dict[str, Any], found: dict[str, str]) -> str:
    if "prefixItems" in node:
        return f"[{', '.join(_type(inner, found) for inner in node['prefixItems'])}]"
    if "items" not in node:
        return "Matrix"  # a tensor, which is sent as bytes
    inner = _type(node["items"], found)
    return f"({inner})[]" if " " in inner else f"{inner}[]"


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, text in (("answers.ts", typescript()), ("words.ts", words())):
        (folder / name).write_text(text, encoding="utf-8")
