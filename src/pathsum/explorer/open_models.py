"""The models that a page is about: each with its snapshots, if it is a run, and its card."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pathsum.errors import FileError, InputError, near_misses
from pathsum.model import Model
from pathsum.model.storage import CONFIG
from pathsum.sources import load
from pathsum.sources.named import BUNDLED, bundled_names
from pathsum.training import read_snapshots

CARD = "card.md"


@dataclass(frozen=True, eq=False)
class OpenModel:
    """One model: its name on the page, where it came from, and the folder of its run, if any."""

    name: str
    path: str
    model: Model
    run: Path | None = None
    card: str = ""

    @cached_property
    def snapshots(self) -> dict[int, Model]:
        """The model at each step of its training that was kept, by step."""
        if self.run is None:
            return {}
        return {snapshot.step: snapshot.model for snapshot in read_snapshots(self.run)}

    def at(self, step: int | None) -> Model:
        """The model, or what it was after a number of steps."""
        if step is None:
            return self.model
        if not self.snapshots:
            raise InputError(
                f"{self.name!r} has no snapshots, so there is no step {step} of it; a run of "
                "`pathsum train … --set watching.snapshots=20` has some"
            )
        if step not in self.snapshots:
            nearest = min(self.snapshots, key=lambda known: abs(known - step))
            raise InputError(
                f"no snapshot was kept after step {step} of {self.name!r}; the nearest is {nearest}"
            )
        return self.snapshots[step]


def serve(model: str | Path | Model) -> OpenModel:
    """A model by name, folder or hub id, or one at hand, with what is known beside it."""
    if isinstance(model, Model):
        return OpenModel(model.name, model.name, model)
    folder = BUNDLED / str(model) if str(model) in bundled_names() else Path(model).expanduser()
    card = folder / CARD
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    has_run = bool(_kept(folder))
    loaded = load(model) if not has_run or (folder / CONFIG).exists() else _last(folder)
    # The name it was asked for by, whatever its file calls it: that is how a reader knows it.
    return OpenModel(folder.name, str(model), loaded, folder if has_run else None, text)


def serve_all(models: Sequence[str | Path | Model]) -> tuple[OpenModel, ...]:
    """Several models, each under a name of its own."""
    if not models:
        raise InputError("no model is named; name at least one")
    found: list[OpenModel] = []
    for model in models:
        one = serve(model)
        taken = {other.name for other in found}
        name, number = one.name, 2
        while name in taken:
            name, number = f"{one.name} ({number})", number + 1
        found.append(replace(one, name=name))
    return tuple(found)


def find_served(served: Sequence[OpenModel], name: str | None) -> OpenModel:
    """One of them by name; the first where none is named."""
    if name is None:
        return served[0]
    for one in served:
        if one.name == name:
            return one
    known = [one.name for one in served]
    raise InputError(
        f"no model {name[:60]!r} is open here{near_misses(name, known)}; open are "
        f"{', '.join(map(repr, known))}"
    )


def _kept(folder: Path) -> list[Path]:
    return sorted((folder / "snapshots").glob("step-*")) if folder.is_dir() else []


def _last(folder: Path) -> Model:
    """A run that has not ended yet: its last snapshot."""
    snapshots = read_snapshots(folder)
    if not snapshots:
        raise FileError(f"{folder} holds neither a model nor snapshots of one")
    return snapshots[-1].model
