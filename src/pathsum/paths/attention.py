"""Attention of head nodes: scores, score contributions, and the writers of queries and keys.

A head with scores s over sources, A = softmax(s), moves v_j from source j (v in the unit of the
number explained), so its effect is Σ_j A_j v_j. `score_weights` splits the excess of this effect
over uniform attention, or over a reference run, over the scores, and so over whatever adds up to
the scores. The weights w_j sum to 0, so a constant added to all scores changes
nothing. A part of the scores therefore counts by its difference from its mean over the sources in
sight, (part_j − mean part) w_j: sums stay the same, and a part that is equal for all sources (b_K
without rotary positions) gets exactly 0. A soft cap or a sink's logit makes the constant matter;
then parts count as they are.

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
from pathsum.paths.flows import FrozenRow
from pathsum.paths.graph import Attended
from pathsum.paths.score_sum import QkRead, qk_read
from pathsum.paths.score_weights import ScoreWeights, integrate_scores, softmax_of


@dataclass(frozen=True, eq=False)
class Inputs:
    """Candidate edges into one read of several nodes: writers × positions.

    `shares` are in logits, `exact` in the read's own unit. Column s is position s; a read of one
    position has one column, and `places` has that position for each node. `gradient` gives the
    gradients of shares at the written vectors, by node, writer and column. Where shares are
    compared with a mean, `common` is what that takes off written · gradient. `views` is the number
    of reads whose shares are views of one number; writers count each by its part.
    """

    side: Side
    writers: tuple[Source | HeadId | Part, ...]
    shares: Float[Tensor, "node writer src"]
    exact: Float[Tensor, "node writer src"]
    gradient: Callable[
        [Int[Tensor, " edge"], Int[Tensor, " edge"], Int[Tensor, " edge"]], Float[Tensor, "edge d"]
    ]
    places: tuple[int, ...] | None = None
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
        places: Int[Tensor, " node"],
        values: Float[Tensor, "node src"],
        rival: int | None,
        start: "NodeAttention | None" = None,
        carried: FrozenRow | None = None,
    ) -> None:
        self.carried, self.start = run if carried is None else carried, start
        self.run, self.head, self.places, self.rival = run, head, places, rival
        self.values, self.dtype = values.double(), values.dtype
        self.query, self.key = (
            qk_read(run.trace, head, side, reads).select(run.rows, run.length)
            for side in (Side.Q, Side.K)
        )
        self.config, length = run.trace.model.config, values.shape[1]
        sinks = run.trace.weights.layers[head.layer].sinks
        seen = [self.config.sources(head.layer, place, length) for place in places.tolist()]
        first, stop = (
            torch.tensor(ends, device=places.device)[:, None]
            for ends in zip(*((one.start, one.stop) for one in seen), strict=True)
        )
        sources = torch.arange(length, device=places.device)
        self.seen = (sources >= first) & (sources < stop)
        self.sink = None if sinks is None else float(sinks[head.head])
        self.queries = self._vectors(self.query)[places] * self.config.score_scale
        self.keys = self._vectors(self.key)[:length]
        self.scores = (self.queries @ self.keys.T).double()
        # Rounded as a run's patterns are.
        self.pattern = self.attend(self.scores[:, None])[:, 0].to(self.dtype).double()
        if start is not None:
            self._average(start)

    def attend(self, scores: Float[Tensor, "node some src"]) -> Float[Tensor, "node some src"]:
        """The attention of each node for some scores before the cap."""
        seen, length = self.seen[:, None], scores.shape[-1]
        if self.sink is not None:
            scores = torch.nn.functional.pad(scores, (0, 1), value=self.sink)
            seen = torch.nn.functional.pad(seen, (0, 1), value=True)
        return softmax_of(scores, seen, self.config.score_cap, length)[0][..., :length]

    def _average(self, start: "NodeAttention") -> None:
        """Queries and keys become means of the two runs; edges carry differences through them."""
        change = (self.run.streams[self.head.layer] - start.run.streams[self.head.layer])[None]
        self.query, self.key = (
            _mean_read(*pair) for pair in ((self.query, start.query), (self.key, start.key))
        )
        by_edges = self.query.of_stream(change)[0, self.places] * self.config.score_scale
        self.held_queries = self.queries - start.queries - by_edges
        self.held_keys = self.keys - start.keys - self.key.of_stream(change)[0, : len(self.keys)]
        self.queries = (self.queries + start.queries) / 2
        self.keys = (self.keys + start.keys) / 2

    def held(self, nodes: list[int]) -> dict[Side, Float[Tensor, " node"]]:
        """The contribution to each side of some nodes that does not belong to any edge.

        A sink's logit or, between two runs, the change of the scales of normalization.
        """
        weights = self.score_weights.weights[nodes]
        if self.start is None:
            return dict.fromkeys((Side.Q, Side.K), self.score_weights.sink[nodes])
        by_query = self.held_queries[nodes] @ self.keys.T
        by_key = self.queries[nodes] @ self.held_keys.T
        return {Side.Q: (by_query * weights).sum(-1), Side.K: (by_key * weights).sum(-1)}

    def _vectors(self, read: QkRead) -> Float[Tensor, "pos k"]:
        found = read.of_stream(self.run.streams[self.head.layer][None])[0]
        return sum((vectors for _, vectors in self._extra(read)), start=found)

    def _extra(self, read: QkRead) -> Iterator[tuple[Part, Float[Tensor, "pos k"]]]:
        """The parts of a read that are not in the stream: positions, the bias."""
        if read.positions is not None:
            yield Part.position(self.head.layer), read.of_positions()[0]
        if read.bias is not None:
            yield read.bias_part, read.of_bias()[0]

    @cached_property
    def score_weights(self) -> "ScoreWeights":
        """The contribution of one unit of each score."""
        start = None if self.start is None else (self.start.scores, self.start.values)
        cap, sink = self.config.score_cap, self.sink
        return integrate_scores(self.scores, self.values, self.seen, cap, sink, start)

    @cached_property
    def sources(self) -> Int[Tensor, " node"]:
        """For each node, the source whose attention has the largest effect."""
        mean = self.values.where(self.seen, 0.0).sum(-1) / self.seen.sum(-1)
        matter = (self.pattern * (self.values - mean[:, None])).abs()
        return matter.where(self.seen, -1.0).argmax(-1)

    @cached_property
    def rivals(self) -> Bool[Tensor, " node"]:
        """Nodes whose source is compared with the rival: a different position that they can see."""
        if self.rival is None or self.rival >= self.seen.shape[1]:
            return torch.zeros_like(self.sources, dtype=torch.bool)
        return self.seen[:, self.rival] & (self.sources != self.rival)

    @cached_property
    def contrast(self) -> Float[Tensor, "node src"]:
        """Coefficients of a score minus the others: a rival's, or their weighted mean."""
        rows = torch.arange(len(self.sources), device=self.sources.device)
        others = self.pattern.where(self.seen, 0.0)
        others[rows, self.sources] = 0
        # Attention that is all on one source leaves no weights for the others: take their plain
        # mean.
        none = others.sum(-1) == 0
        others[none] = self.seen[none].double()
        others[rows, self.sources] = 0
        if self.rival is not None and bool(self.rivals.any()):
            others[self.rivals] = 0
            others[self.rivals, self.rival] = 1
        total = others.sum(-1, keepdim=True)
        contrast = -(others / total.where(total > 0, 1.0))
        contrast[rows, self.sources] = 1
        return contrast

    @property
    def is_alone(self) -> Bool[Tensor, " node"]:
        """Nodes that can attend to only one source."""
        return (self.seen.sum(-1) == 1) & (self.sink is None)

    @cached_property
    def is_uniform(self) -> Bool[Tensor, " node"]:
        """The nodes whose scores are equal up to rounding, and need no explanation."""
        if self.sink is not None or self.start is not None:
            return torch.zeros_like(self.sources, dtype=torch.bool)
        high = self.scores.where(self.seen, -torch.inf).amax(-1)
        low = self.scores.where(self.seen, torch.inf).amin(-1)
        size = torch.maximum(low.abs(), high.abs()).clamp(min=1.0)
        return high - low <= 16 * torch.finfo(self.dtype).eps * size

    def explained(self, floor: float) -> list[int]:
        """Nodes whose scores are decomposed: their attention has a large enough effect."""
        enough = self.score_weights.effect.abs() >= floor
        return (enough & ~self.is_alone & ~self.is_uniform).nonzero()[:, 0].tolist()

    def described(
        self, floor: float, common: Sequence[float]
    ) -> Iterator[tuple[Attended | None, str]]:
        """The attention of each node, with the reason if its scores are not decomposed.

        `common` is subtracted from the contribution of uniform attention, as from the node's value.
        """
        nodes = torch.arange(len(self.sources), device=self.sources.device)
        columns = (
            *(self.sources, self.pattern[nodes, self.sources], self.scores[nodes, self.sources]),
            (self.contrast * self.scores.where(self.seen, 0.0)).sum(-1),
            self.score_weights.uniform - self.score_weights.uniform.new_tensor(common),
            *(self.score_weights.effect, self.score_weights.error),
            *(self.rivals, self.is_alone, self.is_uniform, self.seen.sum(-1)),
        )
        for row in zip(*(column.tolist() for column in columns), strict=True):
            source, weight, score, contrast, uniform, effect, error, rival, alone, even, count = row
            if alone:
                yield None, "no other position to attend to"
                continue
            rival = self.rival if rival else None
            attended = Attended(source, weight, score, contrast, rival, uniform, effect, error)
            if even:
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
            yield self._key_inputs(self.queries[nodes], weights, contrast, self.seen[nodes])
            yield self._query_inputs(self.places[nodes], weights, contrast)

    def key_scores(
        self, queries: Float[Tensor, "node k"], seen: Bool[Tensor, "node src"]
    ) -> Float[Tensor, "node writer src"]:
        """The parts of the scores of some nodes by the writers of keys in the stream."""
        run, level, length = self.carried, 2 * self.head.layer, seen.shape[1]
        read = self.key
        if self.config.positions == "rotary":
            # Each node and position has its own direction.
            nodes, places = seen.nonzero().T
            found = queries.new_zeros(len(queries), length, len(run.writers(level)))
            along = read.adjoint(queries[nodes], places)
            found[nodes, places] = run.writes_at(level, along, places)
            return found.mT
        scale = (read.own_scale * read.scale)[0, :length]
        return run.writes_everywhere(level, queries @ read.W.T, length) * scale

    def _key_inputs(
        self,
        queries: Float[Tensor, "node k"],
        weights: Float[Tensor, "node src"],
        contrast: Float[Tensor, "node src"],
        seen: Bool[Tensor, "node src"],
    ) -> Inputs:
        """The contribution of each writer to the keys of some nodes."""
        extra = list(self._extra(self.key))
        parts = [(queries @ vectors[: seen.shape[1]].T)[:, None] for _, vectors in extra]
        scores = torch.cat([self.key_scores(queries, seen), *parts], 1)

        def along(nodes: Tensor, _: Tensor, places: Tensor) -> Tensor:
            return self.key.adjoint(queries[nodes], places) * weights[nodes, places][:, None]

        mean = torch.zeros_like(scores[..., :1])
        if self.is_gauge_free:
            in_sight = seen[:, None]
            mean = scores.where(in_sight, 0.0).sum(-1, keepdim=True) / in_sight.sum(
                -1, keepdim=True
            )
        return Inputs(
            Side.K,
            (*self.carried.writers(2 * self.head.layer), *(part for part, _ in extra)),
            shares=(scores - mean) * weights[:, None],
            exact=(scores - mean) * contrast[:, None],
            gradient=along,
            common=mean * weights[:, None],
        )

    @property
    def is_gauge_free(self) -> bool:
        """Whether the pattern is unchanged if a constant is added to all scores."""
        return self.sink is None and self.config.score_cap is None

    def _query_inputs(
        self,
        places: Int[Tensor, " node"],
        weights: Float[Tensor, "node src"],
        contrast: Float[Tensor, "node src"],
    ) -> Inputs:
        """The contribution of each writer to the queries of some nodes."""
        # The gradient of the prediction at the query, then the gradient of the contrast.
        gradients = torch.cat([weights @ self.keys, contrast @ self.keys]) * self.config.score_scale
        twice = places.repeat(2)
        along = self.query.adjoint(gradients, twice)
        extra = list(self._extra(self.query))
        parts = [self.carried.writes_at(2 * self.head.layer, along, twice)]
        parts += [(gradients * vectors[twice]).sum(-1)[:, None] for _, vectors in extra]
        shares, exact = torch.cat(parts, 1)[..., None].split(len(places))
        return Inputs(
            Side.Q,
            (*self.run.writers(2 * self.head.layer), *(part for part, _ in extra)),
            shares,
            exact,
            gradient=lambda nodes, *_: along[nodes],
            places=tuple(places.tolist()),
        )


