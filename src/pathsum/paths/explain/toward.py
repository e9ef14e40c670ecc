"""Toward: which paths made a prediction, as exact totals."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import HeadName, Trace
from pathsum.paths.explain.breakdown import Breakdown, Grid, Name, half_width, interval
from pathsum.paths.explain.flows import EDGE_NUMBERS, Flows, flows
from pathsum.paths.explain.frozen_and_causal import FrozenAndCausal, beside
from pathsum.paths.explain.search import TopPaths, strongest_paths
from pathsum.paths.explain.target import Target
from pathsum.paths.frozen import Frozen
from pathsum.paths.path_sum import PathSum
from pathsum.result import Column, Progress, Record, Table, silent, text_column

# Numbers that the streams of one sweep may hold at once: 128 MB in float32.
SWEEP_NUMBERS = 32_000_000


@dataclass(frozen=True, eq=False)
class Toward(Record, kind="toward"):
    """A logit (or a difference of logits) as a sum over all paths, totaled in six ways.

    `by_order`, `by_last` and `by_source` add up to `total`:
      `by_order[n]`           all paths through n heads
      `by_last["L1H4"]`       all paths whose last head it is, or that come straight from a source:
                              direct logit attribution
      `by_source["embed", 3]` all paths that begin at that source, at that position
    `by_head` and `by_edge` do not add up, because a path passes several of them:
      `by_head["L1H4"]`       all paths through it
      `by_edge["L0H7", "L1H4"]` all paths that go from one to the other at once. What enters a head
                              leaves it: its column and its row in this grid sum to the same, which
                              is its entry in `by_head`. The last column, `"logits"`, is `by_last`.

    Over several sequences every number is a mean, with its standard error. `remainder` compares
    `total` with the model's own logits. All of it holds patterns fixed: what a head does by
    changing where a later head attends is not credited to it here.
    """

    target_positions: tuple[int, ...]
    target_tokens: tuple[int, ...]
    target_texts: tuple[str, ...]
    versus: str | None
    context: tuple[str, ...]
    paths: int
    total: float
    stderr: float | None
    remainder: float
    by_order: Breakdown
    by_last: Breakdown
    by_source: Grid
    by_head: Breakdown
    by_edge: Grid
    _paths: PathSum
    _target: Target

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `total` over sequences."""
        return interval(self.total, self.stderr, self.sequences)

    @property
    def trace(self) -> Trace:
        """The run that is explained."""
        return self._paths.trace

    @property
    def sequences(self) -> int:
        """How many sequences the numbers are means over."""
        return len(self.target_tokens)

    @property
    def target(self) -> Target:
        """The number that is explained; `target.of(logits)` reads it from any run."""
        return self._target

    def top(self, k: int = 20, budget: int = 50_000, progress: Progress = silent) -> TopPaths:
        """The k single paths of largest |contribution|, by best-first search.

        Looks at up to `budget` paths. The answer says whether it is `proven`, or how large a path
        could still be hidden (`bound`).
        """
        return strongest_paths(self._paths, self._target, self.total, k, budget, progress)

    def beside(
        self, other: Trace, into: Sequence[HeadName] | None = None, progress: Progress = silent
    ) -> FrozenAndCausal:
        """Each edge's frozen share of this number beside its causal effect on it.

        The causal effect patches the edge, into queries, keys and values apart, from another run of
        the same length. It finds what frozen paths cannot: a head that acts by moving a later
        head's attention. One run an edge; `into` keeps edges into some heads only.
        """
        return beside(self._paths, self._target, self.by_edge, other, into, progress)

    @property
    def question(self) -> str:
        """What is explained, in words."""
        return describe(self.target_positions, self.target_texts, self.versus)

    def to_table(self) -> Table:
        """The total and its split by order; the fields hold the other splits."""
        counts = self._paths.counts
        errors = self.by_order.stderr
        rows = tuple(
            (
                str(name),
                f"{counts[place]:,}",
                value,
                None if errors is None else half_width(float(errors[place]), self.sequences),
            )
            for place, (name, value) in enumerate(self.by_order.items())
        )
        total = None if self.stderr is None else half_width(self.stderr, self.sequences)
        rows += (("all", f"{self.paths:,}", self.total, total),)
        columns = (text_column("order"), Column("paths"), Column("logit", "+.3f"))
        spread = (Column("± 95 %"),) if errors is not None else ()
        width = len(columns) + len(spread)
        return Table(
            (*columns, *spread),
            tuple(row[:width] for row in rows),
            title=self.question,
            note=f"remainder {self.remainder:.1e} of the model's own logits",
        )


