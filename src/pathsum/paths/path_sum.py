"""PathSum: the logits of a run as an exact sum over paths; counting and listing paths."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.arguments import checked_methods
from pathsum.base.errors import InputError, PathError
from pathsum.base.shapes import Logits, Stream
from pathsum.model import HeadId, Path, Source, Trace
from pathsum.model.folding import apply_unembedding, logit_bias
from pathsum.model.transformer import soft_cap
from pathsum.paths.frozen import Frozen, all_sources, final_stream
from pathsum.paths.target import PositionName, TokenName, Versus, find_target

if TYPE_CHECKING:
    from pathsum.paths.attribution import LogitAttribution


def expand_logits(trace: Trace) -> "PathSum":
    """The logits of a run as a sum over paths; `trace.paths()` is the shorthand.

    If the model soft-caps its logits, the sum gives the logits before the cap. A cap on scores has
    no effect, because patterns are held fixed.
    """
    return PathSum(trace)


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class PathSum:
    """All paths from a source through heads to the logits, with patterns and scales held fixed.

    With the run's patterns and normalization scales frozen, the model is linear, and

        logits = Σ_paths  (s_final A[h_n] s … A[h_1] s) ⊗ (source · OV[h_1] … OV[h_n] · W_U)

    exactly. Paths can be counted without listing them; they are listed shortest first:

    >>> from pathsum.model import construct
    >>> paths = construct.induction().trace("a b c a").paths()
    >>> paths.count, [str(path.source) for path in paths.order(0)]
    (9, ['embed'])
    >>> paths.remainder() < 1e-4
    True

    Frozen patterns capture V-composition only. A head that acts by changing *where* a later head
    attends (K- or Q-composition) gets no credit; use `trace.scores` or `trace.patch` for that.
    """

    trace: Trace

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The sources of paths, from the bottom up."""
        return all_sources(self.trace.model.weights)

    @cached_property
    def frozen(self) -> Frozen:
        """The run as a linear model."""
        return Frozen(self.trace)

    @property
    def count(self) -> int:
        """The exact number of paths: ∏(1 + H) from the embedding, and likewise for other sources.

        A source written by layer l is read only by later layers; `bias_U` contributes one path.
        """
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of paths of each order, 0 to n_layers."""
        layers, heads = self._size
        return tuple(
            count_of_order(self.sources, layers, heads, order) for order in range(layers + 1)
        )

    def __iter__(self) -> Iterator[Path]:
        for order in range(self.trace.model.config.n_layers + 1):
            yield from self.order(order)

    def order(self, order: int) -> Iterator[Path]:
        """The paths through `order` heads, by source and then by heads, generated lazily."""
        layers, heads = self._size
        if order not in range(layers + 1):
            raise InputError(
                f"there are no paths of order {order}: the model has {layers} layers, so a path "
                f"goes through 0 to {layers} heads"
            )
        return paths_of_order(self.sources, layers, heads, order)

    def contribution(self, path: Path) -> Logits:
        """The contribution of one path to the logits, [batch, pos, vocab]."""
        if self.check(path).source.kind == "unembed_bias":
            return logit_bias(self.trace.weights).expand(*self.trace.tokens.shape, -1)
        return self.unembedded(self.frozen.along(path))

    def unembedded(self, stream: Stream) -> Logits:
        """The logits from a part of the final stream, without the logit bias."""
        scaled = stream * self.frozen.final_scale[..., None]
        return apply_unembedding(self.trace.model.weights, scaled)

    def total(self) -> Logits:
        """The sum of all contributions, computed by one linear sweep from the sources.

        Computed from sources, weights, frozen patterns and scales, never from recorded streams or
        logits.
        """
        return self.unembedded(final_stream(self.frozen)) + logit_bias(self.trace.weights)

    def remainder(self) -> float:
        """max|cap(total) − model's logits| / max|model's logits|, the reconstruction error.

        It is rounding error only if the sum is exact. Computed a few positions at a time, to avoid
        a second copy of all logits.
        """
        found = PartialRemainder(self)
        for at, logits in self.trace.logits_in_parts():
            found.add(at, logits)
        return found.value

    def toward(
        self,
        position: PositionName = -1,
        token: TokenName | None = None,
        versus: Versus = None,
    ) -> "LogitAttribution":
        """Attribute a logit to paths: exact totals by order, head, edge and source.

        `position` counts from 0, or from the end if negative. `token` is an id or the token's text,
        by default the model's prediction. `versus` is None for the raw logit, "mean" for the logit
        minus the mean logit, or another token for a logit difference. Each may be a vector with
        one entry per sequence. Over several sequences, every number is a mean with a standard
        error.
        """
        from pathsum.paths.attribution import explain

        return explain(self, find_target(self.trace, position, token, versus))

    def check(self, path: Path) -> Path:
        """The path, or PathError if this run does not have it."""
        path.check_in(self.trace.model)
        if path.source not in self.sources:
            raise PathError(
                f"no path of this model begins at {path.source}: there is no such bias; the "
                f"model's sources are {', '.join(map(str, self.sources))}"
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


class PartialRemainder:
    """The reconstruction error of a `PathSum` over the positions added so far."""

    def __init__(self, paths: PathSum) -> None:
        self._weights = paths.trace.model.weights
        self._read = final_stream(paths.frozen) * paths.frozen.final_scale[..., None]
        self._bias = logit_bias(self._weights)
        self._errors: list[Tensor] = []
        self._sizes: list[Tensor] = []

    def add(self, at: slice, logits: Float[Tensor, "batch part vocab"]) -> None:
        """Compare the sum with the model's logits at some positions."""
        found = apply_unembedding(self._weights, self._read[:, at]).add_(self._bias)
        found = soft_cap(found, self._weights.config.logit_cap)
        self._errors.append(torch.linalg.vector_norm(found.sub_(logits), ord=torch.inf))
        self._sizes.append(torch.linalg.vector_norm(logits, ord=torch.inf))

    @property
    def value(self) -> float:
        """max|cap(total) − model's logits| / max|model's logits|."""
        error, size = (float(torch.stack(each).max()) for each in (self._errors, self._sizes))
        return error / size if size else error


