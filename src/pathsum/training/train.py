"""`train`: from a recipe to a trained model in a folder."""

import dataclasses
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathsum.base import Progress, Record, Table, prose_column, silent, text_column
from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.base.files import (
    JOURNAL,
    SAVED_TOGETHER,
    exists,
    finish_saving,
    locked,
    read_object,
    remove_leftovers,
    user_path,
    write_text,
)
from pathsum.base.json_schema import read_record
from pathsum.base.options import checked
from pathsum.model import Model
from pathsum.model.processes import World, join_world
from pathsum.model.storage import read_model, save_held_out
from pathsum.text import Corpus
from pathsum.training.checkpoint import (
    CHECKPOINT,
    HELD_OUT_SEQUENCES,
    PREVIOUS,
    RUN,
    SNAPSHOTS,
    check_same_recipe,
    check_same_text,
    open_corpus,
    read_checkpoint,
    read_recipe,
    reopen_corpus,
    warn_of_other_threads,
    with_absolute_paths,
    write_run,
)
from pathsum.training.loop import TrainingLoop, stop_signals
from pathsum.training.metrics import (
    METRICS,
    Watch,
    ignore,
    null_to_nan,
    read_metrics,
    warn_of_slow_precision,
)
from pathsum.training.presets import find_recipe
from pathsum.training.recipe import Recipe

RESULT = "result.json"
# Fields that a result copies from the last probe in the metrics.
_COPIED = (
    *("held_out_loss", "previous_token", "previous_token_head", "induction"),
    *("induction_head", "repeat_first", "repeat_second", "tokens", "loss", "seconds"),
)


@dataclass(frozen=True)
class TrainingRun(Record, kind="training-run"):
    """The result of a finished run. `model` is the trained model.

    `held_out_loss` is a mean over the held-out sequences that the run was probed on; `induction`
    and `previous_token` are the scores of the best heads on repeated random tokens.
    """

    name: str
    folder: str
    steps: int
    tokens: int
    seconds: float
    tokens_per_second: float
    gemm_share: float
    loss: float
    held_out_loss: float
    previous_token: float
    previous_token_head: str
    induction: float
    induction_head: str
    repeat_first: float
    repeat_second: float

    @property
    def model(self) -> Model:
        """The trained model, read from its folder."""
        return read_model(Path(self.folder))

    def to_table(self) -> Table:
        """One row per number."""
        rows: list[tuple[str, str]] = [
            ("tokens", f"{self.tokens:,} in {self.steps:,} steps"),
            ("time", f"{self.seconds:.0f} s, {self.tokens_per_second:,.0f} tokens per second"),
            ("share of the GEMM rate", f"{self.gemm_share:.0%}"),
            ("held-out loss", f"{self.held_out_loss:.3f} nats"),
        ]
        if self.induction_head:
            rows += [
                ("previous token", f"{self.previous_token:.3f}, {self.previous_token_head}"),
                ("induction stripe", f"{self.induction:.3f}, {self.induction_head}"),
            ]
        copies = f"{self.repeat_first:.2f} / {self.repeat_second:.2f} nats"
        rows += [("random tokens, first / second copy", copies), ("folder", self.folder)]
        return Table((text_column("trained"), prose_column(self.name)), tuple(rows))


@checked
def train(
    what: Recipe | str | Path,
    preset: str = "quick",
    *,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watch = ignore,
    progress: Progress = silent,
    **changes: Any,
) -> TrainingRun:
    """Train a model: a name in a preset, a TOML file, a `Recipe`, or a run's folder to resume.

        run = ps.train("two-layer", "quick", out="runs/mine", seed=1)
        run.model.trace("def f(self):")

    The folder `out` (by default `runs/<name>`) becomes a model folder that `load` reads, and also
    holds the run's metrics, checkpoint and snapshots. `resume=True` continues from the checkpoint,
    bit for bit as if never stopped (same machine, same number of threads and processes). Changes to
    a recipe are given by name, `optimizer__clip=1.0` for `optimizer.clip`. Under torchrun every
    process calls this with the same arguments, and takes an equal part of every batch.
    """
    chosen, folder = _recipe_and_folder(what, preset, out, resume, changes)
    with join_world() as world, _folder_lock(folder, world):
        _check_batch_divides(chosen.batch, world)
        if not resume and world.is_first:
            _check_not_started(folder)
        corpus = _open_corpus(chosen, folder if resume else None, world, progress)
        chosen = _with_start_token(chosen, corpus)
        if resume:
            check_same_recipe(folder, chosen)
            check_same_text(folder, corpus.info.fingerprint)
            warn_of_other_threads(folder)
        if world.is_first:
            warn_of_slow_precision(chosen.precision, str(world.device))
        loop = TrainingLoop(chosen, corpus, folder, world, watch)
        held_out = None
        if chosen.watching.snapshots > 0:
            held_out = corpus.held_out_batch(HELD_OUT_SEQUENCES, chosen.config.n_ctx)
        if resume:
            loop.resume()
        elif world.is_first:
            _check_disk(loop)
            write_run(folder, chosen, corpus.info.to_json())
            if held_out is not None:
                save_held_out(folder, held_out)
        return _run_to_end(loop, held_out)


def _run_to_end(loop: TrainingLoop, held_out: Tensor | None) -> TrainingRun:
    folder, world = loop.folder, loop.world
    try:
        with stop_signals() as stop:
            loop.run(stop)
    finally:
        # An interrupted run leaves a model too.
        finite = all(bool(torch.isfinite(p).all()) for p in loop.network.parameters())
        if world.is_first and finite:
            dataclasses.replace(loop.model(), held_out=held_out).save(folder)
    world.wait()
    run = _last_metrics(loop.recipe, folder)
    if world.is_first:
        write_text(folder / RESULT, run.dumps() + "\n")
    world.wait()
    return run


