"""ScoreSum: a head's attention scores as an exact sum over pairs (query part, key part)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Part, PartName, Side, find_head
from pathsum.base.errors import PathError
from pathsum.base.options import checked_methods
from pathsum.base.shapes import HeadPattern, Stream
from pathsum.model import Config, HeadId, HeadName, Path, Source, Trace
from pathsum.model.folding import Reads, layer_reads
from pathsum.model.rotary import rotate
from pathsum.model.transformer import head_pattern
from pathsum.model.weights import kv_head
from pathsum.paths.frozen import Frozen, Streams, relative_error
from pathsum.paths.order_sweep import UpSweep, split_at
from pathsum.paths.path_sum import Level, count_of_order, head_levels, paths_of_order

if TYPE_CHECKING:
    from pathsum.paths.score_cells import ScoreCell, ScoreSummary

Group: TypeAlias = Literal["none", "q", "k", "qk"]
Vectors = Float[Tensor, "batch pos k"]


def group_of(query: Part, key: Part) -> Group:
    """The group of a term: lower heads in neither part, in the query, in the key, or in both."""
    if query.headed:
        return "qk" if key.headed else "q"
    return "k" if key.headed else "none"


@dataclass(frozen=True, eq=False)
class QkRead:
    """A head's query or key: `s_q · rotate(s · x W + positions + bias)`, with s and s_q frozen.

    `norm_scale` is s_q, the scale of QK-norm; `config` has the rotations of the layer.
    """

    side: Side
    layer: int
    W: Float[Tensor, "d k"]
    positions: Float[Tensor, "pos k"] | None
    bias: Float[Tensor, " k"] | None
    scale: Float[Tensor, "batch pos"]
    norm_scale: Float[Tensor, "batch pos"]
    config: Config

    def of_stream(self, x: Stream) -> Vectors:
        """The query (or key) of a stream, or of one part of it."""
        return self._finish((x * self.scale[..., None]) @ self.W)

    @cached_property
    def extra(self) -> dict[Part, Vectors]:
        """The parts that do not come from the stream: positions and the bias.

        They are added after normalization, so they do not have the scale of the stream.
        """
        extra: dict[Part, Vectors] = {}
        if self.positions is not None:
            extra[Part.position(self.layer)] = self._finish(self.positions)
        if self.bias is not None:
            extra[Part.bias("query" if self.side is Side.Q else "key")] = self._finish(self.bias)
        return extra

    def _finish(self, x: Tensor) -> Vectors:
        """Apply the scale of QK-norm and the rotation of a rotary model."""
        x = x * self.norm_scale[..., None]
        if self.config.positions != "rotary":
            return x
        return rotate(self.config, x, torch.arange(x.shape[1], device=x.device))

    def adjoint(self, y: Float[Tensor, "n k"], at: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """The gradient of (the read at a position) · y at the first stream, by position."""
        if self.config.positions == "rotary":
            y = rotate(self.config, y, -at)
        scale = self.norm_scale[0, at] * self.scale[0, at]
        return (y * scale[:, None]) @ self.W.T

    def select(self, rows: slice, length: int) -> "QkRead":
        """This read for some sequences and their first positions."""
        return replace(
            self,
            positions=None if self.positions is None else self.positions[:length],
            scale=self.scale[rows, :length],
            norm_scale=self.norm_scale[rows, :length],
        )


def qk_read(trace: Trace, head: HeadId, side: Side, reads: Reads | None = None) -> QkRead:
    """The read of one head's query or key, normalization folded in; `reads` are its layer's."""
    weights, scales, layer = trace.model.weights, trace.scales, head.layer
    reads = layer_reads(weights, layer) if reads is None else reads
    raw = weights.layers[layer]
    if side is Side.Q:
        at, W, b, pos = head.head, reads.W_Q, reads.b_Q, reads.pos_Q
        norm_scale, biased = scales.query[layer], raw.b_Q is not None
    else:
        at, W, b, pos = kv_head(weights.config, head.head), reads.W_K, reads.b_K, reads.pos_K
        norm_scale, biased = scales.key[layer], raw.b_K is not None
    return QkRead(
        side=side,
        layer=layer,
        W=W[at],
        positions=None if pos is None else pos[at, : trace.tokens.shape[1]],
        bias=b[at] if biased or raw.ln1_b is not None else None,
        scale=scales.attention[layer],
        norm_scale=norm_scale[:, at],
        config=weights.config.at(layer),
    )


@dataclass(frozen=True, eq=False)
class SideSum:
    """A query or a key as a sum over parts, computed lazily."""

    read: QkRead
    frozen: Frozen
    head: HeadId

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The sources that this head's layer can read."""
        return tuple(source for source in self.frozen.sources if source.layer < self.head.layer)

    @property
    def extra(self) -> tuple[Part, ...]:
        """The parts that do not come from the stream: positions, the bias."""
        return tuple(self.read.extra)

    @property
    def _levels(self) -> tuple[Level, ...]:
        """The heads below this head's layer."""
        return head_levels(self.head.layer, self.frozen.run.weights.config.n_heads)

    def parts(self, order: int) -> Iterator[Part]:
        """The parts that came through `order` lower heads."""
        for path in paths_of_order(self.sources, self._levels, order):
            yield Part.of_path(path)
        if order == 0:
            yield from self.extra

    @property
    def count(self) -> int:
        """The number of parts of all orders."""
        orders = range(self.head.layer + 1)
        paths = (count_of_order(self.sources, self._levels, order) for order in orders)
        return len(self.extra) + sum(paths)

    def expand(self) -> Iterator[tuple[Part, Vectors]]:
        """Every part with its vectors; paths that share their lower heads share the work."""
        yield from self.read.extra.items()
        for source in self.sources:
            yield from self._longer_paths(Path(source), self.frozen.source(source))

    def _longer_paths(self, path: Path, stream: Stream) -> Iterator[tuple[Part, Vectors]]:
        """A path, and all paths that continue it, from its output."""
        yield Part.of_path(path), self.read.of_stream(stream)
        last = path.heads[-1].layer if path.heads else path.source.layer
        for _, heads in self._levels[last + 1 :]:
            for head in heads:
                assert isinstance(head, HeadId)
                longer = Path(path.source, (*path.heads, head))
                yield from self._longer_paths(longer, self.frozen.through([head], stream))

    def select(self, rows: slice, length: int) -> "SideSum":
        """This side for some sequences and their first positions."""
        short = Frozen(self.frozen.run, rows, length)
        return SideSum(self.read.select(rows, length), short, self.head)

    def writers(self) -> Iterator[tuple[Part, Vectors]]:
        """Coarser parts that add up too: each source, and the output of each lower head."""
        for part in self.parts(0):
            yield part, self.vectors(part)
        for step in UpSweep.of(self.frozen).to(self.head.layer):
            for head, W_O in enumerate(step.layer.W_O):
                output = step.z[0, :, head] @ W_O
                yield Part.writer(HeadId(step.index, head)), self.read.of_stream(output)

    def vectors(self, part: Part) -> Vectors:
        """A part's share of the queries (or keys), ready for the dot product."""
        self.check(part)
        if part in self.read.extra:
            return self.read.extra[part]
        if part.kind == "writer":
            return next(vectors for writer, vectors in self.writers() if writer == part)
        return self.read.of_stream(self.frozen.along(part.path))

    def split(self, streams: Streams) -> tuple[Vectors, Vectors]:
        """The shares that come directly from sources and through heads, from `split_at`."""
        free, through_heads = map(self.read.of_stream, streams)
        return sum(self.read.extra.values(), start=free), through_heads

    def check(self, part: Part) -> None:
        """Raise PathError if this side has no such part."""
        layer, side = self.head.layer, "query" if self.read.side is Side.Q else "key"
        if part.kind in ("position", "bias"):
            if part not in self.extra:
                extra = ", ".join(map(str, self.extra)) or "neither positions nor a bias"
                raise PathError(
                    f"{part} is not a part of the {side} of {self.head}: its read adds {extra}"
                )
            return
        for head in part.heads:
            if head.layer >= layer:
                raise PathError(
                    f"{self.head} cannot read the output of {head}: only heads in layers below "
                    f"{layer} come before it"
                )
        weights = self.frozen.run.weights
        if part.kind == "writer":
            find_head(part.heads[0], weights.config.n_layers, weights.config.n_heads)
            return
        Path(part.path.source, part.heads).check_in(weights)
        if part.source not in self.sources:
            raise PathError(
                f"{self.head} cannot read {part.source}: the sources below layer {layer} are "
                f"{', '.join(map(str, self.sources))}"
            )


