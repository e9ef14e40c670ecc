"""Recipe: everything that determines a training run, as one frozen value."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from pathsum.base.errors import InputError
from pathsum.base.json_schema import read_record
from pathsum.model import Config

PositionTables: TypeAlias = Literal["each", "shared"]
MatrixOptimizer: TypeAlias = Literal["muon", "adamw"]
Precision: TypeAlias = Literal["float32", "bfloat16"]


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

    `W_E` is drawn small compared with positions of amplitude 1, so that position dominates the
    first layer's scores and a previous-token head forms at once; induction waits for that head.
    A norm removes the size of `W_E`; `attention_gain`, at which the gains before attention begin,
    then takes its place. `unembedding_std` is in units of d_model^−½. With positions in Q and K,
    `later_position_scale` multiplies the position table of every layer but the first: 1 is the
    paper's choice, 0 removes positional terms there, and 0.25 lets induction form sooner.
    """

    embedding_std: float = 0.2
    attention_gain: float = 1.0
    unembedding_std: float = 0.5
    position_amplitude: float = 1.0
    position_tables: PositionTables = "each"
    later_position_scale: float = 0.25


@dataclass(frozen=True)
class Optimizer:
    """AdamW for tables and gains; Muon (or AdamW) for the matrices that read and write.

    `clip` bounds the norm of the whole gradient; 0 means no clipping.
    """

    embedding_lr: float = 0.01
    unembedding_lr: float = 0.01
    position_lr: float = 0.01
    matrices: MatrixOptimizer = "muon"
    matrix_lr: float = 0.02
    matrix_decay: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Learning rates rise over `warmup` steps, stay, and fall to zero over the last share."""

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
    precision: Precision = "float32"
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
        """Plain values: `model` holds the fields of the config that differ from its defaults."""
        values = dataclasses.asdict(self)
        del values["config"]
        values["model"] = _model_values(self.config)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """The recipe of plain values, as in a TOML file; an unknown name is an error."""
        rest = dict(values)
        model = rest.pop("model", None)
        if not isinstance(model, Mapping):
            raise InputError("the recipe has no [model]; put n_layers, n_heads, … there")
        data = read_record(Data, rest.get("data", {}), "a recipe", "data")
        given = {"start_token": None, "d_vocab": data.vocabulary, **model}
        if given["d_vocab"] != data.vocabulary:
            raise InputError(
                f"model.d_vocab is {given['d_vocab']} and data.vocabulary {data.vocabulary}, but "
                "they are the same number; leave d_vocab out"
            )
        return read_record(cls, {**rest, "config": Config.from_dict(given)}, "a recipe")


def differences(one: Recipe, other: Recipe) -> list[tuple[str, Any, Any]]:
    """The settings in which two recipes differ: (dotted name, value in one, value in the other)."""
    left, right = flatten(one.to_dict()), flatten(other.to_dict())
    names = [*left, *(name for name in right if name not in left)]
    return [
        (name, left.get(name), right.get(name))
        for name in names
        if left.get(name) != right.get(name)
    ]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one table with dotted names, as flags and messages write them."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _model_values(config: Config) -> dict[str, Any]:
    sizes = ("n_layers", "n_heads", "d_model", "d_head", "n_ctx")
    plain = Config(**{name: getattr(config, name) for name in (*sizes, "d_vocab")})
    return {
        name: value
        for name, value in config.to_dict().items()
        if name in sizes or (name != "d_vocab" and value != getattr(plain, name))
    }


# The least and the most that a setting may be.
_BOUNDS: dict[str, tuple[float, float]] = {
    "steps": (1, 1e12),
    "batch": (1, 1e12),
    "seed": (0, math.inf),
    "watching.log_every": (1, math.inf),
    "watching.probe_every": (1, math.inf),
    "watching.checkpoint_every": (1, math.inf),
    "watching.held_out_sequences": (1, 1e12),
    "watching.snapshots": (0, 1e6),
    "schedule.warmup": (0, math.inf),
    "optimizer.clip": (0, math.inf),
    "optimizer.matrix_decay": (0, math.inf),
}
# At 1 a running mean would never forget where it began.
_BELOW_ONE = ("optimizer.momentum", "optimizer.beta1", "optimizer.beta2")


def _check_numbers(flat: Mapping[str, Any]) -> None:
    for name, (low, high) in _BOUNDS.items():
        if not low <= flat[name] <= high:
            bound = f"at most {high:,.0f}" if flat[name] > high else f"at least {low:g}"
            raise InputError(f"{name} is {flat[name]}, but must be {bound}")
    for name in _BELOW_ONE:
        if not 0 <= flat[name] < 1:
            raise InputError(f"{name} is {flat[name]}, but must be at least 0 and below 1")
    if flat["seed"] >= 2**63:
        raise InputError(f"seed is {flat['seed']}, but must be below 2^63")
    for name, value in flat.items():
        if name.endswith("_lr") and not value >= 0:
            raise InputError(f"{name} is {value}, but a learning rate must be 0 or more")


def _check(recipe: Recipe) -> None:
    _check_numbers(flatten(recipe.to_dict()))
    if recipe.steps < recipe.schedule.warmup:
        raise InputError(
            f"schedule.warmup is {recipe.schedule.warmup} and steps is {recipe.steps}, so the run "
            "ends before its learning rates have risen; raise steps, or lower schedule.warmup"
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
        default = type(recipe.config).__dataclass_fields__[name].default
        if getattr(recipe.config, name) != default:
            raise InputError(f"{name} is for models loaded from elsewhere; it cannot be trained")
    gates = ("gelu_gated", "gelu_tanh_gated", "clamped_gated")
    if recipe.config.qk_norm in ("rms_per_head", "rms_all") or recipe.config.mlp in gates:
        raise InputError(
            "qk_norm over several heads and gated GELU or clamped MLPs cannot be trained (it has "
            f"qk_norm={recipe.config.qk_norm!r} and mlp={recipe.config.mlp!r}); use qk_norm='rms' "
            "or 'none', and 'silu_gated', 'bilinear' or an ungated GELU"
        )
