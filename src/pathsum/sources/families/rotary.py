"""Rotary positions in a config.json: `rope_parameters` in transformers 5, otherwise `rope_theta`.

As in transformers, `rope_scaling` replaces `rope_parameters`.

Scaled rotations divide the frequency of each plane by a factor. YaRN and LongRoPE also multiply
queries and keys by an attention factor, whose square is multiplied into the queries. LongRoPE has
two sets of factors, for texts up to the pretraining length and for longer texts; `choose_context`
selects one of them for the model.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pathsum.base.errors import ConfigError, InputError
from pathsum.base.options import parse_choice
from pathsum.model.config import Config
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import Stored

CONTEXTS = ("original", "extended")
if TYPE_CHECKING:
    Context: TypeAlias = Literal["original", "extended"]
else:
    # `parse_choice` names the choices.
    Context = str
"""The texts for which a LongRoPE checkpoint is loaded: up to the pretraining length, or longer.

transformers selects the factors by the length of each text, so that a continuation changes the
logits of earlier tokens. In pathsum, the factors are a property of the model.
"""


def choose_context(foreign: ForeignConfig, context: Context = "original") -> ForeignConfig:
    """The config with one set of LongRoPE's factors; other configs are returned unchanged."""
    context = parse_choice(CONTEXTS, context, "context")
    rope = rope_config(foreign)
    kind = rope_kind(rope)
    # In files of Phi-3, YaRN means LongRoPE, as in transformers.
    is_phi3 = kind == "yarn" and foreign.values.get("model_type") == "phi3"
    if kind not in ("longrope", "su") and not is_phi3:
        require_one_context(foreign.where, context)
        return foreign
    longest = foreign.size("max_position_embeddings")
    pretraining_length = rope.size("original_max_position_embeddings")
    factor = rope.number("factor", longest / pretraining_length)
    default_factor = (
        math.sqrt(1 + math.log(factor) / math.log(pretraining_length)) if factor > 1 else 1.0
    )
    table = {
        **_rope_table(foreign),
        "rope_type": "longrope",
        "plane_factors": rope.numbers("short_factor" if context == "original" else "long_factor"),
        "attention_factor": rope.number("attention_factor", default_factor),
    }
    length = min(pretraining_length, longest) if context == "original" else longest
    values = {**foreign.values, "rope_parameters": table, "rope_scaling": None}
    values["max_position_embeddings"] = length
    return ForeignConfig(values, foreign.where)


def require_one_context(where: str, context: Context) -> None:
    """Raise InputError for an extended context of a checkpoint without LongRoPE."""
    if context != "original":
        raise InputError(
            f"context={context!r} goes with checkpoints that scale their rotations by LongRoPE, "
            f"and {where} does not; leave it out"
        )


def rope_config(foreign: ForeignConfig) -> ForeignConfig:
    """The values about rotations, from all places of a config."""
    return ForeignConfig({**foreign.values, **_rope_table(foreign)}, foreign.where)


def require_rope(foreign: ForeignConfig) -> None:
    """Raise ConfigError if the parameters of scaled rotations are missing."""
    if not {"rope_scaling", "rope_parameters"} & foreign.values.keys():
        raise ConfigError(f"{foreign.where} has no rope_parameters, which scale its rotations")


def _rope_table(foreign: ForeignConfig) -> dict[str, Any]:
    return foreign.table("rope_scaling").values or foreign.table("rope_parameters").values


def rope_kind(rope: ForeignConfig) -> Any:
    """The kind of scaling, called `type` in old configs."""
    return rope.values.get("rope_type", rope.values.get("type", "default"))


