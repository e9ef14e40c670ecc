"""Models from tensors in memory, given or random."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import parse_choice
from pathsum.base.errors import WeightsError, near_misses
from pathsum.base.options import checked
from pathsum.model.config import Config
from pathsum.model.model import Model
from pathsum.model.store import MemoryStore
from pathsum.model.weights import (
    DTYPES,
    LAYER_NAMES,
    MODEL_NAMES,
    Weights,
    layer_shapes,
    list_dtypes,
    model_shapes,
    required_in_layer,
)
from pathsum.text import Tokenizer


@checked
def from_tensors(
    config: Config,
    tensors: Mapping[str, Tensor],
    *,
    name: str = "from tensors",
    tokenizer: Tokenizer | None = None,
    token_counts: Tensor | None = None,
) -> Model:
    """A model from tensors, stacked over layers: `W_Q` is [layer, head, d_model, d_head].

    Args:
        config: The config, with which shapes must agree.
        tensors: Weights by name. `W_pos` is [n_ctx, d_model], or [layer, n_ctx, d_model] for
            separate positions in each layer. Biases (`b_Q b_K b_V b_O b_U b_in b_gate b_out`), MLPs
            (`W_in W_gate W_out`) and gains (`ln1_w ln1_b ln2_w ln2_b ln_f_w ln_f_b q_norm_w
            k_norm_w`) may be omitted. Tensors keep their dtype and are not copied.
        name: The name of the model.
        tokenizer: Its tokenizer, if it reads text.
        token_counts: The count of each token in the training text, so that tables can hide rare
            tokens.

    Returns:
        The model.

    Example:
        >>> config = Config(n_layers=0, n_heads=1, d_model=2, d_head=2, d_vocab=3, n_ctx=4)
        >>> tensors = {"W_E": torch.eye(3, 2), "W_U": torch.eye(2, 3)}
        >>> from_tensors(config, tensors)(torch.tensor([0, 1])).argmax(-1)
        tensor([0, 1])
    """
    flat: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if key in LAYER_NAMES and not (key == "W_pos" and tensor.ndim == 2):
            if tensor.ndim == 0 or tensor.shape[0] != config.n_layers:
                raise WeightsError(
                    f"{key} has shape {list(tensor.shape)}, but the first axis counts layers and "
                    f"the config has n_layers={config.n_layers}; use {_stacked_shape(config, key)}"
                )
            flat |= {f"layers.{layer}.{key}": tensor[layer] for layer in range(config.n_layers)}
        elif key in MODEL_NAMES:
            flat[key] = tensor
        else:
            names = [*MODEL_NAMES, *LAYER_NAMES]
            raise WeightsError(
                f"{key} is not a tensor's name{near_misses(key, names)} ({', '.join(names)})"
            )
    _check_dtypes(flat)
    weights = Weights(config, MemoryStore(flat))
    return Model(weights, name=name, tokenizer=tokenizer, token_counts=token_counts)


@checked
def random_model(
    config: Config,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    position_tables: Literal["shared", "each"] = "shared",
    biases: bool = False,
    gains: bool = False,
) -> Model:
    """A model of isotropic Gaussian factors, scaled so that reads and logits are of order 1.

    Args:
        config: The config.
        seed: The seed of the weights.
        dtype: The dtype of the weights.
        position_tables: "each" gives each layer a separate W_pos.
        biases: Whether to add small random biases wherever the config allows them.
        gains: Whether to add random normalization gains around 1.

    Returns:
        The model. No direction of its residual stream is special, so it serves as a null model.

    Example:
        >>> random_model(Config(2, 4, 64, 16, 128, 64), seed=0)(torch.tensor([1, 2, 3])).shape
        torch.Size([3, 128])
    """
    position_tables = parse_choice(("shared", "each"), position_tables, "position_tables")
    per_layer = position_tables == "each" and config.positions == "qk"
    shapes = {n: s for n, s in model_shapes(config).items() if n != "W_pos" or not per_layer}
    for layer in range(config.n_layers):
        for name, shape in layer_shapes(config).items():
            if name != "W_pos" or per_layer:
                shapes[f"layers.{layer}.{name}"] = shape
    generator = seeded(seed)
    flat = {
        name: _draw(name.rsplit(".", 1)[-1], shape, generator).to(dtype)
        for name, shape in shapes.items()
        if _is_included(name.rsplit(".", 1)[-1], biases, gains)
    }
    return Model(Weights(config, MemoryStore(flat)), name=f"random, seed {seed}")


def _is_included(name: str, biases: bool, gains: bool) -> bool:
    if name.endswith("_w"):
        return gains
    if name.startswith("ln"):
        return biases and gains
    return biases or name.startswith("W") or name == "sinks"


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Drawn in float64, so that a seed gives the same model in every dtype."""
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    if name in ("W_E", "W_pos"):
        return noise
    if name.startswith("W"):
        return noise * shape[-2] ** -0.5
    return noise * 0.2 + (1.0 if name.endswith("_w") else 0.0)


def _check_dtypes(flat: Mapping[str, Tensor]) -> None:
    dtypes = {name: tensor.dtype for name, tensor in flat.items()}
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise WeightsError(f"{name} is {dtype}; weights are {list_dtypes()}")
    if len(set(dtypes.values())) > 1:
        examples = ", ".join(f"{name} is {dtype}" for name, dtype in list(dtypes.items())[:4])
        raise WeightsError(
            f"the tensors are of different dtypes ({examples}, …); convert them to one dtype first"
        )


def _stacked_shape(config: Config, key: str) -> str:
    shape = layer_shapes(config).get(key)
    if shape is None:
        return f"a config with room for {key} (it needs {', '.join(required_in_layer(config))})"
    return str([config.n_layers, *shape])
