"""Tensor stores: tensors by name, in memory or in a memory-mapped safetensors file."""

import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, overload

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pathsum.base.errors import FileError, LayerError
from pathsum.base.files import first_bytes, parse_object

if TYPE_CHECKING:
    from pathsum.model.weights import LayerWeights, Weights


class Store(ABC):
    """Tensors by flat name (`W_E`, `layers.0.W_Q`); shapes are known before anything is read."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]

    @abstractmethod
    def get(self, name: str) -> Tensor:
        """One tensor, as stored."""

    def copies(self, name: str) -> bool:  # noqa: ARG002
        """Whether `get` makes a copy, which costs memory."""
        return False

    def device(self, name: str) -> torch.device:  # noqa: ARG002
        """The device of a tensor, known without reading it."""
        return torch.device("cpu")


class MemoryStore(Store):
    """Tensors in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in self._tensors.items()}

    def get(self, name: str) -> Tensor:
        """One tensor, not copied."""
        return self._tensors[name]

    def device(self, name: str) -> torch.device:
        """The device of a tensor."""
        return self._tensors[name].device


class OverlayStore(Store):
    """Another store with some tensors replaced or added, which are in memory."""

    def __init__(self, below: Store, tensors: Mapping[str, Tensor]) -> None:
        self._below, self._above = below, MemoryStore(tensors)
        self.shapes = {**below.shapes, **self._above.shapes}
        self.dtypes = {**below.dtypes, **self._above.dtypes}

    def get(self, name: str) -> Tensor:
        """One tensor, replaced or as stored below."""
        return self._above.get(name) if name in self._above.shapes else self._below.get(name)

    def copies(self, name: str) -> bool:
        """Whether the store below copies it; a replaced tensor is in memory."""
        return name not in self._above.shapes and self._below.copies(name)

    def device(self, name: str) -> torch.device:
        """The device of a tensor, in the store that has it."""
        return (self._above if name in self._above.shapes else self._below).device(name)


class RoundedStore(Store):
    """Another store with its floating-point tensors rounded to a dtype of fewer digits."""

    def __init__(self, below: Store, dtype: torch.dtype) -> None:
        self._below = below
        self.shapes = below.shapes
        self.dtypes = {
            name: dtype if stored.is_floating_point else stored
            for name, stored in below.dtypes.items()
        }

    def get(self, name: str) -> Tensor:
        """One tensor, rounded."""
        return self._below.get(name).to(self.dtypes[name])

    def copies(self, name: str) -> bool:
        """Whether rounding, or the store below, makes a copy."""
        return self.dtypes[name] != self._below.dtypes[name] or self._below.copies(name)

    def device(self, name: str) -> torch.device:
        """The device of a tensor in the store below."""
        return self._below.device(name)


CHECKSUMS = "crc32"
"""Key of each tensor's checksum in the metadata of a file that pathsum wrote."""


def checksum(tensor: Tensor) -> int:
    """The CRC-32 of a tensor's bytes."""
    if tensor.numel() == 0:
        return 0
    return zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


# The dtypes of safetensors; those from F8_E4M3 on occur only in files of other programs.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class FileStore(Store):
    """A safetensors file, memory-mapped: pages are read when a tensor's values are.

    `readable` lists the supported dtypes; `advice` is the fix that the error about others names.
    """

    readable = tuple(DTYPES)[:6]
    advice = f"use one of {', '.join(readable)}"

    def __init__(self, file: Path) -> None:
        self.file = file
        _check_is_safetensors(file)
        try:
            self._open: Any = safe_open(str(file), framework="pt")
        except SafetensorError as error:
            raise FileError(
                f"{file} is not a complete safetensors file ({error}); it may be truncated "
                "or damaged: copy or save it again"
            ) from error
        names: list[str] = list(self._open.keys())
        slices = {name: self._open.get_slice(name) for name in names}
        self.metadata: Mapping[str, str] = dict(self._open.metadata() or {})
        # Checksums of tensors that have not been read yet.
        checksums = self.metadata.get(CHECKSUMS, "{}")
        self._checksums = parse_object(checksums, f"the metadata of {file}", "save it again")
        self.shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        self.dtypes = {
            name: self._parse_dtype(name, part.get_dtype()) for name, part in slices.items()
        }

    def get(self, name: str) -> Tensor:
        """One tensor, mapped from the file; compared with its checksum, if the file has one."""
        tensor = self._open.get_tensor(name)
        expected = self._checksums.pop(name, None)
        if expected is not None and checksum(tensor) != expected:
            self._checksums[name] = expected
            raise FileError(
                f"{name} in {self.file} does not match its checksum, so the file is damaged; copy "
                "it again"
            )
        return tensor

    def __reduce__(self) -> tuple[type["MemoryStore"], tuple[dict[str, Tensor]]]:
        """Pickled and copied with its tensors, because the file may have changed by then."""
        return MemoryStore, ({name: self.get(name).clone() for name in self.shapes},)

    def _parse_dtype(self, name: str, dtype: str) -> torch.dtype:
        if dtype not in self.readable:
            raise FileError(
                f"{self.file} stores {name} as {dtype}, which pathsum does not read; {self.advice}"
            )
        return DTYPES[dtype]


