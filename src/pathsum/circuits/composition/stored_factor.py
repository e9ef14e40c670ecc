"""StoredFactor: one layer's W_Q, W_K, W_V or W_O, whole or some columns at a time."""

from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import Config, Weights

MOST_HELD = 1 << 30
"""Bytes of dequantized weights that composition holds; beyond, they are made when needed."""

FactorName: TypeAlias = Literal["W_Q", "W_K", "W_V", "W_O"]


class StoredFactor:
    """The outer factors [head, k, d] of one layer, as they are stored.

    A mapped tensor costs no memory, and columns of one in half precision are converted when they
    are requested, so that memory does not grow with the depth of the model. One that the store
    itself has to make (GGUF), or that is for another device, is kept if `held`, and otherwise made
    again for each request.
    """

    def __init__(self, weights: Weights, layer: int, name: FactorName, *, held: bool) -> None:
        self._weights, self._name, self._across = weights, f"layers.{layer}.{name}", name != "W_O"
        self._stored: Tensor | None = None
        self.dtype, self.device = weights.dtype, weights.device
        there = weights.store.device(self._name) == self.device
        mapped = there and not weights.store.copies(self._name)
        # Layers in use keep what they converted; their W_O may hold the gain of a norm after it.
        kept = held and not mapped and weights.config.norm_place == "before"
        whole = self._laid(getattr(weights.attention[layer], name)) if kept else self.whole()
        self.shape, self.by_columns = whole.shape, whole.stride(-1) != 1
        if mapped:
            self._stored = self._laid(weights.store.get(self._name))
        elif held:
            self._stored = whole

    def whole(self) -> Float[Tensor, "n k d"]:
        """All columns, checked to be finite; a copy where weights are converted."""
        if self._stored is not None and self._stored.dtype == self.dtype:
            return self._stored
        return self._laid(self._weights.read(self._name))

    def columns(self, start: int, stop: int) -> Float[Tensor, "n k b"]:
        """Columns start … stop − 1."""
        stored = self._stored
        if stored is None:
            stored = self._laid(self._weights.store.get(self._name))
        return stored[..., start:stop].to(dtype=self.dtype, device=self.device)

    def space(self, n: int, width: int) -> Float[Tensor, "n k b"]:
        """An empty buffer for columns of n factors, laid out as the weights are: filled quickly."""
        k = self.shape[1]
        if self.by_columns:
            return torch.empty(n, width, k, dtype=self.dtype, device=self.device).mT
        return torch.empty(n, k, width, dtype=self.dtype, device=self.device)

    def _laid(self, tensor: Tensor) -> Float[Tensor, "n k d"]:
        return tensor.mT if self._across else tensor


def are_held(weights: Weights) -> bool:
    """Whether the factors of all layers fit into `MOST_HELD`."""
    return weights.config.n_layers * _layer_bytes(weights.config, weights.dtype) <= MOST_HELD


def _layer_bytes(config: Config, dtype: torch.dtype) -> int:
    heads = 2 * (config.n_heads + config.n_kv_heads)
    return heads * config.d_head * config.d_model * dtype.itemsize
