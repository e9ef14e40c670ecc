"""Fit: the entries of a program and their values, chosen on the fitting text.

The objective is KL(model ‖ program), summed over positions; it is convex in all values. With P and
Q the probabilities of an entry's output under model and program, summed over positions and weighted
by the entry's activity, an entry promises P log(P/Q) − P + Q nats. Rounds add the most promising
entries, then refit every value, with a small ridge.

Values are fitted by L-BFGS with a diagonal first guess of the curvature. torch's optimizer starts
with a step of length 1 along the gradient and spends its first evaluations on the scale of the
problem, which the diagonal of the Hessian provides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.options import batch_size
from pathsum.base.shapes import HeadPattern, Tokens
from pathsum.program.lexicon import Columns
from pathsum.program.rule import SparseTable, Stage

CHUNK_BYTES = 1 << 23
"""Memory of the probabilities of one chunk, so that they fit into the processor's cache."""
RIDGE = 0.05
"""Nats per squared value, so that rarely active entries stay small."""
LEAST_COPY, LEAST_ENTRY = 1e-4, 2e-6
"""Nats per position that each value of a copying head, and each entry, must promise."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """A few sequences of the fitting text, with the model's probabilities on them."""

    tokens: Tokens
    weight: Float[Tensor, "batch pos 1"]
    targets: Float[Tensor, "batch pos out"]
    patterns: tuple[HeadPattern | None, ...]
    copied_to: Int[Tensor, "batch dest src"]
    """The column of each source token."""


