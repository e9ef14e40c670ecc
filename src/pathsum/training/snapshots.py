"""Snapshots: the weights of a run at log-spaced steps, to study how circuits form.

A run in training saves each as a model folder, `snapshots/step-0000010/`. A bundled run has each as
one file of half-precision weights, `snapshots/step-0000010.safetensors`, and one config, tokenizer
and table of counts for all of them.
"""

import dataclasses
import json
from dataclasses import dataclass
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

SNAPSHOTS = "snapshots"
FORMAT, VERSION = "pathsum-snapshot", 1
SUFFIX = ".safetensors"


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
    """Save a model as a folder of its own."""
    model.save(folder / SNAPSHOTS / f"step-{step:07d}")


def save_small_snapshot(folder: Path, step: int, model: Model) -> None:
    """Save only a model's weights, in half precision; the rest comes from the folder's model."""
    tensors: dict[str, Tensor] = {
        name: tensor.to(torch.float16).contiguous().cpu() for name, tensor in model.weights.items()
    }
    about = {"format": FORMAT, "version": str(VERSION)}
    about["config"] = json.dumps(model.config.to_dict())
    name = f"step-{step:07d}{SUFFIX}"
    write_together(folder / SNAPSHOTS, {name: lambda file: save_file(tensors, str(file), about)})


def read_snapshots(folder: Path | str) -> tuple[Snapshot, ...]:
    """The snapshots of a run, in order; tensors are read when first used."""
    run = Path(folder)
    found = (run / SNAPSHOTS).glob("step-*")
    entries = sorted((one for one in found if one.is_dir() or one.suffix == SUFFIX), key=_step)
    files = [one for one in entries if one.suffix == SUFFIX]
    shared = read_model(run) if files else None
    folders = [one for one in entries if one.is_dir() and not _is_unfinished(one)]
    snapshots = [Snapshot(_step(one), read_model(one)) for one in folders]
    if shared is not None:
        snapshots += [Snapshot(_step(one), _with_weights(shared, one)) for one in files]
    return tuple(sorted(snapshots, key=lambda snapshot: snapshot.step))


def _is_unfinished(folder: Path) -> bool:
    """Whether a kill came before anything of a snapshot was in place; a resumed run repeats it."""
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
    store = FileStore(file)
    about = store.metadata
    if about.get("format") != FORMAT or about.get("version") != str(VERSION):
        raise FileError(f"{file} is not a snapshot that this version of pathsum reads")
    # As configs, not as JSON: a file from before a field was added means its default.
    config = parse_object(about.get("config", ""), f"the config of {file}", "restore the file")
    if Config.from_dict(config) != shared.config:
        raise FileError(
            f"{file} and {shared.name!r} have different configs, so they are of different runs; "
            "restore the file that belongs to this run"
        )
    return dataclasses.replace(shared, weights=Weights(shared.config, store))
