"""The folder of a run: checkpoints to resume from, snapshots to study, run.json, held-out text.

**Checkpoint**: one safetensors file with which a run continues bit for bit. Its tensors are the
weights and the optimizer state; its metadata are the step, the training time and a checksum. The
file is written under a temporary name and renamed, and the previous checkpoint is kept, so that a
good one remains if the process is killed or a file is damaged. There is no random state to save:
weights are drawn before the first step, and batches are a function of seed and step.

**Snapshots**: the weights at log-spaced steps. Training saves each as a model folder,
`snapshots/step-0000010/`. A bundled run has half-precision weights in one file per snapshot,
`snapshots/step-0000010.safetensors`, and shares its config, tokenizer and counts.
"""

import dataclasses
import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from safetensors.torch import save_file
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.errors import FileError, InputError, near_misses
from pathsum.base.files import (
    exists,
    parse_object,
    read_object,
    user_path,
    write_text,
    write_together,
)
from pathsum.model import Config, Model, Weights
from pathsum.model.storage import HELD_OUT, read_held_out, read_model
from pathsum.model.store import FileStore
from pathsum.sources.named import BUNDLED, bundled_names, known_names
from pathsum.text import Corpus, Tokenizer
from pathsum.text.packages import NAMED
from pathsum.text.shards import HEAD, spaced
from pathsum.training.recipe import Recipe, differences

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
SNAPSHOTS, SUFFIX = "snapshots", ".safetensors"
CHECKPOINT_FORMAT, SNAPSHOT_FORMAT, VERSION = "pathsum-checkpoint", "pathsum-snapshot", "1"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run at a step, with tensors named `weights/…` and `optimizer/…`.

    `damage` describes the error in the newest file if this one was read instead.
    """

    step: int
    seconds: float
    tensors: Mapping[str, Tensor]
    damage: str = ""

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under a prefix, which is removed from their names."""
        names = [name for name in self.tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.tensors[name] for name in names}


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a run, and keep the previous one; a failure changes neither."""
    about = {"step": checkpoint.step, "seconds": checkpoint.seconds}
    tensors = {name: tensor.contiguous().cpu() for name, tensor in checkpoint.tensors.items()}
    metadata = {"format": CHECKPOINT_FORMAT, "version": VERSION, "about": json.dumps(about)}
    metadata["checksum"] = _checksum(tensors, metadata["about"])

    def write(file: Path) -> None:
        save_file(tensors, str(file), metadata)
        _keep_previous(folder)

    write_together(folder, {CHECKPOINT: write})


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest good checkpoint of a run; None before the first checkpoint."""
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
    # The oldest files have no checksum.
    if store.metadata.get("checksum") not in (None, _checksum(tensors, text)):
        raise FileError(f"{file} is damaged: its contents do not match its checksum")
    # Version 1 files may have the British spelling.
    tensors = {re.sub("^optimiser/", "optimizer/", name): t for name, t in tensors.items()}
    return Checkpoint(step, float(seconds), tensors)


