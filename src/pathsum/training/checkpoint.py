"""Checkpoints: one safetensors file with everything a run needs to continue as if never stopped.

Weights and optimizer state are its tensors; the step, the time spent and a checksum are in its
metadata. It is written to a temporary name and renamed, and the previous one is kept, so that a
good one is left if the process is killed or a file is damaged. There is no random state to save:
weights are drawn before the first step, and batches are a function of seed and step.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from pathsum.base.errors import FileError
from pathsum.base.files import parse_object, write_together
from pathsum.model.store import FileStore

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
FORMAT, VERSION = "pathsum-checkpoint", 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run at a step: tensors are named `weights/…` and `optimizer/…`.

    `damage` says what is wrong with the newest file if this one was read instead.
    """

    step: int
    seconds: float
    tensors: Mapping[str, Tensor]
    damage: str = ""

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under a prefix, named without it."""
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a run folder and keep the one before; a failure keeps both."""
    about = {"step": checkpoint.step, "seconds": checkpoint.seconds}
    tensors = {name: tensor.contiguous().cpu() for name, tensor in checkpoint.tensors.items()}
    metadata = {"format": FORMAT, "version": str(VERSION), "about": json.dumps(about)}
    metadata["checksum"] = _checksum(tensors, metadata["about"])

    def write(file: Path) -> None:
        save_file(tensors, str(file), metadata)
        _keep_previous(folder)

    write_together(folder, {CHECKPOINT: write})


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest good checkpoint of a run folder, or None if it was stopped before its first."""
    newest, previous = folder / CHECKPOINT, folder / PREVIOUS
    if not newest.exists() and not previous.exists():
        return None
    try:
        return _read(newest)
    except FileError as error:
        if not previous.exists():
            raise
        return replace(_read(previous), damage=str(error))


def _read(file: Path) -> Checkpoint:
    store = FileStore(file)
    if store.metadata.get("format") != FORMAT or store.metadata.get("version") != str(VERSION):
        raise FileError(f"{file} is not a checkpoint that this version of pathsum reads")
    text = store.metadata.get("about", "")
    about = parse_object(text, f"the metadata of {file}", "restore the file")
    step, seconds = about.get("step"), about.get("seconds")
    if not isinstance(step, int) or step < 0 or not isinstance(seconds, int | float):
        raise FileError(f"{file} does not say its step; restore the file")
    tensors = {name: store.get(name) for name in store.shapes}
    # Files from before there were checksums have none.
    if store.metadata.get("checksum") not in (None, _checksum(tensors, text)):
        raise FileError(f"{file} is damaged: its contents do not match its checksum")
    # Version 1 files may spell the prefix the British way.
    named = {re.sub("^optimiser/", "optimizer/", name): t for name, t in tensors.items()}
    return Checkpoint(step, float(seconds), named)


def _keep_previous(folder: Path) -> None:
    """Give the newest checkpoint a second name, which the next one does not replace."""
    newest, aside = folder / CHECKPOINT, folder / f".{PREVIOUS}.{os.getpid()}.part"
    if not newest.exists():
        return
    aside.unlink(missing_ok=True)
    try:
        aside.hardlink_to(newest)
    except OSError:  # a file system without links: for a moment there is no newest one
        newest.replace(folder / PREVIOUS)
    else:
        aside.replace(folder / PREVIOUS)


def _checksum(tensors: Mapping[str, Tensor], about: str) -> str:
    found = hashlib.blake2b(about.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
