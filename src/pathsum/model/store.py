"""Tensor stores: tensors by name, in memory or in a memory-mapped safetensors file."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pathsum.base.errors import FileError
from pathsum.base.files import first_bytes


class Store(ABC):
    """Tensors by flat name (`W_E`, `layers.0.W_Q`); shapes are known before anything is read."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]

    @abstractmethod
    def get(self, name: str) -> Tensor:
        """One tensor, as stored."""

    def copies(self, name: str) -> bool:  # noqa: ARG002
        """Whether `get` makes a copy, which costs memory while it is kept."""
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
        """One tensor, itself and not a copy."""
        return self._tensors[name]

    def device(self, name: str) -> torch.device:
        """The device of a tensor."""
        return self._tensors[name].device


class OverlayStore(Store):
    """Another store with some tensors replaced or added; the rest stays where it is."""

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

    `readable` are the dtypes that its tensors may have, `advice` is what to do about another one.
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
        self.shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        self.dtypes = {name: self._known(name, part.get_dtype()) for name, part in slices.items()}

    def get(self, name: str) -> Tensor:
        """One tensor, mapped from the file."""
        return self._open.get_tensor(name)

    def _known(self, name: str, dtype: str) -> torch.dtype:
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
