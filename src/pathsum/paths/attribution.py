"""LogitAttribution: a prediction attributed to paths, as exact totals."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.base import (
    LOGITS,
    Column,
    Estimate,
    HeadId,
    HeadName,
    Progress,
    Record,
    Side,
    Site,
    Source,
    Table,
    computed_field,
    silent,
    stacked,
    text_column,
    token_column,
)
from pathsum.base.options import batched
from pathsum.base.table import Cell
from pathsum.model import Trace
from pathsum.paths.breakdown import Breakdown, Grid, Name
from pathsum.paths.causal import CausalEffects, causal_effects
from pathsum.paths.flows import Flows, edge_flows, flows, order_flows
from pathsum.paths.frozen import Frozen
from pathsum.paths.path_sum import PathSum
from pathsum.paths.search import TopPaths, strongest_paths
from pathsum.paths.target import Target

# Rows of a table of components or of sources.
SHOWN = 10


@dataclass(frozen=True, eq=False)
class LogitAttribution(Record, kind="toward"):
    """A logit (or a difference of logits) as a sum over all paths, totaled in five ways.

    `by_order`, `by_last` and `by_source` add up to `total`:
      `by_order[n]`           all paths through n heads (and MLPs, with mlps="linear")
      `by_last["L1H4"]`       all paths whose last step it is, or that come straight from a source:
                              direct logit attribution
      `by_source["embed", 3]` all paths that begin at that source, at that position
    `by_head`, `by_mlp` and `by_edge` do not add up, because a path passes several of them:
      `by_head["L1H4"]`       all paths through it
      `by_mlp["mlp3"]`        all paths through it; empty unless paths go through MLPs
      `by_edge["L0H7", "L1H4"]` all paths that go directly from one to the other. What enters a
                              head leaves it: its column and its row in this grid have the same sum,
                              which is its entry in `by_head`. The last column, `"logits"`, is
                              `by_last`.

    `by_order` and `by_edge` are computed when they are first read, since each costs more than all
    the rest; the run has to be kept for them, and is.

    Over several sequences every number is a mean, with its standard error (None for one sequence).
    `remainder` compares `total` with the model's own logits. Patterns are held fixed: what a head
    does by changing where a later head attends is not credited to it; `causal_effects` shows it.
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
    by_last: Breakdown
    by_source: Grid
    by_head: Breakdown
    by_mlp: Breakdown
    _paths: PathSum
    _target: Target

    @computed_field
    def by_order(self) -> Breakdown:
        """The total of all paths of each order."""
        found = _over_groups(order_flows, self._paths, self._target)
        return _breakdown("order", tuple(range(found.shape[1])), found)

    @computed_field
    def by_edge(self) -> Grid:
        """The total of all paths through each edge between two components."""
        steps = _steps(self._paths)
        writers = (*self._paths.sources, *steps)
        found = _over_groups(edge_flows, self._paths, self._target)
        return _grid("from × to", writers, (*steps, "logits"), found)

    @property
    def estimate(self) -> Estimate:
        """`total` with its standard error and 95% interval over sequences."""
        return Estimate.around(self.total, self.stderr, self.sequences)

    @property
    def trace(self) -> Trace:
        """The explained run."""
        return self._paths.trace

    @property
    def sequences(self) -> int:
        """The number of sequences averaged over."""
        return len(self.target_tokens)

    @property
    def target(self) -> Target:
        """The explained number; `target.of(logits)` computes it for any run."""
        return self._target

    def top(self, k: int = 20, budget: int = 50_000, progress: Progress = silent) -> TopPaths:
        """The k single paths of largest |contribution|, by best-first search.

        Evaluates up to `budget` paths. The result is `proven`, or has a `bound` on the paths
        that could still be hidden.
        """
        return strongest_paths(self._paths, self._target, self.total, k, budget, progress)

    def causal_effects(
        self, other: Trace, into: Sequence[HeadName] | None = None, progress: Progress = silent
    ) -> CausalEffects:
        """The causal effect of each edge on this number, with its share under frozen patterns.

        The causal effect patches the edge from another run of the same length, into queries, keys
        and values separately. It finds what frozen paths cannot: a head that acts by moving a later
        head's attention. One run per edge; `into` keeps edges into some heads only.
        """
        target = self._target
        found = causal_effects(
            self.trace,
            other,
            target.positions,
            target.tokens,
            target.versus,
            into=into,
            progress=progress,
        )
        effects = (replace(one, frozen=self._frozen_share(one.edge)) for one in found.effects)
        return replace(found, effects=tuple(effects))

    def _frozen_share(self, edge: Site) -> float | None:
        assert isinstance(edge.writer, HeadId | Source)
        assert edge.reader is not None
        if edge.side in (Side.Q, Side.K) or (edge.side is None and not self._enters(edge)):
            return None  # no path enters a query, a key or an MLP whose output is a source
        return self.by_edge[edge.writer, str(edge.reader)]

    def _enters(self, edge: Site) -> bool:
        return edge.reader == LOGITS or self._paths.linear

    @property
    def question(self) -> str:
        """The explained number in words."""
        return self._target.describe(self.trace.model)

    def to_table(self) -> Table:
        """The total and its split by order."""
        counts = self._paths.counts
        rows = [
            (str(n), f"{counts[n]:,}", *self._shown(self.by_order.estimate(n)))
            for n in range(len(self.by_order))
        ]
        rows.append(("all", f"{self.paths:,}", *self._shown(self.estimate)))
        columns = (text_column("order"), Column("paths"), *self._columns("logit"))
        note = f"reconstruction error {self.remainder:.1e} of the model's own logits"
        return Table(columns, tuple(rows), title=self.question, note=note)

    def head_table(self, k: int = SHOWN) -> Table:
        """The k components with the largest direct logit attribution."""
        rows = tuple(
            (str(name), *self._shown(self.by_last.estimate(name)), *self._through(name))
            for name, _ in self.by_last.ranked()[:k]
        )
        columns = (
            *(text_column("component"), *self._columns("direct")),
            *self._columns("through", "through "),
        )
        note = (
            "direct: written straight into the logit; through: all paths through it; patterns "
            f"{'and gates ' if self._paths.linear else ''}are held fixed, so moving another head's "
            f"attention{' or opening a gate' if self._paths.linear else ''} is not credited"
        )
        return Table(columns, rows, title="by component", note=note)

    def source_table(self, k: int = SHOWN) -> Table:
        """The k (source, position) pairs that contribute most to the logit."""
        rows: list[tuple[Cell, ...]] = []
        for source, position, _ in self.by_source.ranked(k):
            assert isinstance(position, int)
            token = self.context[position] if self.context else None
            shown = self._shown(self.by_source.estimate(source, position))
            rows.append((str(source), position, token, *shown))
        columns = (
            text_column("source"),
            *(Column("position"), token_column("token"), *self._columns("logit")),
        )
        return Table(columns, tuple(rows), title="by source and token")

    def __rich__(self) -> RenderableType:
        return stacked(self.to_table(), self.head_table(), self.source_table())

    def _through(self, name: Name) -> tuple[Cell, ...]:
        """The total through a head or an MLP; empty cells for a source."""
        if isinstance(name, HeadId):
            return self._shown(self.by_head.estimate(name))
        if name in self.by_mlp.names:
            return self._shown(self.by_mlp.estimate(name))
        return (None,) * len(self._columns("through"))

    def _columns(self, name: str, of: str = "") -> tuple[Column, ...]:
        """A value and, over several sequences, its 95% interval."""
        interval = (Column(f"{of}low", "+.3f"), Column(f"{of}high", "+.3f"))
        return (Column(name, "+.3f"), *(() if self.stderr is None else interval))

    def _shown(self, estimate: Estimate) -> tuple[Cell, ...]:
        interval = () if self.stderr is None else (estimate.low, estimate.high)
        return (estimate.value, *interval)


