"""MXFP4: numbers of 4 bits in blocks of 32 that share a power of two, dequantized when read.

gpt-oss is published so: each matrix of its experts is two tensors of bytes,

    name_blocks [expert, out, block, 16]    two numbers per byte, the first in the low 4 bits
    name_scales [expert, out, block]        e, where the scale of the block is 2^(e − 127)

`Mxfp4Store` shows them as one tensor, `name` [expert, in, out], which is how an unquantized
checkpoint stores it. Every product is exact in bfloat16.
"""

import numpy as np
import torch
from jaxtyping import BFloat16, UInt8
from torch import Tensor

from pathsum.base.errors import FileError
from pathsum.model.store import Store

_BLOCKS, _SCALES = "_blocks", "_scales"
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = torch.tensor((*_MAGNITUDES, *(-value for value in _MAGNITUDES)), dtype=torch.bfloat16)
# Both numbers of a byte.
_PAIRS = torch.stack((_NUMBERS.repeat(16), _NUMBERS.repeat_interleave(16)), 1)
# float32 holds 2^-127 as a subnormal. The last exponent means NaN, and 2^128 is infinite: both are
# found when the weights are checked.
with np.errstate(over="ignore"):
    _POWERS = torch.from_numpy(np.ldexp(np.float32(1), np.arange(256) - 127)).bfloat16()


class Mxfp4Store(Store):
    """Another store in which each pair of blocks and scales is one tensor in bfloat16."""

    def __init__(self, source: Store, where: str) -> None:
        self._source = source
        names = [name.removesuffix(_BLOCKS) for name in source.shapes if name.endswith(_BLOCKS)]
        if not names:
            raise FileError(
                f"the config of {where} says that experts are stored in MXFP4, but no tensor's "
                f"name ends in {_BLOCKS}; load a live model with Mxfp4Config(dequantize=True), or "
                "remove quantization_config if the tensors are plain"
            )
        self._packed = frozenset(names)
        packed: dict[str, tuple[int, ...]] = {}
        for name in names:
            _check(source, name, where)
            experts, out, blocks, _ = source.shapes[name + _BLOCKS]
            packed[name] = (experts, 32 * blocks, out)
        inside = {name + ending for name in names for ending in (_BLOCKS, _SCALES)}
        plain = [name for name in source.shapes if name not in inside]
        self.shapes = {name: source.shapes[name] for name in plain} | packed
        self.dtypes = {name: source.dtypes[name] for name in plain}
        self.dtypes |= dict.fromkeys(packed, torch.bfloat16)

    def get(self, name: str) -> Tensor:
        """One tensor, dequantized if it is stored as blocks."""
        if name not in self._packed:
            return self._source.get(name)
        return dequantize(self._source.get(name + _BLOCKS), self._source.get(name + _SCALES))

    def copies(self, name: str) -> bool:
        """Whether a tensor is dequantized, or copied by the store behind."""
        return name in self._packed or self._source.copies(name)

    def device(self, name: str) -> torch.device:
        """The device of a tensor."""
        return self._source.device(name + _BLOCKS if name in self._packed else name)


def dequantize(
    blocks: UInt8[Tensor, "expert out block 16"], scales: UInt8[Tensor, "expert out block"]
) -> BFloat16[Tensor, "expert in out"]:
    """The numbers of each expert's matrix; one expert at a time, so that indices stay small."""
    pairs, powers = _PAIRS.to(blocks.device), _POWERS.to(blocks.device)
    experts, out, n_blocks, _ = blocks.shape
    found = torch.empty((experts, out, 32 * n_blocks), dtype=torch.bfloat16, device=blocks.device)
    for matrix, packed, exponents in zip(found, blocks, scales, strict=True):
        numbers = pairs[packed.int()].flatten(-2)
        torch.mul(numbers, powers[exponents.int()][..., None], out=matrix.view(numbers.shape))
    return found.mT


def _check(source: Store, name: str, where: str) -> None:
    """Raise unless blocks and scales of a name fit together."""
    blocks, scales = name + _BLOCKS, name + _SCALES
    if scales not in source.shapes:
        raise FileError(f"{where} has {blocks} without {scales}; download it again")
    found, own = tuple(source.shapes[blocks]), tuple(source.shapes[scales])
    bytes_only = {source.dtypes[blocks], source.dtypes[scales]} == {torch.uint8}
    if not bytes_only or len(found) != 4 or found[:3] != own or found[3] != 16:
        raise FileError(
            f"{where} stores {blocks} as {source.dtypes[blocks]} of shape {list(found)} and "
            f"{scales} as {source.dtypes[scales]} of shape {list(own)}; MXFP4 has bytes of shapes "
            "[expert, out, block, 16] and [expert, out, block]"
        )
