"""Streams truncated by order, all in one pass.

The paper runs the model n + 2 times: once to save the patterns, then with patterns forced, each
time adding to the stream the head outputs saved in the run before. Run n + 2 holds all paths
through at most n heads. The same streams in one pass: with Xₙ[l] the stream before layer l of paths
of order ≤ n,

    X₀[l+1] = X₀[l] + leaves of l          Xₙ[l+1] = Xₙ[l] + heads_l(Xₙ₋₁[l]) + leaves of l

where heads_l is the frozen layer, and the leaves (what biases and MLPs write) are of order 0. No
path reaches layer l through more than l heads, so Xₙ[l] is the run's own stream for n ≥ l, which is
known: layer l has to read only X₀ … X_{l−1}.

These are running sums of the streams that `order_sweep.UpSweep` carries by order. Sums are needed
because normalization scales and MLP outputs can be recomputed from them, and the highest order of
each layer, the run's own stream, costs nothing. With MLPs as terms (`MlpOutputs.LINEAR`) nothing is
recomputed, and the sweep is used as it is.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pathsum.base.path import Step
from pathsum.base.shapes import Stream, Tokens
from pathsum.model import HeadId, Run, Source, transformer
from pathsum.model.losses import (
    PredictionMetric,
    SequenceLosses,
    next_tokens,
    read_losses,
    target_losses,
)
from pathsum.paths.frozen import Frozen, FrozenLayer, Gates, Streams, bias_stream
from pathsum.paths.order_sweep import MlpStep, UpSweep


class Scales(enum.StrEnum):
    """The normalization scale that a truncated stream is multiplied by.

    `FROZEN`      that of the run's own stream: the logits stay an exact sum over paths
    `RECOMPUTED`  that of the truncated stream, as in the paper's repeated runs: not a path sum
    """

    FROZEN = "frozen"
    RECOMPUTED = "recomputed"


class MlpOutputs(enum.StrEnum):
    """The MLP outputs that a truncated stream holds.

    `FROZEN`      those of the run, as leaves of order 0; they depend on what heads wrote
    `RECOMPUTED`  those of the MLPs on the truncated stream: not a path sum
    `LINEAR`      those of the MLPs with their gates held: terms like heads, each an order more
    """

    FROZEN = "frozen"
    RECOMPUTED = "recomputed"
    LINEAR = "linear"


@dataclass(frozen=True, eq=False)
class Truncated:
    """The streams of one run truncated by order.

    `free[2l]` is X₀[l], what no head has touched, by the level (`level_of`) below which it was
    written; `last[n]` is Xₙ at the top, n = 0 … n_layers, or more with MLPs as terms.
    """

    frozen: Frozen
    scale: Scales
    mlps: MlpOutputs
    free: Mapping[int, Stream]
    last: tuple[Stream, ...]

    def read(self, stream: Stream) -> Stream:
        """A truncated stream as the unembedding reads it."""
        weights, config = self.frozen.run.weights, self.frozen.run.weights.config
        scale = self.frozen.final_scale if self.scale is Scales.FROZEN else None
        return transformer.normalize(config, stream, weights.ln_f_w, weights.ln_f_b, scale)[0]

    def losses(
        self,
        stream: Stream,
        first: int = 0,
        targets: Tokens | None = None,
        metric: PredictionMetric = target_losses,
    ) -> SequenceLosses:
        """Losses of the logits of a truncated stream, from position `first` on."""
        run = self.frozen.run
        wanted = next_tokens(run.tokens) if targets is None else targets
        losses = read_losses(run.weights, self.read(stream), wanted, first, metric)
        transformer.refuse_overflow(losses.total)
        return losses

    def term(self, steps: Sequence[Step]) -> Stream:
        """The output of a chain of steps, bottom to top, on a stream without other heads."""
        streams = self.free[self.frozen.reads_below(steps[0])][None]
        for step in steps:
            linear = self.frozen.step(step)
            if isinstance(linear, FrozenLayer):
                linear = _scaled(self.frozen, linear, streams, self.scale)
            streams = linear.apply(streams)
        return streams[0]


@torch.no_grad()
def truncate(
    run: Run,
    scale: Scales = Scales.FROZEN,
    mlps: MlpOutputs = MlpOutputs.FROZEN,
) -> Truncated:
    """All truncated streams of a run."""
    if mlps is MlpOutputs.LINEAR and run.weights.config.mlp != "none":
        return _truncate_linear(run, scale)
    frozen, config = Frozen(run), run.weights.config
    recompute_mlps = config.mlp != "none" and mlps is MlpOutputs.RECOMPUTED
    streams: list[Stream] = []
    free = [frozen.start]
    for index, weights in enumerate(run.weights.layers):
        # Orders 0 … index, the last of which is the run's own stream. One at a time, from the
        # highest down: a stream stays in the processor's cache and is read before it changes.
        streams.append(run.streams[index].clone())
        parallel = recompute_mlps and config.block == "parallel"
        before = [stream.clone() for stream in streams] if parallel else streams
        layer = frozen.layer(index)
        for order in range(index, 0, -1):
            lower = streams[order - 1][None]
            streams[order] += _scaled(frozen, layer, lower, scale).apply(lower)[0]
        leaves = bias_stream(run, index) if recompute_mlps else frozen.added_after(index)
        for read, stream in zip(before, streams, strict=True):
            if leaves is not None:
                stream += leaves
            if recompute_mlps:
                stream += transformer.mlp(config, weights, read)[0]
        free.append(streams[0].clone())
    below = {2 * index: stream for index, stream in enumerate(free)}
    return Truncated(frozen, scale, mlps, below, (*streams, run.streams[-1]))


def _truncate_linear(run: Run, scale: Scales) -> Truncated:
    """Truncated streams with MLPs as steps of their own."""
    frozen = Frozen(run, gates=Gates(run))
    sweep = UpSweep(frozen, orders=frozen.orders(frozen.n_layers))
    free: dict[int, Stream] = {}
    for step in sweep.steps_to(frozen.n_layers):
        mlp = isinstance(step, MlpStep)
        below = frozen.reads_below(Source("mlp", step.index) if mlp else HeadId(step.index, 0))
        free[below] = sweep.streams[0].clone()
    return Truncated(frozen, scale, MlpOutputs.LINEAR, free, tuple(sweep.streams.cumsum(0)))


def _scaled(frozen: Frozen, layer: FrozenLayer, streams: Streams, scale: Scales) -> FrozenLayer:
    """The layer as it reads truncated streams: with the run's own scale or with theirs."""
    config = frozen.run.weights.config
    if scale is Scales.FROZEN or config.norm == "none" or config.norm_place == "after":
        return layer
    return replace(layer, scale=transformer.normalize(config, streams[0], None, None)[1])
