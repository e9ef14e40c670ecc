"""Which folder a run is in: named by path, by what `train` returned, or by a name of its own."""

from pathlib import Path

from pathsum.errors import FileError, InputError, near_misses
from pathsum.sources.named import BUNDLED, bundled_names, known_names
from pathsum.training.snapshots import SNAPSHOTS
from pathsum.training.train import TrainingRun


def bundled_runs() -> tuple[str, ...]:
    """Names of the runs that come with pathsum, snapshots and all."""
    return tuple(name for name in bundled_names() if (BUNDLED / name / SNAPSHOTS).is_dir())


def run_folder(run: str | Path | TrainingRun) -> Path:
    """The folder of a run: a bundled name, else an existing folder with snapshots in it."""
    if isinstance(run, TrainingRun):
        run = Path(run.folder)
    text = str(run)
    if isinstance(run, str) and text in bundled_runs():
        return BUNDLED / text
    folder = Path(text).expanduser()
    if folder.is_dir():
        if not (folder / SNAPSHOTS).is_dir():
            raise InputError(
                f"{folder} has no snapshots, so how it came to be is not known; train with some, "
                "--set watching.snapshots=20"
            )
        return folder
    there = f" (there is {', '.join(bundled_runs())})" if bundled_runs() else ""
    if isinstance(run, str) and text in known_names():
        raise InputError(
            f"the model {text!r} comes without snapshots of its training; the folder of a run, or "
            f"the name of a run that comes with pathsum{there}, would be right"
        )
    raise FileError(
        f"there is no run {text!r}{near_misses(text, bundled_runs())}: it is not a folder, nor a "
        f"run that comes with pathsum{there}"
    )
