"""Checkpoints: one safetensors file that holds all that a run needs to go on as if never stopped.

Weights and optimizer state are its tensors; step, recipe and corpus are JSON in its metadata. It is
written aside and renamed, so a kill at any moment leaves the last good one. No random state is
kept, because none exists: weights are drawn before the first step, and batches are a function of
seed and step.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pathsum.errors import FileError, InputError
from pathsum.model.storage import write_together
from pathsum.model.store import FileStore
from pathsum.training.recipe import Recipe, differences

CHECKPOINT, RUN = "checkpoint.safetensors", "run.json"
FORMAT, VERSION = "pathsum-checkpoint", 1
RUN_FORMAT, RUN_VERSION = "pathsum-run", 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run at a step: tensors are `weights/…` and `optimizer/…`."""

    step: int
    seconds: float
    tensors: Mapping[str, Tensor]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under a prefix, by what follows it."""
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a run folder; a failure leaves the one before."""
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
        raise FileError(f"{file} is not a checkpoint that this pathsum reads")
    about = json.loads(store.metadata["about"])
    tensors = {name: store.get(name) for name in store.shapes}
    return Checkpoint(int(about["step"]), float(about["seconds"]), tensors)


def write_run(folder: Path, recipe: Recipe, corpus: dict[str, Any]) -> None:
    """Write run.json: the recipe, the corpus, and what results depend on to the last bit."""
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    values = {"format": RUN_FORMAT, "version": RUN_VERSION, "recipe": recipe.to_dict()}
    text = json.dumps({**values, "corpus": corpus, "machine": machine}, indent=2) + "\n"
    write_together(folder, {RUN: lambda file: file.write_text(text, encoding="utf-8")})


def read_run(folder: Path) -> dict[str, Any]:
    """What run.json says; an error if the folder holds no run."""
    file = folder / RUN
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"{folder} holds no run to resume (it has no {RUN}); start it without --resume, or "
            "name the folder of one"
        ) from error
    except ValueError as error:
        raise FileError(f"{file} is not JSON ({error})") from error
    if values.get("format") != RUN_FORMAT or values.get("version") != RUN_VERSION:
        raise FileError(f"{file} is not of a run that this pathsum reads")
    return values


def refuse_other_settings(folder: Path, asked: Recipe) -> None:
    """An error that names every setting in which a run differs from what is asked for."""
    told = read_run(folder)
    found = differences(Recipe.from_dict(told["recipe"]), asked)
    if found:
        listed = "; ".join(f"{name} is {old!r} there and {new!r} here" for name, old, new in found)
        raise InputError(
            f"the run in {folder} was started with other settings: {listed}; resume it with its "
            "own, or start another in another folder"
        )


def refuse_other_text(folder: Path, fingerprint: str) -> None:
    """An error if a run's corpus has changed since it began."""
    told = str(read_run(folder)["corpus"]["fingerprint"])
    if told != fingerprint:
        raise InputError(
            f"the run in {folder} learned from a text with fingerprint {told[:16]}, and the corpus "
            f"is another one ({fingerprint[:16]}): its files have changed; bring them back, or "
            "start another run"
        )
