"""Snapshots: the weights of a run at log-spaced steps, for looking at how circuits form."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathsum.model import Model
from pathsum.sources.named import open_folder

SNAPSHOTS = "snapshots"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A model as it was after a number of steps."""

    step: int
    model: Model


def snapshot_steps(steps: int, count: int) -> tuple[int, ...]:
    """Steps after which to keep the weights: 0, and the rest evenly spaced in log(step).

    >>> snapshot_steps(1000, 8)
    (0, 1, 3, 10, 32, 100, 316, 1000)
    """
    if count == 0:
        return ()
    spaced = np.geomspace(1, steps, max(count - 1, 1)).round().astype(int).tolist()
    return tuple(sorted({0, steps, *spaced}))


def save_snapshot(folder: Path, step: int, model: Model) -> None:
    """Keep a model as a folder of its own."""
    model.save(folder / SNAPSHOTS / f"step-{step:07d}")


def read_snapshots(folder: Path | str) -> tuple[Snapshot, ...]:
    """The snapshots of a run, in order; tensors are read when they are used."""
    found = sorted((Path(folder) / SNAPSHOTS).glob("step-*"))
    return tuple(Snapshot(int(one.name.removeprefix("step-")), open_folder(one)) for one in found)