class TableFit:
    """The tables of all stages, fitted together."""

    def __init__(
        self,
        columns: Columns,
        stages: Sequence[Stage],
        tokens: Tokens,
        weight: Float[Tensor, "batch pos"],
        targets: Float[Tensor, "batch pos out"],
    ) -> None:
        self.columns, self.lexicon = columns, columns.lexicon
        self.stages = list(stages)
        self.positions = float(weight.sum())
        size = batch_size(4 * tokens.shape[1] * columns.width, CHUNK_BYTES)
        patterns = [stage.pattern(tokens) for stage in stages]
        to = columns.column_of[tokens][:, None].expand(-1, tokens.shape[1], -1)
        slices = [slice(at, at + size) for at in range(0, len(tokens), size)]
        self.chunks: list[Chunk] = []
        for rows in slices:
            of_stages = tuple(pattern if pattern is None else pattern[rows] for pattern in patterns)
            inputs = tokens[rows], weight[rows, :, None], targets[rows]
            self.chunks.append(Chunk(*inputs, patterns=of_stages, copied_to=to[rows]))
        self._candidates = [self._candidate_rows(stage, tokens) for stage in stages]
        kinds = torch.bincount(self.lexicon.class_of, minlength=len(self.lexicon.classes))
        self._single = len(columns.tokens) + (kinds == 1).nonzero()[:, 0]
        self._copied_targets = self._copied([chunk.targets for chunk in self.chunks])

    @cached_property
    def _targets(self) -> list[Float[Tensor, "row col"]]:
        """The model's probabilities, for every stage by row and column."""
        return self._masses([chunk.targets for chunk in self.chunks])

    @property
    def size(self) -> int:
        """The number of values of the stages in use."""
        return sum(stage.size for stage in self.stages if stage.in_use)

    def _tables(self) -> list[SparseTable]:
        to = self.columns.column_of
        return [SparseTable(self.lexicon, stage.sources, to[stage.outs]) for stage in self.stages]

    def _now(self, chunk: Chunk) -> tuple[Chunk, list[SparseTable], list[Tensor], list[float]]:
        """The arguments of `_log_probs` for the current stages."""
        values, copies = [s.values for s in self.stages], [s.copy for s in self.stages]
        return chunk, self._tables(), values, copies

    def _probabilities(self) -> list[Float[Tensor, "batch pos out"]]:
        """The probabilities of the current stages."""
        return [self._log_probs(*self._now(chunk)).exp() for chunk in self.chunks]

    def _log_probs(
        self,
        chunk: Chunk,
        tables: Sequence[SparseTable],
        values: Sequence[Tensor],
        copies: Sequence[float],
    ) -> Float[Tensor, "batch pos out"]:
        total = torch.zeros(*chunk.tokens.shape, self.columns.width + 1)
        for pattern, table, value, copy in zip(chunk.patterns, tables, values, copies, strict=True):
            if len(value):
                output = table.spread(table.dense(value), chunk.tokens, pattern)
                total.index_add_(2, table.used_columns, output)
            if copy and pattern is not None:
                total.scatter_add_(2, chunk.copied_to, copy * pattern)
        return self.columns.outcomes(total).log_softmax(-1)

    # ---- choosing entries

    def _candidate_rows(self, stage: Stage, tokens: Tokens) -> SparseTable:
        """A table with a row for every source in the text; its columns are not used."""
        distinct = tokens.unique()
        _, kinds, any_token = self.lexicon.sources(distinct)
        kinds, members = kinds.unique(return_counts=True)
        # A class of one token is that token, a single class is any token. The rows of a pattern
        # sum to 1, so a head's entries for any token belong to the base.
        rows = [distinct, kinds[(members > 1) & (len(self.lexicon.classes) > 1)]]
        rows += [any_token[:1]] if stage.attention is None else []
        sources = torch.cat(rows)
        return SparseTable(self.lexicon, sources, torch.zeros_like(sources))

    def _masses(self, probabilities: Sequence[Tensor]) -> list[Float[Tensor, "row col"]]:
        """Probabilities summed over positions, for every stage by row and column."""
        totals = [
            torch.zeros(len(table.used_rows) + 1, self.columns.width + 1)
            for table in self._candidates
        ]
        for values, chunk in zip(probabilities, self.chunks, strict=True):
            sums = self.columns.sums(values * chunk.weight)
            for total, table, pattern in zip(totals, self._candidates, chunk.patterns, strict=True):
                total += table.gather(sums, chunk.tokens, pattern)
        return [total[:-1, :-1] for total in totals]

    def grow(self, budget: int) -> None:
        """Add the most promising entries until the program has `budget` values."""
        remaining = max(0, budget - self.size)
        offers: list[tuple[Tensor, Tensor, Tensor]] = []
        for number, Q in enumerate(self._masses(self._probabilities())):
            stage, rows = self.stages[number], self._candidates[number].used_rows
            gains = promise(self._targets[number], Q)
            gains[torch.searchsorted(rows, stage.sources), self.columns.column_of[stage.outs]] = 0.0
            gains[:, self._single] = 0.0
            top = gains.flatten().topk(min(remaining, gains.numel()))
            promising = top.values > LEAST_ENTRY * self.positions
            where = top.indices[promising]
            offers.append((top.values[promising], where, torch.full_like(where, number)))
        self._accept(offers, budget)

    def add_copying(self, budget: int) -> bool:
        """Let heads copy if that promises enough for each value it costs; return whether any does.

        Only heads that promise at least half as much as the best are added, because others may
        attend to the same positions.
        """
        copied = self._copied(self._probabilities())
        offers: list[tuple[float, int, int, float]] = []
        for number, stage in enumerate(self.stages):
            if stage.attention is None or stage.copy:
                continue
            P, Q = torch.tensor(self._copied_targets[number]), torch.tensor(copied[number])
            cost = 1 if stage.in_use else 1 + stage.attention.size
            start = float(((P + 1e-3) / (Q + 1e-3)).log().clamp(-1, 1))
            offers.append((float(promise(P, Q)) / self.positions, number, cost, start))
        offers.sort(reverse=True)
        before = self.size
        for gain, number, cost, start in offers:
            fits = cost <= budget - self.size
            if fits and gain > max(LEAST_COPY * cost, offers[0][0] / 2):
                self.stages[number] = replace(self.stages[number], copy=start)
        return self.size > before

    def _copied(self, probabilities: Sequence[Tensor]) -> list[float]:
        """Probabilities of each head's attended tokens, summed over positions."""
        total = [0.0] * len(self.stages)
        for values, chunk in zip(probabilities, self.chunks, strict=True):
            # The last column is for tokens without a column.
            of_tokens = torch.nn.functional.pad(values[..., : len(self.columns.tokens)], (0, 1))
            to = chunk.copied_to.clamp(max=len(self.columns.tokens))
            at_source = of_tokens.gather(2, to) * chunk.weight
            for number, pattern in enumerate(chunk.patterns):
                if pattern is not None:
                    total[number] += float((at_source * pattern).sum())
        return total

    def _accept(self, offers: Sequence[tuple[Tensor, Tensor, Tensor]], budget: int) -> None:
        """Accept the best offers; a head's first entries also pay for its attention rule."""
        gains, index, owner = (torch.cat(column) for column in zip(*offers, strict=True))
        order = gains.argsort(descending=True, stable=True)
        remaining = max(0, budget - self.size)
        accepted = order[:remaining]
        threshold = float(gains[accepted[-1]]) if len(accepted) else 0.0
        for number, stage in enumerate(self.stages):
            if stage.attention is None or stage.in_use:
                continue
            gain = float(gains[accepted[owner[accepted] == number]].sum())
            if gain > 2 * threshold * stage.attention.size and stage.attention.size < remaining:
                remaining -= stage.attention.size
            else:
                order = order[owner[order] != number]
        accepted = order[:remaining]
        width = self.columns.width
        for number, stage in enumerate(self.stages):
            cells = index[accepted[owner[accepted] == number]]
            rows = self._candidates[number].used_rows
            self.stages[number] = replace(
                stage,
                sources=torch.cat((stage.sources, rows[cells // width])),
                outs=torch.cat((stage.outs, self.columns.outs[cells % width])),
                values=torch.cat((stage.values, torch.zeros(len(cells)))),
            )

    # ---- fitting values

    def refit(self, evaluations: int, progress: Progress = silent, doing: str = "fitting") -> None:
        """Fit the values of all entries and of all copying together."""
        layout = _ValueVector(self._tables(), self.stages)
        done = count()

        def function(x: Tensor) -> tuple[float, Tensor]:
            progress(next(done), evaluations, doing)
            loss, slope = RIDGE / 2 * float(x.square().sum()), layout.zeros()
            for chunk in self.chunks:
                log_q = self._log_probs(chunk, layout.tables, *layout.unpack(x))
                loss -= float((chunk.targets * log_q * chunk.weight).sum())
                change = log_q.exp_().sub_(chunk.targets).mul_(chunk.weight)
                layout.add_sums(self.columns.sums(change), chunk, slope)
            return loss, layout.pack(slope) + RIDGE * x

        curvature = layout.zeros()
        for chunk in self.chunks:
            # An upper bound, as in iterative scaling: entries of a stage that are active together
            # share a row of its pattern. If the model is more certain than the program, the
            # curvature is about to rise.
            q = self._log_probs(*self._now(chunk)).exp_().maximum(chunk.targets)
            layout.add_sums(self.columns.sums(q * chunk.weight), chunk, curvature)
        bound = layout.pack(curvature) + RIDGE
        values, copies = layout.unpack(minimize(function, layout.initial, bound, evaluations))
        for number, stage in enumerate(self.stages):
            self.stages[number] = replace(stage, values=values[number], copy=copies[number])


class _ValueVector:
    """All values as one vector: the entries of every stage, then the copying of heads."""

    def __init__(self, tables: Sequence[SparseTable], stages: Sequence[Stage]) -> None:
        self.tables = tables
        self.sizes = [len(stage.values) for stage in stages]
        self.copying = [number for number, stage in enumerate(stages) if stage.copy]
        copies = torch.tensor([stages[number].copy for number in self.copying])
        self.initial = torch.cat([*(stage.values for stage in stages), copies])

    def unpack(self, x: Float[Tensor, " n"]) -> tuple[list[Tensor], list[float]]:
        """The values and the copying of every stage."""
        *values, copying = x.split([*self.sizes, len(self.copying)])
        copies = dict(zip(self.copying, copying.tolist(), strict=True))
        return values, [copies.get(number, 0.0) for number in range(len(self.sizes))]

    def zeros(self) -> list[Tensor]:
        """Zero sums: a dense table for every stage, then a number for each copying head."""
        shapes = [(len(table.used_rows) + 1, len(table.used_columns)) for table in self.tables]
        return [*(torch.zeros(shape) for shape in shapes), torch.zeros(len(self.copying))]

    def add_sums(
        self, values: Float[Tensor, "batch pos wide"], chunk: Chunk, into: list[Tensor]
    ) -> None:
        """Add each entry's and each copying head's sum of values over columns."""
        for number, table in enumerate(self.tables):
            pattern = chunk.patterns[number]
            if self.sizes[number]:
                into[number] += table.gather(values[..., table.used_columns], chunk.tokens, pattern)
            if number in self.copying and pattern is not None:
                copied = (values.gather(2, chunk.copied_to) * pattern).sum()
                into[-1][self.copying.index(number)] += copied

    def pack(self, sums: Sequence[Tensor]) -> Float[Tensor, " n"]:
        """Sums as one vector."""
        entries = [
            table.at_entries(dense)
            for table, dense, size in zip(self.tables, sums, self.sizes, strict=False)
            if size
        ]
        return torch.cat([*entries, sums[-1]])


def promise(P: Tensor, Q: Tensor) -> Tensor:
    """P log(P/Q) − P + Q, of masses that may be tiny."""
    P, Q = P + 1e-3, Q + 1e-3
    return P * (P / Q).log() - P + Q


# ---- L-BFGS

HISTORY = 10
"""Stored pairs of steps and changes of the gradient."""
SHORTEST = 1e-4
"""The search ends if a line search needs less than this share of a step."""

Function = Callable[[Float[Tensor, " n"]], tuple[float, Float[Tensor, " n"]]]


def minimize(
    function: Function, x: Float[Tensor, " n"], curvature: Float[Tensor, " n"], evaluations: int
) -> Float[Tensor, " n"]:
    """The best point after at most `evaluations` calls of `function` (value and gradient).

    >>> def parabola(x):
    ...     return float((x - 3).square().sum()), 2 * (x - 3)
    >>> minimize(parabola, Tensor([0.0]), curvature=Tensor([2.0]), evaluations=5)
    tensor([3.])
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    value, gradient = function(x)
    count_used, length = 1, 1.0
    while count_used < evaluations:
        step = _direction(gradient, curvature, pairs)
        slope = float(gradient @ step)
        if slope >= 0:
            break
        while True:
            new_value, new_gradient = function(x + length * step)
            count_used += 1
            if new_value <= value + 1e-4 * length * slope:
                break
            length *= 0.35
            if count_used >= evaluations or length < SHORTEST:
                return x
        shift, change = length * step, new_gradient - gradient
        if float(shift @ change) > 0:
            pairs = [*pairs[1 - HISTORY :], (shift, change)]
        x, value, gradient, length = x + shift, new_value, new_gradient, 1.0
    return x


def _direction(
    gradient: Tensor, curvature: Tensor, pairs: list[tuple[Tensor, Tensor]]
) -> Float[Tensor, " n"]:
    """−H⁻¹ gradient by the two-loop recursion."""
    q = -gradient
    shares: list[Tensor] = []
    for shift, change in reversed(pairs):
        share = (shift @ q) / (shift @ change)
        shares.append(share)
        q = q - share * change
    scale = 1.0
    if pairs:
        shift, change = pairs[-1]
        scale = float((shift @ change) / (change.square() / curvature).sum())
    q = scale * q / curvature
    for (shift, change), share in zip(pairs, reversed(shares), strict=True):
        q = q + shift * (share - (change @ q) / (shift @ change))
    return q
