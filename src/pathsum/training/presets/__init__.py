"""`recipe`: a recipe by name, from the TOML files in this folder or from your own."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pathsum.base.errors import FileError, InputError, near_misses
from pathsum.base.files import read_text, user_path
from pathsum.training.recipe import Recipe, flatten

_FOLDER = Path(__file__).parent
PRESETS = tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


def recipe(name: str | Path, preset: str = "quick", **changes: Any) -> Recipe:
    """A recipe: a model's name in a preset, or your own TOML file, with changes.

    Changes are given by dotted name, a double underscore for the dot:

    >>> recipe("two-layer", "quick", steps=100, optimizer__clip=1.0).optimizer.clip
    1.0

    A file is a table like those of the presets, without variants; with `base = "quick/two-layer"`
    everything that the file does not set comes from there.
    """
    text = str(name)
    own = text.endswith(".toml")
    values = _own_file(user_path(text)) if own else preset_values(text, preset)
    for key, value in changes.items():
        values = merged(values, nested(key.replace("__", "."), value))
    return Recipe.from_dict(values)


def find_recipe(what: Recipe | str | Path, preset: str, changes: Mapping[str, Any]) -> Recipe:
    """`recipe` for an argument that may already be a recipe, which takes no changes."""
    if not isinstance(what, Recipe):
        return recipe(what, preset, **changes)
    if changes:
        raise InputError("a Recipe takes no other settings; change it with dataclasses.replace")
    return what


def variants(preset: str) -> tuple[str, ...]:
    """The models of a preset."""
    return tuple(_read(_preset_file(preset))["variants"])


def preset_values(name: str, preset: str) -> dict[str, Any]:
    """The plain values of a model of a preset."""
    values = _read(_preset_file(preset))
    choices = values.pop("variants")
    if name not in choices:
        raise InputError(
            f"the preset {preset!r} has no model {name!r}{near_misses(name, choices)} (it has "
            f"{', '.join(choices)}); your own file must end in .toml"
        )
    return merged({"name": name, **values}, choices[name])


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables with some values replaced."""
    result = dict(values)
    for name, value in changes.items():
        inner = result.get(name)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            result[name] = merged(
                cast("Mapping[str, Any]", inner), cast("Mapping[str, Any]", value)
            )
        else:
            result[name] = value
    return result


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """A dotted name as nested tables.

    >>> nested("model.n_layers", 2)
    {'model': {'n_layers': 2}}
    """
    first, dot, rest = dotted.partition(".")
    return {first: nested(rest, value) if dot else value}


def to_toml(chosen: Recipe) -> str:
    """The TOML text of a recipe."""
    lines: list[str] = []
    table = ""
    plain_first = sorted(flatten(chosen.to_dict()).items(), key=lambda item: "." in item[0])
    for dotted, value in plain_first:
        inside, _, name = dotted.rpartition(".")
        if inside != table:
            lines += ["", f"[{inside}]"]
            table = inside
        # JSON's strings and booleans are TOML too.
        written = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{name} = {written}")
    return "\n".join(lines) + "\n"


def _preset_file(preset: str) -> Path:
    if preset not in PRESETS:
        raise InputError(
            f"there is no preset {preset!r}{near_misses(preset, PRESETS)} "
            f"(the presets are {', '.join(PRESETS)})"
        )
    return _FOLDER / f"{preset}.toml"


def _own_file(file: Path) -> dict[str, Any]:
    values = {"name": file.stem, **_read(file)}
    base = values.pop("base", None)
    if base is None:
        return values
    preset, _, model = str(base).partition("/")
    return merged(preset_values(model, preset), values)


def _read(file: Path) -> dict[str, Any]:
    text = read_text(file)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FileError(f"{file} is not TOML ({error})") from error
