"""Models that are open in the explorer, each with its snapshots and its card if it has them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pathsum.base.errors import FileError, InputError, near_misses
from pathsum.base.files import exists, read_text
from pathsum.model import Model
from pathsum.model.storage import CONFIG
from pathsum.sources import FETCHED, load
from pathsum.sources.named import BUNDLED, bundled_names
from pathsum.training import read_snapshots

CARD = "card.md"


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A model with its name on the page, its origin, and the folder of its training run, if any.

    `files` identifies the files that it was opened from; empty if it was not, or if they changed
    meanwhile.
    """

    name: str
    path: str
    model: Model
    run: Path | None = None
    card: str = ""
    files: str = ""

    @cached_property
    def snapshots(self) -> dict[int, Model]:
        """The model at each training step that has a snapshot."""
        if self.run is None:
            return {}
        return {snapshot.step: snapshot.model for snapshot in read_snapshots(self.run)}

    def at(self, step: int | None) -> Model:
        """The model at a training step; the final one for None."""
        if step is None:
            return self.model
        if not self.snapshots:
            raise InputError(
                f"{self.name!r} has no snapshots, so step {step} is not available; train with "
                "`pathsum train … --set watching.snapshots=20` to keep some"
            )
        if step not in self.snapshots:
            nearest = min(self.snapshots, key=lambda known: abs(known - step))
            raise InputError(
                f"{self.name!r} has no snapshot at step {step}; the nearest is {nearest}"
            )
        return self.snapshots[step]


def open_model(model: str | Path | Model) -> OpenModel:
    """Open a model by name, folder or hub id, or one that is already loaded."""
    if isinstance(model, Model):
        return OpenModel(model.name, model.name, model)
    folder = BUNDLED / str(model) if str(model) in bundled_names() else Path(model).expanduser()
    card = folder / CARD
    text = read_text(card) if exists(card) else ""
    stored = FETCHED[str(model)].file if str(model) in FETCHED else folder
    before = _identify(stored)
    has_run = bool(snapshot_files(folder))
    loaded = load(model) if not has_run or (folder / CONFIG).exists() else _last_snapshot(folder)
    # Named as the user named it, whatever its file says.
    run = folder if has_run else None
    files = before if before == _identify(stored) else ""
    return OpenModel(folder.name, str(model), loaded, run, text, files)


def open_models(models: Sequence[str | Path | Model]) -> tuple[OpenModel, ...]:
    """Open several models, each under a unique name."""
    if not models:
        raise InputError("no model is named; name at least one")
    found: list[OpenModel] = []
    for model in models:
        one = open_model(model)
        taken = {other.name for other in found}
        name, number = one.name, 2
        while name in taken:
            name, number = f"{one.name} ({number})", number + 1
        found.append(replace(one, name=name))
    return tuple(found)


def find_model(models: Sequence[OpenModel], name: str | None) -> OpenModel:
    """An open model by name; the first for None."""
    if name is None:
        return models[0]
    for one in models:
        if one.name == name:
            return one
    known = [one.name for one in models]
    raise InputError(
        f"no model {name[:60]!r} is open here{near_misses(name, known)}; open models: "
        f"{', '.join(map(repr, known))}"
    )


def bundled_config(name: str) -> dict[str, Any]:
    """The config of a bundled model, as stored; the model is not loaded."""
    return json.loads((BUNDLED / name / CONFIG).read_text())["config"]


def snapshot_files(folder: Path) -> list[Path]:
    """The snapshots in the folder of a run."""
    return sorted((folder / "snapshots").glob("step-*")) if exists(folder) else []


def _identify(path: Path) -> str:
    """Names, sizes, times and inodes of a model's files; empty if there are none at this path."""
    if not exists(path):
        return ""
    parts = [path, *path.glob("*"), *path.glob("snapshots/**/*")] if path.is_dir() else [path]
    states = [(str(file.absolute()), file.stat()) for file in sorted(parts) if file.is_file()]
    known = [(name, at.st_size, at.st_mtime_ns, at.st_ino) for name, at in states]
    return json.dumps(known) if known else ""


def _last_snapshot(folder: Path) -> Model:
    """The last snapshot of a run that has not finished."""
    snapshots = read_snapshots(folder)
    if not snapshots:
        raise FileError(f"{folder} holds neither a model nor snapshots of one")
    return snapshots[-1].model
