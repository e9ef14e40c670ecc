"""Checkpoints: one safetensors file with everything a run needs to continue as if never stopped.

Weights and optimizer state are its tensors; the step and the time spent are JSON in its metadata.
It is written under another name and renamed, so a kill at any moment leaves the last good one.
There is no random state to keep: weights are drawn before the first step, and batches are a
function of seed and step.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from pathsum.errors import FileError
from pathsum.model.storage import write_together
from pathsum.model.store import FileStore

CHECKPOINT = "checkpoint.safetensors"
FORMAT, VERSION = "pathsum-checkpoint", 1
# Version 1 files may have the British spelling of the prefix.
_PREFIXES = {"optimiser/": "optimizer/"}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run at a step: tensors are named `weights/…` and `optimizer/…`."""

    step: int
    seconds: float
    tensors: Mapping[str, Tensor]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under a prefix, named without it."""
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a run folder; a failure keeps the previous one."""
    about = {"step": checkpoint.step, "seconds": checkpoint.seconds}
    metadata = {"format": FORMAT, "version": str(VERSION), "about": json.dumps(about)}
    tensors = {name: tensor.contiguous().cpu() for name, tensor in checkpoint.tensors.items()}
    write_together(folder, {CHECKPOINT: lambda file: save_file(tensors, str(file), metadata)})


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint of a run folder, or None if the run was stopped before its first."""
    file = folder / CHECKPOINT
    if not file.exists():
        return None
    store = FileStore(file)
    if store.metadata.get("format") != FORMAT or store.metadata.get("version") != str(VERSION):
        raise FileError(f"{file} is not a checkpoint that this version of pathsum reads")
    about = json.loads(store.metadata["about"])
    tensors = {_current_name(name): store.get(name) for name in store.shapes}
    return Checkpoint(int(about["step"]), float(about["seconds"]), tensors)


def _current_name(name: str) -> str:
    for old, new in _PREFIXES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
