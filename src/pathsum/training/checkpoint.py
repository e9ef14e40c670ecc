"""The saved weights of a run: checkpoints to resume from, and snapshots to study.

**Checkpoint**: one safetensors file with everything a run needs to continue as if never stopped.
Weights and optimizer state are its tensors; the step, the time spent and a checksum are in its
metadata. It is written to a temporary name and renamed, and the previous one is kept, so that a
good one is left if the process is killed or a file is damaged. There is no random state to save:
weights are drawn before the first step, and batches are a function of seed and step.

**Snapshots**: the weights at log-spaced steps. A run in training saves each as a model folder,
`snapshots/step-0000010/`. A bundled run has each as one file of half-precision weights,
`snapshots/step-0000010.safetensors`, with one config, tokenizer and table of counts for all.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from pathsum.base.errors import FileError
from pathsum.base.files import parse_object, write_together
from pathsum.model import Config, Model, Weights
from pathsum.model.storage import read_model
from pathsum.model.store import FileStore

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
SNAPSHOTS, SUFFIX = "snapshots", ".safetensors"
CHECKPOINT_FORMAT, SNAPSHOT_FORMAT, VERSION = "pathsum-checkpoint", "pathsum-snapshot", "1"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run at a step: tensors are named `weights/…` and `optimizer/…`.

    `damage` describes the error in the newest file if this one was read instead.
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
    metadata = {"format": CHECKPOINT_FORMAT, "version": VERSION, "about": json.dumps(about)}
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
    store = _open(file, CHECKPOINT_FORMAT, "a checkpoint")
    text = store.metadata.get("about", "")
    about = parse_object(text, f"the metadata of {file}", "restore the file")
    step, seconds = about.get("step"), about.get("seconds")
    if not isinstance(step, int) or step < 0 or not isinstance(seconds, int | float):
        raise FileError(f"{file} does not state its step; restore the file")
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
    checksum = hashlib.blake2b(about.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        checksum.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A model after a number of steps."""

    step: int
    model: Model


def snapshot_steps(steps: int, count: int) -> tuple[int, ...]:
    """Steps after which to save the weights: 0, and the rest evenly spaced in log(step).

    >>> snapshot_steps(1000, 8)
    (0, 1, 3, 10, 32, 100, 316, 1000)
    """
    if count == 0:
        return ()
    spaced = np.geomspace(1, steps, max(count - 1, 1)).round().astype(int).tolist()
    return tuple(sorted({0, steps, *spaced}))


def save_snapshot(folder: Path, step: int, model: Model) -> None:
    """Save a model as a model folder."""
    model.save(folder / SNAPSHOTS / f"step-{step:07d}")


def save_small_snapshot(folder: Path, step: int, model: Model) -> None:
    """Save only a model's weights, in half precision; the rest comes from the folder's model."""
    tensors: dict[str, Tensor] = {
        name: tensor.to(torch.float16).contiguous().cpu() for name, tensor in model.weights.items()
    }
    about = {"format": SNAPSHOT_FORMAT, "version": VERSION}
    about["config"] = json.dumps(model.config.to_dict())
    name = f"step-{step:07d}{SUFFIX}"
    write_together(folder / SNAPSHOTS, {name: lambda file: save_file(tensors, str(file), about)})


def read_snapshots(folder: Path | str) -> tuple[Snapshot, ...]:
    """The snapshots of a run, in order; tensors are read when first used."""
    run = Path(folder)
    entries = [
        entry
        for entry in (run / SNAPSHOTS).glob("step-*")
        if entry.is_dir() or entry.suffix == SUFFIX
    ]
    shared = read_model(run) if any(not entry.is_dir() for entry in entries) else None
    snapshots: list[Snapshot] = []
    for entry in sorted(entries, key=_step):
        if shared is not None and not entry.is_dir():
            snapshots.append(Snapshot(_step(entry), _with_weights(shared, entry)))
        elif not _is_unfinished(entry):
            snapshots.append(Snapshot(_step(entry), read_model(entry)))
    return tuple(snapshots)


def _is_unfinished(folder: Path) -> bool:
    """Whether the run was killed before a file of a snapshot was in place; resuming repeats it."""
    return all(file.suffix == ".part" for file in folder.iterdir())


def _step(entry: Path) -> int:
    number = entry.name.removesuffix(SUFFIX).removeprefix("step-")
    if not number.isdecimal():
        raise FileError(
            f"{entry} is not a snapshot; names like step-0000010 or step-0000010.safetensors are "
            "expected in this folder"
        )
    return int(number)


def _with_weights(shared: Model, file: Path) -> Model:
    store = _open(file, SNAPSHOT_FORMAT, "a snapshot")
    text = store.metadata.get("config", "")
    # As configs, not as JSON: a file from before a field was added means its default.
    config = parse_object(text, f"the config of {file}", "restore the file")
    if Config.from_dict(config) != shared.config:
        raise FileError(
            f"{file} and {shared.name!r} have different configs, so they belong to different runs; "
            "restore the file that belongs to this run"
        )
    return dataclasses.replace(shared, weights=Weights(shared.config, store))


def _open(file: Path, file_format: str, what: str) -> FileStore:
    store = FileStore(file)
    if (store.metadata.get("format"), store.metadata.get("version")) != (file_format, VERSION):
        raise FileError(f"{file} is not {what} that this version of pathsum reads")
    return store
