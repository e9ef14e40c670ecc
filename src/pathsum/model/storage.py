"""Model folders: config.json, model.safetensors, tokenizer.json, held_out.safetensors.

config.json carries `"format": "pathsum-model"`, a version, and the edits of an edited model. The
safetensors file repeats the config in its metadata, so that files of two different saves are
detected.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from pathsum.errors import FailedError, FileError, InputError
from pathsum.model.config import Config
from pathsum.model.edits import ModelEdit
from pathsum.model.store import FileStore
from pathsum.model.weights import Weights
from pathsum.names import HeadId, Site
from pathsum.text import Tokenizer

FORMAT = "pathsum-model"
VERSION = 1
CONFIG, TENSORS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
HELD_OUT, HELD_OUT_FORMAT, HELD_OUT_VERSION = "held_out.safetensors", "pathsum-held-out", 1


@dataclass(frozen=True, eq=False)
class Stored:
    """What a model folder holds."""

    weights: Weights
    name: str
    tokenizer: Tokenizer | None
    token_counts: Tensor | None
    transformations: tuple[str, ...]
    held_out: Tensor | None


def read_model(folder: Path) -> Stored:
    """Open a model folder: config and names are checked, tensors are mapped, not read."""
    head = _read_head(folder)
    config = Config.from_dict(head["config"])
    if not (folder / TENSORS).exists():
        raise FileError(_no_tensors(folder))
    store = FileStore(folder / TENSORS)
    stored = store.metadata.get("config")
    if stored is not None and json.loads(stored) != head["config"]:
        raise FileError(
            f"{folder / CONFIG} and {folder / TENSORS} come from different saves (their configs "
            "differ); save the model again, or restore the matching file"
        )
    counts = store.get("token_counts") if "token_counts" in store.shapes else None
    edits = tuple(_read_edit(folder, store, given) for given in head.get("edits", ()))
    file = folder / TOKENIZER
    return Stored(
        weights=Weights(config, store, edits=edits),
        name=str(head.get("name", folder.name)),
        tokenizer=Tokenizer.from_file(file) if file.exists() else None,
        token_counts=counts,
        transformations=tuple(head.get("transformations", ())),
        held_out=read_held_out(folder),
    )


def write_model(
    folder: Path,
    weights: Weights,
    *,
    name: str,
    tokenizer: Tokenizer | None,
    token_counts: Tensor | None,
    transformations: tuple[str, ...],
    held_out: Tensor | None = None,
) -> None:
    """Write a model folder; a failure leaves the old files intact and no partial ones."""
    config = weights.config.to_dict()
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "config": config,
        "transformations": list(transformations),
    }
    tensors = {key: tensor.contiguous().cpu() for key, tensor in weights.items()}
    if weights.edits:
        head["edits"] = [
            _write_edit(f"edits.{number}", edit, tensors)
            for number, edit in enumerate(weights.edits)
        ]
    if token_counts is not None:
        tensors["token_counts"] = token_counts.to(torch.int64).contiguous().cpu()
    metadata = {"format": FORMAT, "version": str(VERSION), "config": json.dumps(config)}
    writers: dict[str, Callable[[Path], object]] = {
        TENSORS: lambda file: save_file(tensors, str(file), metadata),
        CONFIG: lambda file: file.write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8"),
    }
    if tokenizer is not None:
        text = tokenizer.to_json()
        writers[TOKENIZER] = lambda file: file.write_text(text, encoding="utf-8")
    if held_out is not None:
        writers[HELD_OUT] = lambda file: _write_held_out(file, held_out)
    write_together(folder, writers)
    if tokenizer is None:
        (folder / TOKENIZER).unlink(missing_ok=True)


def read_held_out(folder: Path) -> Tensor | None:
    """Held-out sequences that a folder keeps, [sequence, pos]; None if it keeps none."""
    file = folder / HELD_OUT
    if not file.exists():
        return None
    store = FileStore(file)
    expected = {"format": HELD_OUT_FORMAT, "version": str(HELD_OUT_VERSION)}
    if {name: store.metadata.get(name) for name in expected} != expected:
        raise FileError(f"{file} is not held-out text that this version of pathsum reads")
    return store.get("tokens").long()


def save_held_out(folder: Path, tokens: Tensor) -> None:
    """Keep held-out sequences in a folder, so that the corpus need not be rebuilt."""
    write_together(folder, {HELD_OUT: lambda file: _write_held_out(file, tokens)})


def _write_held_out(file: Path, tokens: Tensor) -> None:
    about = {"format": HELD_OUT_FORMAT, "version": str(HELD_OUT_VERSION)}
    save_file({"tokens": tokens.to(torch.int32).contiguous().cpu()}, str(file), about)


def _write_edit(name: str, edit: ModelEdit, tensors: dict[str, Tensor]) -> dict[str, str]:
    """An edit as JSON; its tensor, if a run needs one, goes to the others."""
    written = {"site": str(edit.site), "value": edit.value}
    if edit.like is not None:
        written["like"] = str(edit.like)
    if edit.tensor is not None:
        written["tensor"] = name
        tensors[name] = edit.tensor.contiguous().cpu()
    return written


def _read_edit(folder: Path, store: FileStore, given: Any) -> ModelEdit:
    wrong = FileError(
        f"{folder / CONFIG} lists an edit of the model that cannot be read, {given!r}; save the "
        "edited model again"
    )
    if not isinstance(given, dict):
        raise wrong
    known: dict[str, Any] = given
    tensor, like = known.get("tensor"), known.get("like")
    if tensor is not None and tensor not in store.shapes:
        raise wrong
    try:
        return ModelEdit(
            site=Site.parse(known["site"]),
            value=str(known["value"]),
            tensor=None if tensor is None else store.get(tensor),
            like=None if like is None else HeadId.parse(like),
        )
    except (KeyError, InputError) as error:
        raise wrong from error


def write_together(folder: Path, writers: Mapping[str, Callable[[Path], object]]) -> None:
    """Write several files to temporary names and rename them when all are complete."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedError(f"cannot make the folder {folder} ({error})") from error
    aside = {name: folder / f".{name}.{os.getpid()}.part" for name in writers}
    try:
        for name, write in writers.items():
            write(aside[name])
            # safetensors makes files that only their owner can read.
            aside[name].chmod(0o666 & ~_umask())
            _flush_to_disk(aside[name])
        for name, file in aside.items():
            file.replace(folder / name)
    except (OSError, SafetensorError) as error:
        raise FailedError(
            f"saving to {folder} failed ({error}); the old files are unchanged"
        ) from error
    finally:
        # After any failure, Ctrl-C included: temporary files that are left are incomplete.
        for file in aside.values():
            file.unlink(missing_ok=True)


def _umask() -> int:
    """The process's umask; it can only be read by setting it, so set it back."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush_to_disk(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _read_head(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    if not file.exists():
        raise FileError(f"{folder} has no {CONFIG}, so it is not a model that pathsum saved")
    try:
        head = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{file} is not JSON ({error}); save the model again") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = head.get("format") if isinstance(head, dict) else None
        raise FileError(
            f'{file} does not say \'"format": "{FORMAT}"\' (it says {found!r}), so it is not a '
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