def explain(paths: PathSum, target: Target) -> LogitAttribution:
    """All totals toward a target, over groups of sequences that fit into memory."""
    trace, config = paths.trace, paths.trace.model.config
    parts = [flows(*part) for part in _groups(paths, target)]
    found = _joined(parts)
    steps = _steps(paths)
    heads = config.n_layers * config.n_heads
    length = found.source.shape[-1]
    each = found.source.sum((1, 2))
    total, stderr = _mean(each)
    return LogitAttribution(
        target_positions=tuple(target.positions.tolist()),
        target_tokens=tuple(target.tokens.tolist()),
        target_texts=tuple(map(trace.model.output_text, target.tokens.tolist())),
        versus=target.versus_text(trace.model),
        context=_context(paths, length),
        paths=paths.count,
        total=float(total),
        stderr=None if stderr is None else float(stderr),
        remainder=_remainder(each, target, paths),
        by_last=_breakdown("last component", (*paths.sources, *steps), found.last),
        by_source=_grid("source × position", paths.sources, tuple(range(length)), found.source),
        by_head=_breakdown("head", steps[:heads], found.head),
        by_mlp=_breakdown("mlp", steps[heads:], found.mlp),
        _paths=paths,
        _target=target,
    )


def _steps(paths: PathSum) -> tuple[Name, ...]:
    """All heads, followed by all MLPs if paths go through them."""
    model = paths.trace.model
    mlps = range(model.config.n_layers if paths.linear else 0)
    return (*model.config.every_head, *(Source("mlp", layer) for layer in mlps))


def _remainder(each: Float[Tensor, " batch"], target: Target, paths: PathSum) -> float:
    """max|total − model's own| relative to the logits that the target is read from.

    A difference of logits can be close to 0 while the logits are not, and rounding goes with them.
    """
    logits = paths.trace.uncapped_logits_at(target.positions)
    size = float(logits.abs().max())
    error = float((each - target.of_rows(logits)).abs().max())
    return error / size if size else error


def _groups(paths: PathSum, target: Target) -> Iterator[tuple[Frozen, Target]]:
    """Sequences in groups whose streams fit into memory."""
    config, stream = paths.trace.model.config, paths.trace.streams[0]
    length = target.visible_length(paths.trace)
    numbers = length * config.d_model * (2 * config.n_layers + len(paths.levels) // 2 + 1)
    for part in batched(range(len(target.tokens)), numbers * stream.element_size()):
        rows = slice(part[0], part[-1] + 1)
        yield Frozen(paths.trace, rows, length, paths.gates), target.rows(rows)


@torch.no_grad()
def _over_groups(
    measure: Callable[[Frozen, Target], Tensor], paths: PathSum, target: Target
) -> Float[Tensor, "batch *rest"]:
    return torch.cat([measure(*part) for part in _groups(paths, target)])


def _joined(parts: Sequence[Flows]) -> Flows:
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


def _context(paths: PathSum, length: int) -> tuple[str, ...]:
    """The text up to the prediction, where there is one text."""
    tokens = paths.trace.tokens
    if len(tokens) > 1:
        return ()
    return tuple(paths.trace.model.token_text(token) for token in tokens[0, :length].tolist())
