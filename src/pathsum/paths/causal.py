"""Causal effects: the effect of each edge on a prediction, measured by patching the edge.

The frozen attribution of `toward` shows which paths carried the logit, with attention held fixed. A
patch also captures the effect of the edge on attention. Use both: on an induction prediction, the
frozen paths credit the induction head alone, while patching its K edge identifies the
previous-token head.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

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
    token_column,
)
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.base.options import batched, checked
from pathsum.base.table import Cell
from pathsum.model import Model, Trace, trace_run
from pathsum.model.edit import Edit, Writes
from pathsum.model.forward import run_logits
from pathsum.model.sites import find_patch_site, find_site, reads_from, writers_into
from pathsum.paths.patching import check_runs, patch
from pathsum.paths.target import Measure, Metric, PositionName, TokenName, Versus, find_measure


@dataclass(frozen=True)
class EdgeEffect:
    """The drop in the target when one edge is patched from the other run.

    `frozen` is the sum of all paths through the edge, with patterns held fixed, if it was computed
    (`LogitAttribution.causal_effects`). It is None for edges into a query, a key or an MLP, because
    paths do not include them.
    """

    edge: Site
    effect: Estimate
    frozen: float | None = None


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
        wanted = Site.parse(edge)
        if not wanted.is_edge:
            raise InputError(f"{str(wanted)!r} is not an edge; use a name such as 'L0H7→L1H4.k'")
        for found in self.effects:
            if found.edge == wanted:
                return found
        raise InputError(
            f"no effect of {wanted} was measured here; see .effects for those that were"
        )

    def ranked(self) -> list[EdgeEffect]:
        """Edges by decreasing magnitude of the effect or of the frozen share."""
        return sorted(
            self.effects, key=lambda found: -max(abs(found.effect.value), abs(found.frozen or 0))
        )

    def to_table(self, k: int = 20) -> Table:
        """The k strongest edges."""
        shown = self.ranked()[:k]
        with_frozen = any(found.frozen is not None for found in self.effects)
        cells: list[tuple[Cell, ...]] = [
            (
                str(found.edge),
                *((found.frozen,) if with_frozen else ()),
                *found.effect.with_interval,
            )
            for found in shown
        ]
        columns = (
            text_column("edge"),
            *((Column("frozen", "+.4f"),) if with_frozen else ()),
            *interval_columns("effect", "+.4f"),
        )
        note = (
            f"{self.value.value:.4f} in this run, {self.value_other.value:.4f} in the other; "
            "effect: its drop if only this edge is patched from the other run\n"
            f"{len(shown)} of {len(self.effects)} edges; effects do not add up"
        )
        if with_frozen:
            note += (
                "\nfrozen: the sum of all paths through the edge with frozen patterns (–: no path "
                "enters a query or key)"
            )
        return Table(columns, tuple(cells), title=f"{self.model}: {self.target}", note=note)


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

    `position`, `token` and `versus` define the logit as in `toward`; the default token is this
    run's prediction. Alternatively, `metric` is a function of the logits that returns one number
    per sequence. `into` restricts the edges to those into some heads, MLPs (`"mlp3"`) or the logits
    (`"logits"`). By default, edges into all
    heads, MLPs and the logits are measured; their number grows with the square of the number of
    heads. All edges into one read run as a batch, and the layers below it are computed once.
    """
    check_runs(trace, other)
    trace, other = same_batch(trace, other)
    measure = find_measure(trace, metric, position, token, versus)
    value, value_other = measure.of(trace), measure.of(other)
    edges = list(edges_of(trace.model, into))
    trace, other = truncate_runs(trace, other, measure)
    writes, batch = Writes.of(other), measure.batch
    by_reader: dict[Site, list[Site]] = {}
    for edge in edges:
        by_reader.setdefault(edge.read, []).append(edge)
    found: dict[Site, Estimate] = {}
    for group in by_reader.values():
        for part in batched(group, run_bytes(trace)):
            progress(len(found), len(edges), "patching edges")
            edits = [
                Edit(edge, writes, copy * batch + row)
                for copy, edge in enumerate(part)
                for row in range(batch)
            ]
            after = patched_values(trace, measure, edits, len(part))
            for edge, values in zip(part, after, strict=True):
                found[edge] = mean_estimate(value - values)
    progress(len(edges), len(edges), "patching edges")
    return CausalEffects(
        model=trace.model.name,
        target=measure.text,
        value=mean_estimate(value),
        value_other=mean_estimate(value_other),
        effects=tuple(EdgeEffect(edge, found[edge]) for edge in edges),
    )


def run_bytes(trace: Trace) -> int:
    """Memory of a run: about four times its residual stream."""
    return 4 * trace.streams[0].nbytes


