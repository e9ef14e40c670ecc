"""ForeignConfig: another program's config.json, read value by value; errors name the file."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathsum.base.errors import ConfigError
from pathsum.base.files import read_object
from pathsum.model.config import CEILINGS, Mlp

_MLP: dict[str, Mlp] = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# Sizes of lists that are made before `Config` checks them, by the names that programs give them.
_BOUNDED: dict[str, str] = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer"), "n_layers"),
    **dict.fromkeys(("n_layers", "block_count"), "n_layers"),
    **dict.fromkeys(("head_dim", "d_head", "attention.key_length"), "d_head"),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_length"), "d_model"),
}


class ForeignConfig:
    """The values of a config.json; null stands for absent, as it does there."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self._null = values.keys() - self.values.keys()
        self.where = where

    @classmethod
    def read(cls, file: Path) -> "ForeignConfig":
        """The values of a file."""
        return cls(read_object(file, "download or save it again"), str(file))

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{self.where} has {name}={value!r}, which is not a size")
        largest = CEILINGS[_BOUNDED.get(name, "n_ctx")]
        if value > largest:
            raise ConfigError(
                f"{self.where} has {name}={value}, which is more than {largest}, the most that "
                "pathsum reads; the file is damaged"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.where} has {name}={value!r}, which is not a number")
        if abs(value) > 1e300 or not math.isfinite(value):
            raise ConfigError(f"{self.where} has {name}={value!r}, which is not finite")
        return float(value)

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers."""
        values = self._get(name, None)
        if not isinstance(values, list):
            raise ConfigError(f"{self.where} has {name}={values!r}, which is not a list")
        return [ForeignConfig({name: one}, self.where).number(name) for one in values]

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where} has {name}={value!r}, which is not true or false")
        return value

    def cap(self, name: str, default: float | None = None) -> float | None:
        """A soft cap, or None if it is null; absent, the default."""
        return self.number(name) if name in self.values else None if name in self._null else default

    def table(self, name: str) -> "ForeignConfig":
        """A nested table; empty if it is absent."""
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where} has {name}={value!r}, which is not a JSON object")
        return ForeignConfig(value, f"{name} in {self.where}")

    def mlp(self, name: str, default: str | None = None) -> Mlp:
        """The `Config.mlp` of an activation's name."""
        value = self._get(name, default)
        if not isinstance(value, str) or value not in _MLP:
            raise ConfigError(
                f"{self.where} has {name}={value!r}, an activation that pathsum does not compute; "
                f"it computes {', '.join(_MLP)}"
            )
        return _MLP[value]

    def windows(self, n_layers: int) -> tuple[int | None, ...]:
        """`sliding_window` for each layer that `layer_types` calls sliding, or for all."""
        kinds = self.values.get("layer_types", ["sliding_attention"] * n_layers)
        if "sliding_window" not in self.values:
            if "layer_types" in self.values and "sliding_attention" in kinds:
                raise ConfigError(f"{self.where} has layers with a window, but no sliding_window")
            return ()
        window = self.size("sliding_window")
        if (
            not isinstance(kinds, list)
            or len(kinds) != n_layers
            or not all(kind in ("sliding_attention", "full_attention") for kind in kinds)
        ):
            raise ConfigError(
                f"{self.where} has layer_types={kinds!r}, but each of {n_layers} layers is "
                "'sliding_attention' or 'full_attention'"
            )
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

    def require_value(self, name: str, *allowed: Any, default: Any = None) -> None:
        """Refuse a checkpoint whose `name` is set to anything but `allowed` (or absent)."""
        value = self.values.get(name, allowed[0] if default is None else default)
        if value not in allowed:
            choices = " or ".join(repr(choice) for choice in allowed)
            raise ConfigError(
                f"{self.where} has {name}={value!r}, which pathsum does not compute (only "
                f"{choices}), so the checkpoint was not loaded"
            )

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        if value is None:
            raise ConfigError(f"{self.where} has no {name}, which this family needs")
        return value
