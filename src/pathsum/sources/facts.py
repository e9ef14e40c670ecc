"""Facts: another program's config.json, read value by value, with errors that name the file."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathsum.errors import ConfigError, FileError
from pathsum.model.config import Mlp

_MLP: dict[str, Mlp] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


class Facts:
    """The values of a config.json; null stands for absent, as it does there."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self.where = where

    @classmethod
    def read(cls, file: Path) -> "Facts":
        """The facts of a file."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FileError(f"{file} is not JSON ({error}); download or save it again") from error
        if not isinstance(values, dict):
            raise FileError(f"{file} is not a JSON object, so it is not the config of a model")
        return cls(values, str(file))

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{self.where} says {name}={value!r}, which is not a size")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.where} says {name}={value!r}, which is not a number")
        if not math.isfinite(value):
            raise ConfigError(f"{self.where} says {name}={value!r}, which is not finite")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where} says {name}={value!r}, which is not true or false")
        return value

    def cap(self, name: str) -> float | None:
        """A soft cap, or None where there is none."""
        return self.number(name) if name in self.values else None

    def table(self, name: str) -> "Facts":
        """The facts one level down; none where it is absent."""
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where} says {name}={value!r}, which is not a JSON object")
        return Facts(value, f"{name} in {self.where}")

    def mlp(self, name: str, default: str | None = None) -> Mlp:
        """The `Config.mlp` of an activation's name."""
        value = self._get(name, default)
        if value not in _MLP:
            raise ConfigError(
                f"{self.where} says {name}={value!r}, an activation that pathsum does not compute; "
                f"it computes {', '.join(_MLP)}"
            )
        return _MLP[value]

    def windows(self, n_layers: int) -> tuple[int | None, ...]:
        """`sliding_window` for each layer that `layer_types` calls sliding, or for all."""
        if "sliding_window" not in self.values:
            return ()
        window = self.size("sliding_window")
        kinds = self.values.get("layer_types", ["sliding_attention"] * n_layers)
        if len(kinds) != n_layers or not {*kinds} <= {"sliding_attention", "full_attention"}:
            raise ConfigError(
                f"{self.where} says layer_types={kinds!r}, but each of {n_layers} layers is "
                "'sliding_attention' or 'full_attention'"
            )
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

    def only(self, name: str, *allowed: Any, default: Any = None) -> None:
        """Refuse a checkpoint whose `name` is set to anything but `allowed` (or absent)."""
        value = self.values.get(name, allowed[0] if default is None else default)
        if value not in allowed:
            choices = " or ".join(repr(choice) for choice in allowed)
            raise ConfigError(
                f"{self.where} says {name}={value!r}, which pathsum does not compute (only "
                f"{choices}), so the checkpoint was not loaded"
            )

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        if value is None:
            raise ConfigError(f"{self.where} has no {name}, which this family needs")
        return value
