"""The tensors of a checkpoint folder: safetensors or pickles, sharded or not.

MXFP4, the format of gpt-oss, has numbers of 4 bits in blocks of 32 that share a power of two. Each
matrix of its experts is stored as two tensors of bytes,

    name_blocks [expert, out, block, 16]    two numbers per byte, the first in the low 4 bits
    name_scales [expert, out, block]        e, where the scale of the block is 2^(e − 127)

`Mxfp4Store` presents them as one tensor, `name` [expert, in, out], as in an unquantized checkpoint.
Every product is exact in bfloat16.
"""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import BFloat16, UInt8
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.errors import FileError, PathsumError, damaged, first_line
from pathsum.base.files import exists, first_bytes, read_object
from pathsum.model.store import DTYPES, FileStore, MemoryStore, Store

SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
INDEX = ".index.json"
_CONVERT = (
    'convert it where you trust it: tensors = torch.load(file, map_location="cpu"), then '
    'safetensors.torch.save_file(tensors, "model.safetensors")'
)

# The size of the list of tensors; 100,000 tensors take 20 MB.
_MAX_PICKLE_BYTES = 1 << 26

# Keys under which training scripts save the state dict.
_STATE_KEYS = ("state_dict", "model_state_dict", "model")

_BLOCKS, _SCALES = "_blocks", "_scales"
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = torch.tensor((*_MAGNITUDES, *(-value for value in _MAGNITUDES)), dtype=torch.bfloat16)
# Both numbers of a byte.
_PAIRS = torch.stack((_NUMBERS.repeat(16), _NUMBERS.repeat_interleave(16)), 1)
# 2^-127 is a subnormal of float32. The last exponent means NaN, and 2^128 is infinite: the check of
# the weights detects both.
with np.errstate(over="ignore"):
    _POWERS = torch.from_numpy(np.ldexp(np.float32(1), np.arange(256) - 127)).bfloat16()


def open_tensors(folder: Path, progress: Progress = silent) -> Store:
    """The memory-mapped tensors of a folder; safetensors are preferred to pickles.

    A single file is preferred to shards, as in transformers. Saving a model again with another
    shard size leaves old files behind, so if a folder has both, their tensors must be equal.
    """
    for name, opener in ((SAFETENSORS, CheckpointFile), (PICKLE, PickleStore)):
        whole, index = folder / name, folder / (name + INDEX)
        if whole.is_file():
            store = opener(whole)
            if index.is_file():
                _check_same(store, index, opener, progress)
            return store
        if index.is_file():
            return ShardedStore(index, opener)
    shards = sorted(file.name for file in folder.iterdir() if "-of-" in file.name)
    if shards:
        raise FileError(
            f"{folder} contains shards ({shards[0]}, …) without {SAFETENSORS + INDEX}, which lists "
            "their tensors; copy the index too"
        )
    raise FileError(
        f"{folder} contains no weights: it needs {SAFETENSORS} or {PICKLE}, or shards of one of "
        f"them with their {INDEX[1:]}"
    )


class CheckpointFile(FileStore):
    """A safetensors file of another program, which may contain masks and quantized tensors."""

    readable = tuple(DTYPES)
    advice = "load an unquantized checkpoint, or a GGUF file"


class PickleStore(MemoryStore):
    """A file of `torch.save`, read only by torch's weights-only loader."""

    def __init__(self, file: Path) -> None:
        self.file = file
        content = _load_pickle(file)
        mapping = content if isinstance(content, Mapping) else {}
        key = next((key for key in _STATE_KEYS if isinstance(mapping.get(key), Mapping)), None)
        tensors = content if key is None else mapping[key]
        if not isinstance(tensors, Mapping) or not all(
            isinstance(value, Tensor) for value in tensors.values()
        ):
            raise FileError(
                f"{file} holds a {type(content).__name__} that is not a state dict, a mapping from "
                "names to tensors; save model.state_dict()"
            )
        for name, tensor in tensors.items():
            _check_plain(file, name, tensor)
        super().__init__({name: tensor.detach() for name, tensor in tensors.items()})


Opener: TypeAlias = type[CheckpointFile] | type[PickleStore]


