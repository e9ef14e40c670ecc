"""`train`: from a recipe to a trained model in a folder."""

import dataclasses
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor

from pathsum.base import Progress, Record, Table, parse_choice, prose_column, silent, text_column
from pathsum.base.arguments import checked
from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.base.files import exists, finish_saving, read_object, write_text
from pathsum.model import Model
from pathsum.model.processes import World, join_world
from pathsum.model.storage import read_model, save_held_out
from pathsum.text import Corpus
from pathsum.text.cache import locked
from pathsum.training.checkpoint import read_checkpoint
from pathsum.training.distributed import STRATEGIES, Strategy, check_batch_divides
from pathsum.training.loop import TrainingLoop, stop_signals
from pathsum.training.memory import check_disk, check_memory
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
from pathsum.training.run_folder import (
    KEPT_SEQUENCES,
    RUN,
    check_same_recipe,
    check_same_text,
    open_corpus,
    read_recipe,
    reopen_corpus,
    warn_of_other_threads,
    with_absolute_paths,
    write_run,
)

RESULT = "result.json"
# What a result takes from the last probe in the metrics.
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
    strategy: Strategy | str = "ddp",
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
    process calls this, and `strategy` ("ddp" or "fsdp") says how they share the model.
    """
    chosen_strategy: Strategy = parse_choice(STRATEGIES, strategy, "strategy")
    chosen, folder = _recipe_and_folder(what, preset, out, resume, changes)
    with join_world() as world, _folder_lock(folder, world):
        check_batch_divides(chosen.batch, world)
        if not resume and world.is_first:
            _check_not_started(folder)
        check_memory(chosen, world.device, world.size)
        if not resume:
            check_disk(chosen, folder)
        corpus = _open_corpus(chosen, folder if resume else None, world, progress)
        chosen = _with_start_token(chosen, corpus)
        if resume:
            check_same_recipe(folder, chosen)
            check_same_text(folder, corpus.info.fingerprint)
            warn_of_other_threads(folder)
        if world.is_first:
            warn_of_slow_precision(chosen.precision, str(world.device))
        loop = TrainingLoop(chosen, corpus, folder, world, chosen_strategy, watch)
        if resume:
            loop.resume()
        elif world.is_first:
            write_run(folder, chosen, corpus.info.to_json())
        kept = chosen.watching.snapshots > 0
        text = corpus.held_out_batch(KEPT_SEQUENCES, chosen.config.n_ctx) if kept else None
        if text is not None and world.is_first and not resume:
            save_held_out(folder, text)
        return _run_to_end(loop, text)


def _run_to_end(loop: TrainingLoop, held_out: Tensor | None) -> TrainingRun:
    folder, world = loop.folder, loop.world
    try:
        with stop_signals() as stop:
            loop.run(stop)
    finally:
        # An interrupted run leaves a model too.
        finite = all(bool(torch.isfinite(p).all()) for p in loop.network.parameters())
        model = loop.model() if finite else None
        if world.is_first and model is not None:
            dataclasses.replace(model, held_out=held_out).save(folder)
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
    values["folder"] = str(folder)
    values = null_to_nan(values)
    hints = get_type_hints(TrainingRun)
    for name in (field.name for field in dataclasses.fields(TrainingRun) if field.name in values):
        kinds = (int, float) if hints[name] is float else hints[name]
        if not isinstance(values[name], kinds) or isinstance(values[name], bool):
            kind = {str: "a string", int: "an integer"}.get(hints[name], "a number")
            raise FileError(f"{name} in {file} is {values[name]!r}, but must be {kind}; remove it")
    try:
        return TrainingRun(**values)
    except TypeError as error:
        raise FileError(f"{file} lacks fields of a result ({error}); remove it") from error


def _recipe_and_folder(
    what: Recipe | str | Path,
    preset: str,
    out: str | Path | None,
    resume: bool,
    changes: dict[str, Any],
) -> tuple[Recipe, Path]:
    if resume and not isinstance(what, Recipe) and exists(Path(what).expanduser() / RUN):
        if changes or out is not None:
            raise InputError(
                "a run that is resumed by its folder keeps its recipe and its folder; leave out "
                "all other settings"
            )
        folder = Path(what).expanduser()
        return read_recipe(folder), folder
    chosen = with_absolute_paths(find_recipe(what, preset, changes))
    return chosen, Path(out).expanduser() if out is not None else Path("runs") / chosen.name


@contextmanager
def _folder_lock(folder: Path, world: World) -> Generator[None]:
    """Lock the run's folder, and delete what a killed run left half-written in it."""
    if not world.is_first:
        yield
        return
    taken = f"another process is training in {folder}; wait for it, or name another folder"
    with locked(folder / ".lock", wait=False, taken=taken):
        finish_saving(folder)
        for part in folder.rglob(".*.part"):
            part.unlink()
        yield


def _check_not_started(folder: Path) -> None:
    if not (folder / RUN).exists():
        return
    kept = read_checkpoint(folder)
    at = f"at step {kept.step}" if kept else "without a checkpoint yet"
    raise InputError(
        f"{folder} already holds a run, {at}; add --resume (resume=True) to continue it, or "
        "name another folder with --out"
    )


def _open_corpus(chosen: Recipe, resumed: Path | None, world: World, progress: Progress) -> Corpus:
    if not world.is_first:
        world.wait()  # the first process builds; the others find it built
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
            f"the corpus has a vocabulary of {corpus.info.vocabulary}, but the recipe says "
            f"{chosen.config.d_vocab}"
        )
    return dataclasses.replace(chosen, config=chosen.config.replace(start_token=corpus.start_token))
