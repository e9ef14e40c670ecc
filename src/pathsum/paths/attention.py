"""Attention of head nodes: scores, score contributions, and the writers of queries and keys.

A head with scores s over sources, A = softmax(s), moves v_j from source j (v in the unit of the
explained number), so its effect is Σ_j A_j v_j. `score_weights` splits the difference of this
effect from uniform attention, or from a reference run, over the scores, and thereby over the parts
of the scores. The weights w_j sum to 0, so a constant added to all scores changes nothing.
Therefore the share of a part is computed from its difference from its mean over the visible
sources, (part_j − mean part) w_j: sums stay the same, and the share of a part that is equal for all
sources (b_K without rotary positions) is exactly 0. With a soft cap or a sink's logit the constant
matters, and nothing is subtracted.

Without a reference, query parts and key parts are two views of the same scores q · k. With one,
the scores change by Δq · k̄ + q̄ · Δk, where bars are means of the two runs: the two add up.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.base import Part
from pathsum.base.site import Side
from pathsum.model import HeadId, Source
from pathsum.model.folding import Reads
from pathsum.model.weights import kv_head
from pathsum.paths.edges import Attended
from pathsum.paths.flows import FrozenRow
from pathsum.paths.score_sum import QkRead, qk_read
from pathsum.paths.score_weights import ScoreWeights, integrate_scores, softmax_of


@dataclass(frozen=True, eq=False)
class Inputs:
    """Candidate edges into one read of several nodes: writers × positions.

    `shares` are in logits, `exact` in the unit of the read. Column s is position s; a read of one
    position has one column, and `positions` has that position for each node. `gradient` computes
    the gradients of shares at the written vectors, by node, writer and column. If shares are
    differences from a mean, `common` is the mean's part of output · gradient. `views` is the number
    of reads whose shares are views of one number; the value of a writer is their mean.
    """

    side: Side
    writers: tuple[Source | HeadId | Part, ...]
    shares: Float[Tensor, "node writer src"]
    exact: Float[Tensor, "node writer src"]
    gradient: Callable[
        [Int[Tensor, " edge"], Int[Tensor, " edge"], Int[Tensor, " edge"]], Float[Tensor, "edge d"]
    ]
    positions: tuple[int, ...] | None = None
    common: Float[Tensor, "node writer src"] | None = None
    views: int = 1


class NodeAttention:
    """The attention of one head at some positions.

    `values` is the contribution of moving each source, in logits, and `rival` the position whose
    score others are compared with, if one was chosen. With `start`, the same nodes of a reference
    run, edges carry the differences `carried` of the two runs.
    """

    def __init__(
        self,
        run: FrozenRow,
        head: HeadId,
        reads: Reads,
        positions: Int[Tensor, " node"],
        values: Float[Tensor, "node src"],
        rival: int | None,
        start: "NodeAttention | None" = None,
        carried: FrozenRow | None = None,
    ) -> None:
        self.carried, self.start = run if carried is None else carried, start
        self.run, self.head, self.positions, self.rival = run, head, positions, rival
        self.values, self.dtype = values.double(), values.dtype
        self.query, self.key = (
            qk_read(run.trace, head, side, reads).select(run.rows, run.length)
            for side in (Side.Q, Side.K)
        )
        self.config, length = run.trace.model.config, values.shape[1]
        ranges = [self.config.sources(head.layer, at, length) for at in positions.tolist()]
        first = torch.tensor([each.start for each in ranges], device=positions.device)
        stop = torch.tensor([each.stop for each in ranges], device=positions.device)
        sources = torch.arange(length, device=positions.device)
        self.visible = (sources >= first[:, None]) & (sources < stop[:, None])
        sinks = run.trace.weights.layers[head.layer].sinks
        self.sink = None if sinks is None else float(sinks[head.head])
        self.queries = self._vectors(self.query)[positions] * self.config.score_scale
        self.keys = self._vectors(self.key)[:length]
        self.scores = (self.queries @ self.keys.T).double()
        # Rounded like the patterns of a run.
        self.pattern = self.attend(self.scores[:, None])[:, 0].to(self.dtype).double()
        if start is not None:
            self._average(start)

    def attend(self, scores: Float[Tensor, "node n src"]) -> Float[Tensor, "node n src"]:
        """The attention of each node for some scores before the cap."""
        visible, length = self.visible[:, None], scores.shape[-1]
        if self.sink is not None:
            scores = torch.nn.functional.pad(scores, (0, 1), value=self.sink)
            visible = torch.nn.functional.pad(visible, (0, 1), value=True)
        return softmax_of(scores, visible, self.config.score_cap, length)[0][..., :length]

    def _average(self, start: "NodeAttention") -> None:
        """Replace queries and keys by means of the two runs, which carry the differences."""
        change = (self.run.streams[self.head.layer] - start.run.streams[self.head.layer])[None]
        self.query, self.key = (
            _mean_read(*pair) for pair in ((self.query, start.query), (self.key, start.key))
        )
        by_edges = self.query.of_stream(change)[0, self.positions] * self.config.score_scale
        self.held_queries = self.queries - start.queries - by_edges
        self.held_keys = self.keys - start.keys - self.key.of_stream(change)[0, : len(self.keys)]
        self.queries = (self.queries + start.queries) / 2
        self.keys = (self.keys + start.keys) / 2

    def held(self, nodes: list[int]) -> dict[Side, Float[Tensor, " node"]]:
        """The contribution to each side of some nodes that belongs to no edge.

        It comes from a sink's logit or, between two runs, from changed normalization scales.
        """
        weights = self.score_weights.weights[nodes]
        if self.start is None:
            return dict.fromkeys((Side.Q, Side.K), self.score_weights.sink[nodes])
        by_query = self.held_queries[nodes] @ self.keys.T
        by_key = self.queries[nodes] @ self.held_keys.T
        return {Side.Q: (by_query * weights).sum(-1), Side.K: (by_key * weights).sum(-1)}

    def _vectors(self, read: QkRead) -> Float[Tensor, "pos k"]:
        stream = read.of_stream(self.run.streams[self.head.layer][None])
        return sum(read.extra.values(), start=stream)[0]

    @cached_property
    def score_weights(self) -> "ScoreWeights":
        """The contribution of one unit of each score."""
        start = None if self.start is None else (self.start.scores, self.start.values)
        cap, sink = self.config.score_cap, self.sink
        return integrate_scores(self.scores, self.values, self.visible, cap, sink, start)

    @cached_property
    def sources(self) -> Int[Tensor, " node"]:
        """For each node, the source whose attention has the largest effect."""
        mean = self.values.where(self.visible, 0.0).sum(-1) / self.visible.sum(-1)
        effects = (self.pattern * (self.values - mean[:, None])).abs()
        return effects.where(self.visible, -1.0).argmax(-1)

    @cached_property
    def rivals(self) -> Bool[Tensor, " node"]:
        """Nodes that can attend to the rival, and whose source is another position."""
        if self.rival is None or self.rival >= self.visible.shape[1]:
            return torch.zeros_like(self.sources, dtype=torch.bool)
        return self.visible[:, self.rival] & (self.sources != self.rival)

    @cached_property
    def contrast(self) -> Float[Tensor, "node src"]:
        """Coefficients of a score minus the others: a rival's, or their weighted mean."""
        rows = torch.arange(len(self.sources), device=self.sources.device)
        others = self.pattern.where(self.visible, 0.0)
        others[rows, self.sources] = 0
        # If all attention is on one source, the others are averaged with equal weights.
        unweighted = others.sum(-1) == 0
        others[unweighted] = self.visible[unweighted].double()
        others[rows, self.sources] = 0
        if self.rival is not None and bool(self.rivals.any()):
            others[self.rivals] = 0
            others[self.rivals, self.rival] = 1
        total = others.sum(-1, keepdim=True)
        contrast = -(others / total.where(total > 0, 1.0))
        contrast[rows, self.sources] = 1
        return contrast

    @property
    def has_one_source(self) -> Bool[Tensor, " node"]:
        """Nodes that can attend to only one source."""
        return (self.visible.sum(-1) == 1) & (self.sink is None)

    @cached_property
    def is_uniform(self) -> Bool[Tensor, " node"]:
        """Nodes whose scores are equal up to rounding, so that there is nothing to explain."""
        if self.sink is not None or self.start is not None:
            return torch.zeros_like(self.sources, dtype=torch.bool)
        high = self.scores.where(self.visible, -torch.inf).amax(-1)
        low = self.scores.where(self.visible, torch.inf).amin(-1)
        size = torch.maximum(low.abs(), high.abs()).clamp(min=1.0)
        return high - low <= 16 * torch.finfo(self.dtype).eps * size

    def explained(self, floor: float) -> list[int]:
        """Nodes whose scores are decomposed: their attention has a large enough effect."""
        large = self.score_weights.effect.abs() >= floor
        return (large & ~self.has_one_source & ~self.is_uniform).nonzero()[:, 0].tolist()

    def described(
        self, floor: float, common: Sequence[float]
    ) -> Iterator[tuple[Attended | None, str]]:
        """The attention of each node, and the reason if its scores are not decomposed.

        `common` is subtracted from the contribution of uniform attention, as from the node's value.
        """
        nodes = torch.arange(len(self.sources), device=self.sources.device)
        columns = (
            *(self.sources, self.pattern[nodes, self.sources], self.scores[nodes, self.sources]),
            (self.contrast * self.scores.where(self.visible, 0.0)).sum(-1),
            self.score_weights.uniform - self.score_weights.uniform.new_tensor(common),
            *(self.score_weights.effect, self.score_weights.error),
            *(self.rivals, self.has_one_source, self.is_uniform, self.visible.sum(-1)),
        )
        for row in zip(*(column.tolist() for column in columns), strict=True):
            *numbers, has_rival, has_one_source, is_uniform, count = row
            source, weight, score, contrast, uniform, effect, error = numbers
            if has_one_source:
                yield None, "no other position to attend to"
                continue
            rival = self.rival if has_rival else None
            attended = Attended(source, weight, score, contrast, rival, uniform, effect, error)
            if is_uniform:
                note = f"it attends to all {count} sources equally, so no scores need explaining"
            elif abs(effect) < floor:
                note = "the effect of its attention is too small to decompose its scores"
            else:
                note = ""
            yield attended, note

    def inputs(self, nodes: list[int]) -> Iterator[Inputs]:
        """The writers of the keys and the queries of some nodes."""
        if nodes:
            weights, contrast = (
                each[nodes].to(self.queries) for each in (self.score_weights.weights, self.contrast)
            )
            yield self._key_inputs(self.queries[nodes], weights, contrast, self.visible[nodes])
            yield self._query_inputs(self.positions[nodes], weights, contrast)

    def key_scores(
        self, queries: Float[Tensor, "node k"], visible: Bool[Tensor, "node src"]
    ) -> Float[Tensor, "node writer src"]:
        """The parts of the scores of some nodes by the writers of keys in the stream."""
        run, level, length = self.carried, 2 * self.head.layer, visible.shape[1]
        read = self.key
        if self.config.positions == "rotary":
            # Each node and position has its own direction.
            nodes, sources = visible.nonzero().T
            scores = queries.new_zeros(len(queries), length, len(run.writers(level)))
            directions = read.adjoint(queries[nodes], sources)
            scores[nodes, sources] = run.writes_at(level, directions, sources)
            return scores.mT
        scale = (read.norm_scale * read.scale)[0, :length]
        return run.writes_everywhere(level, queries @ read.W.T, length) * scale

    def _key_inputs(
        self,
        queries: Float[Tensor, "node k"],
        weights: Float[Tensor, "node src"],
        contrast: Float[Tensor, "node src"],
        visible: Bool[Tensor, "node src"],
    ) -> Inputs:
        """The contribution of each writer to the keys of some nodes."""
        extra, length = self.key.extra, visible.shape[1]
        extra_scores = [(queries @ vectors[0, :length].T)[:, None] for vectors in extra.values()]
        scores = torch.cat([self.key_scores(queries, visible), *extra_scores], 1)

        def gradient(nodes: Tensor, _: Tensor, sources: Tensor) -> Tensor:
            return self.key.adjoint(queries[nodes], sources) * weights[nodes, sources][:, None]

        mean = torch.zeros_like(scores[..., :1])
        if self.is_gauge_free:
            counts = visible.sum(-1)[:, None, None]
            mean = scores.where(visible[:, None], 0.0).sum(-1, keepdim=True) / counts
        return Inputs(
            Side.K,
            (*self.carried.writers(2 * self.head.layer), *extra),
            shares=(scores - mean) * weights[:, None],
            exact=(scores - mean) * contrast[:, None],
            gradient=gradient,
            common=mean * weights[:, None],
        )

    @property
    def is_gauge_free(self) -> bool:
        """Whether the pattern is unchanged if a constant is added to all scores."""
        return self.sink is None and self.config.score_cap is None

    def _query_inputs(
        self,
        positions: Int[Tensor, " node"],
        weights: Float[Tensor, "node src"],
        contrast: Float[Tensor, "node src"],
    ) -> Inputs:
        """The contribution of each writer to the queries of some nodes."""
        # The gradient of the prediction at the query, then the gradient of the contrast.
        gradients = torch.cat([weights @ self.keys, contrast @ self.keys]) * self.config.score_scale
        twice, extra = positions.repeat(2), self.query.extra
        directions = self.query.adjoint(gradients, twice)
        parts = [self.carried.writes_at(2 * self.head.layer, directions, twice)]
        parts += [(gradients * vectors[0, twice]).sum(-1)[:, None] for vectors in extra.values()]
        shares, exact = torch.cat(parts, 1)[..., None].split(len(positions))
        return Inputs(
            Side.Q,
            (*self.run.writers(2 * self.head.layer), *extra),
            shares,
            exact,
            gradient=lambda nodes, *_: directions[nodes],
            positions=tuple(positions.tolist()),
        )


