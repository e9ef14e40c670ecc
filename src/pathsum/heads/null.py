"""Scores on runs, and their null: random versions of each head.

A random head is a copy of a head in which the stream is rotated at random, independently before the
queries, keys and values and after the write. It has the head's scale, singular values, biases,
norms and positions, reads the same stream, and runs through the transformer's attention.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.decompositions import triangle
from pathsum.algebra.nulls import ALPHA
from pathsum.algebra.rotations import random_frames, root, seeded
from pathsum.base import HeadId, Progress, Side, silent
from pathsum.base.options import batched, parse_draws, parse_probability
from pathsum.heads.score import (
    DataScore,
    HeadScores,
    LayerOV,
    LayerView,
    Score,
    against_null,
    best_parts,
    largest_parts,
    layer_view,
)
from pathsum.model import Model, Trace
from pathsum.model.folding import centered_unembedding, unfolded
from pathsum.model.processes import shared_map
from pathsum.model.transformer import attend, attention_read, for_query_heads, normalize_and_rotate
from pathsum.model.weights import kv_head, layer_of_one_head, one_head
from pathsum.text.token_pool import RepeatedTokens

# Random heads run on a few sequences, and p compares heads on the same few.
NULL_SEQUENCES = 4
# Bytes of a head's random patterns in one batch, so that they fit into a core's cache.
CACHE_BYTES = 1 << 22

Direction = Literal["query", "key", "value", "write"]


def to_triangular(x: Float[Tensor, "sequence pos d"]) -> Float[Tensor, "sequence pos q"]:
    """x in an orthonormal basis of its rows: x = L Q, L triangular with min(n, d) columns.

    Uniformly random frames have the same distribution in every basis, so L F is distributed as x F.
    Inner products of rows do not change.
    """
    return triangle(x.flatten(0, 1).mT).mT.unflatten(0, x.shape[:2])


class FrameProjector:
    """x F for random frames F; caches the last product, which all heads of a layer share.

    x (`to_triangular`) may have fewer columns than F has rows. `frames` is called on demand.
    """

    def __init__(self, frames: Callable[[], Float[Tensor, "draw d r"]]) -> None:
        self._frames = frames
        self._last: tuple[Tensor, Tensor] | None = None

    def project(self, x: Float[Tensor, "sequence pos q"]) -> Float[Tensor, "sequence draw pos r"]:
        """x in the frame of each draw."""
        if self._last is None or self._last[0] is not x:
            product = x.flatten(0, 1) @ self._frames()[:, : x.shape[-1]]
            self._last = (x, product.unflatten(1, x.shape[:2]).transpose(0, 1).contiguous())
        return self._last[1]


def random_ov(
    value: FrameProjector,
    write: FrameProjector,
    core: Float[Tensor, "r r"],
    effects: Callable[[Int[Tensor, "sequence m"]], Float[Tensor, "sequence draw r m"]],
) -> LayerOV:
    """Random versions of one head's OV circuit, with draws as the head dimension.

    With a random frame F times a root R for each read and write, the overlap of the value of x with
    y is x F (R Rᵀ) F yᵀ: only the k × k product in the middle, `core`, differs between heads, which
    share the products with frames. `effects` maps tokens to the write frames' effects on their
    logits.
    """
    return LayerOV(lambda read: value.project(read) @ core, write.project, effects)


class RandomHeads:
    """`draws` random versions of every head of a model.

    Each direction (query, key, value, write) has `draws` orthonormal frames of R^d, uniformly
    random. A layer's null combines them with its singular values, so nothing is drawn per layer.
    """

    def __init__(self, model: Model, draws: int, seed: int) -> None:
        config = model.config
        self.model, self.draws = model, draws
        self._shape = (draws, config.d_model, min(config.d_model, config.d_head))
        self._generator = seeded(seed)
        self._frames_of: list[Float[Tensor, "draw d r"]] = []
        self._effects: dict[tuple[int, ...], Float[Tensor, "sequence draw r m"]] = {}
        self._lock = RLock()  # several threads may compute layers that share these

    def frames(self, direction: Direction) -> Float[Tensor, "draw d r"]:
        """The frames of a direction, drawn in a fixed order on demand."""
        number = get_args(Direction).index(direction)
        with self._lock:
            while len(self._frames_of) <= number:
                frames = random_frames(*self._shape, self._generator)
                self._frames_of.append(frames.to(self.model.weights.W_E[:0]))
        return self._frames_of[number]

    def projector(self, direction: Direction, part: slice = slice(None)) -> FrameProjector:
        """Products with the frames of a direction, of all draws or a slice."""
        return FrameProjector(lambda: self.frames(direction)[part])

    def effects(self, tokens: Int[Tensor, "sequence m"]) -> Float[Tensor, "sequence draw r m"]:
        """The effect of a write along each direction on the centered logits of tokens."""
        key = (len(tokens), *tokens.flatten().tolist())
        with self._lock:
            if key not in self._effects:
                W_U = centered_unembedding(self.model.weights)
                columns = W_U[:, tokens.to(W_U.device)].permute(1, 2, 0).contiguous()
                projected = self.projector("write").project(to_triangular(columns))
                self._effects[key] = projected.mT.contiguous()
            return self._effects[key]

    def ovs(self, layer: int, bytes_per_draw: int) -> Iterator[tuple[slice, list[LayerOV]]]:
        """Random versions of each head's OV in batches, each with its slice of the draws.

        Their input is `random_read`. `bytes_per_draw` is the memory of one draw of a head.
        """
        raw = self.model.weights.attention[layer]
        write_roots = root(raw.W_O.mT)
        cores = for_query_heads(root(raw.W_V), len(write_roots)) @ write_roots.mT
        for draws in batched(range(self.draws), bytes_per_draw, CACHE_BYTES):
            part = slice(draws[0], draws[-1] + 1)
            value, write = self.projector("value", part), self.projector("write", part)

            def effects(tokens: Tensor, part: slice = part) -> Tensor:
                return self.effects(tokens)[:, part]

            yield part, [random_ov(value, write, core, effects) for core in cores]

    def random_read(
        self, layer: int, read: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence pos q"]:
        """The values' input for random heads, which have the stored W_V and not the folded one."""
        gain = self.model.weights.attention[layer].ln1_w
        return to_triangular(unfolded(self.model.config.norm, read, gain))

    def views(
        self,
        layer: int,
        view: LayerView,
        last: int | None = None,
        heads: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, LayerView]]:
        """Random versions of a layer's heads (by default all), in batches of draws.

        In a view, the head dimension has the draws. Patterns are of the `last` destinations, by
        default of all.
        """
        config, raw = self.model.config, self.model.weights.attention[layer]
        inputs = attention_read(config, raw, view.stream)[0]
        if raw.W_pos is not None:
            inputs = inputs + raw.W_pos[: inputs.shape[1]]
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        first = 0 if last is None else len(positions) - last
        late, inputs = to_triangular(inputs[:, first:]), to_triangular(inputs)
        # Measures use only inner products of rows of both.
        read = self.random_read(layer, view.read)
        view = replace(view, stream=to_triangular(view.stream), read=read)
        roots = root(raw.W_Q), root(raw.W_K)
        heads = range(config.n_heads) if heads is None else heads
        kv_heads = list(dict.fromkeys(kv_head(config, head) for head in heads))
        bytes_per_draw = late.shape[0] * late.shape[1] * len(positions) * 4
        for part, ovs in self.ovs(layer, bytes_per_draw):
            projected = self.projector("query", part).project(late)
            queries = self._reads(layer, Side.Q, roots[0], projected, positions[first:], heads)
            sources = self.projector("key", part).project(inputs)
            keys = self._reads(layer, Side.K, roots[1], sources, positions, kv_heads)
            kv, key = -1, late[:0]
            for head, query in zip(heads, queries, strict=True):
                if kv_head(config, head) != kv:
                    kv, key = kv_head(config, head), next(keys)
                weights = layer_of_one_head(config, raw, head)
                pattern = attend(one_head(config), weights, query[:, None], key[:, None])
                pattern = pattern[:, 0].unflatten(0, projected.shape[:2])
                yield head, replace(view, pattern=pattern, ov=ovs[head])

    def _reads(
        self,
        layer: int,
        side: Side,
        roots: Float[Tensor, "head r k"],
        projected: Float[Tensor, "sequence draw pos r"],
        positions: Int[Tensor, " pos"],
        heads: Sequence[int],
    ) -> Iterator[Float[Tensor, "batch pos k"]]:
        """Queries or keys of each head, from the stream in random frames."""
        config, raw = self.model.config, self.model.weights.attention[layer]
        bias = raw.b_Q if side is Side.Q else raw.b_K

        def read(head: int) -> Float[Tensor, "batch pos k"]:
            product = projected.flatten(0, 1) @ roots[head]
            return product if bias is None else product.add_(bias[head])

        if config.qk_norm in ("rms_per_head", "rms_all"):
            reads = torch.stack([read(head) for head in range(len(roots))], 1)
            rotated = normalize_and_rotate(config, raw, side, reads, positions)[0]
            yield from rotated[:, list(heads)].unbind(1)
            return
        for head in heads:
            yield normalize_and_rotate(config, raw, side, read(head)[:, None], positions)[0][:, 0]


