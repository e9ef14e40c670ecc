"""PathSum: the logits of a run as an exact sum over paths."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from pathsum.errors import InputError, NotExactError, PathError
from pathsum.model import Path, Source, Trace
from pathsum.model.folding import folded_unembedding
from pathsum.paths.explain.target import PositionName, TokenName, Versus, find_target
from pathsum.paths.frozen import Frozen, all_sources, relative_error
from pathsum.paths.path_counting import count_of_order, paths_of_order
from pathsum.paths.sweep import final_stream
from pathsum.shapes import Logits, Stream

if TYPE_CHECKING:
    from pathsum.paths.explain.toward import Toward


def expand_logits(trace: Trace) -> "PathSum":
    """The logits of a run as a sum over paths; `trace.paths()` is the short way to say it.

    Refuses a model with soft caps: a tanh of a sum is not the sum of its parts.
    """
    config = trace.model.config
    for name, cap in (("score_cap", config.score_cap), ("logit_cap", config.logit_cap)):
        if cap is not None:
            what = "scores" if name == "score_cap" else "logits"
            raise NotExactError(
                f"this model bends its {what} with a soft cap ({name}={cap:g}), so they are not a "
                "sum over paths, and pathsum does not approximate; a model without soft caps would "
                "be right (running and tracing this one works)"
            )
    return PathSum(trace)


@dataclass(frozen=True, eq=False, repr=False)
class PathSum:
    """Every path from a source through heads to the logits, patterns and scales held fixed.

    With the run's patterns and normalization scales frozen the model is linear, and

        logits = Σ_paths  (s_final A[h_n] s … A[h_1] s) ⊗ (source · OV[h_1] … OV[h_n] · W_U)

    exactly. Paths are counted without being listed, and listed shortest first:

    >>> from pathsum.model import construct
    >>> paths = construct.induction().trace("a b c a").paths()
    >>> paths.count, [str(path.source) for path in paths.order(0)]
    (9, ['embed'])
    >>> paths.remainder() < 1e-4
    True

    Frozen patterns show V-composition only. A head that acts by changing *where* a later head
    attends (K- or Q-composition) gets no credit here; `trace.scores` and `trace.patch` show it.
    """

    trace: Trace

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """Where paths begin, from the bottom up."""
        return all_sources(self.trace.model.weights)

    @cached_property
    def frozen(self) -> Frozen:
        """The run as a linear model."""
        return Frozen(self.trace)

    @property
    def count(self) -> int:
        """How many paths there are, exactly: ∏(1 + H) from the embedding, and so on.

        A source that layer l writes is read by later layers only; `bias_U` makes one path.
        """
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many paths there are of each order, 0 to n_layers."""
        layers, heads = self._size
        return tuple(
            count_of_order(self.sources, layers, heads, order) for order in range(layers + 1)
        )

    def __iter__(self) -> Iterator[Path]:
        for order in range(self.trace.model.config.n_layers + 1):
            yield from self.order(order)

    def order(self, order: int) -> Iterator[Path]:
        """The paths through that many heads, by source and then by heads, listed as needed."""
        layers, heads = self._size
        if not 0 <= order <= layers:
            raise InputError(
                f"there are no paths of order {order}: the model has {layers} layers, so a path "
                f"goes through 0 to {layers} heads"
            )
        return paths_of_order(self.sources, layers, heads, order)

    def contribution(self, path: Path) -> Logits:
        """What one path adds to the logits, [batch, pos, vocab]."""
        if self.check(path).source.kind == "unembed_bias":
            return self._unembedding[1].expand(self.trace.logits.shape)
        return self.unembedded(self.frozen.along(path))

    def unembedded(self, stream: Stream) -> Logits:
        """What the logits make of a part of the final stream, their own bias left out."""
        return (stream * self.frozen.final_scale[..., None]) @ self._unembedding[0]

    def total(self) -> Logits:
        """The sum of all contributions, by one linear sweep from the sources.

        Computed from sources, weights, frozen patterns and scales, never from recorded streams or
        logits.
        """
        return self.unembedded(final_stream(self.frozen)) + self._unembedding[1]

    def remainder(self) -> float:
        """max|total − model's logits| / max|model's logits|: rounding, if the sum is exact."""
        return relative_error(self.total(), self.trace.logits)

    def toward(
        self,
        position: PositionName = -1,
        token: TokenName | None = None,
        versus: Versus = None,
    ) -> "Toward":
        """Which paths made this prediction: exact totals by order, head, edge and source.

        `position` counts from 0, or from the end if negative; `token` is an id or a token's text,
        by default what the model predicts there. `versus` is None for the raw logit, "mean" for
        the logit minus the vocabulary's mean, or another token for a difference of logits. Each may
        be a vector with an entry for each sequence; then everything is a mean over sequences, with
        standard errors.
        """
        from pathsum.paths.explain.toward import explain

        return explain(self, find_target(self.trace, position, token, versus))

    def check(self, path: Path) -> Path:
        """The path, or an error that says why this run does not take it."""
        path.check_in(self.trace.model)
        if path.source not in self.sources:
            raise PathError(
                f"no path of this model begins at {path.source}: there is no such bias; its "
                f"sources are {', '.join(map(str, self.sources))}"
            )
        return path

    def __repr__(self) -> str:
        batch, length = self.trace.tokens.shape
        return (
            f"PathSum({self.count:,} paths of order 0 to {len(self.counts) - 1}, "
            f"{batch} × {length} tokens)"
        )

    @property
    def _size(self) -> tuple[int, int]:
        return self.trace.model.config.n_layers, self.trace.model.config.n_heads

    @cached_property
    def _unembedding(self) -> tuple[Float[Tensor, "d vocab"], Float[Tensor, " vocab"]]:
        return folded_unembedding(self.trace.model.weights)