def _last_metrics(chosen: Recipe, folder: Path) -> TrainingRun:
    """The result of a run, from the last probe in its metrics."""
    needed = {*_COPIED, "gemm_share", "tokens_per_second"}
    last = next((line for line in reversed(read_metrics(folder)) if needed <= line.keys()), None)
    if last is None:
        raise FileError(
            f"{folder / METRICS} has no probe of the finished run, so there is no result to "
            f"report; the model itself is in {folder}"
        )
    numbers = null_to_nan(last)
    seconds = float(numbers["seconds"])
    rate = numbers["tokens"] / max(seconds, 1e-9)
    share = numbers["gemm_share"] * rate / numbers["tokens_per_second"]
    return TrainingRun(
        name=chosen.name,
        folder=str(folder),
        steps=chosen.steps,
        tokens_per_second=rate,
        gemm_share=share,
        **{key: numbers[key] for key in _COPIED},
    )


def read_result(folder: Path) -> TrainingRun | None:
    """The result of the run in a folder; None if there is no run or it is not finished."""
    file = folder / RESULT
    if not file.exists():
        return None
    values = read_object(file, "remove it, and resume the run")
    if values.pop("format", None) != f"pathsum-{TrainingRun.record_kind}":
        raise FileError(f"{file} is not the result of a training run")
    values.pop("version", None)
    try:
        return read_record(
            TrainingRun, null_to_nan(values) | {"folder": str(folder)}, "the result of a run"
        )
    except InputError as error:
        raise FileError(
            f"{file} is not the result of a training run: {error}; remove it, and resume the run"
        ) from error


def _recipe_and_folder(
    what: Recipe | str | Path,
    preset: str,
    out: str | Path | None,
    resume: bool,
    changes: dict[str, Any],
) -> tuple[Recipe, Path]:
    if resume and not isinstance(what, Recipe) and exists(user_path(what) / RUN):
        if changes or out is not None:
            raise InputError(
                "a run that is resumed by its folder keeps its recipe and its folder; leave out "
                "all other settings"
            )
        folder = user_path(what)
        return read_recipe(folder), folder
    chosen = with_absolute_paths(find_recipe(what, preset, changes))
    return chosen, user_path(out) if out is not None else Path("runs") / chosen.name


@contextmanager
def _folder_lock(folder: Path, world: World) -> Generator[None]:
    """Lock the run's folder, and delete temporary files of a killed run."""
    if not world.is_first:
        yield
        return
    taken = f"another process is training in {folder}; wait for it, or name another folder"
    with locked(folder / ".lock", wait=False, taken=taken):
        finish_saving(folder)
        together = (*SAVED_TOGETHER, JOURNAL)
        remove_leftovers(folder, (*together, CHECKPOINT, PREVIOUS, RUN, RESULT, METRICS))
        for inside in (folder / SNAPSHOTS, *(folder / SNAPSHOTS).glob("step-*/")):
            if inside.is_dir():
                small = [
                    file.name[1:].rsplit(".", 2)[0] for file in inside.glob(".step-[0-9]*.part")
                ]
                remove_leftovers(inside, (*together, *small))
        yield


def _check_batch_divides(batch: int, world: World) -> None:
    if batch % world.size:
        raise InputError(
            f"a batch of {batch} sequences cannot be shared evenly by {world.size} processes; "
            f"use a multiple of {world.size}"
        )


def disk_bytes(parameters: int, snapshots: int) -> int:
    """About the size of a run's folder: a model, its snapshots, and two checkpoints.

    A checkpoint holds the weights and up to two moments of each. One is written before the previous
    one is removed.
    """
    return 4 * parameters * (1 + snapshots + 2 * 3) + (1 + snapshots << 20)


def _check_disk(loop: TrainingLoop) -> None:
    """Raise, before training starts, if a run would fill the disk."""
    folder, snapshots = loop.folder, len(loop.snapshot_steps)
    parameters = sum(parameter.numel() for parameter in loop.network.parameters())
    needed, free = disk_bytes(parameters, snapshots), shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"the run needs about {needed / 1e9:.2f} GB in {folder} ({snapshots} snapshots of "
            f"{parameters:,} parameters, a checkpoint), and {free / 1e9:.2f} GB are free there; "
            "name a folder on another disk with --out, or lower watching.snapshots"
        )


def _check_not_started(folder: Path) -> None:
    if not (folder / RUN).exists():
        return
    checkpoint = read_checkpoint(folder)
    at = f"at step {checkpoint.step}" if checkpoint else "without a checkpoint yet"
    raise InputError(
        f"{folder} already holds a run, {at}; add --resume (resume=True) to continue it, or "
        "name another folder with --out"
    )


def _open_corpus(chosen: Recipe, resumed: Path | None, world: World, progress: Progress) -> Corpus:
    if not world.is_first:
        world.wait()  # the first process builds the corpus, and the others open it
    if resumed is None:
        corpus = open_corpus(chosen, progress)
    else:
        corpus = reopen_corpus(resumed, chosen, progress)
    if world.is_first:
        world.wait()
    return corpus


def _with_start_token(chosen: Recipe, corpus: Corpus) -> Recipe:
    if corpus.info.vocabulary != chosen.config.d_vocab:
        raise FailedError(
            f"the corpus has a vocabulary of {corpus.info.vocabulary}, but the recipe has "
            f"{chosen.config.d_vocab}"
        )
    return dataclasses.replace(chosen, config=chosen.config.replace(start_token=corpus.start_token))
