"""`ForeignConfig`: the values of another program's config.json; errors name the file."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pathsum.base.errors import ConfigError
from pathsum.base.files import read_object
from pathsum.model.config import CEILINGS

_MLP = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
}
# Sizes that are used for lists before `Config` checks them.
_BOUNDED = {"num_hidden_layers": "n_layers", "head_dim": "d_head", "hidden_size": "d_model"}


class ForeignConfig:
    """The values of a config.json; null means absent.

    Values are requested by their names in Llama's config.json. `with_names` maps these names to
    other ones.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self._null = values.keys() - self.values.keys()
        self.names: Mapping[str, str] = {}
        self.where = where

    @classmethod
    def read(cls, file: Path) -> "ForeignConfig":
        """The values of a file."""
        return cls(read_object(file, "download or save it again"), str(file))

    def with_names(self, names: Mapping[str, str]) -> "ForeignConfig":
        """The same values, some of which have other names than in Llama's config.json."""
        copied = copy.copy(self)
        copied.names = names
        return copied

    def fields(
        self, norm: str = "rms", mlp: str = "silu_gated", *, eps: float = 1e-6, tied: bool = False
    ) -> dict[str, Any]:
        """The fields of `Config` of all families; `eps` and `tied` are defaults."""
        d_model, n_heads = self.size("hidden_size"), self.size("num_attention_heads")
        return {
            "n_layers": self.size("num_hidden_layers"),
            "n_heads": n_heads,
            "n_kv_heads": self.size("num_key_value_heads", n_heads),
            "d_model": d_model,
            "d_head": self.size("head_dim", d_model // n_heads),
            "d_vocab": self.size("vocab_size"),
            "n_ctx": self.size("max_position_embeddings"),
            "norm": norm,
            "norm_eps": self.number("rms_norm_eps", eps),
            "mlp": mlp,
            "d_mlp": self.size("intermediate_size", 4 * d_model),
            "tied": self.flag("tie_word_embeddings", tied),
        }

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._read(
            name, default, "is not a size", lambda value: type(value) is int and value > 0
        )
        largest = CEILINGS[_BOUNDED.get(name, "n_ctx")]
        if value > largest:
            raise ConfigError(
                f"{self.where} has {self._name(name)}={value}, which is more than {largest}, the "
                "largest value that pathsum reads; the file is damaged"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""

        def is_finite(value: Any) -> bool:
            return type(value) in (int, float) and abs(value) <= 1e300

        return float(self._read(name, default, "is not a finite number", is_finite))

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers."""
        values = self._read(name, None, "is not a list", lambda value: isinstance(value, list))
        return [ForeignConfig({name: value}, self.where).number(name) for value in values]

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        return self._read(
            name, default, "is not true or false", lambda value: isinstance(value, bool)
        )

    def cap(self, name: str, default: float | None = None) -> float | None:
        """A soft cap: None if it is null, the default if it is absent."""
        return self.number(name) if name in self.values else None if name in self._null else default

    def table(self, name: str) -> "ForeignConfig":
        """A nested table; empty if it is absent."""
        values = self._read(name, {}, "is not a JSON object", lambda value: isinstance(value, dict))
        return ForeignConfig(values, f"{name} in {self.where}")

    def mlp(self, default: str | None = None) -> str:
        """The `Config.mlp` of the activation `hidden_act`."""
        return self.choice("hidden_act", _MLP, default)

    def choice(self, name: str, table: Mapping[str, str], default: str | None = None) -> str:
        """pathsum's word for a value, from a table of supported values."""
        problem = f"pathsum does not compute; it computes {', '.join(table)}"
        value = self._read(
            name, default, problem, lambda value: isinstance(value, str) and value in table
        )
        return table[value]

    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer: `sliding_window`, for all layers or by `layer_types`."""
        n_layers = self.size("num_hidden_layers")
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

    def windows_except(self, every: int) -> tuple[int | None, ...]:
        """Windows by `layer_types` or, by default, in all layers but each `every`-th."""
        if "layer_types" in self.values:
            return self.windows()
        every, window = self.size("sliding_window_pattern", every), self.size("sliding_window")
        layers = range(1, self.size("num_hidden_layers") + 1)
        return tuple(None if layer % every == 0 else window for layer in layers)

    def require_value(self, name: str, *allowed: Any) -> None:
        """Raise ConfigError if the value of `name` is neither absent nor among `allowed`."""
        name = self._name(name)
        value = self.values.get(name, allowed[0])
        if value not in allowed:
            choices = " or ".join(repr(choice) for choice in allowed)
            raise ConfigError(
                f"{self.where} has {name}={value!r}, which pathsum does not compute (only "
                f"{choices}), so the checkpoint was not loaded"
            )

    def _name(self, name: str) -> str:
        foreign_name = self.names.get(name, name)
        return name if name in self.values and foreign_name not in self.values else foreign_name

    def _read(self, name: str, default: Any, problem: str, fits: Callable[[Any], bool]) -> Any:
        """A value that `fits`; other values raise an error with the description `problem`."""
        name = self._name(name)
        value = self.values.get(name, default)
        if value is None:
            raise ConfigError(f"{self.where} has no {name}, which this family needs")
        if not fits(value):
            raise ConfigError(f"{self.where} has {name}={value!r}, which {problem}")
        return value
