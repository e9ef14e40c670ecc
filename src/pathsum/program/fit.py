"""Fit: the entries of a program and their values, chosen on the fitting text.

The objective is KL(model ‖ program), summed over positions; it is convex in all values that are
written. With P and Q the probability that model and program give to an entry's output, summed over
positions and weighted by how much the entry acts there, an entry promises P log(P/Q) − P + Q nats.
Rounds add the entries that promise most, then refit every value, with a small ridge.

Values are fitted by L-BFGS with a diagonal first guess of the curvature. torch's optimizer starts
with a step of length 1 along the gradient and spends its first evaluations on the scale of the
problem; here the diagonal of the Hessian gives it.
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
"""Memory of the probabilities of one chunk, so that they stay in the processor's cache."""
RIDGE = 0.05
"""Nats per squared value: entries that hardly ever act stay small."""
LEAST_COPY, LEAST_ENTRY = 1e-4, 2e-6
"""Nats per position that each number of a head that copies, and each entry, must promise."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """A few sequences of the fitting text, with the model's probabilities on them."""

    tokens: Tokens
    weight: Float[Tensor, "batch pos 1"]
    wanted: Float[Tensor, "batch pos out"]
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
        wanted: Float[Tensor, "batch pos out"],
    ) -> None:
        self.columns, self.lexicon = columns, columns.lexicon
        self.stages = list(stages)
        self.positions = float(weight.sum())
        size = batch_size(4 * tokens.shape[1] * columns.width, CHUNK_BYTES)
        patterns = [stage.pattern(tokens) for stage in stages]
        to = columns.column_of[tokens][:, None].expand(-1, tokens.shape[1], -1)
        parts = [slice(at, at + size) for at in range(0, len(tokens), size)]
        self.chunks: list[Chunk] = []
        for part in parts:
            of_stages = tuple(each if each is None else each[part] for each in patterns)
            inputs = tokens[part], weight[part, :, None], wanted[part]
            self.chunks.append(Chunk(*inputs, patterns=of_stages, copied_to=to[part]))
        self._candidates = [self._candidate_rows(stage, tokens) for stage in stages]
        kinds = torch.bincount(self.lexicon.class_of, minlength=len(self.lexicon.classes))
        self._single = len(columns.tokens) + (kinds == 1).nonzero()[:, 0]
        self._wanted_copied = self._copied([chunk.wanted for chunk in self.chunks])

    @cached_property
    def _wanted(self) -> list[Float[Tensor, "row col"]]:
        """The model's probabilities, for every stage by row and column."""
        return self._masses([chunk.wanted for chunk in self.chunks])

    @property
    def size(self) -> int:
        """The number of values of the stages in use."""
        return sum(stage.size for stage in self.stages if stage.in_use)

    def _tables(self) -> list[SparseTable]:
        to = self.columns.column_of
        return [SparseTable(self.lexicon, stage.sources, to[stage.outs]) for stage in self.stages]

    def _now(self, chunk: Chunk) -> tuple[Chunk, list[SparseTable], list[Tensor], list[float]]:
        """The arguments of `_log_probs` for the stages as they are."""
        values, copies = [s.values for s in self.stages], [s.copy for s in self.stages]
        return chunk, self._tables(), values, copies

    def _probabilities(self) -> list[Float[Tensor, "batch pos out"]]:
        """The probabilities of the stages as they are."""
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
                written = table.spread(table.dense(value), chunk.tokens, pattern)
                total.index_add_(2, table.used_columns, written)
            if copy and pattern is not None:
                total.scatter_add_(2, chunk.copied_to, copy * pattern)
        return self.columns.outcomes(total).log_softmax(-1)

    # ---- choosing entries

    def _candidate_rows(self, stage: Stage, tokens: Tokens) -> SparseTable:
        """A table with a row for every source that occurs; its columns are not used."""
        seen = tokens.unique()
        _, kinds, every = self.lexicon.sources(seen)
        kinds, members = kinds.unique(return_counts=True)
        # A class of one token is that token, a single class is any token. The rows of a pattern
        # sum to 1, so a head's entries for any token belong to the base.
        rows = [seen, kinds[(members > 1) & (len(self.lexicon.classes) > 1)]]
        rows += [every[:1]] if stage.attention is None else []
        sources = torch.cat(rows)
        return SparseTable(self.lexicon, sources, torch.zeros_like(sources))

    def _masses(self, given: Sequence[Tensor]) -> list[Float[Tensor, "row col"]]:
        """Probabilities summed over positions, for every stage by row and column."""
        totals = [
            torch.zeros(len(table.used_rows) + 1, self.columns.width + 1)
            for table in self._candidates
        ]
        for each, chunk in zip(given, self.chunks, strict=True):
            sums = self.columns.sums(each * chunk.weight)
            for total, table, pattern in zip(totals, self._candidates, chunk.patterns, strict=True):
                total += table.gather(sums, chunk.tokens, pattern)
        return [total[:-1, :-1] for total in totals]

    def grow(self, budget: int) -> None:
        """Add the entries that promise most until the program holds `budget` numbers."""
        room = max(0, budget - self.size)
        offers: list[tuple[Tensor, Tensor, Tensor]] = []
        for number, Q in enumerate(self._masses(self._probabilities())):
            stage, rows = self.stages[number], self._candidates[number].used_rows
            gains = promise(self._wanted[number], Q)
            gains[torch.searchsorted(rows, stage.sources), self.columns.column_of[stage.outs]] = 0.0
            gains[:, self._single] = 0.0
            best = gains.flatten().topk(min(room, gains.numel()))
            kept = best.values > LEAST_ENTRY * self.positions
            where = best.indices[kept]
            offers.append((best.values[kept], where, torch.full_like(where, number)))
        self._accept(offers, budget)

    def add_copying(self, budget: int) -> bool:
        """Let heads copy where that promises enough for each number it costs; whether any does.

        Only those that promise half as much as the best: others may attend to the same positions.
        """
        copied = self._copied(self._probabilities())
        offers: list[tuple[float, int, int, float]] = []
        for number, stage in enumerate(self.stages):
            if stage.attention is None or stage.copy:
                continue
            P, Q = torch.tensor(self._wanted_copied[number]), torch.tensor(copied[number])
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

    def _copied(self, given: Sequence[Tensor]) -> list[float]:
        """Probabilities of the tokens that each head attends to, summed over positions."""
        total = [0.0] * len(self.stages)
        for each, chunk in zip(given, self.chunks, strict=True):
            # The last column stands for tokens that have none.
            own = torch.nn.functional.pad(each[..., : len(self.columns.tokens)], (0, 1))
            to = chunk.copied_to.clamp(max=len(self.columns.tokens))
            found = own.gather(2, to) * chunk.weight
            for number, pattern in enumerate(chunk.patterns):
                if pattern is not None:
                    total[number] += float((found * pattern).sum())
        return total

    def _accept(self, offers: Sequence[tuple[Tensor, Tensor, Tensor]], budget: int) -> None:
        """Take the best offers; a head's attention rule is paid for with its first entries."""
        gains, index, owner = (torch.cat(each) for each in zip(*offers, strict=True))
        order = gains.argsort(descending=True, stable=True)
        room = max(0, budget - self.size)
        chosen = order[:room]
        least = float(gains[chosen[-1]]) if len(chosen) else 0.0
        for number, stage in enumerate(self.stages):
            if stage.attention is None or stage.in_use:
                continue
            gain = float(gains[chosen[owner[chosen] == number]].sum())
            if gain > 2 * least * stage.attention.size and stage.attention.size < room:
                room -= stage.attention.size
            else:
                order = order[owner[order] != number]
        chosen = order[:room]
        width = self.columns.width
        for number, stage in enumerate(self.stages):
            mine = index[chosen[owner[chosen] == number]]
            rows = self._candidates[number].used_rows
            self.stages[number] = replace(
                stage,
                sources=torch.cat((stage.sources, rows[mine // width])),
                outs=torch.cat((stage.outs, self.columns.outs[mine % width])),
                values=torch.cat((stage.values, torch.zeros(len(mine)))),
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
                loss -= float((chunk.wanted * log_q * chunk.weight).sum())
                change = log_q.exp_().sub_(chunk.wanted).mul_(chunk.weight)
                layout.add_sums(self.columns.sums(change), chunk, slope)
            return loss, layout.pack(slope) + RIDGE * x

        curvature = layout.zeros()
        for chunk in self.chunks:
            # An upper bound, as in iterative scaling: entries of a stage that act together share a
            # row of its pattern. Where the model is more certain than the program, the curvature
            # is about to rise.
            q = self._log_probs(*self._now(chunk)).exp_().maximum(chunk.wanted)
            layout.add_sums(self.columns.sums(q * chunk.weight), chunk, curvature)
        bound = layout.pack(curvature) + RIDGE
        values, copies = layout.unpack(minimize(function, layout.first, bound, evaluations))
        for number, stage in enumerate(self.stages):
            self.stages[number] = replace(stage, values=values[number], copy=copies[number])


class _ValueVector:
    """All values as one vector: the entries of every stage, then the copying of heads."""

    def __init__(self, tables: Sequence[SparseTable], stages: Sequence[Stage]) -> None:
        self.tables = tables
        self.sizes = [len(stage.values) for stage in stages]
        self.copying = [number for number, stage in enumerate(stages) if stage.copy]
        copies = torch.tensor([stages[number].copy for number in self.copying])
        self.first = torch.cat([*(stage.values for stage in stages), copies])

    def unpack(self, x: Float[Tensor, " n"]) -> tuple[list[Tensor], list[float]]:
        """The values and the copying of every stage."""
        *values, last = x.split([*self.sizes, len(self.copying)])
        copies = dict(zip(self.copying, last.tolist(), strict=True))
        return values, [copies.get(number, 0.0) for number in range(len(self.sizes))]

    def zeros(self) -> list[Tensor]:
        """Sums to add to: a dense table for every stage, then one number for each that copies."""
        shapes = [(len(table.used_rows) + 1, len(table.used_columns)) for table in self.tables]
        return [*(torch.zeros(shape) for shape in shapes), torch.zeros(len(self.copying))]

    def add_sums(
        self, given: Float[Tensor, "batch pos wide"], chunk: Chunk, into: list[Tensor]
    ) -> None:
        """Add the sums of numbers over columns that each entry and each copying head collects."""
        for number, table in enumerate(self.tables):
            pattern = chunk.patterns[number]
            if self.sizes[number]:
                into[number] += table.gather(given[..., table.used_columns], chunk.tokens, pattern)
            if number in self.copying and pattern is not None:
                copied = (given.gather(2, chunk.copied_to) * pattern).sum()
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
"""Pairs of steps and changes of gradient that are remembered."""
SHORTEST = 1e-4
"""A line search that has to go below this share of a step has arrived."""

Function = Callable[[Float[Tensor, " n"]], tuple[float, Float[Tensor, " n"]]]


def minimize(
    function: Function, x: Float[Tensor, " n"], curvature: Float[Tensor, " n"], evaluations: int
) -> Float[Tensor, " n"]:
    """The best point found with so many evaluations of `function` (value and gradient).

    >>> def parabola(x):
    ...     return float((x - 3).square().sum()), 2 * (x - 3)
    >>> minimize(parabola, Tensor([0.0]), curvature=Tensor([2.0]), evaluations=5)
    tensor([3.])
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    value, gradient = function(x)
    used, length = 1, 1.0
    while used < evaluations:
        step = _direction(gradient, curvature, pairs)
        slope = float(gradient @ step)
        if slope >= 0:
            break
        while True:
            there, new_gradient = function(x + length * step)
            used += 1
            if there <= value + 1e-4 * length * slope:
                break
            length *= 0.35
            if used >= evaluations or length < SHORTEST:
                return x
        moved, change = length * step, new_gradient - gradient
        if float(moved @ change) > 0:
            pairs = [*pairs[1 - HISTORY :], (moved, change)]
        x, value, gradient, length = x + moved, there, new_gradient, 1.0
    return x


def _direction(
    gradient: Tensor, curvature: Tensor, pairs: list[tuple[Tensor, Tensor]]
) -> Float[Tensor, " n"]:
    """−H⁻¹ gradient by the two-loop recursion."""
    q = -gradient
    shares: list[Tensor] = []
    for moved, change in reversed(pairs):
        share = (moved @ q) / (moved @ change)
        shares.append(share)
        q = q - share * change
    scale = 1.0
    if pairs:
        moved, change = pairs[-1]
        scale = float((moved @ change) / (change.square() / curvature).sum())
    q = scale * q / curvature
    for (moved, change), share in zip(pairs, reversed(shares), strict=True):
        q = q + moved * (share - (change @ q) / (moved @ change))
    return q
