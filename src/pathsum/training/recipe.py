"""`Recipe`: everything that determines a training run, as one frozen value.

`recipe` reads a recipe by name from the TOML files in `presets/`, or from the user's file.
"""

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from pathsum.base.errors import FileError, InputError, near_misses
from pathsum.base.files import read_text, user_path
from pathsum.base.json_schema import read_record
from pathsum.model import Config

_FOLDER = Path(__file__).parent / "presets"
PRESETS = tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


@dataclass(frozen=True)
class Data:
    """The training text. `tokenizer` is a tokenizer.json to use instead of training one."""

    corpus: str = "python"
    vocabulary: int = 1024
    held_out: float = 0.05
    field: str = "text"
    tokenizer: str = ""


@dataclass(frozen=True)
class Start:
    """Initial weights.

    `W_E` is small compared with positions of amplitude 1, so that position dominates the scores of
    the first layer and a previous-token head, which induction needs, forms at once. A norm removes
    the scale of `W_E`; then `attention_gain`, the initial gain before attention, has this role.
    `unembedding_std` is in units of d_model^−½. With positions in Q and K, `later_position_scale`
    multiplies the position tables of all layers but the first: 1 is the paper's choice, 0 removes
    positional terms there, and with 0.25 induction forms sooner.
    """

    embedding_std: float = 0.2
    attention_gain: float = 1.0
    unembedding_std: float = 0.5
    position_amplitude: float = 1.0
    position_tables: Literal["each", "shared"] = "each"
    later_position_scale: float = 0.25


