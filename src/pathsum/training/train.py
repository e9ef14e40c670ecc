"""`train`: from a recipe to a trained model in a folder."""

import dataclasses
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from pathsum.base import Progress, Record, Row, silent
from pathsum.base.errors import FileError, InputError
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
    check_resumed,
    open_corpus,
    read_checkpoint,
    read_recipe,
    reopen_corpus,
    with_absolute_paths,
    write_run,
)
from pathsum.training.loop import TrainingLoop, stop_signals
from pathsum.training.metrics import (
    METRICS,
    ProbeResult,
    Watch,
    ignore,
    null_to_nan,
    read_metrics,
    warn_of_slow_precision,
)
from pathsum.training.recipe import Recipe, find_recipe

RESULT = "result.json"
# Fields of a result from the last line of the metrics with a probe.
_PROBE_FIELDS = (
    *(field.name for field in dataclasses.fields(ProbeResult)),
    "tokens",
    "loss",
    "seconds",
)


@dataclass(frozen=True)
class TrainingRun(Record, kind="training-run"):
    """The result of a finished run.

    `held_out_loss` is the mean over the held-out sequences of the probe; `induction` and
    `previous_token` are the scores of the best heads on repeated random tokens.
    """

    name: Annotated[str, Row("trained")]
    folder: Annotated[str, Row("folder")]
    steps: Annotated[int, Row("steps", ",")]
    tokens: Annotated[int, Row("tokens", ",")]
    seconds: Annotated[float, Row("seconds", ".0f")]
    tokens_per_second: Annotated[float, Row("tokens per second", ",.0f")]
    gemm_share: Annotated[float, Row("share of the GEMM rate", ".0%")]
    loss: float
    held_out_loss: Annotated[float, Row("held-out loss, nats", ".3f")]
    previous_token: Annotated[float, Row("previous token", ".3f")]
    previous_token_head: Annotated[str, Row("its head")]
    induction: Annotated[float, Row("induction stripe", ".3f")]
    induction_head: Annotated[str, Row("its head")]
    repeat_first: Annotated[float, Row("random tokens, first copy, nats", ".2f")]
    repeat_second: Annotated[float, Row("random tokens, second copy, nats", ".2f")]

    @property
    def model(self) -> Model:
        """The trained model, read from its folder."""
        return read_model(Path(self.folder))


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
    """Train a model and save it to a folder.

    Args:
        what: The name of a model in a preset, a TOML file, a `Recipe`, or the folder of a run to
            resume.
        preset: The preset that a name is looked up in: "quick", "bundled" or "paper".
        out: The folder of the run; by default `runs/<name>`.
        resume: Continue from the checkpoint, bit for bit as if the run had never stopped (on the
            same machine, with as many threads and processes).
        watch: Called with the metrics at each report.
        progress: Called while the corpus is prepared.
        changes: Changes to the recipe by name, such as `optimizer__clip=1.0` for `optimizer.clip`.

    Returns:
        The run, with the trained model.

    Example:
        ```python
        run = ps.train("two-layer", "quick", out="runs/mine", seed=1)
        run.model.trace("def f(self):")
        ```

    The folder becomes a model folder for `load`, with the run's metrics, checkpoint and snapshots.
    Under torchrun, every process calls this function with the same arguments and takes an equal
    part of every batch.
    """
    recipe, folder = _recipe_and_folder(what, preset, out, resume, changes)
    with join_world() as world, _folder_lock(folder, world):
        _check_batch_divides(recipe.batch, world)
        if not resume and world.is_first:
            _check_not_started(folder)
        corpus = _open_corpus(recipe, folder if resume else None, world, progress)
        start = recipe.config.replace(start_token=corpus.start_token)
        recipe = dataclasses.replace(recipe, config=start)
        if resume:
            check_resumed(folder, recipe, corpus.info.fingerprint)
        if world.is_first:
            warn_of_slow_precision(recipe.precision, str(world.device))
        loop = TrainingLoop(recipe, corpus, folder, world, watch)
        held_out = None
        if recipe.watching.snapshots > 0:
            held_out = corpus.held_out_batch(HELD_OUT_SEQUENCES, recipe.config.n_ctx)
        if resume:
            loop.resume()
        elif world.is_first:
            _check_disk(loop)
            write_run(folder, recipe, corpus.info.to_json())
            if held_out is not None:
                save_held_out(folder, held_out)
        return _run_to_end(loop, held_out)


def _open_corpus(recipe: Recipe, resumed: Path | None, world: World, progress: Progress) -> Corpus:
    """The corpus of a recipe, or of a resumed run; the first process builds it for all others."""
    if not world.is_first:
        world.wait()
    if resumed is None:
        corpus = open_corpus(recipe, progress)
    else:
        corpus = reopen_corpus(resumed, recipe, progress)
    if world.is_first:
        world.wait()
    return corpus


