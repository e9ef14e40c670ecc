"""`TrainingLoop`: the steps, reports and checkpoints of a run.

`Batches` are windows of text, a function of seed and step alone. Under torchrun, each process takes
an equal part of every batch, and DDP averages the gradients.
"""

import signal
import threading
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.base.shapes import Tokens
from pathsum.model import Model
from pathsum.model.processes import World
from pathsum.text import Corpus
from pathsum.text.token_pool import prepend_start
from pathsum.training.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    read_checkpoint,
    save_snapshot,
    snapshot_steps,
    write_checkpoint,
)
from pathsum.training.metrics import (
    Metrics,
    MetricsFile,
    Probe,
    ProbeResult,
    Watch,
    flops_per_token,
    gemm_rate,
)
from pathsum.training.network import Network
from pathsum.training.optim import Optimizers
from pathsum.training.recipe import Recipe


class Batches:
    """Windows of n_ctx tokens, in another order in each epoch.

    Each epoch cuts the text at another offset, so that window boundaries move. Batches depend only
    on seed and step, so a resumed run has the same batches as an uninterrupted run, with any number
    of processes.
    """

    def __init__(self, corpus: Corpus, n_ctx: int, batch: int, seed: int) -> None:
        self.shards, self.start = corpus.train, corpus.start_token
        self.n_ctx, self.batch, self.seed = n_ctx, batch, seed
        # Every epoch has as many windows as the largest offset leaves.
        self.windows = self.shards.count_windows(n_ctx, offset=n_ctx - 1)
        if self.windows < batch:
            raise InputError(
                f"the corpus {corpus.info.name!r} has {corpus.info.tokens:,} training tokens, "
                f"less than one batch needs ({batch} sequences of {n_ctx}, and {n_ctx} more for "
                "the offset); give more text, or lower batch or n_ctx"
            )
        self._epoch, self._offset = -1, 0
        self._order = np.empty(0, dtype=np.int64)

    def at(self, step: int, part: int = 0, parts: int = 1) -> tuple[Tokens, Tokens]:
        """The inputs and targets of a step, or one of several equal parts of them."""
        first, size = step * self.batch, self.batch // parts
        numbers = range(first + part * size, first + (part + 1) * size)
        by_epoch = groupby(numbers, key=lambda number: number // self.windows)
        windows = torch.cat([self._windows(epoch, list(group)) for epoch, group in by_epoch])
        return prepend_start(windows[:, :-1], self.start), windows

    def _windows(self, epoch: int, numbers: list[int]) -> Int[Tensor, "window pos"]:
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self._offset = int(generator.integers(self.n_ctx))
            self._order = generator.permutation(self.windows)
            self._epoch = epoch
        windows = [int(self._order[number % self.windows]) for number in numbers]
        return self.shards.windows(windows, self.n_ctx, self._offset)


class TrainingLoop:
    """The state of a run: network, optimizers, batches, probe; `step` counts finished steps."""

    def __init__(
        self, recipe: Recipe, corpus: Corpus, folder: Path, world: World, watch: Watch
    ) -> None:
        self.recipe, self.corpus, self.folder = recipe, corpus, folder
        self.world, self.watch = world, watch
        self.batches = Batches(corpus, recipe.config.n_ctx, recipe.batch, recipe.seed)
        sequences = recipe.watching.held_out_sequences
        self.probe = Probe(corpus, recipe.config.n_ctx, sequences)
        self.network = Network(recipe.config, recipe.start, recipe.seed).to(world.device)
        self.runner = self.network if world.size == 1 else DistributedDataParallel(self.network)
        self.optimizers = Optimizers(recipe, self.network)
        self.snapshot_steps = snapshot_steps(recipe.steps, recipe.watching.snapshots)
        self.step = 0
        self.probe_result: ProbeResult | None = None
        self._losses: list[Tensor] = []
        self._loss = float("nan")
        self._seconds_before = 0.0
        self._start, self._paused = time.perf_counter(), 0.0
        self._mark = (0, 0.0)
        self._file: MetricsFile | None = None

    def resume(self) -> None:
        """Continue from the newest good checkpoint, if any."""
        checkpoint = read_checkpoint(self.folder)
        if checkpoint is None:
            return
        if checkpoint.damage:
            warnings.warn(
                f"the run continues from the checkpoint before the last, step {checkpoint.step}, "
                f"because {checkpoint.damage}",
                stacklevel=2,
            )
            # Otherwise the next save would keep the damaged one as the previous checkpoint.
            (self.folder / CHECKPOINT).unlink(missing_ok=True)
        weights = checkpoint.part("weights/")
        parameters = dict(self.network.named_parameters())
        problem = f"it is of step {checkpoint.step}" if checkpoint.step > self.recipe.steps else ""
        for name, parameter in parameters.items():
            if name not in weights or weights[name].shape != parameter.shape:
                problem = problem or f"its {name} does not fit"
        if problem:
            raise FileError(
                f"the checkpoint in {self.folder} is not of this run ({problem}, and the run has "
                f"{self.recipe.steps} steps); restore the file that belongs to it"
            )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
        self.optimizers.load(checkpoint.part("optimizer/"))
        self.step, self._seconds_before = checkpoint.step, checkpoint.seconds

    def run(self, stop: threading.Event) -> None:
        """Train to the last step; a stop request saves the run and raises KeyboardInterrupt."""
        self._file = MetricsFile(self.folder, self.step) if self.world.is_first else None
        self._start = time.perf_counter()
        self._mark = (self.step, self.seconds)
        watching = self.recipe.watching
        try:
            if self.step == 0:
                self._save_snapshot_if_due()
            while self.step < self.recipe.steps:
                self.learn()
                is_last = self.step == self.recipe.steps
                if self.step % watching.log_every == 0 or is_last or self.step == 1:
                    self._report(probes=self.step % watching.probe_every == 0 or is_last)
                self._save_snapshot_if_due()
                if self.step % watching.checkpoint_every == 0 or is_last:
                    self.save()
                if self._must_stop(stop):
                    self.save()
                    raise KeyboardInterrupt(
                        f"stopped at step {self.step} of {self.recipe.steps} and saved; to "
                        f"continue: pathsum train {self.folder} --resume"
                    )
        finally:
            if self._file is not None:
                self._file.close()

    @property
    def seconds(self) -> float:
        """The total training time of the run without probes and saves."""
        return self._seconds_before + time.perf_counter() - self._start - self._paused

    def model(self) -> Model:
        """The model at the current step."""
        return self.network.to_model(
            self.recipe.name, self.corpus.tokenizer, self.corpus.token_counts
        )

    @contextmanager
    def _pause(self) -> Generator[None]:
        """Exclude the time of a probe or a save from the training time."""
        start = time.perf_counter()
        yield
        self._paused += time.perf_counter() - start

    def save(self) -> None:
        """Write a checkpoint; raises an error if a number is not finite."""
        self._average_losses()
        weights = self.network.named_parameters()
        tensors = {f"weights/{name}": tensor.detach() for name, tensor in weights}
        tensors |= {f"optimizer/{name}": tensor for name, tensor in self.optimizers.state()}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            raise self._diverged(self.step)
        if self.world.is_first:
            with self._pause():
                write_checkpoint(self.folder, Checkpoint(self.step, self.seconds, tensors))

    def learn(self) -> None:
        """Take one optimizer step."""
        inputs, targets = self.batches.at(self.step, self.world.rank, self.world.size)
        device, is_half = self.world.device, self.recipe.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16) if is_half else nullcontext():
            loss = self.runner(inputs.to(device), targets.to(device))
        loss.backward()
        self.optimizers.step(self.step)
        self._losses.append(loss.detach().float())
        self.step += 1

    def _average_losses(self) -> None:
        """Average the losses since the last report; raises an error if one is not finite."""
        if not self._losses:
            return
        losses = self.world.mean(torch.stack(self._losses))
        bad = (~torch.isfinite(losses)).nonzero()
        if len(bad):
            raise self._diverged(self.step - len(losses) + int(bad[0]) + 1)
        self._loss = float(losses.mean())
        self._losses.clear()

    def _diverged(self, step: int) -> FailedError:
        checkpoint = read_checkpoint(self.folder)
        where = "it has no checkpoint yet"
        if checkpoint is not None:
            where = f"its last good checkpoint, step {checkpoint.step}, is in {self.folder}"
        return FailedError(
            f"the loss is NaN or infinite at step {step} of {self.recipe.steps}, so the run has "
            f"diverged and was stopped; {where}; lower the "
            "learning rates (optimizer.matrix_lr, optimizer.embedding_lr) or set optimizer.clip"
        )

    def _report(self, probes: bool) -> None:
        self._average_losses()
        config, device, seconds = self.recipe.config, self.world.device, self.seconds
        tokens_per_step = self.recipe.batch * config.n_ctx
        last_step, last_seconds = self._mark
        self._mark = (self.step, seconds)
        elapsed = max(seconds - last_seconds, 1e-9)
        rate = (self.step - last_step) * tokens_per_step / elapsed
        if self._file is None:  # the first process reports
            return
        if probes:
            with self._pause():
                self.probe_result = self.probe.measure(self.model())
        dtype = torch.bfloat16 if self.recipe.precision == "bfloat16" else torch.float32
        peak = gemm_rate(str(device), dtype) * self.world.size
        metrics = Metrics(
            step=self.step,
            steps=self.recipe.steps,
            tokens=self.step * tokens_per_step,
            loss=self._loss,
            rate=self.recipe.schedule.factor(self.step - 1, self.recipe.steps),
            tokens_per_second=rate,
            gemm_share=rate * flops_per_token(config) / peak,
            seconds=seconds,
            seconds_left=tokens_per_step * (self.recipe.steps - self.step) / rate,
            probe=self.probe_result if probes else None,
        )
        self._file.write(metrics)
        self.watch(metrics)

    def _save_snapshot_if_due(self) -> None:
        if self.step in self.snapshot_steps and self.world.is_first:
            with self._pause():
                save_snapshot(self.folder, self.step, self.model())

    def _must_stop(self, stop: threading.Event) -> bool:
        if self.world.size == 1:
            return stop.is_set()
        # Processes agree by a message, which is exchanged only at reports.
        at_report = self.step % self.recipe.watching.log_every == 0
        return at_report and self.world.any(stop.is_set())


@contextmanager
def stop_signals() -> Generator[threading.Event]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into a stop request, which is handled between steps.

    A second signal ends the process as usual. Ignored signals (SIGHUP under nohup) stay ignored.
    """
    request = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield request  # signals are only delivered to the main thread
        return
    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    handlers = {key: value for key, value in handlers.items() if value is not signal.SIG_IGN}

    def handle(number: int, _: FrameType | None) -> None:
        request.set()
        signal.signal(number, handlers[signal.Signals(number)])

    for number in handlers:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