def rotary(
    foreign: ForeignConfig,
    d_head: int,
    *,
    base: float = 10_000.0,
    fraction: float | None = None,
) -> dict[str, Any]:
    """The fields of a `Config` for the rotation of queries and keys.

    `base` and `fraction` are defaults. If `fraction` is None, the family rotates all dimensions.
    """
    rope = rope_config(foreign)
    theta = rope.number("rope_theta", base)
    if fraction is None:
        rope.require_value("partial_rotary_factor", 1.0)
    share = rope.number("partial_rotary_factor", fraction or 1.0)
    # Config rejects odd widths; factors need a whole number of planes.
    width = int(d_head * share)
    frequencies = [theta ** (-2 * plane / width) for plane in range(width // 2)]
    match rope_kind(rope):
        case "default" | "dynamic":
            # Dynamic scaling only affects positions beyond the context.
            factors = []
        case "linear":
            factors = [rope.number("factor")] * len(frequencies)
        case "llama3":
            factors = _llama3(rope, frequencies)
        case "yarn":
            factors = _yarn(rope, len(frequencies), theta)
        case "longrope":
            factors = rope.numbers("plane_factors")  # that `choose_context` chose
        case kind:
            raise ConfigError(
                f"{foreign.where} scales its rotations by {kind!r}, which pathsum does not "
                "compute; it computes default, dynamic, linear, llama3, yarn, longrope"
            )
    return {
        "positions": "rotary",
        "rotary_base": theta,
        "rotary_fraction": width / d_head,
        "rotary_factors": tuple(factors),
    }


def scale_queries(
    foreign: ForeignConfig, layer: Mapping[str, Stored], config: Config
) -> Mapping[str, Stored]:
    """The table with the square of the attention factor multiplied into the queries.

    Layers that do not rotate, or rotate by `rotary_local_base`, have no attention factor.
    """
    rope = rope_config(foreign)
    if config.positions != "rotary" or rope_kind(rope) not in ("yarn", "longrope"):
        return layer
    factor = _attention_factor(rope) ** 2
    configs = [config.at(index) for index in range(config.n_layers)]
    factors = tuple(factor if layer_config.rotary_factors else 1.0 for layer_config in configs)
    # A query norm after the projection would undo a factor in the projection.
    names = ("q_norm_w",) if "q_norm_w" in layer else ("W_Q", "b_Q")
    return {
        name: replace(stored, by_layer=factors, upto=config.rotary_width)
        if name in names
        else stored
        for name, stored in layer.items()
    }


def rope_by_layer_type(foreign: ForeignConfig, local_base: float) -> tuple[ForeignConfig, float]:
    """The config with the rotations of layers without windows, and the base of the other layers.

    Unlike in other configs, `rope_scaling` is added to the parameters of layers without windows.
    """
    rope = foreign.table("rope_parameters").values
    full_rope = {**rope.get("full_attention", rope), **foreign.table("rope_scaling").values}
    full = {**foreign.values, "rope_parameters": full_rope, "rope_scaling": None}
    local = rope.get("sliding_attention", {"rope_theta": local_base})
    if local.get("rope_type", "default") != "default":
        raise ConfigError(f"{foreign.where} scales the rotations of layers with windows")
    base = ForeignConfig(local, foreign.where).number("rope_theta", local_base)
    return ForeignConfig(full, foreign.where), base


def _llama3(rope: ForeignConfig, frequencies: list[float]) -> list[float]:
    """The factors of Llama 3: low frequencies are scaled, high ones kept, with a ramp between."""
    factor, length = rope.number("factor"), rope.number("original_max_position_embeddings")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    factors: list[float] = []
    for frequency in frequencies:
        turns = length * frequency / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - share) / factor + share))
    return factors


def _yarn(rope: ForeignConfig, planes: int, theta: float) -> list[float]:
    """The factors of YaRN: low frequencies are scaled, high ones kept, with a ramp between."""
    factor, length = rope.number("factor"), rope.number("original_max_position_embeddings")

    def plane(turns: float) -> float:
        return planes * math.log(length / (turns * 2 * math.pi)) / math.log(theta)

    low, high = plane(rope.number("beta_fast", 32.0)), plane(rope.number("beta_slow", 1.0))
    if rope.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * planes - 1)
    high = high + 0.001 if low == high else high
    ramp = [min(max((index - low) / (high - low), 0.0), 1.0) for index in range(planes)]
    return [1 / (share / factor + (1 - share)) for share in ramp]


def _attention_factor(rope: ForeignConfig) -> float:
    def growth(weight: float) -> float:
        factor = rope.number("factor")
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if "attention_factor" in rope.values:
        return rope.number("attention_factor")
    if "mscale" in rope.values and "mscale_all_dim" in rope.values:
        return growth(rope.number("mscale")) / growth(rope.number("mscale_all_dim"))
    return growth(1.0)