_Null: TypeAlias = tuple[Float[Tensor, "2 draw n"], Float[Tensor, "2 n"]]
"""`_extent` of random heads, and of the heads, on the same sequences."""


def score_on_runs(
    runs: Iterable[tuple[Trace, RepeatedTokens]],
    scores: Sequence[DataScore],
    null: RandomHeads,
    *,
    what: str,
    phase: str | None = None,
    null_sequences: int = NULL_SEQUENCES,
    last: int | None = None,
    heads: Sequence[HeadId] | None = None,
    progress: Progress = silent,
) -> HeadScores:
    """Scores of heads (by default all) on runs; random heads use the start of the first run.

    p compares a head with its random heads on the same sequences, so p is exact; the value is over
    all sequences. Random heads have patterns of the `last` destinations, by default of all. A score
    is absent if no position of the runs is valid for it.
    """
    all_heads = null.model.config.every_head if heads is None else sorted(heads)
    result: dict[HeadId, dict[str, Score]] = {head: {} for head in all_heads}
    absent: dict[str, str] = {}
    if not scores:
        return HeadScores(result, absent)
    layers = sorted({head.layer for head in all_heads})
    numbers = {layer: [head.head for head in all_heads if head.layer == layer] for layer in layers}
    W_U = centered_unembedding(null.model.weights)
    measured: dict[tuple[int, str], list[Tensor]] = {}
    nulls: dict[tuple[int, str], _Null] = {}

    def measure(
        run: tuple[Trace, RepeatedTokens], layer: int
    ) -> tuple[list[Float[Tensor, "sequence head dest"]], list[_Null] | None]:
        # Another process may call this function, so it returns results and stores none.
        view = layer_view(*run, layer, W_U)
        profiles = [score.profile(view) for score in scores]
        if nulls:
            return profiles, None
        start = view.first(null_sequences)
        return profiles, _null_scores(null, layer, start, scores, last, numbers[layer])

    for run in runs:
        results = shared_map(layers, partial(measure, run), progress, phase or f"heads on {what}")
        for layer, (profiles, layer_nulls) in zip(layers, results, strict=True):
            for number, score in enumerate(scores):
                measured.setdefault((layer, score.name), []).append(profiles[number])
                if layer_nulls is not None:
                    nulls[layer, score.name] = layer_nulls[number]
    for score in scores:
        for layer in layers:
            key = layer, score.name
            compared = _compare(measured[key], nulls[key], numbers[layer])
            if not compared:
                absent[score.name] = f"no position of the {what} has {score.needs}"
            for head, value in zip(numbers[layer], compared, strict=False):
                result[HeadId(layer, head)][score.name] = value
    return HeadScores(result, absent)