def _keep_previous(folder: Path) -> None:
    """Rename the newest checkpoint to the previous one, by a link until it is replaced."""
    newest, link = folder / CHECKPOINT, folder / f".{PREVIOUS}.{os.getpid()}.part"
    if newest.exists():
        link.unlink(missing_ok=True)
        try:
            link.hardlink_to(newest)
        except OSError:  # without links, there is no newest checkpoint for a moment
            link = newest
        link.replace(folder / PREVIOUS)


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
    """The steps of snapshots: 0, and others evenly spaced in log(step).

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
    """Save only the weights, in half precision; readers take the rest from the final model."""
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
    models: dict[int, Model] = {}
    shared: Model | None = None
    for entry in (run / SNAPSHOTS).glob("step-*"):
        if entry.suffix == SUFFIX:
            shared = read_model(run) if shared is None else shared
            models[_step(entry)] = _with_weights(shared, entry)
        elif entry.is_dir():
            step = _step(entry)
            # If all files are temporary, the run was killed before it saved the snapshot.
            if any(file.suffix != ".part" for file in entry.iterdir()):
                models[step] = read_model(entry)
    return tuple(Snapshot(step, models[step]) for step in sorted(models))


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
    # Compared as configs, not as JSON, because older files lack newer fields.
    config = parse_object(text, f"the config of {file}", "restore the file")
    if Config.from_dict(config) != shared.config:
        raise FileError(
            f"{file} and {shared.name!r} have different configs, so they belong to different runs; "
            "restore the file that belongs to this run"
        )
    return dataclasses.replace(shared, weights=Weights(shared.config, store))


def _open(file: Path, file_format: str, kind: str) -> FileStore:
    store = FileStore(file)
    if (store.metadata.get("format"), store.metadata.get("version")) != (file_format, VERSION):
        raise FileError(f"{file} is not {kind} that this version of pathsum reads")
    return store


RUN = "run.json"
RUN_FORMAT, RUN_VERSION = "pathsum-run", 1
# Enough to resolve 0.1 nats between two positions of a text; 256 kB at context 256.
HELD_OUT_SEQUENCES = 256


def write_run(folder: Path, recipe: Recipe, corpus: dict[str, Any]) -> None:
    """Write run.json: the recipe, the corpus, and the torch version and thread count."""
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    values = {"format": RUN_FORMAT, "version": RUN_VERSION, "recipe": recipe.to_dict()}
    text = json.dumps({**values, "corpus": corpus, "machine": machine}, indent=2) + "\n"
    write_text(folder / RUN, text)


def read_run(folder: Path) -> dict[str, Any]:
    """The values of run.json; raises an error if the folder contains no run."""
    file = folder / RUN
    if not file.exists():
        raise InputError(
            f"{folder} holds no run to resume (it has no {RUN}); start it without --resume, or "
            "name the folder of a run"
        )
    values = read_object(file, "restore the file")
    if values.get("format") != RUN_FORMAT or values.get("version") != RUN_VERSION:
        raise FileError(f"{file} is not a run that this version of pathsum reads")
    recipe, corpus = values.get("recipe"), values.get("corpus")
    if not isinstance(recipe, dict) or not isinstance(corpus, dict):
        raise FileError(f"{file} lacks the recipe or the corpus of the run; restore the file")
    for name in ("fingerprint", "folder"):
        if not isinstance(corpus.get(name), str):
            raise FileError(f"{file} does not state the corpus's {name}; restore the file")
    if "optimiser" in recipe:  # version 1 files may have the British spelling
        recipe["optimizer"] = recipe.pop("optimiser")
    return values


def read_recipe(folder: Path) -> Recipe:
    """The recipe of the run in a folder."""
    return Recipe.from_dict(read_run(folder)["recipe"])


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """A recipe with absolute paths of its corpus and tokenizer, if they are files."""
    data = recipe.data
    if data.corpus not in NAMED and exists(user_path(data.corpus)):
        data = replace(data, corpus=str(user_path(data.corpus).absolute()))
    if data.tokenizer:
        data = replace(data, tokenizer=str(user_path(data.tokenizer).absolute()))
    return replace(recipe, data=data)


def check_same_recipe(folder: Path, recipe: Recipe) -> None:
    """Raise an error that lists the settings in which the run in a folder differs from a recipe."""
    changes = differences(with_absolute_paths(read_recipe(folder)), with_absolute_paths(recipe))
    if changes:
        text = "; ".join(f"{name} is {old!r} there and {new!r} here" for name, old, new in changes)
        raise InputError(
            f"the run in {folder} was started with other settings: {text}; resume it with its "
            "own settings, or start a new run in another folder"
        )


def check_resumed(folder: Path, recipe: Recipe, fingerprint: str) -> None:
    """Raise an error if a run has another recipe or its text has changed; check its threads.

    Another number of threads adds numbers in another order, which changes their last bits.
    """
    check_same_recipe(folder, recipe)
    run = read_run(folder)
    original, machine = run["corpus"]["fingerprint"], run.get("machine")
    if original != fingerprint:
        raise InputError(
            f"the run in {folder} learned from a text with fingerprint {original[:16]}, and the "
            f"corpus now has {fingerprint[:16]}: its files have changed; restore them, or start a "
            "new run"
        )
    threads = machine.get("threads") if isinstance(machine, dict) else None
    if isinstance(threads, int) and threads != torch.get_num_threads():
        warnings.warn(
            f"the run in {folder} began with {threads} threads and continues with "
            f"{torch.get_num_threads()}: its weights may differ in the last bits from a run "
            f"that was never stopped; set OMP_NUM_THREADS={threads} to avoid that",
            stacklevel=2,
        )


def held_out_tokens(
    folder: Path, sequences: int, progress: Progress = silent
) -> Int[Tensor, "sequence pos"]:
    """The held-out sequences of a run, from its folder or else from its corpus.

    A corpus that is not in the cache is rebuilt. Raises an error if its text has changed, because
    text that is held out today may have been trained on.
    """
    held_out = read_held_out(folder)
    if held_out is not None:
        return held_out[spaced(len(held_out), sequences)]
    if not (folder / RUN).exists():
        raise InputError(
            f"{folder} has neither {HELD_OUT} nor {RUN}, so its held-out text is not known; give "
            "token ids, tokens=[sequence, pos]"
        )
    recipe, corpus = read_recipe(folder), read_run(folder)["corpus"]
    saved, original = Path(corpus["folder"]), corpus["fingerprint"]
    current = Corpus.at(saved) if (saved / HEAD).exists() else open_corpus(recipe, progress)
    info = current.info
    if info.fingerprint != original:
        raise InputError(
            f"the run in {folder} learned from a text with fingerprint {original[:16]}, and the "
            f"corpus {info.name!r} is another one here ({info.fingerprint[:16]}), "
            "so the held-out text is unknown; give token ids, tokens=[sequence, pos]"
        )
    return current.held_out_batch(sequences, recipe.config.n_ctx)


def reopen_corpus(folder: Path, recipe: Recipe, progress: Progress = silent) -> Corpus:
    """The corpus of a resumed run, from its text or, if that does not exist, from its tokens."""
    corpus = read_run(folder)["corpus"]
    text, saved = recipe.data.corpus, Path(corpus["folder"])
    is_missing = text not in NAMED and not exists(user_path(text))
    if is_missing and (saved / HEAD).exists():
        return Corpus.at(saved)
    try:
        return open_corpus(recipe, progress)
    except InputError as error:
        if not is_missing or Path(text).is_absolute():
            raise
        raise InputError(
            f"the run in {folder} learned from {text!r}, a relative path that does not exist here; "
            f"resume it in the folder that contains {text!r}"
        ) from error


def open_corpus(recipe: Recipe, progress: Progress = silent) -> Corpus:
    """The corpus of a recipe, built if it is not in the cache."""
    options = dataclasses.asdict(recipe.data)
    text, file = options.pop("corpus"), options.pop("tokenizer")
    tokenizer = Tokenizer.from_file(user_path(file)) if file else None
    return Corpus.open(text, tokenizer=tokenizer, **options, progress=progress)


def bundled_runs() -> tuple[str, ...]:
    """The names of bundled models with snapshots of their training."""
    return tuple(name for name in bundled_names() if (BUNDLED / name / SNAPSHOTS).is_dir())


def find_run(run: str | Path) -> Path:
    """The folder of a run, by the name of a bundled run or by its path."""
    text = str(run)
    if isinstance(run, str) and text in bundled_runs():
        return BUNDLED / text
    folder = user_path(text)
    if exists(folder) and folder.is_dir():
        return folder
    bundled = f" ({', '.join(bundled_runs())})" if bundled_runs() else ""
    if isinstance(run, str) and text in known_names():
        raise InputError(
            f"the model {text!r} comes without snapshots of its training; give the folder of a "
            f"run, or the name of a bundled run{bundled}"
        )
    raise FileError(
        f"there is no run {text!r}{near_misses(text, bundled_runs())}: it is neither a folder nor "
        f"a bundled run{bundled}"
    )
