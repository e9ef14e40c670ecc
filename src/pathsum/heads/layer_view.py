"""The heads of one layer on a probe, real or random: what scores from data are computed from.

Random heads are the null: each of the layer's heads again and again, with the stream rotated at
random, and independently, before its queries, keys and values and after its write. They keep that
head's scale and singular values, its biases, norms and positions, read the same stream, and go
through the transformer's own attention.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.rotations import random_frames, root
from pathsum.algebra.seeds import seeded
from pathsum.heads.score import Score, against_null
from pathsum.model import Model, Trace
from pathsum.model.folding import centered_unembedding, unfolded, value_reads
from pathsum.model.transformer import attend, attention_read, for_query_heads, normed_and_rotated
from pathsum.text.probes import RepeatedTokens

# A few sequences show what random heads do. p compares heads on the same few.
NULL_SEQUENCES = 4
# Entries of random heads' patterns that are in memory at a time: about a cache of them.
ENTRIES_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class OwnOV:
    """What a layer's own heads move. W_U has its mean over the vocabulary removed."""

    W_V: Float[Tensor, "head d k"]
    W_O: Float[Tensor, "head k d"]
    W_U: Float[Tensor, "d vocab"]

    def values(self, read: Float[Tensor, "sequence pos d"]) -> Float[Tensor, "sequence head pos k"]:
        """The value of each position, without biases."""
        return torch.einsum("bpd,hdk->bhpk", read, self.W_V)

    def along_writes(
        self, stream: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence head pos k"]:
        """The stream's inner products with the directions that each head writes to."""
        return torch.einsum("bpd,hkd->bhpk", stream, self.W_O)

    def effects(self, tokens: Int[Tensor, "sequence n"]) -> Float[Tensor, "sequence head k n"]:
        """What each component of a value does to the logits of some tokens, their mean removed."""
        return torch.einsum("hkd,dbn->bhkn", self.W_O, self.W_U[:, tokens])


@dataclass(frozen=True, eq=False)
class RotatedOV:
    """What a layer's heads move in random frames: every read and write is a frame times its root.

    Heads are every head of the first draw, then every head of the second, and so on.
    """

    value_frames: Float[Tensor, "drawn d r"]
    write_frames: Float[Tensor, "drawn d r"]
    value_roots: Float[Tensor, "head r k"]
    write_roots: Float[Tensor, "head r k"]
    W_U: Float[Tensor, "d vocab"]

    def values(
        self, read: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence heads pos k"]:
        """The value of each position, without biases."""
        return side_by_side(through_frames(read, self.value_frames, self.value_roots))

    def along_writes(
        self, stream: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence heads pos k"]:
        """The stream's inner products with the directions that each head writes to."""
        return side_by_side(through_frames(stream, self.write_frames, self.write_roots))

    def effects(self, tokens: Int[Tensor, "sequence n"]) -> Float[Tensor, "sequence heads k n"]:
        """What each component of a value does to the logits of some tokens, their mean removed."""
        columns = self.W_U[:, tokens].permute(1, 2, 0)
        return side_by_side(through_frames(columns, self.write_frames, self.write_roots)).mT


LayerOV: TypeAlias = OwnOV | RotatedOV


def through_frames(
    x: Float[Tensor, "sequence pos d"],
    frames: Float[Tensor, "drawn d r"],
    roots: Float[Tensor, "head r k"],
) -> Float[Tensor, "drawn sequence head pos k"]:
    """x times frame times root: what rotated reads make of it, without making the reads.

    The frames are shared by all heads, so the product with d, the costly one, is too.
    """
    framed = torch.einsum("bpd,cdr->cbpr", x, frames)
    return torch.einsum("cbpr,hrk->cbhpk", framed, roots)


def side_by_side(
    drawn: Float[Tensor, "drawn sequence head pos k"],
) -> Float[Tensor, "sequence heads pos k"]:
    """The heads of all draws side by side."""
    return drawn.transpose(0, 1).flatten(1, 2)


@dataclass(frozen=True, eq=False)
class LayerView:
    """Heads of one layer on a probe; real ones, or random ones that read the same stream.

    `read` is what value reads see: the stream times its normalization scale, where reads are folded
    (real heads), or with the norm's gain and centering too (random heads). `stream` is the stream
    itself, and `ov` what heads move.
    A score is a function of a view alone, so it means the same for real and for random heads.
    """

    probe: RepeatedTokens
    stream: Float[Tensor, "sequence pos d"]
    read: Float[Tensor, "sequence pos d"]
    pattern: Float[Tensor, "sequence head dest src"]
    ov: LayerOV

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

    @cached_property
    def values(self) -> Float[Tensor, "sequence head pos k"]:
        """Each head's value of each position, without biases; several scores use it."""
        return self.ov.values(self.read)

    def stream_along_writes(self) -> Float[Tensor, "sequence head pos k"]:
        """The stream's inner products with what each head writes to."""
        return self.ov.along_writes(self.stream)

    def effects(self, tokens: Int[Tensor, "sequence n"]) -> Float[Tensor, "sequence head k n"]:
        """What each component of a value does to the logits of some tokens, their mean removed."""
        return self.ov.effects(tokens)


Measure: TypeAlias = Callable[[LayerView], Float[Tensor, "sequence head"]]
"""A score from data: one number per sequence and head."""


def layer_views(trace: Trace, probe: RepeatedTokens) -> Iterator[LayerView]:
    """The heads of each layer in turn, on a run of the probe."""
    W_U = centered_unembedding(trace.model.weights)
    for layer in range(trace.model.config.n_layers):
        yield layer_view(trace, probe, layer, W_U)


def layer_view(
    trace: Trace, probe: RepeatedTokens, layer: int, W_U: Float[Tensor, "d vocab"]
) -> LayerView:
    """The heads of one layer, given the centered unembedding, which all layers share."""
    weights = trace.model.weights
    return LayerView(
        probe=probe,
        stream=trace.streams[layer],
        read=trace.streams[layer] * trace.scales.attention[layer][..., None],
        pattern=trace.patterns[layer],
        ov=OwnOV(value_reads(weights, layer), weights.attention[layer].W_O, W_U),
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
        self._generator = seeded(seed)
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
        return random_frames(*self._shape, self._generator).to(self._empty)


def compare_with_random_heads(
    model: Model,
    layer: int,
    view: LayerView,
    frames: RandomFrames,
    measures: Sequence[Measure],
    sequences: int = NULL_SEQUENCES,
) -> list[list[Score]]:
    """Every measure of every head of a layer, with its p among random heads of its own.

    p compares a head with its random heads on the first few sequences alone, which both have run:
    then a head in random directions is one of them, and p is exact. The value is over all.
    """
    few = view.first(sequences)
    nulls: list[list[Tensor]] = [[] for _ in measures]
    for drawn in random_views(model, layer, few, frames):
        for null, measure in zip(nulls, measures, strict=True):
            null.append(measure(drawn).mean(0).unflatten(0, (-1, model.config.n_heads)))
    return [
        against_null(measure(view), torch.cat(null), measure(few).mean(0))
        for measure, null in zip(measures, nulls, strict=True)
    ]


def random_views(
    model: Model, layer: int, view: LayerView, frames: RandomFrames
) -> Iterator[LayerView]:
    """Random heads in place of a layer's own, some draws at a time.

    Heads are side by side: every head of the first draw, then every head of the second, and so on.
    """
    config, raw = model.config, model.weights.attention[layer]
    roots = root(raw.W_Q), root(raw.W_K)
    placed = attention_read(config, raw, view.stream)[0]
    if raw.W_pos is not None:
        placed = placed + raw.W_pos[: placed.shape[1]]
    places = torch.arange(placed.shape[1], device=placed.device)
    read = unfolded_read(model, layer, view.read)
    for part, ov in rotated_ovs(model, layer, view.ov.W_U, frames, view.pattern.numel()):
        count = len(ov.value_frames)
        query = _projected(placed, frames.query[part], roots[0], raw.b_Q)
        key = _projected(placed, frames.key[part], roots[1], raw.b_K)
        query, key, _, _ = normed_and_rotated(config, raw, query, key, places)
        wide = config.replace(n_heads=count * config.n_heads, n_kv_heads=count * config.n_kv_heads)
        layer_of_all = raw if raw.sinks is None else replace(raw, sinks=raw.sinks.repeat(count))
        query, key = (side_by_side(each.unflatten(0, (count, -1))) for each in (query, key))
        yield replace(
            view,
            read=read,
            pattern=attend(wide, layer_of_all, query, key),
            ov=ov,
        )


def rotated_ovs(
    model: Model,
    layer: int,
    W_U: Float[Tensor, "d vocab"],
    frames: RandomFrames,
    entries_per_draw: int,
) -> Iterator[tuple[slice, RotatedOV]]:
    """What random heads move, some draws at a time, and which draws these are.

    They take reads as `unfolded_read` gives them. `entries_per_draw` is the size of what is made of
    each draw.
    """
    raw = model.weights.attention[layer]
    write_roots = root(raw.W_O.mT)
    value_roots = for_query_heads(root(raw.W_V), len(write_roots))
    at_once = max(1, ENTRIES_AT_ONCE // entries_per_draw)
    for start in range(0, frames.count, at_once):
        part = slice(start, min(start + at_once, frames.count))
        ov = RotatedOV(frames.value[part], frames.write[part], value_roots, write_roots, W_U)
        yield part, ov


def unfolded_read(
    model: Model, layer: int, read: Float[Tensor, "*pos d"]
) -> Float[Tensor, "*pos d"]:
    """The input of the stored W_V from that of the folded one: centered, times the gain."""
    return unfolded(model.config.norm, read, model.weights.attention[layer].ln1_w)


def _projected(
    x: Float[Tensor, "sequence pos d"],
    frames: Float[Tensor, "drawn d r"],
    roots: Float[Tensor, "head r k"],
    bias: Float[Tensor, "head k"] | None,
) -> Float[Tensor, "batch head pos k"]:
    """Queries or keys of random heads, draws and sequences in one batch."""
    found = through_frames(x, frames, roots).flatten(0, 1)
    return found if bias is None else found + bias[:, None, :]
