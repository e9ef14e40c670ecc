"""PathSum: the logits of a run as an exact sum over paths; counting and listing paths."""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.errors import InputError, NotExactError, PathError
from pathsum.base.options import checked_methods, parse_option
from pathsum.base.path import Step, level_of
from pathsum.base.shapes import Logits, Stream
from pathsum.model import HeadId, Path, Source, Trace
from pathsum.model.folding import apply_unembedding, logit_bias
from pathsum.model.transformer import soft_cap
from pathsum.paths.frozen import Frozen, Gates, all_sources
from pathsum.paths.order_sweep import final_stream
from pathsum.paths.target import PositionName, TokenName, Versus, find_target

if TYPE_CHECKING:
    from pathsum.paths.attribution import LogitAttribution


class Mlps(enum.StrEnum):
    """The role of MLPs in a sum over paths.

    `HELD`    sources: their outputs are held fixed, and no path goes through them
    `LINEAR`  steps like heads, with their gates held fixed; paths begin at tokens and biases
    """

    HELD = "held"
    LINEAR = "linear"


def expand_logits(trace: Trace, mlps: Mlps | str = Mlps.HELD) -> "PathSum":
    """The logits of a run as a sum over paths; `trace.paths(mlps=…)` is the shorthand.

    If the model soft-caps its logits, the sum gives the logits before the cap. A cap on scores has
    no effect, because patterns are held fixed.
    """
    mlps = parse_option(Mlps, mlps, "mlps")
    if mlps is Mlps.LINEAR:
        check_gates_follow(trace)
    return PathSum(trace, mlps)


def check_gates_follow(trace: Trace) -> None:
    """Raise NotExactError if an edit makes an MLP's output differ from its gates times its read."""
    for edit in trace.every_edit:
        for component in (edit.site.writer, edit.site.reader):
            if isinstance(component, Source) and component.kind in ("mlp", "neuron"):
                raise NotExactError(
                    f"{edit.site} was edited in this run, so the output of its MLP is not linear "
                    "in its input; use the unedited run, or paths with mlps='held'"
                )


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class PathSum:
    """All paths from a source through heads to the logits, with patterns and scales held fixed.

    With `mlps="linear"`, paths go through MLPs too, and the gates are held fixed. With the run's
    patterns and normalization scales frozen, the model is linear, and

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
    mlps: Mlps = Mlps.HELD

    @property
    def linear(self) -> bool:
        """Whether the model has MLPs and paths go through them."""
        return self.mlps is Mlps.LINEAR and self.trace.model.config.mlp != "none"

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The sources of paths, from the bottom up."""
        return all_sources(self.trace.model.weights, self.linear)

    @cached_property
    def gates(self) -> Gates | None:
        """The held gates of MLPs, or None if their outputs are sources."""
        return Gates(self.trace) if self.linear else None

    @cached_property
    def frozen(self) -> Frozen:
        """The run as a linear model."""
        return Frozen(self.trace, gates=self.gates)

    @cached_property
    def levels(self) -> "tuple[Level, ...]":
        """The steps of paths, from the bottom up."""
        config = self.trace.model.config
        levels = head_levels(config.n_layers, config.n_heads)
        return add_mlps(levels, config.block == "parallel") if self.linear else levels

    @property
    def count(self) -> int:
        """The exact number of paths: ∏(1 + H) from the embedding, and likewise for other sources.

        A source written by layer l is read only by later layers; `bias_U` contributes one path.
        """
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of paths of each order, from 0 on."""
        orders = range(len(self.levels) + 1)
        return tuple(count_of_order(self.sources, self.levels, order) for order in orders)

    def __iter__(self) -> Iterator[Path]:
        for order in range(len(self.levels) + 1):
            yield from self.order(order)

    def order(self, order: int) -> Iterator[Path]:
        """The paths through `order` steps, by source and then by steps, generated lazily."""
        if order not in range(len(self.levels) + 1):
            layers = self.trace.model.config.n_layers
            raise InputError(
                f"there are no paths of order {order}: the model has {layers} layers, so a path "
                f"goes through 0 to {len(self.levels)} heads{' and MLPs' * self.linear}"
            )
        return paths_of_order(self.sources, self.levels, order)

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

        Only rounding error if the sum is exact. Computed a few positions at a time, to avoid a
        second copy of all logits.
        """
        remainder = PartialRemainder(self)
        for at, logits in self.trace.logits_in_parts():
            remainder.add(at, logits)
        return remainder.value

    def toward(
        self,
        position: PositionName = -1,
        token: TokenName | None = None,
        versus: Versus = None,
    ) -> "LogitAttribution":
        """Attribute a logit to paths: exact totals by order, head, edge and source.

        Args:
            position: From 0, or from the end if negative.
            token: An id or the token's text, by default the model's prediction.
            versus: None for the raw logit, "mean" for the logit minus the mean logit, or another
                token for a logit difference.

        Each argument may be a vector with one entry per sequence. Over several sequences, every
        number is a mean with a standard error.
        """
        from pathsum.paths.attribution import explain

        return explain(self, find_target(self.trace, position, token, versus))

    def check(self, path: Path) -> Path:
        """Return the path, or raise PathError if this run does not have it."""
        path.check_in(self.trace.model)
        if not self.linear and len(path.heads) < path.order:
            raise PathError(
                f"{path} goes through an MLP, and in this sum MLP outputs are sources; use "
                "trace.paths(mlps='linear')"
            )
        if path.source not in self.sources:
            raise PathError(
                f"no path of this model begins at {path.source}: "
                f"{self._why_no_source(path.source)}; the model's sources are "
                f"{', '.join(map(str, self.sources))}"
            )
        return path

    def __repr__(self) -> str:
        batch, length = self.trace.tokens.shape
        return (
            f"PathSum({self.count:,} paths of order 0 to {len(self.counts) - 1}, "
            f"{batch} × {length} tokens)"
        )

    def _why_no_source(self, source: Source) -> str:
        if source.kind == "mlp":
            return "with mlps='linear' paths go through MLPs"
        if source.kind == "mlp_bias" and not self.linear:
            return "MLP outputs are sources unless mlps='linear'"
        return "there is no such bias"