def chains(first_layer: int, end: int, n_heads: int, order: int) -> Iterator[tuple[HeadId, ...]]:
    """All chains of `order` heads in layers first_layer … end − 1, in order of heads.

    >>> [" ".join(map(str, chain)) for chain in chains(0, 2, 2, 1)]
    ['L0H0', 'L0H1', 'L1H0', 'L1H1']
    """
    if order == 0:
        yield ()
        return
    for layer in range(first_layer, end - order + 1):
        for head in range(n_heads):
            for rest in chains(layer + 1, end, n_heads, order - 1):
                yield (HeadId(layer, head), *rest)


def chain_count(layers: int, n_heads: int, order: int) -> int:
    """The number of chains of `order` heads in this many layers.

    >>> [chain_count(2, 12, order) for order in range(3)]
    [1, 24, 144]
    """
    return comb(layers, order) * n_heads**order


def paths_of_order(
    sources: tuple[Source, ...], end: int, n_heads: int, order: int
) -> Iterator[Path]:
    """Paths of one order from these sources through heads below layer `end`."""
    for source in sources:
        if source.kind == "unembed_bias":
            if order == 0:
                yield Path(source)
            continue
        for heads in chains(source.layer + 1, end, n_heads, order):
            yield Path(source, heads)


def count_of_order(sources: tuple[Source, ...], end: int, n_heads: int, order: int) -> int:
    """The exact number of paths of one order from these sources."""
    total = 0
    for source in sources:
        if source.kind == "unembed_bias":
            total += order == 0
        else:
            total += chain_count(end - source.layer - 1, n_heads, order)
    return total
