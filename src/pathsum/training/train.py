"""`train`: a recipe to a model in a folder."""

import dataclasses
import json
import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pathsum.errors import FailedError, FileError, InputError
from pathsum.model import Model
from pathsum.model.storage import write_together
from pathsum.result import Progress, Record, Table, parse_choice, prose_column, silent, text_column
from pathsum.sources.named import open_folder
from pathsum.text import Corpus, Tokenizer
from pathsum.text.cache import locked
from pathsum.training.checkpoint import (
    RUN,
    read_checkpoint,
    read_run,
    refuse_other_settings,
    refuse_other_text,
    write_run,
)
from pathsum.training.distributed import STRATEGIES, Strategy, World, refuse_uneven_batch, world
from pathsum.training.held_out import KEPT, save_held_out
from pathsum.training.loop import Session
from pathsum.training.memory import refuse_what_does_not_fit
from pathsum.training.metrics import Watch, read_metrics, unwatched
from pathsum.training.presets import recipe
from pathsum.training.recipe import Recipe
from pathsum.training.stopping import listening

RESULT = "result.json"


@dataclass(frozen=True)
class TrainingRun(Record, kind="training-run"):
    """What a finished run came to. `model` is what it trained.

    `held_out_loss` is a mean over the held-out sequences that the run watched; `induction` and
    `previous_token` are the best heads' scores on random tokens shown twice.
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
        return open_folder(Path(self.folder))

    def to_table(self) -> Table:
        """What it came to, a line each."""
        rows: list[tuple[str, str]] = [
            ("tokens", f"{self.tokens:,} in {self.steps:,} steps"),
            ("time", f"{self.seconds:.0f} s, {self.tokens_per_second:,.0f} tokens a second"),
            ("share of the GEMM rate", f"{self.gemm_share:.0%}"),
            ("held-out loss", f"{self.held_out_loss:.3f} nats"),
        ]
        if self.induction_head:
            rows += [
                ("previous token", f"{self.previous_token:.3f}, {self.previous_token_head}"),
                ("induction stripe", f"{self.induction:.3f}, {self.induction_head}"),
            ]
        rows.append(
            (
                "random tokens, first / second time",
                f"{self.repeat_first:.2f} / {self.repeat_second:.2f} nats",
            )
        )
        rows.append(("folder", self.folder))
        return Table((text_column("trained"), prose_column(self.name)), tuple(rows))


def train(
    what: Recipe | str | Path,
    preset: str = "quick",
    *,
    out: str | Path | None = None,
    resume: bool = False,
    strategy: Strategy | str = "ddp",
    watch: Watch = unwatched,
    progress: Progress = silent,
    **changes: Any,
) -> TrainingRun:
    """Train a model: a name in a preset, a TOML file, a `Recipe`, or a run's folder to resume.

        run = ps.train("two-layer", "quick", out="runs/mine", seed=1)
        run.model.trace("def f(self):")

    The folder `out` (by default `runs/<name>`) becomes a model's folder that `load` reads, with the
    run's metrics, checkpoint and snapshots beside it. `resume=True` goes on from the checkpoint,
    bit for bit as if never stopped (same machine, same threads and processes). Changes to a
    recipe are given by name, `optimizer__clip=1.0` for `optimizer.clip`. Under torchrun every
    process calls this, and `strategy` says how they share the model.
    """
    chosen_strategy: Strategy = parse_choice(STRATEGIES, strategy, "strategy")
    chosen, folder = _chosen(what, preset, out, resume, changes)
    with world() as here, _alone(folder, here):
        refuse_uneven_batch(chosen.batch, here)
        if not resume and here.is_first:
            _refuse_started(folder)
        refuse_what_does_not_fit(chosen, here.device, here.size)
        corpus = _corpus(chosen, here, progress)
        chosen = _with_start(chosen, corpus)
        if resume:
            refuse_other_settings(folder, chosen)
            refuse_other_text(folder, corpus.info.fingerprint)
        session = Session(chosen, corpus, folder, here, chosen_strategy, watch)
        if resume:
            session.resume()
        elif here.is_first:
            write_run(folder, chosen, corpus.info.to_json())
            if chosen.watching.snapshots:
                save_held_out(folder, corpus.held_out_batch(KEPT, chosen.config.n_ctx))
        return _finish(session)


def _finish(session: Session) -> TrainingRun:
    folder, here = session.folder, session.here
    try:
        with listening() as stop:
            session.run(stop)
    finally:
        # What an interrupted run has learned can be looked at too.
        model = session.model() if _is_sound(session) else None
        if here.is_first and model is not None:
            model.save(folder)
    here.wait()
    run = _result(session.recipe, folder)
    if here.is_first:
        text = run.dumps() + "\n"
        write_together(folder, {RESULT: lambda file: file.write_text(text, encoding="utf-8")})
    here.wait()
    return run


def _is_sound(session: Session) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in session.network.parameters())


def _result(chosen: Recipe, folder: Path) -> TrainingRun:
    """The last look of a run, from its own metrics."""
    lines = read_metrics(folder)
    last = next(line for line in reversed(lines) if "held_out_loss" in line)
    number: dict[str, Any] = {
        key: float("nan") if value is None else value for key, value in last.items()
    }
    seconds = float(number["seconds"])
    rate = number["tokens"] / max(seconds, 1e-9)
    share = number["gemm_share"] * rate / number["tokens_per_second"]
    same = (
        *("held_out_loss", "previous_token", "previous_token_head", "induction"),
        *("induction_head", "repeat_first", "repeat_second", "tokens", "loss", "seconds"),
    )
    return TrainingRun(
        name=chosen.name,
        folder=str(folder),
        steps=chosen.steps,
        tokens_per_second=rate,
        gemm_share=share,
        **{key: number[key] for key in same},
    )


def read_result(folder: Path) -> TrainingRun | None:
    """What a finished run in a folder came to; None if there is none, or it is not finished."""
    file = folder / RESULT
    if not file.exists():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{file} is not JSON ({error})") from error
    if values.pop("format", None) != f"pathsum-{TrainingRun.record_kind}":
        raise FileError(f"{file} is not the result of a run")
    values.pop("version", None)
    fields: dict[str, Any] = {
        key: math.nan if value is None else value for key, value in values.items()
    }
    fields["folder"] = str(folder)
    return TrainingRun(**fields)


def _chosen(
    what: Recipe | str | Path,
    preset: str,
    out: str | Path | None,
    resume: bool,
    changes: dict[str, Any],
) -> tuple[Recipe, Path]:
    if isinstance(what, Recipe):
        if changes:
            raise InputError("a Recipe is whole; change it with dataclasses.replace")
        chosen = what
    elif resume and (Path(what).expanduser() / RUN).exists():
        if changes or out is not None:
            raise InputError(
                "a run that is resumed by its folder keeps its recipe and its folder; leave "
                "other settings out"
            )
        folder = Path(what).expanduser()
        return Recipe.from_dict(read_run(folder)["recipe"]), folder
    else:
        chosen = recipe(what, preset, **changes)
    return chosen, Path(out).expanduser() if out is not None else Path("runs") / chosen.name


@contextmanager
def _alone(folder: Path, here: World) -> Generator[None]:
    """Hold the run's folder, and clear away what a run that was killed in it left half-written."""
    if not here.is_first:
        yield
        return
    taken = f"another process is training in {folder}; wait for it, or name another folder"
    with locked(folder / ".lock", wait=False, taken=taken):
        for part in folder.glob(".*.part"):
            part.unlink()
        yield


def _refuse_started(folder: Path) -> None:
    if not (folder / RUN).exists():
        return
    kept = read_checkpoint(folder)
    at = f"at step {kept.step}" if kept else "without a checkpoint yet"
    raise InputError(
        f"{folder} already holds a run, {at}; add --resume (resume=True) to go on with it, or "
        "name another folder with --out"
    )


def _corpus(chosen: Recipe, here: World, progress: Progress) -> Corpus:
    data = chosen.data
    given = Tokenizer.from_file(Path(data.tokenizer).expanduser()) if data.tokenizer else None
    if not here.is_first:
        here.wait()  # the first process builds; the others find it built
    corpus = Corpus.open(
        data.corpus,
        vocabulary=data.vocabulary,
        tokenizer=given,
        held_out=data.held_out,
        field=data.field,
        progress=progress,
    )
    if here.is_first:
        here.wait()
    return corpus


def _with_start(chosen: Recipe, corpus: Corpus) -> Recipe:
    if corpus.info.vocabulary != chosen.config.d_vocab:
        raise FailedError("the corpus and the recipe disagree about the vocabulary")
    return dataclasses.replace(chosen, config=chosen.config.replace(start_token=corpus.start_token))
