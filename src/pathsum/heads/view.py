"""What the heads of one layer do on a probe: everything that a score from data may look at."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import Model, Trace
from pathsum.model.reads import folded_unembedding, layer_reads
from pathsum.model.rotary import rotate
from pathsum.model.transformer import attention_pattern
from pathsum.text.probes import RepeatedTokens


@dataclass(frozen=True, eq=False)
class LayerView:
    """Heads of one layer on a probe; real ones, or random ones that read the same stream.

    `read` is the stream with its normalisation scale, as folded reads meet it; `stream` is without.
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

    @property
    def rows(self) -> Float[Tensor, "draw head dest src"]:
        """The pattern without its first row, which has no choice."""
        return self.pattern[:, :, 1:]


def layer_views(trace: Trace, probe: RepeatedTokens) -> Iterator[LayerView]:
    """The heads of each layer in turn on a run of the probe."""
    W_U = centred_unembedding(trace.model)
    config = trace.model.config
    for layer in range(config.n_layers):
        reads = layer_reads(trace.model.weights, layer)
        yield LayerView(
            probe=probe,
            stream=trace.streams[layer],
            read=trace.streams[layer] * trace.scales.attention[layer][..., None],
            pattern=trace.patterns[layer],
            W_V=reads.W_V.repeat_interleave(config.heads_a_key, dim=0),
            W_O=trace.model.weights.layers[layer].W_O,
            W_U=W_U,
        )


def centred_unembedding(model: Model) -> Float[Tensor, "d vocab"]:
    """W_U as the logits read it, the vocabulary's mean removed."""
    W_U = folded_unembedding(model.weights)[0]
    return W_U - W_U.mean(-1, keepdim=True)


def random_heads(
    model: Model, layer: int, view: LayerView, count: int, generator: torch.Generator
) -> LayerView:
    """Heads drawn at random in place of a layer's own, reading the same stream.

    Each is one of the layer's heads with the stream rotated at random, and independently, before
    its query, its key and its value, and after its write: it has the same singular values as a real
    head, and looks nowhere and moves nothing in particular.
    """
    config, reads = model.config, layer_reads(model.weights, layer)
    like = torch.arange(count) % config.n_heads
    kv = like // config.heads_a_key
    W_Q = turned(reads.W_Q, like, generator)
    W_K = turned(reads.W_K, kv, generator)
    W_V = turned(reads.W_V, kv, generator)
    W_O = turned(view.W_O.mT, like, generator).mT
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
    W: Float[Tensor, "head d k"], like: Int[Tensor, " drawn"], generator: torch.Generator
) -> Float[Tensor, "drawn d k"]:
    """R W[like] for a uniformly random rotation R each: a random frame times W's own triangle."""
    d, k = W.shape[-2:]
    triangle = torch.linalg.qr(W)[1] if d > k else W
    noise = torch.randn(len(like), d, min(d, k), generator=generator, dtype=torch.float64)
    # Gaussian noise has no direction, and whitening its columns by Cholesky keeps it so.
    whitener = torch.linalg.cholesky(noise.mT @ noise)
    frame = torch.linalg.solve_triangular(whitener, noise.mT, upper=False).mT
    return frame.to(W) @ triangle[like]
