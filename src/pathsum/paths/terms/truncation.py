"""Streams truncated by order, all in one pass.

The paper runs the model n + 2 times: once to save the patterns, then again and again with patterns
forced, each time adding to the stream the head outputs saved in the run before. Run n + 2 holds
all paths through at most n heads. The same streams in one pass: with Xₙ[l] the stream before
layer l of paths of order ≤ n,

    X₀[l+1] = X₀[l] + leaves of l          Xₙ[l+1] = Xₙ[l] + heads_l(Xₙ₋₁[l]) + leaves of l

where heads_l moves values by the recorded patterns, and the leaves (what biases and MLPs write) are
of order 0. No path reaches layer l through more than l heads, so Xₙ[l] is the run's own stream for
n ≥ l, which is known: layer l has only X₀ … X_{l−1} to read.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pathsum.model import HeadId, LayerWeights, transformer
from pathsum.model.losses import SequenceLosses, read_losses
from pathsum.model.reads import fold_read
from pathsum.paths.stream_sources import attention_bias
from pathsum.paths.terms.residual_trace import ResidualTrace
from pathsum.shapes import Logits, Stream


class Scales(enum.StrEnum):
    """Whose size normalization divides a truncated stream by.

    `RUN`       the run's own stream's: the logits stay an exact sum over paths
    `TRUNCATED` the truncated stream's own, as the paper's repeated runs would: no sum over paths
    """

    FROZEN = "frozen"
    RECOMPUTED = "recomputed"


class MlpOutputs(enum.StrEnum):
    """Which MLP outputs a truncated stream holds.

    `RUN`       those of the run, as leaves of order 0; they contain what heads told the MLPs
    `TRUNCATED` those that the MLPs would give for the truncated stream: no sum over paths
    """

    FROZEN = "frozen"
    RECOMPUTED = "recomputed"


@dataclass(frozen=True, eq=False)
class Truncated:
    """The streams of one run truncated by order, at every depth.

    `free[l]` is X₀[l], what no head has touched; `last[n]` is Xₙ at the top, n = 0 … n_layers.
    """

    run: ResidualTrace
    scale: Scales
    mlps: MlpOutputs
    free: tuple[Stream, ...]
    last: tuple[Stream, ...]

    def read(self, stream: Stream) -> Stream:
        """What the unembedding reads of a truncated stream."""
        weights, config = self.run.model.weights, self.run.model.config
        if config.norm == "none":
            return stream
        if self.scale is Scales.RECOMPUTED:
            return transformer.normalize(config, stream, weights.ln_f_w, weights.ln_f_b)[0]
        if config.norm == "layer":
            stream = stream - stream.mean(-1, keepdim=True)
        read = stream * self.run.final_scale[..., None]
        read = read if weights.ln_f_w is None else read * weights.ln_f_w
        return read if weights.ln_f_b is None else read + weights.ln_f_b

    def logits(self, stream: Stream) -> Logits:
        """Logits of a truncated stream."""
        weights = self.run.model.weights
        logits = self.read(stream) @ weights.W_U
        return logits if weights.b_U is None else logits + weights.b_U

    def losses(self, stream: Stream, first: int = 0) -> SequenceLosses:
        """What the logits of a truncated stream lose, from a position on."""
        return read_losses(self.run.model.weights, self.read(stream), self.run.tokens, first)

    def term(self, heads: Sequence[HeadId]) -> Stream:
        """What a chain of heads, bottom to top, writes at its top of what no head has touched."""
        stream = self.free[heads[0].layer]
        for head in heads:
            stream = self.through(head, stream)
        return stream

    def through(self, head: HeadId, stream: Stream) -> Stream:
        """What one head writes of a stream: A diag(s) x W_V W_O."""
        config = self.run.model.config
        layer = self.run.model.weights.layers[head.layer]
        W_V = fold_read(config.norm, layer.W_V[head.head // config.heads_per_kv], layer.ln1_w)
        value = _scaled(self.run, head.layer, stream, self.scale) @ W_V
        moved = self.run.patterns[head.layer][:, head.head] @ value
        return moved @ layer.W_O[head.head]


@torch.no_grad()
def truncate(
    run: ResidualTrace, scale: Scales = Scales.FROZEN, mlps: MlpOutputs = MlpOutputs.FROZEN
) -> Truncated:
    """All truncated streams of a run."""
    weights, config = run.model.weights, run.model.config
    below: list[Stream] = []
    free = [run.streams[0]]
    for index, layer in enumerate(weights.layers):
        # Orders 0 … index, of which the last is the run's own stream.
        streams = [*below, run.streams[index]]
        bias = attention_bias(weights, index)
        above: list[Stream] = []
        for order, stream in enumerate(streams):
            attended = stream + bias
            if order:
                attended = attended + _heads(run, index, layer, below[order - 1], scale)
            if config.mlp != "none":
                source = stream if config.block == "parallel" else attended
                recorded = run.mlp_outputs[index]
                again = mlps is MlpOutputs.RECOMPUTED
                output = transformer.mlp(config, layer, source)[0] if again else recorded
                attended = attended + output
            above.append(attended)
        below = above
        free.append(above[0])
    return Truncated(run, scale, mlps, tuple(free), (*below, run.streams[-1]))


def _heads(
    run: ResidualTrace, index: int, layer: LayerWeights, stream: Stream, scale: Scales
) -> Stream:
    """What all heads of a layer write of a stream, biases left out, by the recorded patterns."""
    config = run.model.config
    W_V = fold_read(config.norm, layer.W_V, layer.ln1_w)
    value = transformer.project(_scaled(run, index, stream, scale), W_V, None)
    mixed = transformer.mix(config, run.patterns[index], value)
    return torch.einsum("bhpk,hkd->bpd", mixed, layer.W_O)


def _scaled(run: ResidualTrace, layer: int, stream: Stream, scale: Scales) -> Stream:
    """A stream as a layer's (folded) reads meet it."""
    config = run.model.config
    if config.norm == "none":
        return stream
    own = scale is Scales.RECOMPUTED
    factor = transformer.normalize(config, stream, None, None)[1] if own else run.scales[layer]
    return stream * factor[..., None]