def _mean_read(run: QkRead, reference: QkRead) -> QkRead:
    """The read of the stream with the mean scale of two runs; positions and biases are constant."""
    scales = [read.scale * read.norm_scale for read in (run, reference)]
    mean, ones = (scales[0] + scales[1]) / 2, torch.ones_like(scales[0])
    return replace(run, scale=mean, norm_scale=ones, positions=None, bias=None)


class HeadNodes:
    """A head at some positions, with the gradient at its output at each.

    `values` are the edges into its values, and `held` is the part of output · gradient that belongs
    to none of them. `attention` has the edges into its keys and queries. Nodes attend to the first
    `length` positions. With `start`, the reference run, edges carry the differences of the two
    runs.
    """

    def __init__(
        self,
        run: FrozenRow,
        head: HeadId,
        reads: Reads,
        positions: Int[Tensor, " node"],
        gradients: Float[Tensor, "node d"],
        length: int,
        rival: int | None,
        start: FrozenRow | None,
        carried: FrozenRow,
    ) -> None:
        layer, heads = head.layer, run.layers[head.layer]
        kv = kv_head(run.trace.model.config, head.head)
        directions = (gradients @ heads.W_O[head.head].T) @ heads.W_V[kv].T
        runs = [run] if start is None else [run, start]
        write_scales = torch.stack([r.trace.scales.write[layer][r.row, positions] for r in runs])
        read_scales = [r.trace.scales.attention[layer][r.row, :length] for r in runs]
        streams = [r.streams[layer][:length] for r in runs]
        mean_scale = write_scales.mean(0)[:, None]
        values = [
            scale * (directions @ stream.T) * mean_scale
            for scale, stream in zip(read_scales, streams, strict=True)
        ]
        reference = None
        if start is not None:
            reference = NodeAttention(start, head, reads, positions, values[1], rival)
        attention = NodeAttention(run, head, reads, positions, values[0], rival, reference, carried)
        if reference is None:
            weight = attention.pattern.to(directions) * read_scales[0] * mean_scale
            self.held = torch.zeros_like(positions).double()
        else:
            weight = attention.score_weights.pattern.to(directions) * mean_scale
            scale, stream = ((ends[0] + ends[1]) / 2 for ends in (read_scales, streams))
            change = read_scales[0] - read_scales[1]
            held = (weight * change * (directions @ stream.T)).sum(-1)
            # Values have the mean scale of a norm after the heads; its change belongs to no edge.
            sums = [(each.pattern * each.values).sum(-1) for each in (attention, reference)]
            change = (write_scales[0] - write_scales[1]) / mean_scale[:, 0]
            held = held + (sums[0] + sums[1]) / 2 * change
            weight, self.held = weight * scale, held.double()
        shares = carried.writes_everywhere(2 * layer, directions, length) * weight[:, None]
        self.attention = attention
        self.values = Inputs(
            Side.V,
            run.writers(2 * layer),
            shares,
            shares,
            gradient=lambda nodes, _, at: weight[nodes, at][:, None] * directions[nodes],
        )
