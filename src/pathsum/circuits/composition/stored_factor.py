"""One layer's W_Q, W_K, W_V or W_O, whole or some columns at a time: as stored, and as read."""

from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import Weights

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


class Outer:
    """The outer factors X of one layer's forms, any range of their columns at a time.

    Leaves the weights where they are stored and applies what normalization does to a read (gain,
    centering) to the requested columns, so that a model is not copied. Each factor is scaled by its
    largest entry, which changes no score and keeps squares of it finite.
    """

    def __init__(
        self,
        stored: StoredFactor,
        *,
        gain: Float[Tensor, " d"] | None = None,
        centered: bool = False,
        copies: int = 1,
    ) -> None:
        self._stored = stored
        self._copies = copies
        whole = stored.whole() if gain is None else stored.whole() * gain
        peak = _largest(whole)
        mean = whole.mean(-1, keepdim=True) if centered else torch.zeros_like(whole[..., :1])
        if centered:
            left = _largest(whole - mean)
            rounding = 4 * torch.finfo(whole.dtype).eps * peak
            peak = torch.where(left > rounding, left, torch.zeros_like(left))
        # A factor that is zero, or only rounding once centered, stays zero.
        scale = torch.where(peak > 0, 1 / peak, torch.zeros_like(peak))
        # X = shift + stored · factor, in one pass over the requested columns.
        self._shift = -mean * scale if centered else None
        self._factor = scale if gain is None else scale * gain
        sums = torch.zeros_like(mean) if centered else whole.sum(-1, keepdim=True)
        self._sums = (sums * scale)[..., 0]

    def __len__(self) -> int:
        return self._stored.shape[0] * self._copies

    @property
    def d(self) -> int:
        """The width of the stream."""
        return self._stored.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self._stored.dtype

    def space(self, n: int, width: int) -> Float[Tensor, "n k b"]:
        """An empty buffer for columns of n factors, with the memory layout of the weights."""
        return self._stored.space(n, width)

    @property
    def distinct(self) -> int:
        """The number of different factors; heads that share keys and values share theirs."""
        return self._stored.shape[0]

    def columns(self, start: int, stop: int, out: Float[Tensor, "distinct k b"]) -> None:
        """Columns start … stop − 1 of every different factor, written to `out`."""
        wide = self._factor.shape[-1] > 1
        factor = self._factor[..., start:stop] if wide else self._factor
        stored = self._stored.columns(start, stop)
        if self._shift is None:
            torch.mul(stored, factor, out=out)
        else:
            torch.addcmul(self._shift, stored, factor, out=out)

    def for_heads(self, factors: Float[Tensor, "distinct k b"]) -> Float[Tensor, "n k b"]:
        """One factor for each head."""
        return factors if self._copies == 1 else factors.repeat_interleave(self._copies, 0)

    def sums(self) -> Float[Tensor, "n k"]:
        """X times the ones-vector, in float64."""
        return self._sums.double().repeat_interleave(self._copies, 0)

    def gram(self) -> Float[Tensor, "n k k"]:
        """X Xᵀ of every factor, in float64."""
        whole = self._stored.whole() * self._factor
        if self._shift is not None:
            whole += self._shift
        return (whole @ whole.mT).double().repeat_interleave(self._copies, 0)


def _largest(factors: Float[Tensor, "n k d"]) -> Float[Tensor, "n 1 1"]:
    """The largest magnitude in each factor."""
    # The norm of order ∞ is the same number and takes twenty times as long.
    high, low = (bound((-2, -1), keepdim=True) for bound in (factors.amax, factors.amin))
    return torch.maximum(high, -low)


def are_held(weights: Weights) -> bool:
    """Whether the factors of all layers fit into `MOST_HELD`."""
    return weights.config.n_layers * layer_bytes(weights) <= MOST_HELD


def layer_bytes(weights: Weights) -> int:
    """Bytes of one layer's factors, converted."""
    config = weights.config
    heads = 2 * (config.n_heads + config.n_kv_heads)
    return heads * config.d_head * config.d_model * weights.dtype.itemsize
