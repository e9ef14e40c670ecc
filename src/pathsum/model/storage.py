"""Model folders: config.json, model.safetensors, tokenizer.json, held_out.safetensors.

config.json carries `"format": "pathsum-model"`, a version, and the edits of an edited model. To
detect files of different saves, it also holds the id of its save and a checksum of the tokenizer;
the safetensors file repeats the id and the config in its metadata, and held-out text the id.
Folders without ids, written by older versions, open too.
"""

import json
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pathsum.base import HeadId, Site
from pathsum.base.errors import FileError, InputError
from pathsum.base.files import (
    digest,
    finish_saving,
    parse_json,
    read_object,
    read_text,
    write_together,
)
from pathsum.model.config import Config
from pathsum.model.edit import Edit
from pathsum.model.sites import check_edit
from pathsum.model.store import CHECKSUMS, FileStore, checksum
from pathsum.model.weights import HALF, Weights
from pathsum.text import Tokenizer

if TYPE_CHECKING:
    from pathsum.model.model import Model

FORMAT = "pathsum-model"
VERSION = 1
CONFIG, TENSORS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
# Held-out text is read whole; the bundled models have 16,384 tokens of it.
MAX_HELD_OUT_TOKENS = 1 << 24
HELD_OUT, HELD_OUT_FORMAT, HELD_OUT_VERSION = "held_out.safetensors", "pathsum-held-out", 1


def read_model(folder: Path) -> "Model":
    """Open a model folder: config and names are checked, tensors are mapped, not read."""
    from pathsum.model.model import Model

    try:
        finish_saving(folder)
    except OSError as error:
        raise FileError(
            f"a save to {folder} was interrupted and cannot be finished ({error.strerror}); make "
            "the folder writable"
        ) from error
    head = _read_head(folder)
    config = Config.from_dict(head["config"])
    if not (folder / TENSORS).exists():
        raise FileError(_no_tensors(folder))
    store = FileStore(folder / TENSORS)
    _check_same_save(folder, head, store)
    counts = store.get("token_counts") if "token_counts" in store.shapes else None
    unedited = Weights(config, store)  # its sizes are checked before edits are
    edits = tuple(
        _read_edit(folder, config, store, item) for item in _listed(folder, head, "edits")
    )
    return Model(
        weights=Weights(config, store, edits=edits) if edits else unedited,
        name=str(head.get("name", folder.name)),
        tokenizer=_read_tokenizer(folder, head),
        token_counts=counts,
        transformations=tuple(map(str, _listed(folder, head, "transformations"))),
        held_out=read_held_out(folder, save=head.get("save")),
    )


def _check_same_save(folder: Path, head: dict[str, Any], store: FileStore) -> None:
    config, save = store.metadata.get("config"), store.metadata.get("save")
    repeated = None if config is None else parse_json(config, store.file, "save the model again")
    if repeated not in (None, head["config"]) or save not in (None, head.get("save")):
        raise FileError(
            f"{folder / CONFIG} and {folder / TENSORS} come from different saves (their configs "
            "or save ids differ); save the model again, or restore the matching file"
        )


def _read_tokenizer(folder: Path, head: dict[str, Any]) -> Tokenizer | None:
    file = folder / TOKENIZER
    exists, checksum = file.exists(), head.get("tokenizer")
    if not exists and checksum is None:
        return None
    text = read_text(file) if exists else ""
    if checksum is not None and digest(text) != checksum:
        raise FileError(
            f"{file} is {'not the one' if exists else 'missing, the one'} that {CONFIG} was saved "
            f'with; save the model again, or remove "tokenizer" from {CONFIG} to use it anyway'
        )
    return Tokenizer.from_json(text, str(file))


def _listed(folder: Path, head: dict[str, Any], name: str) -> list[Any]:
    value = head.get(name, [])
    if not isinstance(value, list):
        raise FileError(f"{folder / CONFIG} says {name}={value!r}, which is not a list; correct it")
    return value


def write_model(folder: Path, model: "Model") -> None:
    """Write a model folder; a failure leaves the old files intact and no partial ones."""
    weights, token_counts, held_out = model.weights, model.token_counts, model.held_out
    config, save = weights.config.to_dict(), secrets.token_hex(8)
    text = None if model.tokenizer is None else model.tokenizer.to_json()
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "save": save,
        "name": model.name,
        "config": config,
        "transformations": list(model.transformations),
    }
    if text is not None:
        head["tokenizer"] = digest(text)
    tensors = {key: _as_stored(weights, key, tensor) for key, tensor in weights.items()}
    _separate(tensors)
    if weights.edits:
        head["edits"] = [
            _write_edit(f"edits.{number}", edit, tensors)
            for number, edit in enumerate(weights.edits)
        ]
    if token_counts is not None:
        tensors["token_counts"] = token_counts.to(torch.int64).contiguous().cpu()
    metadata = {"format": FORMAT, "version": str(VERSION), "save": save}
    metadata["config"] = json.dumps(config)
    metadata[CHECKSUMS] = json.dumps({key: checksum(tensor) for key, tensor in tensors.items()})
    writers: dict[str, Callable[[Path], object]] = {
        TENSORS: lambda file: save_file(tensors, str(file), metadata),
        CONFIG: lambda file: file.write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8"),
    }
    if text is not None:
        writers[TOKENIZER] = lambda file: file.write_text(text, encoding="utf-8")
    if held_out is not None:
        writers[HELD_OUT] = lambda file: _write_held_out(file, held_out, save)
    write_together(folder, writers, remove={TOKENIZER, HELD_OUT} - writers.keys())


