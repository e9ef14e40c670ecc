"""ScoreSum: a head's attention scores as an exact sum over (query part, key part)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pathsum.base import Part, PartName
from pathsum.base.arguments import checked_methods
from pathsum.base.shapes import HeadPattern
from pathsum.model import HeadId, HeadName, Trace
from pathsum.model.transformer import head_pattern
from pathsum.paths.frozen import Frozen, relative_error
from pathsum.paths.score_sides import Group, SideSum, Vectors, group_of, qk_read
from pathsum.paths.sweep import split_at

if TYPE_CHECKING:
    from pathsum.paths.explain.score_cells import ScoreCell, ScoreSummary


def expand_scores(trace: Trace, head: HeadName) -> "ScoreSum":
    """A head's scores as a sum over pairs of parts; `trace.scores("L1H3")` is the shorthand.

    On a model with soft-capped scores these are the scores before the cap, which are exact sums.
    """
    return ScoreSum(trace, trace.model.head(head).id)


@dataclass(frozen=True, eq=False)
class ScorePair:
    """One (query part, key part) pair and what it adds to the scores."""

    query: Part
    key: Part
    scores: HeadPattern

    @property
    def group(self) -> Group:
        """Whether lower heads are in neither side, in one, or in both."""
        return group_of(self.query, self.key)


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class ScoreSum:
    """Scores before soft cap and softmax, split on both sides.

    Queries and keys are sums of parts (sources, paths through lower heads, positions, a bias), and
    a score is bilinear in them:  `score = Σ_q Σ_k q_part · k_part · score_scale`, exactly. The four
    groups are disjoint and exhaustive, and are computed at any depth without listing paths:

      `none`  no lower head on either side: content and positions
      `q`     a lower head on the query side only     (Q-composition)
      `k`     a lower head on the key side only       (K-composition)
      `qk`    on both

    >>> from pathsum.model import construct
    >>> score = construct.induction().trace("a b c a").scores("L1H0")
    >>> [round(float(score.term("embed", "embed→L0H0")[0, 4, s])) for s in range(5)]
    [0, 0, 40, 0, 0]

    Every array is [batch, dest, src], 0 where a source comes after its destination. A constant
    added to a row changes nothing after the softmax: compare terms within rows.
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
        return SideSum(qk_read(self.trace, self.head, "query"), self.frozen, self.head)

    @cached_property
    def key(self) -> SideSum:
        """The key side."""
        return SideSum(qk_read(self.trace, self.head, "key"), self.frozen, self.head)

    @cached_property
    def _halves(self) -> tuple[tuple[Vectors, Vectors], tuple[Vectors, Vectors]]:
        """Both sides without and with lower heads, from one sweep."""
        streams = split_at(self.frozen, self.head.layer)
        return self.query.split(streams), self.key.split(streams)

    @property
    def count(self) -> int:
        """The exact number of terms, at any depth."""
        return self.query.total_count * self.key.total_count

    def total(self) -> HeadPattern:
        """All terms together, from sources, weights, frozen patterns and scales below."""
        (free_q, headed_q), (free_k, headed_k) = self._halves
        return self.product(free_q + headed_q, free_k + headed_k)

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
        """One term; a part is a `Part`, a `Path`, or as text `embed→L0H7`, `pos@1`, `b_K`."""
        return self.product(
            self.query.vectors(Part.parse(query)), self.key.vectors(Part.parse(key))
        )

    def terms(self) -> Iterator[ScorePair]:
        """Every term, those with the fewest heads first, computed as needed."""
        layer = self.head.layer
        for order in range(2 * layer + 1):
            for in_query in range(max(0, order - layer), min(order, layer) + 1):
                for query in self.query.parts(in_query):
                    queries = self.query.vectors(query)
                    for key in self.key.parts(order - in_query):
                        scores = self.product(queries, self.key.vectors(key))
                        yield ScorePair(query, key, scores)

    def remainder(self) -> float:
        """max|total − model's scores| / max|model's scores| over causal cells."""
        return relative_error(self.total(), self.model_scores)

    @cached_property
    def model_scores(self) -> HeadPattern:
        """The model's own scores, 0 where a source comes after its destination."""
        return self.trace.head_scores(self.head).tril()

    def attention(self) -> HeadPattern:
        """The softmax of `total()`, capped if the model caps: the head's pattern."""
        return head_pattern(self.trace.weights, self.head, self.total())

    def attention_without(self, query: PartName, key: PartName) -> HeadPattern:
        """The pattern without one term: the softmax of all others."""
        without = self.total() - self.term(query, key)
        return head_pattern(self.trace.weights, self.head, without)

    def cell(
        self,
        destination: int,
        source: int,
        k: int = 20,
        *,
        sequence: int = 0,
        max_parts: int = 512,
    ) -> "ScoreCell":
        """The score of one destination for one source: its groups, and its k strongest terms.

        A side with more than `max_parts` parts is listed by what each lower head wrote, not path by
        path.
        """
        from pathsum.paths.explain.score_cells import rank_cell

        return rank_cell(self, destination, source, k, sequence, max_parts)

    def summary(self, k: int = 20, *, max_parts: int = 64) -> "ScoreSummary":
        """The k terms that vary most within rows; the softmax ignores what is constant in a row.

        `max_parts` as in `cell`; a summary needs a whole matrix for each pair of parts.
        """
        from pathsum.paths.explain.score_cells import summarize

        return summarize(self, k, max_parts)

    def product(self, query: Vectors, key: Vectors) -> HeadPattern:
        """Scores of queries and keys, causal cells only."""
        return (query * self.trace.model.config.score_scale @ key.mT).tril()

    def __repr__(self) -> str:
        batch, length = self.trace.tokens.shape
        return f"ScoreSum({self.head}, {self.count:,} terms, {batch} × {length} tokens)"
