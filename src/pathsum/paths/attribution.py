"""LogitAttribution: a prediction attributed to paths, as exact totals."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

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
    interval_columns,
    silent,
    stacked,
    text_column,
    token_column,
)
from pathsum.base.options import batched
from pathsum.base.table import rows_table
from pathsum.model import Trace
from pathsum.paths.breakdown import Breakdown, Grid, mean_and_error
from pathsum.paths.causal import CausalEffects, causal_effects
from pathsum.paths.flows import edge_flows, flows, order_flows
from pathsum.paths.frozen import Frozen, relative_error
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
      `by_last["L1H4"]`       all paths with this last step, or directly from this source: direct
                              logit attribution
      `by_source["embed", 3]` all paths from this source, at this position
    `by_head`, `by_mlp` and `by_edge` do not add up, because a path passes several of them:
      `by_head["L1H4"]`       all paths through it
      `by_mlp["mlp3"]`        all paths through it; empty unless paths go through MLPs
      `by_edge["L0H7", "L1H4"]` all paths directly from one to the other. The column and the row of
                              a head in this grid have the same sum, its entry in `by_head`. The
                              last column, `"logits"`, is `by_last`.

    `by_order` and `by_edge` are computed when they are first read, because each costs more than all
    other totals. Over several sequences every number is a mean, with its standard error (None for
    one sequence). `remainder` compares `total` with the model's logits. Patterns are held fixed, so
    the effect of a head on where later heads attend is not included; see `causal_effects`.
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
        totals = _over_groups(order_flows, self._paths, self._target)
        return Breakdown.over("order", tuple(range(totals.shape[1])), totals)

    @computed_field
    def by_edge(self) -> Grid:
        """The total of all paths through each edge between two components."""
        steps = _steps(self._paths)
        writers = (*self._paths.sources, *steps)
        totals = _over_groups(edge_flows, self._paths, self._target)
        return Grid.over("from × to", writers, (*steps, "logits"), totals)

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
        """The explained number; `target.of(logits)` computes it for another run."""
        return self._target

    def top(self, k: int = 20, budget: int = 50_000, progress: Progress = silent) -> TopPaths:
        """The k single paths of largest |contribution|, by best-first search.

        Evaluates up to `budget` paths. The result is `proven`, or has a `bound` on the paths
        that were not evaluated.
        """
        return strongest_paths(self._paths, self._target, self.total, k, budget, progress)

    def causal_effects(
        self, other: Trace, into: Sequence[HeadName] | None = None, progress: Progress = silent
    ) -> CausalEffects:
        """The causal effect of each edge on this number, with its share under frozen patterns.

        The effect patches the edge from another run of the same length, into queries, keys and
        values separately. Unlike frozen paths, it shows a head that acts by moving a later head's
        attention. One run per edge; `into` limits the edges to those into some heads.
        """
        target = (self._target.positions, self._target.tokens, self._target.versus)
        result = causal_effects(self.trace, other, *target, into=into, progress=progress)
        effects = [replace(each, frozen=self._frozen_share(each.edge)) for each in result.effects]
        return replace(result, effects=tuple(effects))

    def _frozen_share(self, edge: Site) -> float | None:
        enters = edge.reader == LOGITS or self._paths.linear
        if edge.side in (Side.Q, Side.K) or (edge.side is None and not enters):
            return None  # no path enters a query, a key or an MLP whose output is a source
        assert isinstance(edge.writer, HeadId | Source)
        return self.by_edge[edge.writer, str(edge.reader)]

    @property
    def question(self) -> str:
        """The explained number in words."""
        return self._target.describe(self.trace.model)

    def to_table(self) -> Table:
        """The total and its split by order."""
        counts = self._paths.counts
        rows = [
            _OrderRow(str(order), count, self.by_order.estimate(order))
            for order, count in enumerate(counts)
        ]
        rows.append(_OrderRow("all", self.paths, self.estimate))
        note = f"reconstruction error {self.remainder:.1e} of the model's own logits"
        return rows_table(rows, self.question, note)

    def head_table(self, k: int = SHOWN) -> Table:
        """The k components with the largest direct logit attribution."""
        through = {
            name: split.estimate(name)
            for split in (self.by_head, self.by_mlp)
            for name in split.names
        }
        rows = [
            _ComponentRow(str(name), self.by_last.estimate(name), through.get(name))
            for name, _ in self.by_last.ranked()[:k]
        ]
        note = (
            "direct: written straight into the logit; through: all paths through it; patterns "
            f"{'and gates ' if self._paths.linear else ''}are held fixed, so moving another head's "
            f"attention{' or opening a gate' if self._paths.linear else ''} is not credited"
        )
        return rows_table(rows, "by component", note)

    def source_table(self, k: int = SHOWN) -> Table:
        """The k (source, position) pairs that contribute most to the logit."""
        rows: list[_SourceRow] = []
        for source, position, _ in self.by_source.ranked(k):
            assert isinstance(position, int)
            token = self.context[position] if self.context else None
            share = self.by_source.estimate(source, position)
            rows.append(_SourceRow(str(source), position, token, share))
        return rows_table(rows, "by source and token")

    def __rich__(self) -> RenderableType:
        return stacked(self.to_table(), self.head_table(), self.source_table())


_LOGIT = interval_columns("logit", "+.3f")


@dataclass(frozen=True)
class _OrderRow:
    order: Annotated[str, text_column("order")]
    paths: Annotated[int, Column("paths", ",")]
    logit: Annotated[Estimate, *_LOGIT]


@dataclass(frozen=True)
class _ComponentRow:
    name: Annotated[str, text_column("component")]
    direct: Annotated[Estimate, *interval_columns("direct", "+.3f")]
    through: Annotated[
        Estimate | None,
        Column("through", "+.3f"),
        Column("through low", "+.3f", part="low"),
        Column("through high", "+.3f", part="high"),
    ]


@dataclass(frozen=True)
class _SourceRow:
    source: Annotated[str, text_column("source")]
    position: Annotated[int, Column("position")]
    token: Annotated[str | None, token_column("token")]
    logit: Annotated[Estimate, *_LOGIT]


def explain(paths: PathSum, target: Target) -> LogitAttribution:
    """All totals toward a target, over groups of sequences that fit into memory."""
    model, config = paths.trace.model, paths.trace.model.config
    parts = [flows(*group) for group in _groups(paths, target)]
    source, head, mlp, last = map(torch.cat, zip(*parts, strict=True))
    steps, n_heads = _steps(paths), config.n_layers * config.n_heads
    length, totals = source.shape[-1], source.sum((1, 2))
    total, stderr = mean_and_error(totals)
    logits = paths.trace.uncapped_logits_at(target.positions)
    tokens = paths.trace.tokens[0, :length].tolist() if len(totals) == 1 else []
    return LogitAttribution(
        target_positions=tuple(target.positions.tolist()),
        target_tokens=tuple(target.tokens.tolist()),
        target_texts=tuple(map(model.output_text, target.tokens.tolist())),
        versus=target.versus_text(model),
        context=tuple(map(model.token_text, tokens)),
        paths=paths.count,
        total=float(total),
        stderr=None if stderr is None else float(stderr),
        # Relative to the logits: a difference of logits may be small, but not its rounding error.
        remainder=relative_error(totals, target.of_rows(logits), logits),
        by_last=Breakdown.over("last component", (*paths.sources, *steps), last),
        by_source=Grid.over("source × position", paths.sources, tuple(range(length)), source),
        by_head=Breakdown.over("head", steps[:n_heads], head),
        by_mlp=Breakdown.over("mlp", steps[n_heads:], mlp),
        _paths=paths,
        _target=target,
    )


def _steps(paths: PathSum) -> tuple[HeadId | Source, ...]:
    """All heads, followed by all MLPs if paths go through them."""
    config = paths.trace.model.config
    mlps = range(config.n_layers if paths.linear else 0)
    return (*config.every_head, *(Source("mlp", layer) for layer in mlps))


def _groups(paths: PathSum, target: Target) -> Iterator[tuple[Frozen, Target]]:
    """Sequences in groups whose streams fit into memory."""
    config, stream = paths.trace.model.config, paths.trace.streams[0]
    length = target.visible_length(paths.trace)
    numbers = length * config.d_model * (2 * config.n_layers + len(paths.levels) // 2 + 1)
    for group in batched(range(len(target.tokens)), numbers * stream.element_size()):
        rows = slice(group[0], group[-1] + 1)
        yield Frozen(paths.trace, rows, length, paths.gates), target.rows(rows)


@torch.no_grad()
def _over_groups(
    measure: Callable[[Frozen, Target], Tensor], paths: PathSum, target: Target
) -> Float[Tensor, "batch *rest"]:
    return torch.cat([measure(*group) for group in _groups(paths, target)])