def _check_is_safetensors(file: Path) -> None:
    head = first_bytes(file, 9)
    # A safetensors file begins with the length of its header and then the header's "{"; the length
    # alone may look like a pickle's first bytes.
    looks_right = head[8:9] == b"{" or head[4:8] == bytes(4)
    if not looks_right and (head[:1] == b"\x80" or head[:4] == b"PK\x03\x04"):
        raise FileError(
            f"{file} is a pickle (torch.save), which can run code when opened, so pathsum does not "
            "open it; safetensors is expected: load it with torch.load(..., weights_only=True) "
            "and pass the tensors to pathsum.from_tensors"
        )
    if len(head) < 9:
        raise FileError(
            f"{file} holds {len(head)} bytes, too few for a safetensors file; "
            "it may be truncated: copy or save it again"
        )


# Converted layers are cached up to this many bytes; a mapped layer takes no memory. Runs need every
# layer repeatedly, analyses of heads read each layer once.
CONVERTED_LAYER_BYTES = 2 << 30
CONVERTED_HEAD_BYTES = 128 << 20


class Layers(Sequence["LayerWeights"]):
    """A model's layers, each read on first use, with the tensors in `names`.

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
        self._cache: OrderedDict[int, LayerWeights] = OrderedDict()
        self._cache_bytes: dict[int, int] = {}
        # One thread must not evict a layer that another is about to return.
        self.lock = RLock() if heads is None else heads.lock

    def __len__(self) -> int:
        return self._weights.config.n_layers

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the lock, which cannot be copied."""
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lock=RLock())

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
            if layer not in self._cache:
                self._read(layer)
            self._cache.move_to_end(layer)
            return self._cache[layer]

    def cached(self, layer: int) -> "LayerWeights | None":
        """A layer if it was read and not dropped since."""
        return self._cache.get(layer)

    def _read(self, layer: int) -> None:
        from pathsum.model.weights import LayerWeights

        weights, tensors = self._weights, dict[str, Any]()
        whole = None if self.whole is None else self.whole.cached(layer)
        if self._heads is not None:
            tensors = _tensors_of(self._heads[layer], self._heads.names)
        elif whole is not None:
            tensors = _tensors_of(whole, self.names)
        for name in self.names:
            flat = f"layers.{layer}.{name}"
            if name not in tensors and flat in weights.store.shapes:
                tensors[name] = weights.read(flat)
        if weights.config.positions == "qk" and tensors.get("W_pos") is None:
            tensors["W_pos"] = weights.W_pos
        if self._heads is None and whole is None:
            _fold_post_gain(tensors)
        self._cache[layer] = LayerWeights(**tensors, index=layer)
        self._cache_bytes[layer] = sum(
            tensor.nbytes
            for name, tensor in tensors.items()
            if isinstance(tensor, Tensor) and self._is_copy(layer, name)
        )
        limit = CONVERTED_HEAD_BYTES if self._heads is None else CONVERTED_LAYER_BYTES
        while sum(self._cache_bytes.values()) > limit and len(self._cache) > 1:
            dropped, _ = self._cache.popitem(last=False)
            del self._cache_bytes[dropped]

    def _is_copy(self, layer: int, name: str) -> bool:
        flat, weights = f"layers.{layer}.{name.removeprefix('raw_')}", self._weights
        folded = weights.config.norm_place != "before" and name in ("W_O", "b_O")
        return folded or (flat in weights.store.shapes and weights.converts(flat))


def _tensors_of(layer: "LayerWeights", names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(layer, name) for name in (*names, *_BEFORE_GAIN.values())}


_BEFORE_GAIN = {"W_O": "raw_W_O", "b_O": "raw_b_O"}


def _fold_post_gain(read: dict[str, Any]) -> None:
    """Multiply the gain of the norm after the heads into their output weights, if there is one.

    The weights before the gain are kept for the norm's scale: a gain may be 0 in some dimensions.
    """
    gain = read.get("post1_w")
    if gain is None:
        return
    for name, unscaled in _BEFORE_GAIN.items():
        if name in read:
            read[unscaled] = read[name]
            read[name] = read[name] * gain
