"""Session: a run in memory, and the loop that takes it from its step to its last."""

import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from pathsum.errors import FailedError
from pathsum.model import Model
from pathsum.text import Corpus
from pathsum.training.batching import Batches
from pathsum.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from pathsum.training.distributed import Strategy, World, spread, whole_weights
from pathsum.training.metrics import Metrics, MetricsFile, Watch
from pathsum.training.monitor import Probe, ProbeResult
from pathsum.training.muon import like
from pathsum.training.network import Network
from pathsum.training.optimizers import Optimizers, first_not_finite
from pathsum.training.recipe import Recipe
from pathsum.training.snapshots import save_snapshot, snapshot_steps
from pathsum.training.speed import flops_per_token, gemm_rate
from pathsum.training.stopping import StopRequest
from pathsum.training.threaded_batch import ThreadedBatch, parts_of


class Session:
    """Everything a run needs at hand. `step` counts the steps that are done."""

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        folder: Path,
        here: World,
        strategy: Strategy,
        watch: Watch,
    ) -> None:
        self.recipe, self.corpus, self.folder = recipe, corpus, folder
        self.here, self.watch = here, watch
        self.batches = Batches(corpus, recipe.config.n_ctx, recipe.batch, recipe.seed)
        sequences = recipe.watching.held_out_sequences
        self.probe = Probe(corpus, recipe.config.n_ctx, sequences)
        self.network = Network(recipe.config, recipe.start, recipe.seed).to(here.device)
        self.runner = spread(self.network, here, strategy)
        self.side_by_side = self._threaded_batch()
        self.optimizers = Optimizers(recipe, self.network)
        self.snapshot_steps = snapshot_steps(recipe.steps, recipe.watching.snapshots)
        self.step = 0
        self.sight: ProbeResult | None = None
        self._losses: list[Tensor] = []
        self._loss = float("nan")
        self._seconds_before = 0.0
        self._began = time.perf_counter()
        self._paused = 0.0
        self._mark = (0, 0.0)
        self._file: MetricsFile | None = None

    def resume(self) -> None:
        """Take up the run where its checkpoint left it."""
        kept = read_checkpoint(self.folder)
        if kept is None:
            return
        weights = kept.part("weights/")
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(like(parameter, weights[name].to(parameter.device)))
        self.optimizers.load(kept.part("optimizer/"))
        self.step, self._seconds_before = kept.step, kept.seconds

    def run(self, stop: StopRequest) -> None:
        """Train to the last step. A wish to stop saves first and then interrupts."""
        self._file = MetricsFile(self.folder, self.step) if self.here.is_first else None
        self._began, self._mark = time.perf_counter(), (self.step, self.seconds)
        watching = self.recipe.watching
        try:
            if self.step == 0:
                self._keep_snapshot()
            while self.step < self.recipe.steps:
                self.learn()
                last = self.step == self.recipe.steps
                if self.step % watching.log_every == 0 or last or self.step == 1:
                    looks = self.step % watching.probe_every == 0 or last
                    self._report(looks)
                self._keep_snapshot()
                if self.step % watching.checkpoint_every == 0 or last:
                    self.save()
                if self._must_stop(stop):
                    self.save()
                    raise KeyboardInterrupt(
                        f"stopped at step {self.step} of {self.recipe.steps} and saved; to go on: "
                        f"pathsum train {self.folder} --resume"
                    )
        finally:
            if self._file is not None:
                self._file.close()

    @property
    def seconds(self) -> float:
        """How long the run has trained, looks and saves left out, over all its processes' lives."""
        return self._seconds_before + time.perf_counter() - self._began - self._paused

    def model(self) -> Model:
        """The model as it is at this step. All processes must ask together."""
        return self.network.to_model(
            self.recipe.name,
            self.corpus.tokenizer,
            self.corpus.token_counts,
            weights=whole_weights(self.network),
        )

    def save(self) -> None:
        """Write a checkpoint, unless a number in it is not finite."""
        began = time.perf_counter()
        self._settle_losses()
        tensors = {f"weights/{name}": it for name, it in whole_weights(self.network).items()}
        tensors |= {f"optimizer/{name}": it for name, it in self.optimizers.state()}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            raise self._diverged(self.step)
        if self.here.is_first:
            write_checkpoint(self.folder, Checkpoint(self.step, self.seconds, tensors))
        self._paused += time.perf_counter() - began

    def learn(self) -> None:
        """One step, without reports."""
        inputs, targets = self.batches.at(self.step, self.here.rank, self.here.size)
        if self.side_by_side is not None:
            loss = self.side_by_side.learn(inputs, targets)
        else:
            device = self.here.device
            half = self.recipe.precision == "bfloat16"
            with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
                loss = self.runner(inputs.to(device), targets.to(device))
            loss.backward()
        self.optimizers.step(self.step)
        self._losses.append(loss.detach().float())
        self.step += 1

    def _threaded_batch(self) -> ThreadedBatch | None:
        """Parts of a batch on threads, where there is one process on several cores."""
        parts = parts_of(self.recipe.batch, torch.get_num_threads())
        by_itself = self.here.size == 1 and self.here.device.type == "cpu"
        if parts == 1 or not by_itself or self.recipe.precision != "float32":
            return None
        return ThreadedBatch(self.network, parts)

    def _settle_losses(self) -> None:
        """Average the losses since the last report over processes; stop if one is not finite."""
        if not self._losses:
            return
        losses = self.here.mean(torch.stack(self._losses))
        bad = first_not_finite(losses)
        if bad is not None:
            raise self._diverged(self.step - len(losses) + bad + 1)
        self._loss = float(losses.mean())
        self._losses.clear()

    def _diverged(self, step: int) -> FailedError:
        kept = read_checkpoint(self.folder)
        where = "it had no checkpoint yet"
        if kept is not None:
            where = f"its last good checkpoint, step {kept.step}, is in {self.folder}"
        return FailedError(
            f"the loss is NaN or infinite at step {step} of {self.recipe.steps}, so the run has "
            f"diverged and was stopped; {where}; lower "
            "learning rates (optimizer.matrix_lr, optimizer.embedding_lr) or set optimizer.clip"
        )

    def _report(self, looks: bool) -> None:
        self._settle_losses()
        seconds = self.seconds
        rate = self._tokens_per_second(seconds)
        if looks:
            began = time.perf_counter()
            model = self.model()
            self.sight = self.probe.look(model) if self.here.is_first else None
            self._paused += time.perf_counter() - began
        if not self.here.is_first or self._file is None:
            return
        config, device = self.recipe.config, self.here.device
        dtype = torch.bfloat16 if self.recipe.precision == "bfloat16" else torch.float32
        peak = gemm_rate(str(device), dtype) * self.here.size
        metrics = Metrics(
            step=self.step,
            steps=self.recipe.steps,
            tokens=self.step * self.recipe.batch * config.n_ctx,
            loss=self._loss,
            rate=self.recipe.schedule.factor(self.step - 1, self.recipe.steps),
            tokens_per_second=rate,
            gemm_share=rate * flops_per_token(config) / peak,
            seconds=seconds,
            seconds_left=(self.recipe.tokens / self.recipe.steps)
            * (self.recipe.steps - self.step)
            / rate,
            sight=self.sight if looks else None,
        )
        self._file.write(metrics)
        self.watch(metrics)

    def _tokens_per_second(self, seconds: float) -> float:
        step, then = self._mark
        self._mark = (self.step, seconds)
        tokens = (self.step - step) * self.recipe.batch * self.recipe.config.n_ctx
        return tokens / max(seconds - then, 1e-9)

    def _keep_snapshot(self) -> None:
        if self.step in self.snapshot_steps:
            began = time.perf_counter()
            model = self.model()
            if self.here.is_first:
                save_snapshot(self.folder, self.step, model)
            self._paused += time.perf_counter() - began

    def _must_stop(self, stop: StopRequest) -> bool:
        if self.here.size == 1:
            return stop.asked
        # Processes must agree, and asking costs a message: only at reports.
        if self.step % self.recipe.watching.log_every:
            return False
        return self.here.any(stop.asked)