def describe(positions: tuple[int, ...], texts: tuple[str, ...], versus: str | None) -> str:
    """A target in words, for one sequence or many."""
    if len(set(positions)) == 1 and len(set(texts)) == 1:
        named = f"logit of {texts[0]} at position {positions[0]}"
    else:
        named = "logit of each sequence's token at its position"
    if versus is None:
        return named
    what = "the vocabulary's mean" if versus == "mean" else versus
    return f"{named}, minus {'that of ' if versus != 'mean' else ''}{what}"


def explain(
    paths: PathSum,
    target: Target,
    sweep_numbers: int = SWEEP_NUMBERS,
    edge_numbers: int = EDGE_NUMBERS,
) -> Toward:
    """All totals toward a target, sequences taken in groups that fit into memory.

    `sweep_numbers` limits how many numbers the streams of one sweep may hold, `edge_numbers` how
    many are held while edges are summed over positions.
    """
    trace, config = paths.trace, paths.trace.model.config
    found = _all_flows(paths, target, sweep_numbers, edge_numbers)
    heads: tuple[Name, ...] = tuple(head.id for head in trace.model.heads)
    orders: tuple[Name, ...] = tuple(range(config.n_layers + 1))
    writers: tuple[Name, ...] = (*paths.sources, *heads)
    length = found.source.shape[-1]
    each = found.source.sum((1, 2))
    total, stderr = _mean(each)
    return Toward(
        target_positions=tuple(target.positions.tolist()),
        target_tokens=tuple(target.tokens.tolist()),
        target_texts=tuple(map(trace.model.token_text, target.tokens.tolist())),
        versus=_versus_text(paths, target),
        context=_context(paths, length),
        paths=paths.count,
        total=float(total),
        stderr=None if stderr is None else float(stderr),
        remainder=_remainder(each, target, paths),
        by_order=_breakdown("order", orders, found.order),
        by_last=_breakdown("last component", writers, found.edge[..., -1]),
        by_source=_grid("source × position", paths.sources, tuple(range(length)), found.source),
        by_head=_breakdown("head", heads, found.head),
        by_edge=_grid("from × to", writers, (*heads, "logits"), found.edge),
        _paths=paths,
        _target=target,
    )


def _remainder(each: Float[Tensor, " batch"], target: Target, paths: PathSum) -> float:
    """max|total − model's own| relative to the logits that the target is read from.

    A difference of logits can be close to 0 while the logits are not, and rounding goes with them.
    """
    logits = paths.trace.logits
    rows = torch.arange(len(each), device=logits.device)
    size = float(logits[rows, target.positions].abs().max())
    error = float((each - target.of(logits)).abs().max())
    return error / size if size else error


def _all_flows(paths: PathSum, target: Target, sweep_numbers: int, edge_numbers: int) -> Flows:
    config = paths.trace.model.config
    length = int(target.positions.max()) + 1
    per_sequence = length * config.d_model * (2 * config.n_layers + config.n_layers // 2 + 1)
    group = max(1, sweep_numbers // per_sequence)
    parts: list[Flows] = []
    for begin in range(0, len(target.tokens), group):
        rows = slice(begin, begin + group)
        part = Frozen(paths.trace, rows, length)
        parts.append(flows(part, target.rows(rows), edge_numbers))
    joined = {
        field.name: torch.cat([getattr(part, field.name) for part in parts])
        for field in fields(Flows)
    }
    return Flows(**joined)


def _mean(values: Float[Tensor, "batch *rest"]) -> tuple[Tensor, Tensor | None]:
    """The mean over sequences and its standard error, if there are several."""
    count = len(values)
    if count == 1:
        return values[0], None
    mean = values.mean(0)
    variance = (values - mean).square().sum(0) / (count - 1)
    return mean, (variance / count).sqrt()


def _breakdown(
    what: str, names: tuple[Name, ...], values: Float[Tensor, "batch name"]
) -> Breakdown:
    mean, stderr = _mean(values)
    return Breakdown(what, names, mean, stderr, len(values))


def _grid(
    what: str,
    rows: tuple[Name, ...],
    columns: tuple[Name, ...],
    values: Float[Tensor, "batch row column"],
) -> Grid:
    mean, stderr = _mean(values)
    return Grid(what, rows, columns, mean, stderr, len(values))


def _versus_text(paths: PathSum, target: Target) -> str | None:
    if not isinstance(target.versus, Tensor):
        return target.versus
    texts = {paths.trace.model.token_text(token) for token in target.versus.tolist()}
    return texts.pop() if len(texts) == 1 else "another token of each sequence"


def _context(paths: PathSum, length: int) -> tuple[str, ...]:
    """The text up to the prediction, where there is one text."""
    tokens = paths.trace.tokens
    if len(tokens) > 1:
        return ()
    return tuple(paths.trace.model.token_text(token) for token in tokens[0, :length].tolist())