def patched_values(
    trace: Trace, measure: Measure, edits: Sequence[Edit], copies: int
) -> Float[Tensor, "copy batch"]:
    """The measure in copies of a run, each with its own edits (`Edit.sequence`)."""
    positions = None if measure.positions is None else measure.positions.repeat(copies)
    every = (*trace.edits, *edits)
    return measure.of_each(run_logits(trace.weights, trace.tokens, every, positions, copies))


def truncate_runs(trace: Trace, other: Trace, measure: Measure) -> tuple[Trace, Trace]:
    """Both runs up to the positions that the measure depends on; edited runs stay whole."""
    if measure.positions is None or trace.edits or other.edits:
        return trace, other
    config = trace.model.config
    length = config.visible_length(int(measure.positions.max()), trace.tokens.shape[1])
    if length == trace.tokens.shape[1]:
        return trace, other
    lengths = trace.lengths.clamp(max=length)
    return (
        trace_run(trace.model, trace.tokens[:, :length], lengths=lengths),
        trace_run(other.model, other.tokens[:, :length], lengths=lengths),
    )


def edges_of(model: Model, into: Sequence[HeadName] | None = None) -> Iterable[Site]:
    """Every edge of a model, or those into some heads, MLPs or the logits, from the bottom up."""
    chosen = None if into is None else {_reader(model, name) for name in into}
    for read in reads_from(model.config):
        assert read.reader is not None
        if chosen is None or read.reader in chosen:
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


@dataclass(frozen=True, eq=False)
class PatchEffect(Record, kind="patch-effect"):
    """The effect of a patch on a target and on the prediction (of the first sequence).

    `before`, `after` and `other` are the target in this run, in the patched run and in the other
    run; `other` is None if there is no other run.
    """

    model: str
    patched: tuple[str, ...]
    target: str
    before: Estimate
    after: Estimate
    other: Estimate | None
    effect: Estimate
    predicted_before: tuple[str, float]
    predicted_after: tuple[str, float]
    predicted_other: tuple[str, float] | None

    def to_table(self) -> Table:
        """One run per row."""
        rows: tuple[tuple[Cell, ...], ...] = (
            ("this run", self.before.value, *self.predicted_before),
            ("patched", self.after.value, *self.predicted_after),
        )
        if self.other is not None and self.predicted_other is not None:
            rows += (("other run", self.other.value, *self.predicted_other),)
        columns = (
            text_column(""),
            Column("value", ".4f"),
            token_column("predicts"),
            Column("probability"),
        )
        note = (
            f"value: {self.target}\neffect of the patch: {self.effect.value:+.4f} (before − after)"
        )
        source = "" if self.other is None else " from the other run"
        title = f"{self.model}, patched: {', '.join(self.patched)}{source}"
        return Table(columns, rows, title=title, note=note)


def patch_effect(
    trace: Trace,
    edits: Mapping[Any, Any],
    position: PositionName | None = None,
    token: TokenName | None = None,
    versus: Versus = None,
    *,
    metric: Metric | None = None,
) -> PatchEffect:
    """Apply a patch and measure its effect on a logit, by default the logit of the prediction.

    `metric` replaces the logit by another measure, as in `causal_effects`.
    """
    if not edits:
        raise InputError("nothing is patched; name at least one edge or node")
    patched = patch(trace, edits)
    others = [value for value in edits.values() if isinstance(value, Trace)]
    trace, other = same_batch(trace, others[0] if others else trace)
    measure = find_measure(trace, metric, position, token, versus)
    before, after = measure.of(trace), measure.of(patched)
    return PatchEffect(
        model=trace.model.name,
        patched=tuple(_named(trace, name, value) for name, value in edits.items()),
        target=measure.text,
        before=mean_estimate(before),
        after=mean_estimate(after),
        other=mean_estimate(measure.of(other)) if others else None,
        effect=mean_estimate(before - after),
        predicted_before=_prediction(trace, measure),
        predicted_after=_prediction(patched, measure),
        predicted_other=_prediction(other, measure) if others else None,
    )


def _named(trace: Trace, name: Any, value: Any) -> str:
    """The site, and its replacement unless that is another run."""
    site = str(find_patch_site(trace.model, name))
    if isinstance(value, Trace):
        return site
    return f"{site} = {value if isinstance(value, str) else 'a tensor'}"


def _prediction(trace: Trace, measure: Measure) -> tuple[str, float]:
    at = trace.lengths[0] - 1 if measure.positions is None else measure.positions[0]
    chances = trace.logits_at(int(at))[0].softmax(-1)
    best = int(chances.argmax())
    return trace.model.output_text(best), float(chances[best])


def same_batch(trace: Trace, other: Trace) -> tuple[Trace, Trace]:
    """Both runs, expanded to the larger batch size."""
    size = max(len(trace.tokens), len(other.tokens))

    def expand_batch(run: Trace) -> Trace:
        if len(run.tokens) == size:
            return run
        tokens = run.tokens.expand(size, -1)
        return trace_run(run.model, tokens, run.edits, lengths=run.lengths)

    return expand_batch(trace), expand_batch(other)
