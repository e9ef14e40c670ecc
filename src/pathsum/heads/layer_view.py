"""What the heads of one layer do on a probe: everything that a score from data may look at."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.decompositions import cholesky, eigh
from pathsum.model import Model, Trace
from pathsum.model.reads import folded_unembedding, layer_reads
from pathsum.model.rotary import rotate
from pathsum.model.transformer import attention_pattern
from pathsum.text.probes import RepeatedTokens


@dataclass(frozen=True, eq=False)
class LayerView:
    """Heads of one layer on a probe; real ones, or random ones that read the same stream.

    `read` is the stream with its normalization scale, as folded reads meet it; `stream` is without.
    A score of heads is a function of this alone, so that it means the same for a head of the model
    and for one drawn at random.
    """

    probe: RepeatedTokens
    stream: Float[Tensor, "draw pos d"]
    read: Float[Tensor, "draw pos d"]
    pattern: Float[Tensor, "draw head dest src"]
    W_V: Float[Tensor, "head d k"]
    W_O: Float[Tensor, "head k d"]
    W_U: Float[Tensor, "d vocab"]

    def few(self, draws: int) -> "LayerView":
        """The same on the first draws alone."""
        probe = replace(self.probe, tokens=self.probe.tokens[:draws])
        parts = (self.stream[:draws], self.read[:draws], self.pattern[:draws])
        return replace(self, probe=probe, stream=parts[0], read=parts[1], pattern=parts[2])

    @property
    def rows(self) -> Float[Tensor, "draw head dest src"]:
        """The pattern without its first row, which has no choice."""
        return self.pattern[:, :, 1:]


def layer_views(trace: Trace, probe: RepeatedTokens) -> Iterator[LayerView]:
    """The heads of each layer in turn on a run of the probe."""
    W_U = centered_unembedding(trace.model)
    config = trace.model.config
    for layer in range(config.n_layers):
        reads = layer_reads(trace.model.weights, layer)
        yield LayerView(
            probe=probe,
            stream=trace.streams[layer],
            read=trace.streams[layer] * trace.scales.attention[layer][..., None],
            pattern=trace.patterns[layer],
            W_V=reads.W_V.repeat_interleave(config.heads_per_kv, dim=0),
            W_O=trace.model.weights.layers[layer].W_O,
            W_U=W_U,
        )


def in_full_precision(model: Model) -> Model:
    """The model itself, or in float32 if it is in half precision.

    Eigenvalues have no half-precision kernel, and small scores would drown in rounding.
    """
    half = model.weights.W_E.dtype in (torch.float16, torch.bfloat16)
    return model.to(torch.float32) if half else model


def centered_unembedding(model: Model) -> Float[Tensor, "d vocab"]:
    """W_U as the logits read it, the vocabulary's mean removed."""
    W_U = folded_unembedding(model.weights)[0]
    return W_U - W_U.mean(-1, keepdim=True)


class RandomFrames:
    """Random directions to read and write in, drawn once for all layers of a model.

    Each of the four is `count` orthonormal frames of R^d, uniformly random: a layer's null takes
    them with its own singular values, so that drawing costs nothing a layer.
    """

    def __init__(self, model: Model, count: int, seed: int) -> None:
        config = model.config
        self.count = count
        self._generator = torch.Generator().manual_seed(seed)
        self._shape = (count, config.d_model, min(config.d_model, config.d_head))
        self._like = model.weights.W_E[:0]

    @cached_property
    def query(self) -> Float[Tensor, "drawn d r"]:
        """Where queries read."""
        return self._drawn()

    @cached_property
    def key(self) -> Float[Tensor, "drawn d r"]:
        """Where keys read."""
        return self._drawn()

    @cached_property
    def value(self) -> Float[Tensor, "drawn d r"]:
        """Where values read."""
        return self._drawn()

    @cached_property
    def write(self) -> Float[Tensor, "drawn d r"]:
        """Where heads write."""
        return self._drawn()

    def _drawn(self) -> Float[Tensor, "drawn d r"]:
        # Drawn in float32, which is faster and random enough, and whitened in float64. Gaussian
        # noise has no direction, and whitening its columns by Cholesky keeps it so.
        noise = torch.randn(self._shape, generator=self._generator).double()
        whitener = cholesky(noise.mT @ noise)
        return torch.linalg.solve_triangular(whitener, noise.mT, upper=False).mT.to(self._like)


def random_heads(model: Model, layer: int, view: LayerView, frames: RandomFrames) -> LayerView:
    """Heads drawn at random in place of a layer's own, reading the same stream.

    Each is one of the layer's heads with the stream rotated at random, and independently, before
    its query, its key and its value, and after its write: it has the same singular values as a real
    head, and looks nowhere and moves nothing in particular.
    """
    config, reads = model.config, layer_reads(model.weights, layer)
    like = torch.arange(frames.count) % config.n_heads
    kv = like // config.heads_per_kv
    W_Q, W_K = turned(reads.W_Q, like, frames.query), turned(reads.W_K, kv, frames.key)
    W_V = turned(reads.W_V, kv, frames.value)
    W_O = turned(view.W_O.mT, like, frames.write).mT
    placed = view.read
    W_pos = model.weights.layers[layer].W_pos
    if W_pos is not None:
        placed = placed + W_pos[: placed.shape[1]]
    query = torch.einsum("bpd,hdk->bhpk", placed, W_Q)
    key = torch.einsum("bpd,hdk->bhpk", placed, W_K)
    if config.qk_norm != "none":
        query, key = (x * torch.rsqrt(x.square().mean(-1, True)) for x in (query, key))
    if config.positions == "rotary":
        places = torch.arange(placed.shape[1], device=placed.device)
        query, key = rotate(config, query, places), rotate(config, key, places)
    scores = (query * config.score_scale) @ key.mT
    return replace(view, pattern=attention_pattern(scores), W_V=W_V, W_O=W_O)


def turned(
    W: Float[Tensor, "head d k"], like: Int[Tensor, " drawn"], frames: Float[Tensor, "drawn d r"]
) -> Float[Tensor, "drawn d k"]:
    """R W[like] for a uniformly random rotation R each: a random frame times W's own root."""
    return frames @ root(W)[like]


def root(W: Float[Tensor, "head d k"]) -> Float[Tensor, "head r k"]:
    """All of each W that a rotation of its rows leaves: (Wᵀ W)^½, or W itself where d ≤ k.

    A uniformly random frame times it is W rotated at random. From the k × k product, which costs a
    tenth of a QR of W.
    """
    d, k = W.shape[-2:]
    if d <= k:
        return W
    wide = W.double()
    squares, vectors = eigh(wide.mT @ wide)
    return ((vectors * squares.clamp_min(0).sqrt()[:, None]) @ vectors.mT).to(W)
