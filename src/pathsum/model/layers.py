"""Layers: the tensors of one layer at a time, read when they are first used."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from pathsum.base.errors import LayerError, WeightsError

if TYPE_CHECKING:
    from pathsum.model.weights import LayerWeights, Weights

# Converted layers are kept up to this many bytes; a mapped layer costs nothing to keep. Runs need
# every layer repeatedly, analyses of heads read each layer once.
CONVERTED_LAYERS_KEPT = 2 << 30
CONVERTED_HEADS_KEPT = 128 << 20


class Layers(Sequence["LayerWeights"]):
    """A model's layers, each read on first use; of each the tensors in `names`.

    `heads` is the same layers without their MLPs. Each of the two takes the tensors that the other
    has already read, so that they share one copy.
    """

    def __init__(
        self, weights: "Weights", names: Sequence[str], heads: "Layers | None" = None
    ) -> None:
        self.names = tuple(names)
        self._weights, self._heads = weights, heads
        self.whole: Layers | None = None
        if heads is not None:
            heads.whole = self
        self._kept: OrderedDict[int, LayerWeights] = OrderedDict()
        self._kept_bytes: dict[int, int] = {}
        # One thread must not drop what another is about to take.
        self.lock = RLock() if heads is None else heads.lock

    def __len__(self) -> int:
        return self._weights.config.n_layers

    def number(self, index: int) -> int:
        """A layer counted from 0; negative numbers count from the end."""
        layer = index + len(self) if index < 0 else index
        if not 0 <= layer < len(self):
            raise LayerError(f"layer {index} does not exist: the model has {len(self)} layers")
        return layer

    @overload
    def __getitem__(self, index: int) -> "LayerWeights": ...
    @overload
    def __getitem__(self, index: slice) -> "Sequence[LayerWeights]": ...
    def __getitem__(self, index: int | slice) -> "LayerWeights | Sequence[LayerWeights]":
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        layer = self.number(index)
        with self.lock:
            if layer not in self._kept:
                self._keep(layer)
            self._kept.move_to_end(layer)
            return self._kept[layer]

    def kept(self, layer: int) -> "LayerWeights | None":
        """A layer if it was read and not dropped since."""
        return self._kept.get(layer)

    def _keep(self, layer: int) -> None:
        from pathsum.model.weights import LayerWeights

        weights, read = self._weights, dict[str, Any]()
        whole = None if self.whole is None else self.whole.kept(layer)
        if self._heads is not None:
            read = _named(self._heads[layer], self._heads.names)
        elif whole is not None:
            read = _named(whole, self.names)
        for name in self.names:
            flat = f"layers.{layer}.{name}"
            if name not in read and flat in weights.store.shapes:
                read[name] = weights.read(flat)
        if weights.config.positions == "qk" and read.get("W_pos") is None:
            read["W_pos"] = weights.W_pos
        if self._heads is None and whole is None:
            _fold_post_gain(read, layer)
        self._kept[layer] = LayerWeights(**read, index=layer)
        self._kept_bytes[layer] = sum(
            tensor.nbytes
            for name, tensor in read.items()
            if isinstance(tensor, Tensor) and self._is_copy(layer, name)
        )
        most = CONVERTED_HEADS_KEPT if self._heads is None else CONVERTED_LAYERS_KEPT
        while sum(self._kept_bytes.values()) > most and len(self._kept) > 1:
            dropped, _ = self._kept.popitem(last=False)
            del self._kept_bytes[dropped]

    def _is_copy(self, layer: int, name: str) -> bool:
        flat, weights = f"layers.{layer}.{name}", self._weights
        folded = weights.config.norm_place != "before" and name in ("W_O", "b_O")
        return folded or (flat in weights.store.shapes and weights.converts(flat))


def _named(layer: "LayerWeights", names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(layer, name) for name in names}


def _fold_post_gain(read: dict[str, Any], layer: int) -> None:
    """Multiply the gain of the norm after the heads into what they write, if there is one."""
    gain = read.get("post1_w")
    if gain is None:
        return
    if bool((gain == 0).any()):
        raise WeightsError(
            f"layers.{layer}.post1_w is exactly 0 in some dimension, so what the heads write there "
            "cannot be distinguished from what the norm removes; use a tiny number instead of 0"
        )
    for name in ("W_O", "b_O"):
        if name in read:
            read[name] = read[name] * gain
