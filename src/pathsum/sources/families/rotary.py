"""Rotary positions in a config.json: `rope_parameters` in transformers 5, else `rope_theta`.

A `rope_scaling` takes the place of `rope_parameters`, as in transformers.

Scaled rotations divide the frequency of each plane by its own factor. YaRN and LongRoPE also
multiply queries and keys by an attention factor; its square is multiplied into the queries.
LongRoPE has two sets of factors, for texts up to the length of pretraining and for longer ones;
`choose_context` chooses one of them for the model.
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
"""The texts that a LongRoPE checkpoint is loaded for: up to the length of pretraining, or longer.

transformers decides by the length of each text, so that a longer text changes the logits of its own
first tokens; here the choice belongs to the model.
"""


def choose_context(foreign: ForeignConfig, context: Context = "original") -> ForeignConfig:
    """The config with one set of LongRoPE's factors; other configs are returned unchanged."""
    context = parse_choice(CONTEXTS, context, "context")
    found = rope_config(foreign)
    kind = rope_kind(found)
    # In files of Phi-3, YaRN may mean LongRoPE; transformers reads them that way.
    is_phi3 = kind == "yarn" and foreign.values.get("model_type") == "phi3"
    if kind not in ("longrope", "su") and not is_phi3:
        require_one_context(foreign.where, context)
        return foreign
    longest = foreign.size("max_position_embeddings")
    trained = found.size("original_max_position_embeddings")
    factor = found.number("factor", longest / trained)
    grown = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    rope = {
        **_rope_table(foreign),
        "rope_type": "longrope",
        "plane_factors": found.numbers("short_factor" if context == "original" else "long_factor"),
        "attention_factor": found.number("attention_factor", grown),
    }
    length = min(trained, longest) if context == "original" else longest
    values = {**foreign.values, "rope_parameters": rope, "rope_scaling": None}
    values["max_position_embeddings"] = length
    return ForeignConfig(values, foreign.where)


def require_one_context(where: str, context: Context) -> None:
    """Raise InputError for an extended context of a checkpoint that has no factors for one."""
    if context != "original":
        raise InputError(
            f"context={context!r} goes with checkpoints that scale their rotations by LongRoPE, "
            f"and {where} does not; leave it out"
        )


def rope_config(foreign: ForeignConfig) -> ForeignConfig:
    """The values about rotations, wherever the config has them."""
    return ForeignConfig({**foreign.values, **_rope_table(foreign)}, foreign.where)


def require_rope(foreign: ForeignConfig) -> None:
    """Raise ConfigError if a family whose rotations are always scaled has no values for them."""
    if not {"rope_scaling", "rope_parameters"} & foreign.values.keys():
        raise ConfigError(f"{foreign.where} has no rope_parameters, which scale its rotations")


def _rope_table(foreign: ForeignConfig) -> dict[str, Any]:
    return foreign.table("rope_scaling").values or foreign.table("rope_parameters").values


def rope_kind(found: ForeignConfig) -> Any:
    """The kind of scaling; old configs call it `type`."""
    return found.values.get("rope_type", found.values.get("type", "default"))


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
    found = rope_config(foreign)
    theta = found.number("rope_theta", base)
    if fraction is None:
        found.require_value("partial_rotary_factor", 1.0)
    part = found.number("partial_rotary_factor", fraction or 1.0)
    # An odd or fractional width is refused by Config; factors need a whole number of planes.
    width = int(d_head * part)
    frequencies = [theta ** (-2 * plane / width) for plane in range(width // 2)]
    match rope_kind(found):
        case "default" | "dynamic":
            # Dynamic scaling begins beyond the context.
            factors = []
        case "linear":
            factors = [found.number("factor")] * len(frequencies)
        case "llama3":
            factors = _llama3(found, frequencies)
        case "yarn":
            factors = _yarn(found, len(frequencies), theta)
        case "longrope":
            factors = found.numbers("plane_factors")  # that `choose_context` chose
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
    found = rope_config(foreign)
    if config.positions != "rotary" or rope_kind(found) not in ("yarn", "longrope"):
        return layer
    factor = _attention_factor(found) ** 2
    scaled = [config.at(index) for index in range(config.n_layers)]
    each = tuple(factor if one.rotary_factors else 1.0 for one in scaled)
    # A norm of the queries comes after their projection and would undo a factor there.
    names = ("q_norm_w",) if "q_norm_w" in layer else ("W_Q", "b_Q")
    return {
        name: replace(stored, by_layer=each, upto=config.rotary_width) if name in names else stored
        for name, stored in layer.items()
    }


def rope_by_layer_type(foreign: ForeignConfig, local_base: float) -> tuple[ForeignConfig, float]:
    """The config with the rotations of layers without a window, and the base of the others.

    Unlike elsewhere, `rope_scaling` is added to the parameters of the layers without windows.
    """
    rope = foreign.table("rope_parameters").values
    scaled = {**rope.get("full_attention", rope), **foreign.table("rope_scaling").values}
    full = {**foreign.values, "rope_parameters": scaled, "rope_scaling": None}
    local = rope.get("sliding_attention", {"rope_theta": local_base})
    if local.get("rope_type", "default") != "default":
        raise ConfigError(f"{foreign.where} scales the rotations of layers with windows")
    base = ForeignConfig(local, foreign.where).number("rope_theta", local_base)
    return ForeignConfig(full, foreign.where), base


def _llama3(found: ForeignConfig, frequencies: list[float]) -> list[float]:
    """Long waves are stretched by the factor, short ones kept, those between interpolated."""
    factor, length = found.number("factor"), found.number("original_max_position_embeddings")
    low, high = found.number("low_freq_factor"), found.number("high_freq_factor")
    factors: list[float] = []
    for frequency in frequencies:
        turns = length * frequency / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - share) / factor + share))
    return factors


def _yarn(found: ForeignConfig, planes: int, theta: float) -> list[float]:
    """Planes that turn often keep their frequency, slow ones are divided, with a ramp between."""
    factor, length = found.number("factor"), found.number("original_max_position_embeddings")

    def plane(turns: float) -> float:
        return planes * math.log(length / (turns * 2 * math.pi)) / math.log(theta)

    low, high = plane(found.number("beta_fast", 32.0)), plane(found.number("beta_slow", 1.0))
    if found.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * planes - 1)
    high = high + 0.001 if low == high else high
    ramp = [min(max((index - low) / (high - low), 0.0), 1.0) for index in range(planes)]
    return [1 / (share / factor + (1 - share)) for share in ramp]


def _attention_factor(found: ForeignConfig) -> float:
    def grown(weight: float) -> float:
        factor = found.number("factor")
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if "attention_factor" in found.values:
        return found.number("attention_factor")
    if "mscale" in found.values and "mscale_all_dim" in found.values:
        return grown(found.number("mscale")) / grown(found.number("mscale_all_dim"))
    return grown(1.0)
