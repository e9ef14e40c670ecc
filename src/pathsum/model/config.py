"""Config: sizes and architecture of a model."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, get_type_hints

from pathsum.base.errors import ConfigError, InputError
from pathsum.base.json_schema import read_as, read_record
from pathsum.base.options import checked_methods
from pathsum.base.path import HeadId

Positions: TypeAlias = Literal["qk", "residual", "rotary", "none"]
Norm: TypeAlias = Literal["none", "layer", "rms"]
Ungated: TypeAlias = Literal[
    "none", "relu", "relu2", "gelu", "gelu_tanh", "silu", "solu", "solu_ln"
]
Gated: TypeAlias = Literal[
    "silu_gated", "gelu_gated", "gelu_tanh_gated", "clamped_gated", "bilinear"
]
Mlp: TypeAlias = Literal[Ungated, Gated]
NormPlace: TypeAlias = Literal["before", "after", "both"]
Block: TypeAlias = Literal["serial", "parallel"]
Router: TypeAlias = Literal["chosen", "all"]
QkNorm: TypeAlias = Literal["none", "rms", "rms_per_head", "rms_all"]
RotaryPairing: TypeAlias = Literal["halves", "adjacent"]

# Far above any real model. A larger size indicates a damaged or hostile file, which must be
# rejected before lists of that length are allocated.
CEILINGS = {
    "n_layers": 10_000,
    "n_heads": 1 << 16,
    "n_kv_heads": 1 << 16,
    "d_model": 1 << 20,
    "d_head": 1 << 20,
    "d_mlp": 1 << 24,
    "n_experts": 1 << 16,
    "experts_per_token": 1 << 16,
    "shared_experts": 1 << 16,
    "d_vocab": 1 << 26,
    "d_vocab_out": 1 << 26,
    "n_ctx": 1 << 24,
}


@checked_methods
@dataclass(frozen=True)
class Config:
    """The shape of a transformer; by default the paper's attention-only family.

    `positions` selects where positions enter:
      `"qk"`        added to the inputs of W_Q and W_K only, after any normalization (the paper)
      `"residual"`  added to the stream once, before the first layer (GPT-2)
      `"rotary"`    queries and keys are rotated by an angle that grows with position
      `"none"`      nowhere
    `norm` is applied before the unembedding and, depending on `norm_place`, to the input of each
    block, to its output, or to both. In a `"parallel"` block the MLP reads the same stream as the
    heads; in a `"serial"` block it also reads their output. `qk_norm="rms"` normalizes each query
    and key over the head's width, `"rms_per_head"` does so with a gain for each head, and
    `"rms_all"` normalizes over all heads of a layer; all before any rotation.
    `score_cap` and `logit_cap` are tanh soft caps on scores and logits.

    `windows` gives each layer the number of positions that its heads attend to, the current one
    included, or None for all. Rotations: plane i turns by
    `rotary_base^(−2i/width) / rotary_factors[i]` per position (no factors: all 1); layers with a
    window use `rotary_local_base` instead, without factors, if it is set. `rotary_layers` lists the
    layers that rotate (empty: all); in the others, scores do not depend on positions. With `sinks`,
    each head has an extra logit in its softmax that has no value vector, so the rows of its pattern
    sum to less than 1.

    `mlp="relu2"` squares the ReLU. `mlp="solu"` is x · softmax(x) over the neurons; `"solu_ln"`
    also divides it by its standard deviation, as a layer norm whose centering is part of W_out.
    `mlp="bilinear"` has a gate without a nonlinearity, (r W_gate) ⊙ (r W_in).
    `mlp="clamped_gated"` is the MLP of gpt-oss: with gate g and input u clamped at 7, a neuron is
    `g σ(1.702 g) (u + 1)`. With `n_experts` the neurons are in that many equal blocks, the experts:
    at each position a router chooses `experts_per_token` of them and weighs their outputs by the
    softmax of their logits (`router="all"`: by their entries in the softmax over all logits). The
    last `shared_experts` of them are used at every position, each weighed by the sigmoid of its
    logit, and are not in the softmax. `d_mlp` counts the neurons of all.

    `d_vocab_out` is the number of outputs, by default the number of tokens. If it differs, outputs
    are not tokens (for example, the answers of an algorithmic task), and analyses that compare
    outputs with tokens raise an error.

    With `causal=False` every position attends to all positions, as in encoders and compiled
    programs. Sequences of different lengths cannot share a batch then, because padding would be
    attended to, and analyses of next-token prediction raise an error.

    >>> Config(n_layers=2, n_heads=4, d_model=64, d_head=16, d_vocab=128, n_ctx=64).n_kv_heads
    4
    """

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_vocab: int
    n_ctx: int
    positions: Positions = "qk"
    norm: Norm = "none"
    norm_place: NormPlace = "before"
    mlp: Mlp = "none"
    d_mlp: int = 0
    n_experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    router: Router = "chosen"
    n_kv_heads: int = 0
    block: Block = "serial"
    qk_norm: QkNorm = "none"
    rotary_base: float = 10_000.0
    rotary_fraction: float = 1.0
    rotary_pairing: RotaryPairing = "halves"
    rotary_factors: tuple[float, ...] = ()
    rotary_local_base: float | None = None
    rotary_layers: tuple[bool, ...] = ()
    windows: tuple[int | None, ...] = ()
    sinks: bool = False
    norm_eps: float = 1e-5
    score_scale: float = 0.0
    score_cap: float | None = None
    logit_cap: float | None = None
    start_token: int | None = None
    tied: bool = False
    d_vocab_out: int = 0
    causal: bool = True

    def __post_init__(self) -> None:
        try:
            # JSON has no tuples and writes 30.0 as 30: each value becomes its field's type.
            for name, hint in _hints().items():
                object.__setattr__(self, name, read_as(hint, getattr(self, name), "a config", name))
        except InputError as error:
            raise ConfigError(str(error)) from error
        _check_sizes(self)
        # Derived fields are filled in, so that equal models have equal configs.
        unlimited = all(limit is None or limit >= self.n_ctx for limit in self.windows)
        derived = {
            # Windows also determine which layers rotate by the local base.
            "windows": () if unlimited and self.rotary_local_base is None else self.windows,
            "rotary_layers": () if all(self.rotary_layers) else self.rotary_layers,
            "d_mlp": self.d_mlp or (0 if self.mlp == "none" else 4 * self.d_model),
            "d_vocab_out": self.d_vocab_out or self.d_vocab,
            "n_kv_heads": self.n_kv_heads or self.n_heads,
            "score_scale": self.score_scale or 1.0 / math.sqrt(self.d_head),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        _check_fit(self)

    @property
    def predicts_tokens(self) -> bool:
        """Whether the outputs are the input tokens."""
        return self.d_vocab_out == self.d_vocab

    @property
    def rotary_width(self) -> int:
        """The number of a head's dimensions that are rotated (0 on other models)."""
        if self.positions != "rotary":
            return 0
        return round(self.d_head * self.rotary_fraction)

    @property
    def heads_per_kv(self) -> int:
        """The number of query heads that share one key/value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def gated(self) -> bool:
        """Whether the MLPs have a gate."""
        return self.mlp.endswith("_gated") or self.mlp == "bilinear"

    @property
    def offsets(self) -> range:
        """Every offset, destination − source, at which a head can attend."""
        return range(0 if self.causal else 1 - self.n_ctx, self.n_ctx)

    def visible_length(self, position: int, length: int) -> int:
        """The number of first positions that a position depends on, in a text of this length."""
        return position + 1 if self.causal else length

    def sources(self, layer: int, destination: int, length: int) -> range:
        """The positions that a layer's heads can attend to, in a text of this length."""
        window = self.window(layer)
        first = 0 if window is None else max(0, destination + 1 - window)
        return range(first, self.visible_length(destination, length))

    def window(self, layer: int) -> int | None:
        """The number of positions that the heads of a layer attend to, or None for all."""
        return self.windows[layer] if self.windows else None

    def heads_of(self, layer: int) -> tuple[HeadId, ...]:
        """The heads of a layer."""
        return tuple(HeadId(layer, head) for head in range(self.n_heads))

    @property
    def every_head(self) -> tuple[HeadId, ...]:
        """All heads, layer by layer."""
        return tuple(head for layer in range(self.n_layers) for head in self.heads_of(layer))

    def at(self, layer: int) -> "Config":
        """The config with the rotations of one layer, where layers rotate differently."""
        differ = self.rotary_local_base is not None or bool(self.rotary_layers)
        return _at(self, layer) if differ else self

    def replace(self, **changes: Any) -> "Config":
        """A copy with the named fields changed; fields derived from them are recomputed."""
        values = self.to_dict()
        if self.mlp == "none" or self.d_mlp == 4 * self.d_model or changes.get("mlp") == "none":
            values["d_mlp"] = 0
        if self.n_kv_heads == self.n_heads:
            values["n_kv_heads"] = 0
        if self.predicts_tokens:
            values["d_vocab_out"] = 0
        if self.score_scale == 1.0 / math.sqrt(self.d_head):
            values["score_scale"] = 0.0
        for name in ("windows", "rotary_layers"):
            if changes.get("n_layers", self.n_layers) != self.n_layers:
                values[name] = getattr(self, name)[: changes["n_layers"]]
        return Config.from_dict({**values, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in `config.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        """Build a config from plain values; raises ConfigError for unknown or missing names."""
        try:
            return read_record(cls, values, "a config")
        except InputError as error:
            raise ConfigError(str(error)) from error


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Config)


@cache
def _at(config: Config, layer: int) -> Config:
    if config.rotary_layers and not config.rotary_layers[layer]:
        fields = [field for field in dataclasses.fields(config) if field.name.startswith("rotary_")]
        return config.replace(positions="none", **{field.name: field.default for field in fields})
    config = config.replace(rotary_layers=())
    if config.window(layer) is None or config.rotary_local_base is None:
        return config.replace(rotary_local_base=None)
    local = {"rotary_base": config.rotary_local_base, "rotary_local_base": None}
    return config.replace(**local, rotary_factors=())


def _check_sizes(config: Config) -> None:
    for name, most in CEILINGS.items():
        value = getattr(config, name)
        least = 1 if name in ("n_heads", "d_model", "d_head", "d_vocab", "n_ctx") else 0
        if value < least:
            raise ConfigError(
                f"{name}={value!r} is not a size; use a whole number of at least {least}"
            )
        if value > most:
            raise ConfigError(
                f"{name}={value} is more than {most}, the most that pathsum reads; the config is "
                "damaged"
            )
    for name in ("rotary_base", "rotary_local_base", "norm_eps", "score_cap", "logit_cap"):
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name}={value!r} must be a finite number above 0")
    if not math.isfinite(config.score_scale):
        raise ConfigError(
            f"score_scale={config.score_scale!r} must be finite; 0 stands for 1/√d_head"
        )


def _check_fit(config: Config) -> None:
    if config.mlp == "none" and config.d_mlp:
        raise ConfigError(
            f"d_mlp={config.d_mlp} is given, but mlp='none' has no neurons; "
            "name an activation in mlp, or leave d_mlp out"
        )
    if config.n_experts and (config.mlp == "none" or config.d_mlp % config.n_experts):
        raise ConfigError(
            f"n_experts={config.n_experts} does not divide the d_mlp={config.d_mlp} neurons of "
            f"mlp={config.mlp!r}; experts are equal blocks of them"
        )
    routed = config.n_experts - config.shared_experts
    if not bool(config.n_experts) <= config.experts_per_token <= routed:
        raise ConfigError(
            f"experts_per_token={config.experts_per_token} is out of range for "
            f"n_experts={config.n_experts} and shared_experts={config.shared_experts}; use 1 to "
            "n_experts − shared_experts, or 0 for all three"
        )
    if config.n_heads % config.n_kv_heads:
        raise ConfigError(
            f"n_heads={config.n_heads} is not a multiple of n_kv_heads={config.n_kv_heads}, "
            "so query heads cannot share key/value heads evenly"
        )
    if config.block == "parallel" and config.mlp == "none":
        raise ConfigError(
            "block='parallel' needs an MLP that reads what the heads read, but mlp='none'; "
            "use block='serial'"
        )
    if config.start_token is not None and not 0 <= config.start_token < config.d_vocab:
        raise ConfigError(
            f"start_token={config.start_token} is out of range for {config.d_vocab} tokens; "
            f"use an id from 0 to {config.d_vocab - 1}, or None"
        )
    if config.tied and not config.predicts_tokens:
        raise ConfigError(
            f"tied=True makes W_U the transpose of W_E, but there are {config.d_vocab} tokens and "
            f"d_vocab_out={config.d_vocab_out} outputs; use tied=False"
        )
    if config.norm_place != "before" and config.norm != "rms":
        raise ConfigError(
            f"norm_place={config.norm_place!r} needs norm='rms', and norm is {config.norm!r}"
        )
    if config.windows and len(config.windows) != config.n_layers:
        raise ConfigError(
            f"windows has {len(config.windows)} entries, but there are {config.n_layers} layers; "
            "give one number of positions, or None, per layer"
        )
    if any(limit is not None and limit < 1 for limit in config.windows):
        raise ConfigError(f"windows={config.windows} must be at least 1, or None for no limit")
    if config.windows and not config.causal:
        raise ConfigError(
            "windows count positions back from the destination, but causal=False attends in both "
            "directions; leave windows out"
        )
    _check_rotary(config)


def _check_rotary(config: Config) -> None:
    if config.positions != "rotary":
        for field in dataclasses.fields(config):
            if field.name.startswith("rotary_") and getattr(config, field.name) != field.default:
                raise ConfigError(
                    f"{field.name} is set, but positions={config.positions!r} does not rotate; "
                    "set positions='rotary', or leave it out"
                )
        return
    if config.rotary_layers and len(config.rotary_layers) != config.n_layers:
        raise ConfigError(
            f"rotary_layers has {len(config.rotary_layers)} entries, but there are "
            f"{config.n_layers} layers; give true or false per layer"
        )
    if config.rotary_layers and not any(config.rotary_layers):
        raise ConfigError("rotary_layers lists no layer that rotates; use positions='none'")
    width = config.d_head * config.rotary_fraction
    if not 0 < config.rotary_fraction <= 1 or round(width) != width or round(width) % 2:
        raise ConfigError(
            f"rotary_fraction={config.rotary_fraction} of d_head={config.d_head} is {width:g} "
            "dimensions, but rotations take an even number of them, at least 2, at most d_head"
        )
    factors = config.rotary_factors
    if factors and len(factors) != round(width) // 2:
        raise ConfigError(
            f"rotary_factors has {len(factors)} entries, but {round(width) // 2} planes are rotated"
        )
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise ConfigError(f"rotary_factors={factors} must be finite and above 0")


def check_offset(config: Config, offset: int | None) -> None:
    """Raise InputError if QK does not depend on an offset here, or not on one this large."""
    if offset is None:
        return
    if config.positions != "rotary":
        raise InputError(
            f"offset={offset} was given, but with positions={config.positions!r} QK is the same at "
            "every offset; leave it out, or use a rotary model"
        )
    if offset not in config.offsets:
        raise InputError(
            f"offset={offset} is out of range: destination − source goes from "
            f"{config.offsets[0]} to {config.offsets[-1]} in a context of {config.n_ctx}"
        )