def _null_scores(
    null: RandomHeads,
    layer: int,
    view: LayerView,
    scores: Sequence[DataScore],
    last: int | None,
    heads: Sequence[int],
) -> list[_Null]:
    """Every score of the random versions of a layer's heads."""
    extents = [{head: list[Tensor]() for head in heads} for _ in scores]
    for head, random in null.views(layer, view, last, heads):
        for score, of_heads in zip(scores, extents, strict=True):
            of_heads[head].append(_extent(score.profile(random)))
    return [
        (by_draw(by_head.values()), _extent(score.profile(view))[:, list(heads)])
        for score, by_head in zip(scores, extents, strict=True)
    ]


def _extent(profile: Float[Tensor, "sequence head dest"]) -> Float[Tensor, "2 head"]:
    """The mean over sequences with a valid position, and the largest mean over a part, or NaN."""
    mean, part = profile.nanmean(-1).nanmean(0), largest_parts(profile.nanmean(0))
    return torch.stack((mean, mean * torch.nan if part is None else part))


def by_draw(heads: Iterable[Sequence[Float[Tensor, "*_"]]]) -> Float[Tensor, "*_ head"]:
    """One table of the measurements of each head's draws, from batches of draws."""
    return torch.stack([torch.cat(tuple(parts), -1) for parts in heads], -1)


def _compare(measured: Sequence[Tensor], null: _Null, heads: list[int]) -> list[Score]:
    """One score of a layer's heads with its p-values; empty if no position is valid."""
    values = torch.cat([of_run.nanmean(-1) for of_run in measured])[:, heads]
    values = values[~values.isnan().all(-1)]  # sequences with a valid position
    if len(values) == 0:
        return []
    (means, parts), (head_mean, head_part) = null
    scores = against_null(values, means, head_mean)
    same_length = len({profile.shape[-1] for profile in measured}) == 1
    if not same_length or bool(head_part.isnan().all()):
        return scores
    best = best_parts(torch.cat(list(measured))[:, heads].nanmean(0), head_part, parts)
    return [replace(of_run, part=part) for of_run, part in zip(scores, best, strict=True)]


def check_draws(draws: int, alpha: float = ALPHA) -> None:
    """Raise an error if there are too few random heads for p to reach alpha."""
    parse_draws(draws, minimum=round(1 / parse_probability(alpha, "alpha")) - 1)