@dataclass(frozen=True)
class Optimizer:
    """AdamW for tables and gains; Muon or AdamW for the matrices that read and write the stream.

    `clip` bounds the norm of the whole gradient; 0 means no clipping.
    """

    embedding_lr: float = 0.01
    unembedding_lr: float = 0.01
    position_lr: float = 0.01
    matrices: Literal["muon", "adamw"] = "muon"
    matrix_lr: float = 0.02
    matrix_decay: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Learning rates rise over `warmup` steps, and fall to zero over the last share, `decay`."""

    warmup: int = 20
    decay: float = 0.4

    def factor(self, step: int, steps: int) -> float:
        """The factor on the learning rates at a step.

        >>> schedule = Schedule(warmup=2, decay=0.5)
        >>> [schedule.factor(step, 8) for step in range(8)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
        """
        rising = (step + 1) / self.warmup if self.warmup else 1.0
        falling = (steps - step) / (self.decay * steps) if self.decay else 1.0
        return min(1.0, rising, falling)


@dataclass(frozen=True)
class Watching:
    """Steps between reports, probes and checkpoints; `snapshots` are evenly spaced in log(step)."""

    log_every: int = 20
    probe_every: int = 100
    checkpoint_every: int = 500
    snapshots: int = 0
    held_out_sequences: int = 64


@dataclass(frozen=True)
class Recipe:
    """A complete training run: the same recipe and seed on the same machine give the same weights.

    `batch` is the number of sequences of n_ctx tokens per step, over all processes together.
    """

    name: str
    config: Config
    steps: int
    batch: int = 4
    seed: int = 0
    about: str = ""
    precision: Literal["float32", "bfloat16"] = "float32"
    data: Data = field(default_factory=Data)
    start: Start = field(default_factory=Start)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    watching: Watching = field(default_factory=Watching)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def tokens(self) -> int:
        """The number of predicted tokens in the whole run."""
        return self.steps * self.batch * self.config.n_ctx

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `model` has the fields of the config that differ from their defaults."""
        values = dataclasses.asdict(self)
        del values["config"]
        values["model"] = _model_values(self.config)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """The recipe of plain values, as in a TOML file; unknown names raise an error."""
        rest = dict(values)
        model = rest.pop("model", None)
        if not isinstance(model, Mapping):
            raise InputError("the recipe has no [model]; put n_layers, n_heads, … there")
        data = read_record(Data, rest.get("data", {}), "a recipe", "data")
        config = {"start_token": None, "d_vocab": data.vocabulary, **model}
        if config["d_vocab"] != data.vocabulary:
            raise InputError(
                f"model.d_vocab is {config['d_vocab']} and data.vocabulary {data.vocabulary}, but "
                "they must be equal; leave d_vocab out"
            )
        return read_record(cls, {**rest, "config": Config.from_dict(config)}, "a recipe")


def differences(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """The settings in which two recipes differ: (dotted name, old value, new value)."""
    left, right = flatten(old.to_dict()), flatten(new.to_dict())
    pairs = [(name, left.get(name), right.get(name)) for name in left | right]
    return [(name, before, after) for name, before, after in pairs if before != after]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one table with dotted names, as in options and messages."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _model_values(config: Config) -> dict[str, Any]:
    sizes = ("n_layers", "n_heads", "d_model", "d_head", "n_ctx")
    defaults = Config(**{name: getattr(config, name) for name in (*sizes, "d_vocab")}).to_dict()
    values = {name: each for name, each in config.to_dict().items() if each != defaults[name]}
    return {name: getattr(config, name) for name in sizes} | values


# The least and the largest value of settings.
_BOUNDS: dict[str, tuple[float, float]] = {
    "steps": (1, 1e12),
    "batch": (1, 1e12),
    "seed": (0, 2**63 - 1),
    "watching.log_every": (1, math.inf),
    "watching.probe_every": (1, math.inf),
    "watching.checkpoint_every": (1, math.inf),
    "watching.held_out_sequences": (1, 1e12),
    "watching.snapshots": (0, 1e6),
    "schedule.warmup": (0, math.inf),
    "optimizer.clip": (0, math.inf),
    "optimizer.matrix_decay": (0, math.inf),
}


def _check_numbers(flat: Mapping[str, Any]) -> None:
    for name, (low, high) in _BOUNDS.items():
        if not low <= flat[name] <= high:
            bound = f"at most {high:,.0f}" if flat[name] > high else f"at least {low:g}"
            raise InputError(f"{name} is {flat[name]}, but must be {bound}")
    for name, value in flat.items():
        if name.endswith("_lr") and not value >= 0:
            raise InputError(f"{name} is {value}, but a learning rate must be 0 or more")
        # At 1, a running mean would never change.
        if name.endswith(("momentum", "beta1", "beta2")) and not 0 <= value < 1:
            raise InputError(f"{name} is {value}, but must be at least 0 and below 1")


def _check(recipe: Recipe) -> None:
    _check_numbers(flatten(recipe.to_dict()))
    if recipe.steps < recipe.schedule.warmup:
        raise InputError(
            f"schedule.warmup is {recipe.schedule.warmup} and steps is {recipe.steps}, so the run "
            "ends before the warmup does; raise steps, or lower schedule.warmup"
        )
    if not 0 <= recipe.schedule.decay <= 1:
        raise InputError(f"schedule.decay is {recipe.schedule.decay}, but must be between 0 and 1")
    if recipe.config.score_cap is not None or recipe.config.logit_cap is not None:
        raise InputError(
            "score_cap and logit_cap cannot be trained, because fused attention does not support "
            "them; leave them out"
        )
    imported = ("norm_place", "windows", "sinks", "n_experts")
    for name in (*imported, "rotary_factors", "rotary_local_base", "rotary_layers"):
        if getattr(recipe.config, name) != getattr(Config, name):
            raise InputError(f"{name} is for models loaded from elsewhere; it cannot be trained")
    gates = ("gelu_gated", "gelu_tanh_gated", "clamped_gated")
    if recipe.config.qk_norm in ("rms_per_head", "rms_all") or recipe.config.mlp in gates:
        raise InputError(
            "qk_norm over several heads and gated GELU or clamped MLPs cannot be trained (it has "
            f"qk_norm={recipe.config.qk_norm!r} and mlp={recipe.config.mlp!r}); use qk_norm='rms' "
            "or 'none', and 'silu_gated', 'bilinear' or an ungated GELU"
        )


def recipe(name: str | Path, preset: str = "quick", **changes: Any) -> Recipe:
    """A recipe by the name of a model in a preset, or from a TOML file, with changes.

    Changes have dotted names, with a double underscore for the dot:

    >>> recipe("two-layer", "quick", steps=100, optimizer__clip=1.0).optimizer.clip
    1.0

    A file has the format of the presets, without variants. With `base = "quick/two-layer"`, it
    inherits all other settings from that recipe.
    """
    text = str(name)
    if text.endswith(".toml"):
        values = {"name": Path(text).stem, **_read(user_path(text))}
        base, _, model = str(values.pop("base", "")).partition("/")
        values = _merge(_preset_values(model, base), values) if base else values
    else:
        values = _preset_values(text, preset)
    for key, value in changes.items():
        for part in reversed(key.split("__")):
            value = {part: value}
        values = _merge(values, value)
    return Recipe.from_dict(values)


def find_recipe(what: Recipe | str | Path, preset: str, changes: Mapping[str, Any]) -> Recipe:
    """`recipe` for an argument that may already be a `Recipe`, which allows no changes."""
    if not isinstance(what, Recipe):
        return recipe(what, preset, **changes)
    if changes:
        raise InputError("a Recipe takes no other settings; change it with dataclasses.replace")
    return what


def variants(preset: str) -> tuple[str, ...]:
    """The models of a preset."""
    return tuple(_read_preset(preset)["variants"])


def _preset_values(name: str, preset: str) -> dict[str, Any]:
    """The plain values of a model of a preset."""
    values = _read_preset(preset)
    choices = values.pop("variants")
    if name not in choices:
        raise InputError(
            f"the preset {preset!r} has no model {name!r}{near_misses(name, choices)} (it has "
            f"{', '.join(choices)}); your own file must end in .toml"
        )
    return _merge({"name": name, **values}, choices[name])


def _merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables with some values changed."""
    result = dict(values)
    for name, value in changes.items():
        inner = result.get(name)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            value = _merge(cast("Mapping[str, Any]", inner), cast("Mapping[str, Any]", value))
        result[name] = value
    return result


def to_toml(recipe: Recipe) -> str:
    """The TOML text of a recipe."""
    text, table = "", ""
    plain_first = sorted(flatten(recipe.to_dict()).items(), key=lambda item: "." in item[0])
    for dotted, value in plain_first:
        section, _, name = dotted.rpartition(".")
        if section != table:
            text += f"\n[{section}]\n"
            table = section
        # Strings and booleans of JSON are also TOML.
        literal = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        text += f"{name} = {literal}\n"
    return text


def _read_preset(preset: str) -> dict[str, Any]:
    if preset not in PRESETS:
        raise InputError(
            f"there is no preset {preset!r}{near_misses(preset, PRESETS)} "
            f"(the presets are {', '.join(PRESETS)})"
        )
    return _read(_FOLDER / f"{preset}.toml")


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FileError(f"{file} is not TOML ({error})") from error
