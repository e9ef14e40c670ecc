"""Causal effects: the effect of each edge on a prediction, measured by patching the edge.

The frozen attribution of `toward` shows which paths carried the logit, with attention held fixed. A
patch also captures the effect of the edge on attention. Use both: on an induction prediction, the
frozen paths only credit the induction head, while patching its K edge identifies the previous-token
head.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch

from pathsum.base import (
    LOGITS,
    Column,
    HeadId,
    HeadName,
    Progress,
    Record,
    Site,
    SiteName,
    Source,
    Table,
    interval_columns,
    silent,
    text_column,
)
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.base.options import checked
from pathsum.base.table import rows_table
from pathsum.model import Model, Trace
from pathsum.model.edit import Writes
from pathsum.model.sites import find_site, reads_from, writers_into
from pathsum.paths.patching import check_runs, patched_values, same_batch, truncate_runs
from pathsum.paths.target import Metric, PositionName, TokenName, Versus, find_measure


@dataclass(frozen=True)
class EdgeEffect:
    """The drop in the target when one edge is patched from the other run.

    `frozen` is the sum of all paths through the edge, with patterns held fixed, if it was computed
    (`LogitAttribution.causal_effects`). It is None for edges into a query, a key or an MLP, because
    paths do not include them.
    """

    edge: Annotated[Site, text_column("edge")]
    frozen: Annotated[float | None, Column("frozen", "+.4f")]
    effect: Annotated[Estimate, *interval_columns("effect", "+.4f")]


@dataclass(frozen=True, eq=False)
class CausalEffects(Record, kind="causal-effects"):
    """The effect of each edge on a target: `value` in this run, `value_other` in the other run.

    An effect is `value` minus the value with that edge patched from the other run. Effects do not
    add up, because edges can be redundant or can act only in combination.
    """

    model: str
    target: str
    value: Estimate
    value_other: Estimate
    effects: tuple[EdgeEffect, ...]

    def __getitem__(self, edge: SiteName) -> float:
        """The effect of an edge, as `effects["L0H0", "L1H0", "k"]`."""
        return self.edge(edge).effect.value

    def edge(self, edge: SiteName) -> EdgeEffect:
        """The effect of an edge with its interval and its frozen share."""
        site = Site.parse(edge)
        if not site.is_edge:
            raise InputError(f"{str(site)!r} is not an edge; use a name such as 'L0H7→L1H4.k'")
        for effect in self.effects:
            if effect.edge == site:
                return effect
        raise InputError(f"no effect of {site} was measured here; see .effects for those that were")

    def ranked(self) -> list[EdgeEffect]:
        """Edges by decreasing magnitude of the effect or of the frozen share."""
        return sorted(
            self.effects, key=lambda edge: -max(abs(edge.effect.value), abs(edge.frozen or 0))
        )

    def to_table(self, k: int = 20) -> Table:
        """The k strongest edges."""
        rows = self.ranked()[:k]
        note = (
            f"{self.value.value:.4f} in this run, {self.value_other.value:.4f} in the other; "
            "effect: its drop if only this edge is patched from the other run\n"
            f"{len(rows)} of {len(self.effects)} edges; effects do not add up"
        )
        if any(edge.frozen is not None for edge in self.effects):
            note += (
                "\nfrozen: the sum of all paths through the edge with frozen patterns (–: no path "
                "enters a query or key)"
            )
        return rows_table(rows, f"{self.model}: {self.target}", note)


@torch.no_grad()
@checked
def causal_effects(
    trace: Trace,
    other: Trace,
    position: PositionName | None = None,
    token: TokenName | None = None,
    versus: Versus = None,
    *,
    metric: Metric | None = None,
    into: Sequence[HeadName] | None = None,
    progress: Progress = silent,
) -> CausalEffects:
    """The effect of every edge on a logit: patch it from the other run, recompute, compare.

    Args:
        trace: The run to patch.
        other: A run with the same number of tokens, which supplies the values of patched edges.
        position: The position of the logit, by default the last.
        token: The token of the logit, by default this run's prediction.
        versus: None, "mean" or another token, as in `toward`.
        metric: A function of the logits that returns one number per sequence, instead of a logit.
        into: The readers of the edges: heads, MLPs (`"mlp3"`) or `"logits"`; by default all. The
            number of edges grows with the square of the number of heads.
        progress: Called as the work proceeds.

    Returns:
        The effect of each edge, before minus after; `ranked()` sorts by magnitude.

    Example:
        >>> from pathsum.model import construct
        >>> model = construct.induction()
        >>> run, other = model.trace("a b c d a"), model.trace("x b c d a")
        >>> effects = causal_effects(run, other, token="b", versus="mean").ranked()
        >>> sorted(str(effect.edge) for effect in effects[:3])
        ['L0H0→L1H0.k', 'L1H0→logits', 'embed→L0H0.v']

    All edges into one read run as a batch, and the layers below it are computed once.
    """
    check_runs(trace, other)
    trace, other = same_batch(trace, other)
    measure = find_measure(trace, metric, position, token, versus)
    value, value_other = measure.of(trace), measure.of(other)
    edges = list(edges_of(trace.model, into))
    trace, other = truncate_runs(trace, other, measure)
    writes = Writes.of(other)
    by_reader = itertools.groupby(edges, key=lambda edge: edge.read)
    patches = [[(edge, writes) for edge in group] for _, group in by_reader]
    after = patched_values(trace, measure, patches, progress, "patching edges")
    effects = zip(edges, value.double().cpu() - after, strict=True)
    return CausalEffects(
        model=trace.model.name,
        target=measure.text,
        value=mean_estimate(value),
        value_other=mean_estimate(value_other),
        effects=tuple(EdgeEffect(edge, None, mean_estimate(drops)) for edge, drops in effects),
    )


def edges_of(model: Model, into: Sequence[HeadName] | None = None) -> Iterator[Site]:
    """Every edge of a model, or those into some heads, MLPs or the logits, from the bottom up."""
    readers = None if into is None else {_reader(model, name) for name in into}
    for read in reads_from(model.config):
        assert read.reader is not None
        if readers is None or read.reader in readers:
            writers = writers_into(model.config, read.reader)
            yield from (Site(writer, read.reader, read.side) for writer in writers)


def _reader(model: Model, name: HeadName) -> HeadId | Source:
    """The head, the MLP or the logits that a name means."""
    if isinstance(name, str) and name.strip() == "logits":
        return LOGITS
    if isinstance(name, str) and name.strip().startswith("mlp"):
        mlp = find_site(model, name.strip()).writer
        if isinstance(mlp, Source) and mlp.kind == "mlp":
            return mlp
        raise InputError(
            f"{name!r} is not a reader; name a head, an MLP such as 'mlp3', or 'logits'"
        )
    return model.head(name).id
