"""Rotary positions in a config.json: `rope_parameters` in transformers 5, else `rope_theta`."""

from typing import Any

from pathsum.errors import ConfigError
from pathsum.sources.facts import Facts


def rotary(facts: Facts, *, base: float = 10_000.0, fraction: float = 1.0) -> dict[str, Any]:
    """The fields of a `Config` that say how queries and keys are rotated."""
    both = {**facts.values, **facts.table("rope_scaling").values}
    both |= facts.table("rope_parameters").values
    found = Facts(both, facts.where)
    kind = both.get("rope_type", both.get("type", "default"))
    if kind != "default":
        raise ConfigError(
            f"{facts.where} scales its rotations by {kind!r}, which pathsum does not compute"
        )
    return {
        "positions": "rotary",
        "rotary_base": found.number("rope_theta", base),
        "rotary_fraction": found.number("partial_rotary_factor", fraction),
    }
