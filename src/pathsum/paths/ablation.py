"""Ablation: the loss without some heads, MLPs or neurons, replaced by a `Reference`."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import (
    Progress,
    Record,
    Site,
    Source,
    Table,
    Writer,
    interval_columns,
    parse_option,
    silent,
    text_column,
)
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.base.options import checked
from pathsum.base.path import is_pair
from pathsum.base.shapes import Tokens
from pathsum.model import HeadId, HeadName, Model, Trace
from pathsum.model.edit import Edit
from pathsum.model.forward import run_logits
from pathsum.model.losses import (
    NATS,
    MetricName,
    SequenceLosses,
    find_metric,
    predicted_batches,
    split_by_memory,
)
from pathsum.model.reference import (
    AblationReference,
    Reference,
    mean_values,
    parse_ablation,
    reference_text,
)
from pathsum.model.sequences import TextOrTokens, TokenBatches
from pathsum.model.sites import find_site
from pathsum.paths.descriptions import IdealPattern
from pathsum.paths.patching import before_output, find_replacement


class After(enum.StrEnum):
    """Which activations are recomputed after the edit.

    `RECOMPUTED`       everything is recomputed: the full ablation
    `FREEZE_PATTERNS`  patterns are forced to the unedited run's and the rest is recomputed: the
                       head's effect through values and logits, not through attention
    """

    RECOMPUTED = "recomputed"
    FREEZE_PATTERNS = "freeze_patterns"


AFTER = {
    After.RECOMPUTED: "everything after it recomputed",
    After.FREEZE_PATTERNS: "patterns frozen",
}


@dataclass(frozen=True, eq=False)
class Ablation(Record, kind="ablation"):
    """The loss with and without some heads or other nodes, per prediction, with 95% intervals.

    `cost` is the loss without them minus the loss with them, paired by sequence. All three are in
    `unit`: nats, or the unit of a custom metric.
    """

    model: str
    heads: tuple[Writer, ...]
    knockout: AblationReference
    after: After
    loss: Estimate
    loss_without: Estimate
    cost: Estimate
    sequences: int
    predictions: int
    unit: str = NATS

    def to_table(self) -> Table:
        """Three rows: with, without, and the difference."""
        names = ", ".join(map(str, self.heads))
        rows = {"model": self.loss, f"without {names}": self.loss_without, "cost": self.cost}
        note = (
            f"{self.knockout.value} ablation, {AFTER[self.after]}; {self.unit} per "
            f"prediction over {self.sequences} sequences ({self.predictions} predictions), 95%"
        )
        value = "loss" if self.unit == NATS else self.unit
        return estimates_table(rows, value, f"{self.model}: ablation of {names}", note)


def estimates_table(rows: Mapping[str, Estimate], value: str, title: str, note: str) -> Table:
    """A table of one labeled estimate per row."""
    cells = tuple((label, *estimate.with_interval) for label, estimate in rows.items())
    return Table((text_column(""), *interval_columns(value, ".4f")), cells, title, note)


@checked
def ablate(
    model: Model,
    heads: HeadName | Source | Sequence[HeadName | Source],
    batches: TextOrTokens,
    *,
    reference: AblationReference | str = Reference.ZERO,
    text: TextOrTokens | None = None,
    after: After | str = After.RECOMPUTED,
    from_position: int = 0,
    targets: Int[Tensor, "n pos"] | None = None,
    metric: MetricName = "loss",
    seed: int = 0,
    knockout: AblationReference | str | None = None,
    progress: Progress = silent,
) -> Ablation:
    """The loss with and without some heads, MLPs (`mlp2`) or neurons (`mlp2.n5`), all together.

    Args:
        model: The model.
        heads: A head, MLP or neuron, or several.
        batches: A text, token ids or a corpus, in any form of `TextOrTokens`.
        reference: The replacement of the outputs: "zero", "mean", "resample" (another sequence of
            the batch) or "first_token" (attention to the first token only).
        text: The text for "mean", over positions ≥ 1; by default the model's held-out text (see
            `reference_text`).
        after: Whether everything after the edit is recomputed, or later patterns are frozen.
        from_position: The first position that is scored.
        targets: The correct output per position, or −1 for positions without a target; by default
            the next token.
        metric: The loss in nats, the share of wrong predictions ("error"), or a function of logits
            [n, vocab] and targets [n], the lower the better.
        seed: The seed of the sequences for "resample".
        knockout: An alias of `reference`.
        progress: Called as the work proceeds.

    Returns:
        The loss with and without the heads, and the cost, with intervals over sequences.

    Example:
        >>> from pathsum.model import construct
        >>> model = construct.induction()
        >>> print(ablate(model, "L1H0", "a b " * 8).cost)
        1.42

    Zero is not a neutral replacement for a head whose output is nearly constant; use "mean" or
    "resample" for such heads.
    """
    reference = parse_ablation(reference if knockout is None else knockout)
    after = parse_option(After, after, "after")
    nodes = find_nodes(model, heads)
    runs = LossRuns(model, batches, targets, metric, from_position)
    ablated = AblatedOutputs(model, nodes, reference, runs.batches, text, seed)
    losses = runs.losses(ablated, (ablated.edits,), after, progress, "ablating")
    return _result(runs, nodes, reference, after, losses)


def _result(
    runs: "LossRuns",
    nodes: tuple[Writer, ...],
    reference: AblationReference,
    after: After,
    losses: Sequence[SequenceLosses],
) -> Ablation:
    """The record of an ablation: losses of the model, and with the nodes ablated."""
    loss, loss_without = losses
    return Ablation(
        model=runs.model.name,
        heads=nodes,
        knockout=reference,
        after=after,
        loss=loss.mean(),
        loss_without=loss_without.mean(),
        cost=loss_without.above(loss),
        sequences=len(loss.total),
        predictions=int(loss.count.sum()),
        unit=runs.metric.unit,
    )


Variant: TypeAlias = Callable[[Trace, Tokens], Sequence[Edit]]
"""The edits of a run, given its trace and the partners that `Reference.RESAMPLE` draws."""


class LossRuns:
    """Batches, their targets, and the metric of predictions from position `first` on."""

    def __init__(
        self,
        model: Model,
        text: TextOrTokens,
        targets: Int[Tensor, "n pos"] | None,
        metric: MetricName,
        first: int,
    ) -> None:
        self.model, self.metric, self.first = model, find_metric(metric), first
        self.batches, self.targets = predicted_batches(model, text, targets, first)

    def losses(
        self,
        ablated: "AblatedOutputs",
        variants: Sequence[Variant],
        after: After,
        progress: Progress,
        doing: str,
    ) -> tuple[SequenceLosses, ...]:
        """The losses of every sequence, unedited and with the edits of each variant."""
        model, count, rows = self.model, len(self.batches), slice(self.first, None)
        losses: list[list[SequenceLosses]] = [[] for _ in range(1 + len(variants))]
        for number, (batch, targets) in enumerate(zip(self.batches, self.targets, strict=True)):
            progress(number, count, doing)
            pieces = (split_by_memory(model, x) for x in (batch, ablated.partners(batch), targets))
            for tokens, partners, answers in zip(*pieces, strict=True):
                trace = model.trace(tokens)
                losses[0].append(self.metric.of(trace.logits, answers, self.first))
                for edited, variant in zip(losses[1:], variants, strict=True):
                    edits = (*after_edits(trace, after), *variant(trace, partners))
                    logits = run_logits(model.weights, tokens, edits, rows)
                    edited.append(self.metric.of(logits, answers[:, rows]))
        progress(count, count, doing)
        return tuple(map(SequenceLosses.concat, losses))


def find_nodes(
    model: Model, nodes: HeadName | Source | Sequence[HeadName | Source]
) -> tuple[Writer, ...]:
    """Parse one or more heads, MLPs or neurons, without duplicates."""
    single = isinstance(nodes, str | Source) or is_pair(nodes)
    names: list[Any] = [nodes] if single else list(nodes)  # pyright: ignore[reportArgumentType]
    if not names:
        raise InputError("no heads were given to ablate; name at least one")
    return tuple(dict.fromkeys(_find_node(model, name) for name in names))


def _find_node(model: Model, name: Any) -> Writer:
    site = find_site(model, name)
    if site.is_edge or site.at is not None or site == Site(Source("embed")):
        raise InputError(
            f"{site} cannot be ablated; name a head, an MLP or a neuron, without positions"
        )
    assert isinstance(site.writer, HeadId | Source)
    return site.writer


def after_edits(trace: Trace, after: After) -> tuple[Edit, ...]:
    """Edits that set attention patterns to those of a run, if patterns are frozen."""
    if after is After.RECOMPUTED:
        return ()
    heads = trace.model.config.every_head
    return tuple(Edit(Site(head, value="pattern"), trace.pattern(head)) for head in heads)


class AblatedOutputs:
    """The replacement for the outputs of ablated heads, MLPs and neurons, batch by batch."""

    def __init__(
        self,
        model: Model,
        nodes: Sequence[Writer],
        reference: AblationReference,
        batches: TokenBatches,
        text: TextOrTokens | None = None,
        seed: int = 0,
    ) -> None:
        others = [str(node) for node in nodes if not isinstance(node, HeadId)]
        if reference is Reference.FIRST and others:
            raise InputError(
                f"{others[0]} does not attend, so it cannot attend to the first token; use "
                "reference='zero', 'mean' or 'resample'"
            )
        self.model, self.sites, self.reference = model, list(map(Site, nodes)), reference
        self._generator = seeded(seed)
        if text is not None and reference is not Reference.MEAN:
            raise InputError(
                f"text is given, but a {reference.value} ablation does not average; "
                "leave it out, or use reference='mean'"
            )
        if reference is Reference.RESAMPLE and any(len(tokens) < 2 for tokens in batches):
            raise InputError(
                "a resample ablation takes each head's output from another sequence of the same "
                "length, but a batch has one sequence only; give at least two of each length"
            )
        self._means: dict[Site, Float[Tensor, " k"]] = {}
        if reference is Reference.MEAN:
            batches = reference_text(model, text, batches).batches
            self._means = mean_values(model, batches, self.sites)

    def partners(self, tokens: Tokens) -> Tokens:
        """For each sequence, another sequence of the batch, drawn at random."""
        if self.reference is not Reference.RESAMPLE:
            return tokens
        order = torch.randperm(len(tokens), generator=self._generator)
        partner = torch.empty_like(order)
        partner[order] = order.roll(-1)
        return tokens[partner.to(tokens.device)]

    def edits(self, trace: Trace, partners: Tokens) -> tuple[Edit, ...]:
        """The edits that ablate the nodes in a run."""
        if self.reference is Reference.FIRST:
            first = IdealPattern.FIRST.of(trace.tokens, trace.logits.dtype)
            return tuple(Edit(Site(site.head, value="pattern"), first) for site in self.sites)
        values = dict[Site, Tensor](self._means)
        if self.reference is not Reference.MEAN:
            resample = self.reference is Reference.RESAMPLE
            value = self.model.trace(partners) if resample else self.reference
            values = {site: find_replacement(trace, site, value) for site in self.sites}
        return tuple(Edit(before_output(site), values[site]) for site in self.sites)