class PartialRemainder:
    """The reconstruction error of a `PathSum`, over the positions that were added."""

    def __init__(self, paths: PathSum) -> None:
        self._weights = paths.trace.model.weights
        self._read = final_stream(paths.frozen) * paths.frozen.final_scale[..., None]
        self._bias = logit_bias(self._weights)
        self._errors: list[Tensor] = []
        self._sizes: list[Tensor] = []

    def add(self, at: slice, logits: Float[Tensor, "batch part vocab"]) -> None:
        """Compare the sum with the model's logits at some positions."""
        total = apply_unembedding(self._weights, self._read[:, at]).add_(self._bias)
        total = soft_cap(total, self._weights.config.logit_cap)
        self._errors.append(torch.linalg.vector_norm(total.sub_(logits), ord=torch.inf))
        self._sizes.append(torch.linalg.vector_norm(logits, ord=torch.inf))

    @property
    def value(self) -> float:
        """max|cap(total) − model's logits| / max|model's logits|."""
        error, size = (float(torch.stack(norms).max()) for norms in (self._errors, self._sizes))
        return error / size if size else error


Level: TypeAlias = tuple[int, tuple[Step, ...]]
"""The level (`level_of`) below which some steps read, and these steps."""


def head_levels(layers: int, n_heads: int) -> tuple[Level, ...]:
    """The heads of each layer."""
    return tuple(
        (2 * layer, tuple(HeadId(layer, head) for head in range(n_heads)))
        for layer in range(layers)
    )


def add_mlps(levels: Sequence[Level], parallel: bool) -> tuple[Level, ...]:
    """Levels of heads, each with the MLP of its layer; the MLP is a separate level if serial."""
    result: list[Level] = []
    for below, heads in levels:
        mlp = (Source("mlp", below // 2),)
        result += [(below, heads + mlp)] if parallel else [(below, heads), (below + 1, mlp)]
    return tuple(result)


def chains(levels: Sequence[Level], order: int) -> Iterator[tuple[Step, ...]]:
    """All chains of `order` steps, bottom to top, at most one step per level.

    >>> levels = add_mlps(head_levels(1, 2), parallel=False)
    >>> [" ".join(map(str, chain)) for chain in chains(levels, 1)]
    ['L0H0', 'L0H1', 'mlp0']
    """
    if order == 0:
        yield ()
        return
    for number in range(len(levels) - order + 1):
        for step in levels[number][1]:
            for rest in chains(levels[number + 1 :], order - 1):
                yield (step, *rest)


def chain_count(levels: Sequence[Level], order: int) -> int:
    """The number of chains of `order` steps.

    >>> [chain_count(head_levels(2, 12), order) for order in range(3)]
    [1, 24, 144]
    """
    # Coefficients of the product of (1 + size · z) over levels.
    counts = [1]
    for _, steps in levels:
        counts = [a + len(steps) * b for a, b in zip([*counts, 0], [0, *counts], strict=True)]
    return counts[order] if order < len(counts) else 0


def paths_of_order(
    sources: Sequence[Source], levels: Sequence[Level], order: int
) -> Iterator[Path]:
    """Paths of one order from these sources through steps of these levels."""
    for source in sources:
        for steps in chains(_readers(source, levels), order):
            yield Path(source, steps)


def count_of_order(sources: Sequence[Source], levels: Sequence[Level], order: int) -> int:
    """The exact number of paths of one order from these sources."""
    return sum(chain_count(_readers(source, levels), order) for source in sources)


def _readers(source: Source, levels: Sequence[Level]) -> Sequence[Level]:
    """The levels whose steps can read a source; no step reads the bias of the logits."""
    if source.kind == "unembed_bias":
        return ()
    return [level for level in levels if level_of(source) < level[0]]