class ShardedStore(Store):
    """Several files, with an index of their tensors."""

    def __init__(self, index: Path, opener: Opener) -> None:
        file_of = read_index(index)
        files = sorted(set(file_of.values()))
        missing = [name for name in files if not exists(index.parent / name)]
        if missing:
            raise FileError(
                f"{index.parent} lacks {len(missing)} of {len(files)} shards that {index.name} "
                f"names ({', '.join(missing[:3])}); download or copy them again"
            )
        self._shards: dict[str, Store] = {name: opener(index.parent / name) for name in files}
        self._file_of = file_of
        for file, shard in self._shards.items():
            _check_shard(index, file, shard.shapes, file_of)
        self.shapes = {name: self._shards[file].shapes[name] for name, file in file_of.items()}
        self.dtypes = {name: self._shards[file].dtypes[name] for name, file in file_of.items()}

    def get(self, name: str) -> Tensor:
        """A tensor, mapped from its shard."""
        return self._shards[self._file_of[name]].get(name)


def read_index(index: Path) -> dict[str, str]:
    """The file of each tensor, by the tensor's name."""
    file_of = read_object(index, "download it again").get("weight_map")
    if not isinstance(file_of, dict) or not file_of:
        raise FileError(f"{index} has no weight_map, which names the shard of each tensor")
    for file in file_of.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise FileError(f"{index} names a shard {file!r}, which is not a file in its folder")
    return file_of


def _check_shard(
    index: Path, file: str, shapes: Mapping[str, object], file_of: Mapping[str, str]
) -> None:
    expected = (name for name, shard in file_of.items() if shard == file)
    for name in dict.fromkeys((*shapes, *expected)):
        location = file_of.get(name)
        if name not in shapes:
            problem = f"{file} does not hold {name}, which {index.name} places there"
        elif location is None:
            problem = f"{file} holds {name}, which {index.name} does not list"
        elif location != file:
            problem = f"{name} is in two shards, {file} and, as {index.name} has it, {location}"
        else:
            continue
        raise FileError(
            f"{problem}; the shards come from different checkpoints, so download them again"
        )


def _check_same(
    whole: CheckpointFile | PickleStore, index: Path, opener: Opener, progress: Progress
) -> None:
    """Raise an error if the shards next to a single file have other tensors."""
    file_of = read_index(index)
    files = [file for file in sorted(set(file_of.values())) if exists(index.parent / file)]
    shards = {file: opener(index.parent / file) for file in files}
    file_by_name = {name: file for file, shard in shards.items() for name in shard.shapes}
    file_by_name |= {name: file for name, file in file_of.items() if file in shards}
    is_complete = len(files) == len(set(file_of.values()))
    names = sorted({*file_by_name, *(whole.shapes if is_complete else ())})
    title = f"comparing {whole.file.name} with its shards"
    for number, name in enumerate(names):
        progress(number, len(names), title)
        shard = shards.get(file_by_name.get(name, ""))
        if shard is None or not _holds_same(whole, shard, name):
            other = file_by_name.get(name, f"the shards of {index.name}")
            raise FileError(
                f"{index.parent} holds two different checkpoints: {name} of {whole.file.name} and "
                f"of {other} differ; one of them was left behind by an earlier save, so move it "
                "away"
            )
    progress(len(names), len(names), title)


def _holds_same(first: Store, second: Store, name: str) -> bool:
    """Whether a tensor has the same bytes in two stores."""
    if name not in first.shapes or name not in second.shapes:
        return False
    if first.shapes[name] != second.shapes[name] or first.dtypes[name] != second.dtypes[name]:
        return False
    left, right = (store.get(name).flatten().view(torch.uint8) for store in (first, second))
    return torch.equal(left, right)


def _load_pickle(file: Path) -> Any:
    is_zip = first_bytes(file, 4) == b"PK\x03\x04"
    try:
        if is_zip:
            _check_archive(file)
        # Files from before torch 1.6 are not zip archives and cannot be mapped.
        return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        reason = first_line(error)[:200]
        raise FileError(
            f"{file} holds more than tensors, and opening it could run code, so it was not opened "
            f"({reason}); {_CONVERT}"
        ) from error
    except PathsumError:
        raise
    except Exception as error:  # torch's loader fails in any way on a damaged file
        reason = first_line(error)[:200]
        raise damaged(file, f"is not a whole file of torch.save ({reason})") from error