def _mean_read(here: QkRead, there: QkRead) -> QkRead:
    """The read of the stream with the mean scale of two runs; positions and biases are constant."""
    scale = (here.scale * here.own_scale + there.scale * there.own_scale) / 2
    return replace(here, scale=scale, own_scale=torch.ones_like(scale), positions=None, bias=None)


class HeadNodes:
    """A head at some positions, with the gradient at its output at each.

    `values` are the edges into its values, and `held` is the part of its output · gradient that
    belongs to none of them. `attention` has the edges into its keys and queries. Nodes see the
    first `length` positions. With `start`, the reference run, edges carry the differences of the
    two runs.
    """

    def __init__(
        self,
        run: FrozenRow,
        head: HeadId,
        reads: Reads,
        places: Int[Tensor, " node"],
        gradients: Float[Tensor, "node d"],
        length: int,
        rival: int | None,
        start: FrozenRow | None,
        carried: FrozenRow,
    ) -> None:
        layer, index = run.layers[head.layer], head.layer
        kv = kv_head(run.trace.model.config, head.head)
        along = (gradients @ layer.W_O[head.head].T) @ layer.W_V[kv].T
        ends = [run] if start is None else [run, start]
        write = torch.stack([one.trace.scales.write[index][one.row, places] for one in ends])
        scales = [one.trace.scales.attention[index][one.row, :length] for one in ends]
        streams = [one.streams[index][:length] for one in ends]
        mean = write.mean(0)[:, None]
        moved = [
            scale * (along @ stream.T) * mean for scale, stream in zip(scales, streams, strict=True)
        ]
        before = None
        if start is not None:
            before = NodeAttention(start, head, reads, places, moved[1], rival)
        here = NodeAttention(run, head, reads, places, moved[0], rival, before, carried)
        if before is None:
            weight = here.pattern.to(along) * scales[0] * mean
            self.held = torch.zeros_like(places).double()
        else:
            weight = here.score_weights.pattern.to(along) * mean
            scale, stream = ((two[0] + two[1]) / 2 for two in (scales, streams))
            held = (weight * (scales[0] - scales[1]) * (along @ stream.T)).sum(-1)
            # Values have the mean scale of a norm after the heads; its change is no edge's.
            sums = [(one.pattern * one.values).sum(-1) for one in (here, before)]
            held = held + (sums[0] + sums[1]) / 2 * (write[0] - write[1]) / mean[:, 0]
            weight, self.held = weight * scale, held.double()
        shares = carried.writes_everywhere(2 * index, along, length) * weight[:, None]
        self.attention = here
        self.values = Inputs(
            Side.V,
            run.writers(2 * index),
            shares,
            shares,
            gradient=lambda nodes, _, places: weight[nodes, places][:, None] * along[nodes],
        )
