"""The heads of one layer on a probe, real or random: the input of every score from data.

Random heads are the null: copies of each head in which the stream is rotated at random, and
independently, before the queries, keys and values and after the write. They keep the head's scale,
singular values, biases, norms and positions, read the same stream, and go through the transformer's
own attention.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from threading import RLock
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.decompositions import triangle
from pathsum.algebra.rotations import random_frames, root
from pathsum.algebra.seeds import seeded
from pathsum.base import Side
from pathsum.heads.score import Score, against_null
from pathsum.model import Model, Trace
from pathsum.model.folding import centered_unembedding, unfolded, value_reads
from pathsum.model.grouped_query import kv_head
from pathsum.model.processes import stop_if_closed
from pathsum.model.transformer import attend, attention_read, for_query_heads, normed_and_rotated
from pathsum.model.weights import layer_of_one_head, one_head
from pathsum.text.probes import RepeatedTokens

# Random heads run on a few sequences, and p compares heads on the same few.
NULL_SEQUENCES = 4
# Entries of one head's random patterns computed at a time, so that they stay in a core's cache.
ENTRIES_AT_ONCE = 1 << 20
# Blocks of rows in a product with a triangular matrix.
_BLOCKS = 4


@dataclass(frozen=True, eq=False)
class OwnOV:
    """The OV circuits of a layer's own heads. W_U has its mean over the vocabulary removed."""

    W_V: Float[Tensor, "head d k"]
    W_O: Float[Tensor, "head k d"]
    W_U: Float[Tensor, "d vocab"]

    def values(self, read: Float[Tensor, "sequence pos d"]) -> Float[Tensor, "sequence head pos k"]:
        """The value of each position, without biases."""
        return torch.einsum("bpd,hdk->bhpk", read, self.W_V)

    def overlaps(
        self, z: Float[Tensor, "sequence head pos k"], stream: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence head pos"]:
        """⟨z W_O, stream⟩ at each position, without computing the d-wide write itself."""
        return (z * torch.einsum("bpd,hkd->bhpk", stream, self.W_O)).sum(-1)

    def logits(
        self, values: Float[Tensor, "sequence head n k"], tokens: Int[Tensor, "sequence m"]
    ) -> Float[Tensor, "sequence head n m"]:
        """What values add to the logits of some tokens, relative to the mean logit."""
        return values @ torch.einsum("hkd,dbm->bhkm", self.W_O, self.W_U[:, tokens])


@dataclass(frozen=True, eq=False)
class RotatedOV:
    """One head's OV circuit in random frames; draws take the place of heads.

    With a random frame F times a root R for each read and write, the overlap of what the head reads
    from x with y is x F (R Rᵀ) F yᵀ: only the k × k product in the middle, `core`, is the head's
    own, and all heads share the products with frames.
    """

    value: "Framed"
    write: "Framed"
    core: Float[Tensor, "r r"]
    effects: Callable[[Int[Tensor, "sequence m"]], Float[Tensor, "sequence drawn r m"]]

    def values(
        self, read: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence drawn pos r"]:
        """The value of each position, without biases, in the basis of the write frame."""
        return self.value.of(read) @ self.core

    def overlaps(
        self, z: Float[Tensor, "sequence drawn pos r"], stream: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence drawn pos"]:
        """⟨z W_O, stream⟩ at each position."""
        return (z * self.write.of(stream)).sum(-1)

    def logits(
        self, values: Float[Tensor, "sequence drawn n r"], tokens: Int[Tensor, "sequence m"]
    ) -> Float[Tensor, "sequence drawn n m"]:
        """What values add to the logits of some tokens, relative to the mean logit."""
        return values @ self.effects(tokens)


LayerOV: TypeAlias = OwnOV | RotatedOV


def in_own_basis(x: Float[Tensor, "sequence pos d"]) -> Float[Tensor, "sequence pos q"]:
    """x in an orthonormal basis in which it is lower triangular: x = L Q, L of min(n, d) columns.

    Uniformly random frames look the same in every basis, so L F is distributed as x F, and `Framed`
    skips the zeros of L. Inner products of rows do not change.
    """
    return triangle(x.flatten(0, 1).mT).mT.unflatten(0, x.shape[:2])


class Framed:
    """x F for some random frames F; caches the last product, which all heads of a layer share.

    x is lower triangular, as `in_own_basis` returns it, and may have fewer columns than F has rows.
    `frames` may be a function, which is called when they are first needed.
    """

    def __init__(
        self, frames: Float[Tensor, "drawn d r"] | Callable[[], Float[Tensor, "drawn d r"]]
    ) -> None:
        self._given = frames
        self._last: tuple[Tensor, Tensor] | None = None

    @property
    def frames(self) -> Float[Tensor, "drawn d r"]:
        """The frames themselves."""
        # Not a cached_property, which in Python 3.11 has one lock for all objects: a thread that
        # draws frames may wait for one that holds it.
        if not isinstance(self._given, Tensor):
            self._given = self._given()
        return self._given

    def of(self, x: Float[Tensor, "sequence pos q"]) -> Float[Tensor, "sequence drawn pos r"]:
        """x in the frame of each draw."""
        if self._last is None or self._last[0] is not x:
            rows = x.flatten(0, 1)
            step = -(-len(rows) // _BLOCKS)
            parts = [
                torch.bmm(
                    rows[start : start + step, : start + step].expand(len(self.frames), -1, -1),
                    self.frames[:, : min(start + step, rows.shape[1])],
                )
                for start in range(0, len(rows), step)
            ]
            in_order = torch.cat(parts, 1).unflatten(1, x.shape[:2]).transpose(0, 1).contiguous()
            self._last = (x, in_order)
        return self._last[1]


@dataclass(frozen=True, eq=False)
class LayerView:
    """Heads of one layer on a probe; real ones, or random ones that read the same stream.

    `read` is the input of the values: the stream times its normalization scale for real heads,
    whose reads are folded, and with the norm's gain and centering too for random heads. A score is
    a function of a view alone, so it means the same for real and for random heads.
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
        """The pattern without its first row, where the head can only attend to itself."""
        return self.pattern[:, :, 1:]

    @cached_property
    def values(self) -> Float[Tensor, "sequence head pos k"]:
        """Each head's value at each position, without biases; several scores use it."""
        return self.ov.values(self.read)

    def written_along_stream(self) -> Float[Tensor, "sequence head dest"]:
        """Inner products of what each head writes with the stream there."""
        return self.ov.overlaps(self.pattern @ self.values, self.stream)

    def logits_alone(
        self, block: slice, tokens: Int[Tensor, "sequence m"]
    ) -> Float[Tensor, "sequence head n m"]:
        """What each position of a block, attended alone, adds to the logits of some tokens."""
        return self.ov.logits(self.values[:, :, block], tokens)


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
    """Random directions that queries, keys and values read and heads write, for a whole model.

    Each of the four is `count` orthonormal frames of R^d, uniformly random. A layer's null combines
    them with its own singular values, so nothing is drawn per layer.
    """

    def __init__(self, model: Model, count: int, seed: int) -> None:
        config = model.config
        self.count, self.seed = count, seed
        self._shape = (count, config.d_model, min(config.d_model, config.d_head))
        self._weights = model.weights
        self._generator = seeded(seed)
        self._drawn: list[Float[Tensor, "drawn d r"]] = []
        self._effects: dict[tuple[int, ...], Float[Tensor, "sequence drawn r m"]] = {}
        self._lock = RLock()  # several threads may compute layers that share these

    def of(
        self, read: Literal["query", "key", "value", "write"], part: slice | None = None
    ) -> Framed:
        """Directions that queries, keys or values read, or that heads write to; some draws of them.

        Drawn when they are needed, in this order, so that they do not depend on who asks first.
        """

        def draw() -> Float[Tensor, "drawn d r"]:
            number = ("query", "key", "value", "write").index(read)
            with self._lock:
                while len(self._drawn) <= number:
                    drawn = random_frames(*self._shape, self._generator)
                    self._drawn.append(drawn.to(self._weights.W_E[:0]))
                return self._drawn[number] if part is None else self._drawn[number][part]

        return Framed(draw)

    def effects(self, tokens: Int[Tensor, "sequence m"]) -> Float[Tensor, "sequence drawn r m"]:
        """What a write along each direction adds to the centered logits of some tokens; cached."""
        key = (len(tokens), *tokens.flatten().tolist())
        with self._lock:
            if key not in self._effects:
                W_U = centered_unembedding(self._weights)
                columns = W_U[:, tokens.to(W_U.device)].permute(1, 2, 0).contiguous()
                self._effects[key] = self.of("write").of(in_own_basis(columns)).mT.contiguous()
            return self._effects[key]


def compare_with_random_heads(
    model: Model,
    layer: int,
    view: LayerView,
    frames: RandomFrames,
    measures: Sequence[Measure],
    sequences: int = NULL_SEQUENCES,
    last: int | None = None,
    heads: Sequence[int] | None = None,
) -> list[list[Score]]:
    """Every measure of a layer's heads, all or these, with its p among random heads of its own.

    p compares a head with its random heads on the first few sequences, which both have run, so p is
    exact; the value is over all sequences. Random heads have patterns of the `last` destinations,
    by default of all.
    """
    few = view.first(sequences)
    heads = range(model.config.n_heads) if heads is None else heads
    nulls = [{head: list[Tensor]() for head in heads} for _ in measures]
    for head, drawn in random_views(model, layer, few, frames, last, heads):
        stop_if_closed()
        for null, measure in zip(nulls, measures, strict=True):
            null[head].append(measure(drawn).mean(0))
    own = list(heads)
    return [
        against_null(
            measure(view)[:, own], by_draw(tuple(null.values())), measure(few).mean(0)[own]
        )
        for measure, null in zip(measures, nulls, strict=True)
    ]


def by_draw(heads: Sequence[Sequence[Float[Tensor, " _"]]]) -> Float[Tensor, "drawn head"]:
    """Measurements of each head's draws, made some draws at a time, as one table."""
    return torch.stack([torch.cat(tuple(parts)) for parts in heads], 1)


def random_views(
    model: Model,
    layer: int,
    view: LayerView,
    frames: RandomFrames,
    last: int | None = None,
    heads: Sequence[int] | None = None,
) -> Iterator[tuple[int, LayerView]]:
    """Random versions of a layer's heads, all or these, some draws at a time.

    Draws take the place of heads in a view. Patterns are those of the `last` destinations, by
    default of all.
    """
    config, raw = model.config, model.weights.attention[layer]
    placed = attention_read(config, raw, view.stream)[0]
    if raw.W_pos is not None:
        placed = placed + raw.W_pos[: placed.shape[1]]
    places = torch.arange(placed.shape[1], device=placed.device)
    first = 0 if last is None else len(places) - last
    late = in_own_basis(placed[:, first:])
    placed = in_own_basis(placed)
    # Measures use only inner products of rows of both.
    read = in_own_basis(unfolded_read(model, layer, view.read))
    view = replace(view, stream=in_own_basis(view.stream), read=read)
    roots = root(raw.W_Q), root(raw.W_K)
    linear = config.qk_norm == "none" and config.positions != "rotary"
    linear = linear and raw.b_Q is None and raw.b_K is None
    if linear:
        # Then only the product of both is a head's own, and the stream in the frames of the keys
        # serves all heads as keys.
        roots = roots[0] @ for_query_heads(roots[1], config.n_heads).mT, roots[1]
    heads = range(config.n_heads) if heads is None else heads
    served = list(dict.fromkeys(kv_head(config, head) for head in heads))
    entries = late.shape[0] * late.shape[1] * len(places)
    for part, ovs in rotated_ovs(model, layer, frames, entries):
        framed = frames.of("query", part).of(late), frames.of("key", part).of(placed)
        queries = _rotated_reads(model, layer, Side.Q, roots[0], framed[0], places[first:], heads)
        keys = (
            repeat(framed[1].flatten(0, 1))
            if linear
            else _rotated_reads(model, layer, Side.K, roots[1], framed[1], places, served)
        )
        of, key = -1, late[:0]
        for head, query in zip(heads, queries, strict=True):
            if kv_head(config, head) != of:
                of, key = kv_head(config, head), next(keys)
            alone = layer_of_one_head(config, raw, head)
            pattern = attend(one_head(config), alone, query[:, None], key[:, None])
            pattern = pattern[:, 0].unflatten(0, framed[0].shape[:2])
            yield head, replace(view, pattern=pattern, ov=ovs[head])


def rotated_ovs(
    model: Model,
    layer: int,
    frames: RandomFrames,
    entries_per_draw: int,
) -> Iterator[tuple[slice, list[RotatedOV]]]:
    """Random versions of each head's OV, some draws at a time, with the slice of those draws.

    Their input is `in_own_basis(unfolded_read(…))`. `entries_per_draw` is the size of what is
    computed per draw of a head.
    """
    raw = model.weights.attention[layer]
    write_roots = root(raw.W_O.mT)
    cores = for_query_heads(root(raw.W_V), len(write_roots)) @ write_roots.mT
    at_once = max(1, ENTRIES_AT_ONCE // entries_per_draw)
    for start in range(0, frames.count, at_once):
        part = slice(start, min(start + at_once, frames.count))
        value, write = frames.of("value", part), frames.of("write", part)

        def effects(tokens: Tensor, part: slice = part) -> Tensor:
            return frames.effects(tokens)[:, part]

        yield part, [RotatedOV(value, write, core, effects) for core in cores]


def unfolded_read(
    model: Model, layer: int, read: Float[Tensor, "*pos d"]
) -> Float[Tensor, "*pos d"]:
    """The input of the stored W_V from that of the folded one: centered, times the gain."""
    return unfolded(model.config.norm, read, model.weights.attention[layer].ln1_w)


def _rotated_reads(
    model: Model,
    layer: int,
    side: Side,
    roots: Float[Tensor, "head r k"],
    framed: Float[Tensor, "sequence drawn pos r"],
    places: Int[Tensor, " pos"],
    heads: Sequence[int],
) -> Iterator[Float[Tensor, "batch pos k"]]:
    """Queries or keys of some heads in turn, from the stream in random frames."""
    config, raw = model.config, model.weights.attention[layer]
    bias = raw.b_Q if side is Side.Q else raw.b_K

    def project(at: int) -> Float[Tensor, "batch pos k"]:
        found = framed.flatten(0, 1) @ roots[at]
        return found if bias is None else found.add_(bias[at])

    if config.qk_norm == "rms_all":
        every = torch.stack([project(at) for at in range(len(roots))], 1)
        yield from normed_and_rotated(config, raw, side, every, places)[0][:, list(heads)].unbind(1)
        return
    for at in heads:
        yield normed_and_rotated(config, raw, side, project(at)[:, None], places)[0][:, 0]