def _check_archive(file: Path) -> None:
    """Raise an error for an archive not written by torch.save, or with a huge list of tensors."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise FileError(
                    f"{file} holds {member.filename!r} compressed, which torch.save does not "
                    f"write; {_CONVERT}"
                )
            if member.filename.endswith(".pkl") and member.file_size > _MAX_PICKLE_BYTES:
                raise FileError(
                    f"{file} lists its tensors in {member.file_size:,} bytes, and at most "
                    f"{_MAX_PICKLE_BYTES:,} are read; {_CONVERT}"
                )


def _check_plain(file: Path, name: object, tensor: Tensor) -> None:
    """Raise an error unless a tensor has a name and is stored in full."""
    if not isinstance(name, str):
        raise FileError(f"{file} names a tensor {name!r}, which is not text; save a state dict")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        kind = "quantized" if tensor.is_quantized else f"{tensor.layout} on {tensor.device}"
        raise FileError(f"{file} stores {name} as {kind}; save plain tensors")
    n_bytes = tensor.untyped_storage().nbytes()
    if tensor.numel() * tensor.element_size() > n_bytes:
        raise FileError(
            f"{file} gives {name} the shape {list(tensor.shape)}, but stores only {n_bytes:,} "
            "bytes of it; save a contiguous copy"
        )


class Mxfp4Store(Store):
    """A view of a store in which each pair of blocks and scales is one bfloat16 tensor."""

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
        shapes, dtypes = dict(source.shapes), dict(source.dtypes)
        for name in names:
            _check_packed(source, name, where)
            experts, out, blocks, _ = source.shapes[name + _BLOCKS]
            shapes[name], dtypes[name] = (experts, 32 * blocks, out), torch.bfloat16
            for part in (name + _BLOCKS, name + _SCALES):
                del shapes[part], dtypes[part]
        self.shapes, self.dtypes = shapes, dtypes

    def get(self, name: str) -> Tensor:
        """A tensor, dequantized if it is stored as blocks."""
        if name not in self._packed:
            return self._source.get(name)
        return dequantize(self._source.get(name + _BLOCKS), self._source.get(name + _SCALES))

    def copies(self, name: str) -> bool:
        """Whether a tensor is dequantized, or copied by the source."""
        return name in self._packed or self._source.copies(name)

    def device(self, name: str) -> torch.device:
        """The device of a tensor."""
        return self._source.device(name + _BLOCKS if name in self._packed else name)


def dequantize(
    blocks: UInt8[Tensor, "expert out block 16"], scales: UInt8[Tensor, "expert out block"]
) -> BFloat16[Tensor, "expert in out"]:
    """The matrices of all experts, dequantized one by one to keep indices small."""
    pairs, powers = _PAIRS.to(blocks.device), _POWERS.to(blocks.device)
    experts, out, n_blocks, _ = blocks.shape
    result = torch.empty((experts, out, 32 * n_blocks), dtype=torch.bfloat16, device=blocks.device)
    for matrix, packed, exponents in zip(result, blocks, scales, strict=True):
        numbers = pairs[packed.int()].flatten(-2)
        torch.mul(numbers, powers[exponents.int()][..., None], out=matrix.view(numbers.shape))
    return result.mT


def _check_packed(source: Store, name: str, where: str) -> None:
    """Raise an error unless the shapes of blocks and scales fit together."""
    blocks, scales = name + _BLOCKS, name + _SCALES
    if scales not in source.shapes:
        raise damaged(where, f"has {blocks} without {scales}")
    block_shape, scale_shape = tuple(source.shapes[blocks]), tuple(source.shapes[scales])
    are_bytes = {source.dtypes[blocks], source.dtypes[scales]} == {torch.uint8}
    if (
        not are_bytes
        or len(block_shape) != 4
        or block_shape[:3] != scale_shape
        or block_shape[3] != 16
    ):
        raise FileError(
            f"{where} stores {blocks} as {source.dtypes[blocks]} of shape {list(block_shape)} and "
            f"{scales} as {source.dtypes[scales]} of shape {list(scale_shape)}; MXFP4 has bytes of "
            "shapes [expert, out, block, 16] and [expert, out, block]"
        )