def _run_to_end(loop: TrainingLoop, held_out: Tensor | None) -> TrainingRun:
    folder, world = loop.folder, loop.world
    try:
        with stop_signals() as stop:
            loop.run(stop)
    finally:
        # An interrupted run also saves its model.
        finite = all(bool(torch.isfinite(p).all()) for p in loop.network.parameters())
        if world.is_first and finite:
            dataclasses.replace(loop.model(), held_out=held_out).save(folder)
    world.wait()
    run = _last_metrics(loop.recipe, folder)
    if world.is_first:
        write_text(folder / RESULT, run.dumps() + "\n")
    world.wait()
    return run


def _last_metrics(recipe: Recipe, folder: Path) -> TrainingRun:
    """The result of a run, from the last probe in the metrics."""
    keys = {*_PROBE_FIELDS, "gemm_share", "tokens_per_second"}
    last = next((line for line in reversed(read_metrics(folder)) if keys <= line.keys()), None)
    if last is None:
        raise FileError(
            f"{folder / METRICS} has no probe of the finished run, so there is no result to "
            f"report; the model itself is in {folder}"
        )
    numbers = null_to_nan(last)
    rate = numbers["tokens"] / max(float(numbers["seconds"]), 1e-9)
    return TrainingRun(
        name=recipe.name,
        folder=str(folder),
        steps=recipe.steps,
        tokens_per_second=rate,
        gemm_share=numbers["gemm_share"] * rate / numbers["tokens_per_second"],
        **{key: numbers[key] for key in _PROBE_FIELDS},
    )


def read_result(folder: Path) -> TrainingRun | None:
    """The result of the run in a folder; None if there is no finished run."""
    file = folder / RESULT
    if not file.exists():
        return None
    values = read_object(file, "remove it, and resume the run")
    is_result = values.pop("format", None) == f"pathsum-{TrainingRun.record_kind}"
    values = null_to_nan(values) | {"folder": str(folder)}
    values.pop("version", None)
    try:
        if not is_result:
            raise InputError("it has another format")
        return read_record(TrainingRun, values, "the result of a run")
    except InputError as error:
        raise FileError(
            f"{file} is not the result of a training run ({error}); remove it, and resume the run"
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
    recipe = with_absolute_paths(find_recipe(what, preset, changes))
    return recipe, user_path(out) if out is not None else Path("runs") / recipe.name


@contextmanager
def _folder_lock(folder: Path, world: World) -> Generator[None]:
    """Lock the folder of a run, and delete temporary files of a killed run."""
    if not world.is_first:
        yield
        return
    message = f"another process is training in {folder}; wait for it, or name another folder"
    with locked(folder / ".lock", wait=False, taken=message):
        finish_saving(folder)
        saved_files = (*SAVED_TOGETHER, JOURNAL)
        remove_leftovers(folder, (*saved_files, CHECKPOINT, PREVIOUS, RUN, RESULT, METRICS))
        for snapshot in (folder / SNAPSHOTS, *(folder / SNAPSHOTS).glob("step-*/")):
            if snapshot.is_dir():
                parts = snapshot.glob(".step-[0-9]*.part")
                names = [file.name[1:].rsplit(".", 2)[0] for file in parts]
                remove_leftovers(snapshot, (*saved_files, *names))
        yield


def _check_batch_divides(batch: int, world: World) -> None:
    if batch % world.size:
        raise InputError(
            f"a batch of {batch} sequences cannot be shared evenly by {world.size} processes; "
            f"use a multiple of {world.size}"
        )


def disk_bytes(parameters: int, snapshots: int) -> int:
    """The approximate size of a run's folder: a model, its snapshots, and two checkpoints.

    A checkpoint contains the weights and up to two moments of each. The previous checkpoint is
    removed only after the next one is written.
    """
    return 4 * parameters * (1 + snapshots + 2 * 3) + (1 + snapshots << 20)


def _check_disk(loop: TrainingLoop) -> None:
    """Raise an error before training if a run would fill the disk."""
    folder, snapshots = loop.folder, len(loop.snapshot_steps)
    parameters = sum(parameter.numel() for parameter in loop.network.parameters())
    size, free = disk_bytes(parameters, snapshots), shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"the run needs about {size / 1e9:.2f} GB in {folder} ({snapshots} snapshots of "
            f"{parameters:,} parameters, a checkpoint), and {free / 1e9:.2f} GB are free there; "
            "name a folder on another disk with --out, or lower watching.snapshots"
        )


def _check_not_started(folder: Path) -> None:
    if not (folder / RUN).exists():
        return
    checkpoint = read_checkpoint(folder)
    at = f"at step {checkpoint.step}" if checkpoint else "without a checkpoint yet"
    raise InputError(
        f"{folder} already contains a run, {at}; add --resume (resume=True) to continue it, or "
        "name another folder with --out"
    )
