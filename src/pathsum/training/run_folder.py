"""The run folder: where it is, its run.json (recipe, corpus, machine), its held-out text."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.errors import FileError, InputError, near_misses
from pathsum.base.files import exists, read_object, user_path, write_text
from pathsum.model.storage import HELD_OUT, read_held_out
from pathsum.sources.named import BUNDLED, bundled_names, known_names
from pathsum.text import Corpus, Tokenizer
from pathsum.text.packages import NAMED
from pathsum.text.shards import HEAD, spaced
from pathsum.training.checkpoint import SNAPSHOTS
from pathsum.training.recipe import Recipe, differences

RUN = "run.json"
RUN_FORMAT, RUN_VERSION = "pathsum-run", 1
# Enough to resolve a tenth of a nat between two positions of a text; a quarter of a megabyte at
# context 256.
HELD_OUT_SEQUENCES = 256


def write_run(folder: Path, recipe: Recipe, corpus: dict[str, Any]) -> None:
    """Write run.json: the recipe, the corpus, and the torch version and thread count."""
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    values = {"format": RUN_FORMAT, "version": RUN_VERSION, "recipe": recipe.to_dict()}
    text = json.dumps({**values, "corpus": corpus, "machine": machine}, indent=2) + "\n"
    write_text(folder / RUN, text)


def read_run(folder: Path) -> dict[str, Any]:
    """The values of run.json; an error if the folder holds no run."""
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


def warn_of_other_threads(folder: Path) -> None:
    """Warn if a run is resumed with another number of threads, which add in another order."""
    machine = read_run(folder).get("machine")
    before = machine.get("threads") if isinstance(machine, dict) else None
    if isinstance(before, int) and before != torch.get_num_threads():
        warnings.warn(
            f"the run in {folder} began with {before} threads and continues with "
            f"{torch.get_num_threads()}: the last bits of its weights may differ from those of a "
            f"run that was never stopped; set OMP_NUM_THREADS={before} to avoid that",
            stacklevel=2,
        )


def read_recipe(folder: Path) -> Recipe:
    """The recipe of the run in a folder."""
    return Recipe.from_dict(read_run(folder)["recipe"])


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """A recipe whose corpus and tokenizer, if they are files here, are named from the root."""
    data = recipe.data
    if data.corpus not in NAMED and exists(user_path(data.corpus)):
        data = replace(data, corpus=str(user_path(data.corpus).absolute()))
    if data.tokenizer:
        data = replace(data, tokenizer=str(user_path(data.tokenizer).absolute()))
    return replace(recipe, data=data)


def check_same_recipe(folder: Path, recipe: Recipe) -> None:
    """Raise, naming every setting in which the run in the folder differs from a recipe."""
    found = differences(with_absolute_paths(read_recipe(folder)), with_absolute_paths(recipe))
    if found:
        listed = "; ".join(f"{name} is {old!r} there and {new!r} here" for name, old, new in found)
        raise InputError(
            f"the run in {folder} was started with other settings: {listed}; resume it with its "
            "own settings, or start a new run in another folder"
        )


def check_same_text(folder: Path, fingerprint: str) -> None:
    """Raise if the run's corpus has changed since it began."""
    original = str(read_run(folder)["corpus"]["fingerprint"])
    if original != fingerprint:
        raise InputError(
            f"the run in {folder} learned from a text with fingerprint {original[:16]}, and the "
            f"corpus now has {fingerprint[:16]}: its files have changed; restore them, or start a "
            "new run"
        )


def held_out_tokens(
    folder: Path, sequences: int, progress: Progress = silent
) -> Int[Tensor, "sequence pos"]:
    """Held-out sequences of a run: those in its folder, else from its corpus.

    A corpus that is not in the cache is rebuilt. If its text is no longer the one that the run
    learned from, this raises, because held-out text of today may have been trained on.
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
    built = Path(str(corpus["folder"]))
    opened = Corpus.at(built) if (built / HEAD).exists() else open_corpus(recipe, progress)
    if opened.info.fingerprint != corpus["fingerprint"]:
        raise InputError(
            f"the run in {folder} learned from a text with fingerprint "
            f"{str(corpus['fingerprint'])[:16]}, and the corpus {opened.info.name!r} is another "
            f"one here ({opened.info.fingerprint[:16]}), so the held-out text is unknown; give "
            "token ids, tokens=[sequence, pos]"
        )
    return opened.held_out_batch(sequences, recipe.config.n_ctx)


def reopen_corpus(folder: Path, recipe: Recipe, progress: Progress = silent) -> Corpus:
    """The corpus of a run that is resumed: its text or, where that is not found, its tokens."""
    corpus = read_run(folder)["corpus"]
    text, built = recipe.data.corpus, Path(corpus["folder"])
    elsewhere = text not in NAMED and not exists(user_path(text))
    if elsewhere and (built / HEAD).exists():
        return Corpus.at(built)
    try:
        return open_corpus(recipe, progress)
    except InputError as error:
        if not elsewhere or Path(text).is_absolute():
            raise
        raise InputError(
            f"the run in {folder} learned from {text!r}, a path relative to where it was started, "
            f"and there is none here; resume it in the folder that contains {text!r}"
        ) from error


def open_corpus(recipe: Recipe, progress: Progress = silent) -> Corpus:
    """The corpus that a recipe trains on, built if it is not in the cache."""
    data = recipe.data
    given = Tokenizer.from_file(user_path(data.tokenizer)) if data.tokenizer else None
    return Corpus.open(
        data.corpus,
        vocabulary=data.vocabulary,
        tokenizer=given,
        held_out=data.held_out,
        field=data.field,
        progress=progress,
    )


def bundled_runs() -> tuple[str, ...]:
    """Names of the bundled models that come with the snapshots of their training."""
    return tuple(name for name in bundled_names() if (BUNDLED / name / SNAPSHOTS).is_dir())


def find_run(run: str | Path) -> Path:
    """The folder of a run: a bundled name, else an existing folder with snapshots in it."""
    text = str(run)
    if isinstance(run, str) and text in bundled_runs():
        return BUNDLED / text
    folder = user_path(text)
    if exists(folder) and folder.is_dir():
        if not (folder / SNAPSHOTS).is_dir():
            raise without_snapshots(folder)
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


def without_snapshots(folder: Path) -> InputError:
    """The error for a run that saved no snapshots."""
    return InputError(
        f"{folder} has no snapshots, so its training cannot be followed; train with snapshots, "
        "--set watching.snapshots=20"
    )
