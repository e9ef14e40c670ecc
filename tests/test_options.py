"""Options: a string that is not one of the choices is an error that lists them, everywhere.

The walk goes over every public function of the rooms and every public method of the objects below,
finds the options in the signatures, and passes each a string that it cannot mean. It runs in a
process of its own, without the type checks that the tests switch on: what users run.
"""

import enum
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

WRONG = "nonsense"
ROOMS = ("algebra", "circuits", "heads", "model", "paths", "program", "sources", "text", "training")
# A string that is not a choice is a token's text.
OPEN = {"versus", "token"}


def test_a_wrong_string_raises_and_lists_the_choices() -> None:
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["tried"]) > 15, found["tried"]
    assert {"ablate(reference)", "replace(after)", "term_importance(scale)"} <= set(found["tried"])
    assert found["faults"] == []


def _choices(hint: Any) -> list[str]:
    """The strings that a parameter of this type may be, if they are a closed list."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [str(member.value) for member in hint]
    if get_origin(hint) is Literal:
        return [choice for choice in get_args(hint) if isinstance(choice, str)]
    if get_origin(hint) in (typing.Union, types.UnionType):
        return [choice for part in get_args(hint) for choice in _choices(part)]
    return []


def _is_sequence(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _options(function: Callable[..., Any]) -> Iterator[tuple[str, list[str], Any]]:
    """Each option of a function: its name, its choices and a wrong value of the right shape."""
    parameters = inspect.signature(function).parameters
    for name, hint in _hints(function).items():
        if name not in parameters or name in OPEN:
            continue
        if _is_sequence(hint) and (choices := _choices(get_args(hint)[0])):
            yield name, choices, [WRONG]
        elif choices := _choices(hint):
            yield name, choices, WRONG


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function, localns=_names())


@cache
def _names() -> dict[str, Any]:
    """What annotations may name: modules import some of it only for type checkers."""
    import pathsum

    names: dict[str, Any] = {}
    for found in pkgutil.walk_packages(pathsum.__path__, "pathsum."):
        if not found.name.endswith("__main__"):
            names |= vars(importlib.import_module(found.name))
    return names


def _arguments(folder: Path) -> dict[str, Any]:
    """What required parameters of these names get."""
    import torch

    import pathsum as ps

    model = ps.construct.induction()
    tokens = torch.randint(1, model.config.d_vocab, (2, 12), generator=torch.manual_seed(0))
    trace = model.trace(tokens)
    recipe = importlib.import_module("pathsum.training").recipe("zero-layer", "quick")
    return {
        "model": model,
        "config": model.config,
        "cfg": model.config,
        "tokens": tokens,
        "clean": tokens,
        "corrupted": tokens.flip(1),
        "batches": tokens,
        "trace": trace,
        "prompts": [ps.Prompt("a b a", corrupted="c b a")],
        "target": importlib.import_module("pathsum.paths.target").find_target(trace),
        "other": trace,
        "head": "L1H0",
        "heads": ["L1H0"],
        "kind": "k",
        "measure": "kernel",
        "writer": "L0H0",
        "reader": "L1H0",
        "what": recipe,
        "out": folder / "run",
        "d": 0,
        "destination": 3,
        "source": 2,
        "factored": model.head("L0H0").ov,
    }


def _public(arguments: dict[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    import pathsum as ps

    for room in ROOMS:
        module = importlib.import_module(f"pathsum.{room}")
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield name, value
    for name in ps.__all__:
        if inspect.isfunction(getattr(ps, name)):
            yield name, getattr(ps, name)
    model, trace = arguments["model"], arguments["trace"]
    objects = [
        model,
        trace,
        model.head("L0H0"),
        trace.paths(),
        trace.paths().toward(position=-1, token=3),
        trace.scores("L1H0"),
        ps.composition(model),
        ps.bigram(model),
    ]
    for value in objects:
        for name, method in inspect.getmembers(value, inspect.ismethod):
            if not name.startswith("_"):
                yield f"{type(value).__name__}.{name}", method


def _fault(function: Callable[..., Any], wrong: dict[str, Any], choices: list[str]) -> str:
    from pathsum.base.errors import PathsumError

    try:
        result = function(**wrong)
        if inspect.isgenerator(result):
            next(result)
    except PathsumError as error:
        missing = [choice for choice in choices if choice not in str(error)]
        return f"does not list {missing}: {error}" if missing else ""
    except Exception as error:  # noqa: BLE001
        return f"raises {type(error).__name__}: {error}"
    return "accepts it"


def main() -> None:
    tried: list[str] = []
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        arguments = _arguments(Path(folder))
        for name, function in _public(arguments):
            for option, choices, wrong in _options(function):
                title = f"{name}({option})"
                if title in tried:
                    continue
                tried.append(title)
                needed = {
                    parameter.name: arguments.get(parameter.name)
                    for parameter in inspect.signature(function).parameters.values()
                    if parameter.default is parameter.empty
                    and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
                }
                fault = _fault(function, needed | {option: wrong}, choices)
                if fault:
                    faults.append(f"{title} {fault}")
    print(json.dumps({"tried": tried, "faults": faults}))


if __name__ == "__main__":
    main()
