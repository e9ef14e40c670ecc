"""The heads of one layer on a probe, real or random: everything a score from data may use.

Random heads are the null (PAPER.md §12): each has the singular values of one of the layer's heads,
reads the same residual stream, and goes through the transformer's own attention.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.decompositions import cholesky, eigh
from pathsum.model import Model, Trace
from pathsum.model.folding import centered_unembedding, for_query_heads, layer_reads
from pathsum.model.transformer import attend, queries_and_keys
from pathsum.model.weights import LayerWeights
from pathsum.text.probes import RepeatedTokens


@dataclass(frozen=True, eq=False)
class LayerView:
    """Heads of one layer on a probe; real ones, or random ones that read the same stream.

    `read` is the stream times its normalization scale, as folded reads see it; `stream` is the
    stream itself.
    A score is a function of a view alone, so it means the same for real and for random heads.
    """

    probe: RepeatedTokens
    stream: Float[Tensor, "sequence pos d"]
    read: Float[Tensor, "sequence pos d"]
    pattern: Float[Tensor, "sequence head dest src"]
    W_V: Float[Tensor, "head d k"]
    W_O: Float[Tensor, "head k d"]
    W_U: Float[Tensor, "d vocab"]

    def first(self, sequences: int) -> "LayerView":
        """The same heads on the first few sequences."""
        return replace(
            self,
            probe=replace(self.probe, tokens=self.probe.tokens[:sequences]),
            stream=self.stream[:sequences],
            read=self.read[:sequences],
            pattern=self.pattern[:sequences],
        )

    @property
    def rows(self) -> Float[Tensor, "sequence head dest src"]:
        """The pattern without its first row, where a head has no choice."""
        return self.pattern[:, :, 1:]


def layer_views(trace: Trace, probe: RepeatedTokens) -> Iterator[LayerView]:
    """The heads of each layer in turn, on a run of the probe."""
    W_U = centered_unembedding(trace.model.weights)
    for layer in range(trace.model.config.n_layers):
        yield layer_view(trace, probe, layer, W_U)


def layer_view(
    trace: Trace, probe: RepeatedTokens, layer: int, W_U: Float[Tensor, "d vocab"]
) -> LayerView:
    """The heads of one layer, given the centered unembedding, which all layers share."""
    reads = layer_reads(trace.model.weights, layer)
    return LayerView(
        probe=probe,
        stream=trace.streams[layer],
        read=trace.streams[layer] * trace.scales.attention[layer][..., None],
        pattern=trace.patterns[layer],
        W_V=for_query_heads(trace.model.config, reads.W_V),
        W_O=trace.model.weights.layers[layer].W_O,
        W_U=W_U,
    )


def in_full_precision(model: Model) -> Model:
    """The model itself, or in float32 if it is in half precision.

    Eigenvalues have no half-precision kernel, and small scores would drown in rounding.
    """
    half = model.weights.W_E.dtype in (torch.float16, torch.bfloat16)
    return model.to(torch.float32) if half else model


class RandomFrames:
    """Random directions to read from and write to, drawn once for all layers of a model.

    Each of the four is `count` orthonormal frames of R^d, uniformly random. A layer's null combines
    them with its own singular values, so drawing costs nothing per layer.
    """

    def __init__(self, model: Model, count: int, seed: int) -> None:
        config = model.config
        self.count, self.seed = count, seed
        self._generator = torch.Generator().manual_seed(seed)
        self._shape = (count, config.d_model, min(config.d_model, config.d_head))
        self._empty = model.weights.W_E[:0]  # for its dtype and device

    @property
    def query(self) -> Float[Tensor, "drawn d r"]:
        """Directions that queries read."""
        return self._drawn[0]

    @property
    def key(self) -> Float[Tensor, "drawn d r"]:
        """Directions that keys read."""
        return self._drawn[1]

    @property
    def value(self) -> Float[Tensor, "drawn d r"]:
        """Directions that values read."""
        return self._drawn[2]

    @property
    def write(self) -> Float[Tensor, "drawn d r"]:
        """Directions that heads write to."""
        return self._drawn[3]

    @cached_property
    def _drawn(self) -> tuple[Float[Tensor, "drawn d r"], ...]:
        # All at once, so that they do not depend on which of them is asked for first.
        return tuple(self._draw() for _ in range(4))

    def _draw(self) -> Float[Tensor, "drawn d r"]:
        # Drawn in float32, which is faster and random enough, and whitened in float64. Gaussian
        # noise has no preferred direction, and whitening its columns by Cholesky keeps it so.
        noise = torch.randn(self._shape, generator=self._generator).double()
        whitener = cholesky(noise.mT @ noise)
        return torch.linalg.solve_triangular(whitener, noise.mT, upper=False).mT.to(self._empty)


def random_heads(model: Model, layer: int, view: LayerView, frames: RandomFrames) -> LayerView:
    """Random heads in place of a layer's own, reading the same stream.

    Each is one of the layer's heads with the stream rotated at random, and independently, before
    its query, its key and its value, and after its write: it keeps that head's singular values and
    attends to nothing and moves nothing in particular.
    """
    config, reads = model.config, layer_reads(model.weights, layer)
    head = torch.arange(frames.count) % config.n_heads
    kv = head // config.heads_per_kv
    drawn = LayerWeights(
        W_Q=rotated(reads.W_Q, head, frames.query),
        W_K=rotated(reads.W_K, kv, frames.key),
        W_V=rotated(reads.W_V, kv, frames.value),
        W_O=rotated(view.W_O.mT, head, frames.write).mT,
        W_pos=model.weights.layers[layer].W_pos,
        index=layer,
    )
    wide = config.replace(n_heads=frames.count, n_kv_heads=frames.count)
    query, key, _, _ = queries_and_keys(wide, drawn, view.read)
    return replace(view, pattern=attend(wide, drawn, query, key), W_V=drawn.W_V, W_O=drawn.W_O)


def rotated(
    W: Float[Tensor, "head d k"], head: Int[Tensor, " drawn"], frames: Float[Tensor, "drawn d r"]
) -> Float[Tensor, "drawn d k"]:
    """R W[head], with a uniformly random rotation R for each: a random frame times W's root."""
    return frames @ root(W)[head]


def root(W: Float[Tensor, "head d k"]) -> Float[Tensor, "head r k"]:
    """What rotations of the rows of each W leave unchanged: (Wᵀ W)^½, or W itself where d ≤ k.

    A uniformly random frame times it is W rotated at random. Taken from the k × k product, which
    costs a tenth of a QR of W.
    """
    d, k = W.shape[-2:]
    if d <= k:
        return W
    wide = W.double()
    squares, vectors = eigh(wide.mT @ wide)
    return ((vectors * squares.clamp_min(0).sqrt()[:, None]) @ vectors.mT).to(W)