def _as_stored(weights: Weights, name: str, tensor: Tensor) -> Tensor:
    """A tensor to be saved: weights that were loaded in half precision are saved in it."""
    stored = weights.store.dtypes[name]
    if stored in HALF and weights.dtype == torch.float32:
        tensor = tensor.to(stored)
    return tensor.contiguous().cpu()


def _separate(tensors: dict[str, Tensor]) -> None:
    """Copy tensors that share memory with others, which safetensors cannot store."""
    storages: set[int] = set()
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        if memory in storages and tensor.numel():
            tensors[name] = tensor.clone()
        storages.add(memory)


def read_held_out(folder: Path, save: str | None = None) -> Tensor | None:
    """Held-out sequences that a folder keeps, [sequence, pos]; None if it keeps none.

    With the id of the model's `save`, text of another save is an error.
    """
    file = folder / HELD_OUT
    if not file.exists():
        return None
    store = FileStore(file)
    expected = {"format": HELD_OUT_FORMAT, "version": str(HELD_OUT_VERSION)}
    if {name: store.metadata.get(name) for name in expected} != expected:
        raise FileError(f"{file} is not held-out text that this version of pathsum reads")
    if save is not None and store.metadata.get("save") not in (None, save):
        raise FileError(
            f"{file} and {folder / CONFIG} come from different saves (their save ids differ); "
            "save the model again, or remove the held-out text"
        )
    shape = store.shapes.get("tokens", ())
    if len(shape) != 2 or store.dtypes["tokens"].is_floating_point:
        raise FileError(f"{file} holds no table of token ids; train or save the model again")
    if math.prod(shape) > MAX_HELD_OUT_TOKENS:
        raise FileError(
            f"{file} holds {math.prod(shape):,} tokens, and at most {MAX_HELD_OUT_TOKENS:,} are "
            "read; keep fewer sequences"
        )
    return store.get("tokens").long()


def save_held_out(folder: Path, tokens: Tensor) -> None:
    """Keep held-out sequences in a folder that has no model yet, so that a run can be followed."""
    write_together(folder, {HELD_OUT: lambda file: _write_held_out(file, tokens)})


def _write_held_out(file: Path, tokens: Tensor, save: str | None = None) -> None:
    about = {"format": HELD_OUT_FORMAT, "version": str(HELD_OUT_VERSION)}
    if save is not None:
        about["save"] = save
    save_file({"tokens": tokens.to(torch.int32).contiguous().cpu()}, str(file), about)


def _write_edit(name: str, edit: Edit, tensors: dict[str, Tensor]) -> dict[str, str]:
    """An edit as JSON; its tensor, if a run needs one, goes to the others."""
    record = {"site": str(edit.site), "value": edit.label}
    if isinstance(edit.value, Site):
        record["like"] = str(edit.value.writer)
    if isinstance(edit.value, Tensor):
        record["tensor"] = name
        tensors[name] = edit.value.contiguous().cpu()
    return record


def _read_edit(folder: Path, config: Config, store: FileStore, item: Any) -> Edit:
    unreadable = FileError(
        f"{folder / CONFIG} lists an edit of the model that cannot be read, {item!r}; save the "
        "edited model again"
    )
    if not isinstance(item, dict):
        raise unreadable
    record: dict[str, Any] = item
    name, other = record.get("tensor"), record.get("like")
    if name is not None and (not isinstance(name, str) or name not in store.shapes):
        raise unreadable
    try:
        site, value = Site.parse(record["site"]), str(record["value"])
        other = None if other is None else HeadId.parse(other)
    except (KeyError, TypeError, InputError) as error:
        raise unreadable from error
    tensor = None if name is None else store.get(name)
    try:
        check_edit(config, site, tensor, other)
    except InputError as error:
        raise FileError(
            f"{folder / CONFIG} lists an edit that this model cannot make: {error}; save the "
            "edited model again"
        ) from error
    return Edit(site, tensor if other is None else Site(other, value="pattern"), label=value)


def _read_head(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    if not file.exists():
        raise FileError(f"{folder} has no {CONFIG}, so it is not a model that pathsum saved")
    head = read_object(file, "save the model again")
    if head.get("format") != FORMAT:
        value = head.get("format")
        raise FileError(
            f'{file} does not say \'"format": "{FORMAT}"\' (it says {value!r}), so it is not a '
            "model that pathsum saved"
        )
    if head.get("version") != VERSION:
        raise FileError(
            f"{file} is of version {head.get('version')!r} of the format, and this pathsum reads "
            f"version {VERSION}; use the pathsum that wrote it, or save it again"
        )
    if not isinstance(head.get("config"), dict):
        raise FileError(f"{file} has no config in it; save the model again")
    return head


def _no_tensors(folder: Path) -> str:
    pickles = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
    if pickles:
        return (
            f"{folder} holds {pickles[0].name} and no {TENSORS}: a pickle can run code when "
            "opened, so pathsum does not open it; save the weights as safetensors"
        )
    return f"{folder} has no {TENSORS}; a model folder holds {CONFIG} and {TENSORS}"