def expand_scores(trace: Trace, head: HeadName) -> "ScoreSum":
    """A head's scores as a sum over pairs of parts; `trace.scores("L1H3")` is the shorthand.

    If the model soft-caps its scores, the sum gives the scores before the cap.
    """
    return ScoreSum(trace, trace.model.head(head).id)


@dataclass(frozen=True, eq=False)
class ScorePair:
    """One (query part, key part) pair and its contribution to the scores."""

    query: Part
    key: Part
    scores: HeadPattern

    @property
    def group(self) -> Group:
        """Whether lower heads occur on neither side, on one side, or on both."""
        return group_of(self.query, self.key)


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class ScoreSum:
    """Attention scores before soft cap and softmax, expanded on the query and the key side.

    Queries and keys are sums of parts (sources, paths through lower heads, positions, a bias), and
    a score is bilinear in them:  `score = Σ_q Σ_k q_part · k_part · score_scale`, exactly. The four
    groups are disjoint and exhaustive. Computing them does not list paths, at any depth:

      `none`  no lower head on either side: content and positions
      `q`     a lower head on the query side only     (Q-composition)
      `k`     a lower head on the key side only       (K-composition)
      `qk`    on both

    >>> from pathsum.model import construct
    >>> score = construct.induction().trace("a b c a").scores("L1H0")
    >>> [round(float(score.term("embed", "embed→L0H0")[0, 4, s])) for s in range(5)]
    [0, 0, 40, 0, 0]

    Arrays are [batch, dest, src], with 0 where a destination cannot attend. The softmax is
    invariant to a constant added to a row, so compare terms within rows.
    """

    trace: Trace
    head: HeadId

    @cached_property
    def frozen(self) -> Frozen:
        """The run as a linear model."""
        return Frozen(self.trace)

    @cached_property
    def query(self) -> SideSum:
        """The query side."""
        return SideSum(qk_read(self.trace, self.head, Side.Q), self.frozen, self.head)

    @cached_property
    def key(self) -> SideSum:
        """The key side."""
        return SideSum(qk_read(self.trace, self.head, Side.K), self.frozen, self.head)

    @cached_property
    def _halves(self) -> tuple[tuple[Vectors, Vectors], tuple[Vectors, Vectors]]:
        """Both sides without and with lower heads, from a single sweep."""
        streams = split_at(self.frozen, self.head.layer)
        return self.query.split(streams), self.key.split(streams)

    @property
    def count(self) -> int:
        """The exact number of terms, at any depth."""
        return self.query.count * self.key.count

    def total(self) -> HeadPattern:
        """The sum of all terms, from sources, weights, frozen patterns and scales below."""
        queries, keys = self._halves
        return self.product(torch.add(*queries), torch.add(*keys))

    @property
    def none(self) -> HeadPattern:
        """Terms without a lower head on either side."""
        return self.product(self._halves[0][0], self._halves[1][0])

    @property
    def q(self) -> HeadPattern:
        """Terms with a lower head on the query side only."""
        return self.product(self._halves[0][1], self._halves[1][0])

    @property
    def k(self) -> HeadPattern:
        """Terms with a lower head on the key side only."""
        return self.product(self._halves[0][0], self._halves[1][1])

    @property
    def qk(self) -> HeadPattern:
        """Terms with a lower head on both sides."""
        return self.product(self._halves[0][1], self._halves[1][1])

    def term(self, query: PartName, key: PartName) -> HeadPattern:
        """One term; a part is a `Part`, a `Path`, or a text: `embed→L0H7`, `pos@1`, `b_K`."""
        return self.product(
            self.query.vectors(Part.parse(query)), self.key.vectors(Part.parse(key))
        )

    def terms(self) -> Iterator[ScorePair]:
        """Iterate over all terms, fewest heads first, computed lazily."""
        layer = self.head.layer
        for order in range(2 * layer + 1):
            for in_query in range(max(0, order - layer), min(order, layer) + 1):
                for query in self.query.parts(in_query):
                    queries = self.query.vectors(query)
                    for key in self.key.parts(order - in_query):
                        scores = self.product(queries, self.key.vectors(key))
                        yield ScorePair(query, key, scores)

    def remainder(self) -> float:
        """max|total − model's scores| / max|model's scores| over cells that can be attended to."""
        return relative_error(self.total(), self.model_scores)

    @cached_property
    def model_scores(self) -> HeadPattern:
        """The model's own scores, with 0 where a destination cannot attend."""
        return self._visible(self.trace.head_scores(self.head))

    def attention(self) -> HeadPattern:
        """The softmax of `total()`, capped if the model caps: the head's pattern."""
        return head_pattern(self.trace.weights, self.head, self.total())

    def attention_without(self, query: PartName, key: PartName) -> HeadPattern:
        """The pattern without a term: the softmax of the sum of all others."""
        return head_pattern(self.trace.weights, self.head, self.total() - self.term(query, key))

    def cell(
        self,
        destination: int,
        source: int,
        k: int = 20,
        *,
        sequence: int = 0,
        max_parts: int = 512,
    ) -> "ScoreCell":
        """The score for one (destination, source) pair: its groups and its k strongest terms.

        Sides with more than `max_parts` parts are listed by lower head, not path by path.
        """
        from pathsum.paths.score_cells import rank_cell

        return rank_cell(self, destination, source, k, sequence, max_parts)

    def summary(self, k: int = 20, *, max_parts: int = 64) -> "ScoreSummary":
        """The k terms that vary most within rows; the softmax ignores constants along a row.

        `max_parts` is as in `cell`. A summary computes a whole matrix for each pair of parts.
        """
        from pathsum.paths.score_cells import summarize_scores

        return summarize_scores(self, k, max_parts)

    def product(self, query: Vectors, key: Vectors) -> HeadPattern:
        """Scores of queries and keys, with 0 where a destination cannot attend."""
        return self._visible(query * self.trace.model.config.score_scale @ key.mT)

    def _visible(self, scores: HeadPattern) -> HeadPattern:
        return scores.tril() if self.trace.model.config.causal else scores

    def __repr__(self) -> str:
        batch, length = self.trace.tokens.shape
        return f"ScoreSum({self.head}, {self.count:,} terms, {batch} × {length} tokens)"
