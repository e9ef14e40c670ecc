"""Fit: which entries a program holds, and their values, chosen on the fitting text.

The objective is KL(model ‖ program), summed over positions; it is convex in all values that are
written. With P and Q the probability that model and program give to an entry's output, summed over
positions and weighted by how much the entry acts there, an entry promises P log(P/Q) − P + Q nats.
Rounds add the entries that promise most, then refit every value, with a small ridge.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.shapes import HeadPattern, Tokens
from pathsum.program.columns import Columns
from pathsum.program.descent import minimize
from pathsum.program.stage import Stage, Table

CHUNK_NUMBERS = 1 << 21
"""Probabilities handled at a time, so that they stay in the processor's cache."""
RIDGE = 0.05
"""Nats per squared value: entries that hardly ever act stay small."""
COPY_WORTH, ENTRY_WORTH = 1e-4, 2e-6
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
        size = max(1, CHUNK_NUMBERS // (tokens.shape[1] * columns.width))
        patterns = [stage.pattern(tokens) for stage in stages]
        to = columns.column_of[tokens][:, None].expand(-1, tokens.shape[1], -1)
        parts = [slice(at, at + size) for at in range(0, len(tokens), size)]
        self.chunks = [
            Chunk(
                tokens=tokens[part],
                weight=weight[part, :, None],
                wanted=wanted[part],
                patterns=tuple(each if each is None else each[part] for each in patterns),
                copied_to=to[part],
            )
            for part in parts
        ]
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
        """How many numbers the stages in use hold."""
        return sum(stage.size for stage in self.stages if stage.in_use)

    def _tables(self) -> list[Table]:
        to = self.columns.column_of
        return [Table(self.lexicon, stage.sources, to[stage.outs]) for stage in self.stages]

    def _now(self, chunk: Chunk) -> tuple[Chunk, list[Table], list[Tensor], list[float]]:
        """The arguments of `_log_probs` for the stages as they are."""
        values, copies = [s.values for s in self.stages], [s.copy for s in self.stages]
        return chunk, self._tables(), values, copies

    def _log_probs(
        self,
        chunk: Chunk,
        tables: Sequence[Table],
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

    def _candidate_rows(self, stage: Stage, tokens: Tokens) -> Table:
        """A table with a row for every source that occurs; its columns are not used."""
        seen = tokens.unique()
        _, kinds, every = self.lexicon.sources(seen)
        kinds, members = kinds.unique(return_counts=True)
        # A class of one token is that token, a single class is any token. The rows of a pattern
        # sum to 1, so what a head writes for any token belongs to the base.
        rows = [seen, kinds[(members > 1) & (len(self.lexicon.classes) > 1)]]
        rows += [every[:1]] if stage.look is None else []
        sources = torch.cat(rows)
        return Table(self.lexicon, sources, torch.zeros_like(sources))

    def _masses(self, given: Sequence[Tensor]) -> list[Float[Tensor, "row col"]]:
        """Probabilities summed over positions, for every stage by row and column."""
        found: list[Tensor] = []
        sums = [
            self.columns.sums(each * chunk.weight)
            for each, chunk in zip(given, self.chunks, strict=True)
        ]
        for place, table in enumerate(self._candidates):
            total = torch.zeros(len(table.used_rows) + 1, self.columns.width + 1)
            for each, chunk in zip(sums, self.chunks, strict=True):
                total += table.gather(each, chunk.tokens, chunk.patterns[place])
            found.append(total[:-1, :-1])
        return found

    def grow(self, budget: int) -> None:
        """Add the entries that promise most until the program holds `budget` numbers."""
        probs = [self._log_probs(*self._now(chunk)).exp() for chunk in self.chunks]
        room = max(0, budget - self.size)
        offers: list[tuple[Tensor, Tensor, Tensor]] = []
        for place, Q in enumerate(self._masses(probs)):
            stage, rows = self.stages[place], self._candidates[place].used_rows
            promise = _promise(self._wanted[place], Q)
            at = torch.searchsorted(rows, stage.sources)
            promise[at, self.columns.column_of[stage.outs]] = 0.0
            promise[:, self._single] = 0.0
            best = promise.flatten().topk(min(room, promise.numel()))
            kept = best.values > ENTRY_WORTH * self.positions
            where = best.indices[kept]
            offers.append((best.values[kept], where, torch.full_like(where, place)))
        self._accept(offers, budget)

    def add_copying(self, budget: int) -> bool:
        """Let heads copy where that promises enough for each number it costs; whether any does.

        Only those that promise half as much as the best: others may look at the same places.
        """
        probs = [self._log_probs(*self._now(chunk)).exp() for chunk in self.chunks]
        copied = self._copied(probs)
        offers: list[tuple[float, int, int, float]] = []
        for place, stage in enumerate(self.stages):
            if stage.look is None or stage.copy:
                continue
            P, Q = torch.tensor(self._wanted_copied[place]), torch.tensor(copied[place])
            cost = 1 if stage.in_use else 1 + stage.look.size
            start = float(((P + 1e-3) / (Q + 1e-3)).log().clamp(-1, 1))
            offers.append((float(_promise(P, Q)) / self.positions, place, cost, start))
        best = max((worth for worth, *_ in offers), default=0.0)
        before = self.size
        for worth, place, cost, start in sorted(offers, reverse=True):
            fits = cost <= budget - self.size
            if fits and worth > max(COPY_WORTH * cost, best / 2):
                self.stages[place] = replace(self.stages[place], copy=start)
        return self.size > before

    def _copied(self, given: Sequence[Tensor]) -> list[float]:
        """Probabilities of what each head looks at, summed over positions."""
        total = [0.0] * len(self.stages)
        for each, chunk in zip(given, self.chunks, strict=True):
            # The last column stands for tokens that have none.
            own = torch.nn.functional.pad(each[..., : len(self.columns.tokens)], (0, 1))
            to = chunk.copied_to.clamp(max=len(self.columns.tokens))
            found = own.gather(2, to) * chunk.weight
            for place, pattern in enumerate(chunk.patterns):
                if pattern is not None:
                    total[place] += float((found * pattern).sum())
        return total

    def _accept(self, offers: Sequence[tuple[Tensor, Tensor, Tensor]], budget: int) -> None:
        """Take the best offers; a head's look is paid for with its first entries."""
        promise, index, place = (torch.cat(each) for each in zip(*offers, strict=True))
        order = promise.argsort(descending=True, stable=True)
        room = max(0, budget - self.size)
        chosen = order[:room]
        least = float(promise[chosen[-1]]) if len(chosen) else 0.0
        for number, stage in enumerate(self.stages):
            if stage.look is None or stage.in_use:
                continue
            worth = float(promise[chosen[place[chosen] == number]].sum())
            if worth > 2 * least * stage.look.size and stage.look.size < room:
                room -= stage.look.size
            else:
                order = order[place[order] != number]
        chosen = order[:room]
        width = self.columns.width
        for number, stage in enumerate(self.stages):
            mine = index[chosen[place[chosen] == number]]
            rows = self._candidates[number].used_rows
            self.stages[number] = replace(
                stage,
                sources=torch.cat((stage.sources, rows[mine // width])),
                outs=torch.cat((stage.outs, self.columns.outs[mine % width])),
                values=torch.cat((stage.values, torch.zeros(len(mine)))),
            )

    # ---- fitting values

    def refit(self, evaluations: int) -> None:
        """Fit the values of all entries and of all copying together."""
        layout = Layout(self._tables(), self.stages)

        def function(x: Tensor) -> tuple[float, Tensor]:
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
        for place, stage in enumerate(self.stages):
            self.stages[place] = replace(stage, values=values[place], copy=copies[place])


class Layout:
    """All values as one vector: the entries of every stage, then what copies."""

    def __init__(self, tables: Sequence[Table], stages: Sequence[Stage]) -> None:
        self.tables = tables
        self.sizes = [len(stage.values) for stage in stages]
        self.copying = [place for place, stage in enumerate(stages) if stage.copy]
        copies = torch.tensor([stages[place].copy for place in self.copying])
        self.first = torch.cat([*(stage.values for stage in stages), copies])

    def unpack(self, x: Float[Tensor, " n"]) -> tuple[list[Tensor], list[float]]:
        """The values and the copying of every stage."""
        *values, last = x.split([*self.sizes, len(self.copying)])
        copies = [0.0] * len(self.sizes)
        for place, value in zip(self.copying, last.tolist(), strict=True):
            copies[place] = value
        return values, copies

    def zeros(self) -> list[Tensor]:
        """Sums to add to: a dense table for every stage, then one number for each that copies."""
        shapes = [(len(table.used_rows) + 1, len(table.used_columns)) for table in self.tables]
        return [*(torch.zeros(shape) for shape in shapes), torch.zeros(len(self.copying))]

    def add_sums(
        self, given: Float[Tensor, "batch pos wide"], chunk: Chunk, into: list[Tensor]
    ) -> None:
        """Add what every entry and every copying head collects of numbers over columns."""
        for place, table in enumerate(self.tables):
            pattern = chunk.patterns[place]
            if self.sizes[place]:
                into[place] += table.gather(given[..., table.used_columns], chunk.tokens, pattern)
            if place in self.copying and pattern is not None:
                copied = (given.gather(2, chunk.copied_to) * pattern).sum()
                into[-1][self.copying.index(place)] += copied

    def pack(self, sums: Sequence[Tensor]) -> Float[Tensor, " n"]:
        """Sums as one vector."""
        entries = [
            table.at_entries(dense)
            for table, dense, size in zip(self.tables, sums, self.sizes, strict=False)
            if size
        ]
        return torch.cat([*entries, sums[-1]])


def _promise(P: Tensor, Q: Tensor) -> Tensor:
    """P log(P/Q) − P + Q, of masses that may be tiny."""
    P, Q = P + 1e-3, Q + 1e-3
    return P * (P / Q).log() - P + Q
