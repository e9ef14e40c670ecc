"""Tensors of a checkpoint folder by their own names: safetensors or pickles, in shards or whole."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.errors import FileError, first_line
from pathsum.base.files import exists, first_bytes, read_object
from pathsum.model.store import DTYPES, FileStore, Store

SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
INDEX = ".index.json"
_CONVERT = (
    'convert it where you trust it: tensors = torch.load(file, map_location="cpu"), then '
    'safetensors.torch.save_file(tensors, "model.safetensors")'
)


def open_tensors(folder: Path, progress: Progress = silent) -> Store:
    """The tensors of a folder, memory-mapped; safetensors are preferred to pickles.

    A whole file is preferred to shards, as transformers does. Saving a model again with another
    shard size leaves the old files behind, so where there are both they must be the same.
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
    stray = sorted(file.name for file in folder.iterdir() if "-of-" in file.name)
    if stray:
        raise FileError(
            f"{folder} holds shards ({stray[0]}, …) without {SAFETENSORS + INDEX}, which says what "
            "each of them holds; copy the index too"
        )
    raise FileError(
        f"{folder} holds no weights: it needs {SAFETENSORS} or {PICKLE}, or shards of one of them "
        f"with their {INDEX[1:]}"
    )


class CheckpointFile(FileStore):
    """A safetensors file of another program, which may hold masks and quantized tensors too."""

    readable = tuple(DTYPES)
    advice = "load an unquantized checkpoint, or a GGUF file"


class PickleStore(Store):
    """A file of `torch.save`, opened by torch's weights-only loader and by nothing else."""

    def __init__(self, file: Path) -> None:
        self.file = file
        found = _load_pickle(file)
        tensors = found.get("state_dict", found) if isinstance(found, Mapping) else found
        if not isinstance(tensors, Mapping) or not all(
            isinstance(value, Tensor) for value in tensors.values()
        ):
            raise FileError(
                f"{file} holds a {type(found).__name__} that is not a state dict, a mapping from "
                "names to tensors; save model.state_dict()"
            )
        for name, tensor in tensors.items():
            _check_plain(file, name, tensor)
        self._tensors: Mapping[str, Tensor] = tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in tensors.items()}

    def get(self, name: str) -> Tensor:
        """One tensor, mapped from the file."""
        return self._tensors[name].detach()


class ShardedStore(Store):
    """Several files whose index says which of them holds a tensor."""

    def __init__(self, index: Path, opener: type[CheckpointFile] | type[PickleStore]) -> None:
        place = read_index(index)
        files = sorted(set(place.values()))
        missing = [name for name in files if not exists(index.parent / name)]
        if missing:
            raise FileError(
                f"{index.parent} lacks {len(missing)} of {len(files)} shards that {index.name} "
                f"names ({', '.join(missing[:3])}); download or copy them again"
            )
        self._shards: dict[str, Store] = {name: opener(index.parent / name) for name in files}
        self._place = place
        for file, shard in self._shards.items():
            _check_shard(index, file, shard.shapes, place)
        self.shapes = {name: self._shards[file].shapes[name] for name, file in place.items()}
        self.dtypes = {name: self._shards[file].dtypes[name] for name, file in place.items()}

    def get(self, name: str) -> Tensor:
        """One tensor, mapped from its shard."""
        return self._shards[self._place[name]].get(name)


def read_index(index: Path) -> dict[str, str]:
    """The file that holds each tensor, by the tensor's name."""
    place = read_object(index, "download it again").get("weight_map")
    if not isinstance(place, dict) or not place:
        raise FileError(f"{index} has no weight_map, which says which shard holds a tensor")
    for file in place.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise FileError(f"{index} names a shard {file!r}, which is not a file in its folder")
    return place


def _check_shard(
    index: Path, file: str, shapes: Mapping[str, object], place: Mapping[str, str]
) -> None:
    for name in shapes:
        if place.get(name, file) != file:
            raise FileError(
                f"{name} is in two shards: {index.name} places it in {place[name]}, and {file} "
                "holds one too; the shards come from different checkpoints, so download them again"
            )
        if name not in place:
            raise FileError(
                f"{file} holds {name}, which {index.name} does not list; the two come from "
                "different checkpoints, so download them again"
            )
    for name, where in place.items():
        if where == file and name not in shapes:
            raise FileError(
                f"{file} does not hold {name}, which {index.name} places there; the two come from "
                "different checkpoints, so download them again"
            )


def _check_same(
    whole: CheckpointFile | PickleStore,
    index: Path,
    opener: type[CheckpointFile] | type[PickleStore],
    progress: Progress,
) -> None:
    """Raise if shards next to a whole file hold other tensors; an index without any is harmless."""
    place = read_index(index)
    files = [file for file in sorted(set(place.values())) if exists(index.parent / file)]
    shards = {file: opener(index.parent / file) for file in files}
    where = {name: file for file, shard in shards.items() for name in shard.shapes}
    where |= {name: file for name, file in place.items() if file in shards}
    complete = len(files) == len(set(place.values()))
    names = sorted({*where, *(whole.shapes if complete else ())})
    what = f"comparing {whole.file.name} with its shards"
    for number, name in enumerate(names):
        progress(number, len(names), what)
        shard = shards.get(where.get(name, ""))
        if shard is None or not _holds_same(whole, shard, name):
            other = where.get(name, f"the shards of {index.name}")
            raise FileError(
                f"{index.parent} holds two different checkpoints: {name} of {whole.file.name} and "
                f"of {other} differ; one of them was left behind by an earlier save, so move it "
                "away"
            )
    progress(len(names), len(names), what)


def _holds_same(one: Store, other: Store, name: str) -> bool:
    """Whether two stores hold the same bytes under a name."""
    if name not in one.shapes or name not in other.shapes:
        return False
    if one.shapes[name] != other.shapes[name] or one.dtypes[name] != other.dtypes[name]:
        return False
    first, second = (store.get(name).flatten().view(torch.uint8) for store in (one, other))
    return torch.equal(first, second)


def _load_pickle(file: Path) -> Any:
    zipped = first_bytes(file, 4) == b"PK\x03\x04"
    try:
        # Files from before torch 1.6 are not zip archives and cannot be mapped.
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        reason = first_line(error)[:200]
        raise FileError(
            f"{file} holds more than tensors, and opening it could run code, so it was not opened "
            f"({reason}); {_CONVERT}"
        ) from error
    except Exception as error:  # torch's loader fails in any way on a damaged file
        raise FileError(
            f"{file} is not a whole file of torch.save ({first_line(error)[:200]}); it may have "
            "been cut short or damaged: copy or download it again"
        ) from error


def _check_plain(file: Path, name: object, tensor: Tensor) -> None:
    """Raise unless a tensor has a name and is stored whole, number by number."""
    if not isinstance(name, str):
        raise FileError(f"{file} names a tensor {name!r}, which is not text; save a state dict")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        kind = "quantized" if tensor.is_quantized else f"{tensor.layout} on {tensor.device}"
        raise FileError(f"{file} stores {name} as {kind}; save plain tensors")
    stored = tensor.untyped_storage().nbytes()
    if tensor.numel() * tensor.element_size() > stored:
        raise FileError(
            f"{file} says that {name} has shape {list(tensor.shape)}, but stores only {stored:,} "
            "bytes of it; save a contiguous copy"
        )
