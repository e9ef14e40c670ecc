"""Ablation: the loss without some heads, and what replaces them (`Knockout`)."""

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import (
    Progress,
    Record,
    Site,
    Table,
    interval_columns,
    parse_option,
    silent,
    text_column,
)
from pathsum.base.arguments import checked
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.base.head_id import is_pair
from pathsum.base.shapes import Tokens
from pathsum.model import HeadId, HeadName, Model, Trace
from pathsum.model.edited import mean_of_runs, mean_values
from pathsum.model.edits import Attend, Edit, FreezePatterns, HeadOutput
from pathsum.model.forward import run_logits
from pathsum.model.losses import (
    NATS,
    MetricName,
    Scored,
    SequenceLosses,
    find_metric,
    predicted_batches,
    split_by_memory,
)
from pathsum.model.sequences import TextOrTokens, TokenBatches, token_batches
from pathsum.paths.intervene.descriptions import IdealPattern

_KEPT = "_ablation_losses"
"""The attribute of a shared trace that holds the losses of its ablations."""


class Knockout(enum.StrEnum):
    """The replacement for the output of an ablated head.

    `ZERO`      zero
    `MEAN`      its mean output over reference sequences and their positions: one vector
    `RESAMPLE`  its output on another sequence of the batch, position by position
    `FIRST`     its output when it attends to the first token only, where heads rest
    """

    ZERO = "zero"
    MEAN = "mean"
    RESAMPLE = "resample"
    FIRST = "first token"


class After(enum.StrEnum):
    """What is recomputed after the edit.

    `RECOMPUTED`          everything is recomputed: the full ablation
    `PATTERNS_PRESERVED`  patterns are forced to the unedited run's and the rest is recomputed: what
                          the head does through values and logits, not through attention
    """

    RECOMPUTED = "recomputed"
    PATTERNS_PRESERVED = "patterns preserved"


@dataclass(frozen=True, eq=False)
class Ablation(Record, kind="ablation"):
    """The loss with and without some heads, per prediction, with 95 % intervals.

    `cost` is the loss without them minus the loss with them, paired by sequence. All three are in
    `unit`: nats, or what another metric counts.
    """

    model: str
    heads: tuple[HeadId, ...]
    knockout: Knockout
    after: After
    loss: Estimate
    loss_without: Estimate
    cost: Estimate
    sequences: int
    predictions: int
    unit: str = NATS

    def to_table(self) -> Table:
        """Three rows: with, without, and the difference."""
        named = ", ".join(map(str, self.heads))
        rows = (
            ("model", *self.loss.with_interval),
            (f"without {named}", *self.loss_without.with_interval),
            ("cost", *self.cost.with_interval),
        )
        counted = "loss" if self.unit == NATS else self.unit
        columns = (text_column(""), *interval_columns(counted, ".4f"))
        note = (
            f"{self.knockout.value} ablation, everything after {self.after.value}; {self.unit} per "
            f"prediction over {self.sequences} sequences ({self.predictions} predictions), 95 %"
        )
        return Table(columns, rows, title=f"{self.model}: ablation of {named}", note=note)


@checked
def ablate(
    model: Model,
    heads: HeadName | Sequence[HeadName],
    batches: TextOrTokens,
    *,
    knockout: Knockout | str = Knockout.ZERO,
    after: After | str = After.RECOMPUTED,
    from_position: int = 0,
    targets: Int[Tensor, "n pos"] | None = None,
    metric: MetricName = "loss",
    reference: TextOrTokens | None = None,
    seed: int = 0,
    start: Trace | None = None,
    progress: Progress = silent,
) -> Ablation:
    """The loss with and without some heads (one, or several together).

    `batches` is text or token ids in any form (see `TextOrTokens`); losses are means over
    predictions from `from_position` on. A position predicts the next token, or its entry of
    `targets` (−1: nothing), and `metric` scores it: the loss in nats, the share of wrong
    predictions ("error"), or a function of logits [n, vocab] and targets [n], the lower the better.
    `reference` is what `knockout="mean"` averages over, by default the batches themselves; `seed`
    draws the partners of `knockout="resample"`. Several ablations of one batch can share its trace,
    `start`.

        >>> from pathsum.model import construct
        >>> model = construct.induction()
        >>> print(ablate(model, "L1H0", "a b " * 8).cost)
        1.42

    Zero is not a neutral output for a head that always writes much the same: use "mean" or
    "resample" there.
    """
    knockout = parse_option(Knockout, knockout, "knockout")
    after = parse_option(After, after, "after")
    found = find_heads(model, heads)
    on = Measured.on(model, batches, targets, metric, from_position, start)
    replaced = KnockoutValue(model, found, knockout, on.batches, reference, seed, start)
    loss, lost = on.losses(replaced, (replaced,), after, progress, "ablating")
    return Ablation(
        model=model.name,
        heads=found,
        knockout=knockout,
        after=after,
        loss=loss.mean(),
        loss_without=lost.mean(),
        cost=lost.above(loss),
        sequences=len(loss.total),
        predictions=int(loss.count.sum()),
        unit=on.scored.unit,
    )


@dataclass(frozen=True, eq=False)
class Measured:
    """Batches, their targets, and how predictions are scored from position `first` on.

    `start` is a shared trace of the batches; `next_tokens` is whether the targets are those.
    """

    model: Model
    batches: TokenBatches
    targets: TokenBatches
    scored: Scored
    first: int
    start: Trace | None
    next_tokens: bool

    @classmethod
    def on(
        cls,
        model: Model,
        given: TextOrTokens,
        targets: Int[Tensor, "n pos"] | None,
        metric: MetricName,
        first: int,
        start: Trace | None,
    ) -> "Measured":
        """Parse the batches and the metric, and check that `start` is a run of these batches."""
        scored = find_metric(metric)
        batches, wanted = predicted_batches(model, given, targets, first)
        if start is not None:
            parts = [part for tokens in batches for part in split_by_memory(model, tokens)]
            if start.model is not model or start.edits or len(parts) != 1:
                raise InputError(
                    "start must be an unedited trace by the same model, of a single batch that "
                    "fits in memory; leave it out for several batches"
                )
            if not torch.equal(start.tokens, parts[0]):
                raise InputError(
                    "start is a trace of other tokens; pass the trace of these batches"
                )
        return cls(model, batches, wanted, scored, first, start, targets is None)

    def losses(
        self,
        replaced: "KnockoutValue",
        variants: "Sequence[Variant]",
        after: After,
        progress: Progress,
        doing: str,
    ) -> tuple[SequenceLosses, ...]:
        """The losses of every sequence, unedited and with the edits of each variant."""
        model, count = self.model, len(self.batches)
        found: list[list[SequenceLosses]] = [[] for _ in range(1 + len(variants))]
        for number, (tokens, wanted) in enumerate(zip(self.batches, self.targets, strict=True)):
            progress(number, count, doing)
            pieces = (
                split_by_memory(model, ids) for ids in (tokens, replaced.partners(tokens), wanted)
            )
            for part, partners, answers in zip(*pieces, strict=True):
                trace = model.trace(part) if self.start is None else self.start
                for kept, variant in zip(found, (None, *variants), strict=True):
                    kept.append(self._run(trace, partners, answers, variant, after))
        progress(count, count, doing)
        return tuple(map(SequenceLosses.joined, found))

    def _run(
        self,
        trace: Trace,
        partners: Tokens,
        answers: Tokens,
        variant: "Variant | None",
        after: After,
    ) -> SequenceLosses:
        """The losses of one run, or those that another call measured on the same `start`."""
        known: dict[object, SequenceLosses] = {}
        if self.start is not None and self.next_tokens and self.scored.unit == NATS:
            # Cached on the frozen trace, outside its fields: no result of the trace depends on it.
            known = vars(self.start).setdefault(_KEPT, known)
        # Before the cache is looked up: descriptions also compare themselves with the run.
        edits = () if variant is None else variant.edits(trace, partners)
        same = (None, None) if variant is None else (variant.same_run, after)
        key = None if variant is not None and variant.same_run is None else (self.first, *same)
        if key is not None and key in known:
            return known[key]
        if variant is None:
            found = self.scored.of(trace.logits, answers, self.first)
        else:
            every, counted = (*edits, *after_edits(trace, after)), slice(self.first, None)
            logits = run_logits(self.model.weights, trace.tokens, every, trace, counted)
            found = self.scored.of(logits, answers[:, counted])
        if key is not None:
            known[key] = found
        return found


class Variant(Protocol):
    """What is changed in a run."""

    @property
    def same_run(self) -> Hashable | None:
        """Equal for variants that make the same edits of the same run; None for any others."""
        ...

    def edits(self, trace: Trace, partners: Tokens) -> tuple[Edit, ...]:
        """The edits of a run, given the partners that `Knockout.RESAMPLE` draws."""
        ...


def find_heads(model: Model, heads: HeadName | Sequence[HeadName]) -> tuple[HeadId, ...]:
    """One head or several, each once."""
    one = isinstance(heads, str) or is_pair(heads)
    names = [heads] if one else list(heads)
    if not names:
        raise InputError("no heads were given, so there is nothing to ablate; name at least one")
    return tuple(dict.fromkeys(model.head(name).id for name in names))  # pyright: ignore[reportArgumentType]


def after_edits(trace: Trace, after: After) -> tuple[Edit, ...]:
    """Edits that force patterns to those of a run, if they are to be preserved."""
    return () if after is After.RECOMPUTED else (FreezePatterns(tuple(trace.patterns)),)


class KnockoutValue:
    """The replacement for the outputs of ablated heads, batch by batch."""

    def __init__(
        self,
        model: Model,
        heads: tuple[HeadId, ...],
        knockout: Knockout,
        batches: TokenBatches,
        reference: TextOrTokens | None = None,
        seed: int = 0,
        start: Trace | None = None,
    ) -> None:
        self.model, self.heads, self.knockout = model, heads, knockout
        self._generator = seeded(seed)
        if reference is not None and knockout is not Knockout.MEAN:
            raise InputError(
                f"reference is given, but a {knockout.value} ablation does not average; "
                "leave it out, or use knockout='mean'"
            )
        if knockout is Knockout.RESAMPLE and any(len(tokens) < 2 for tokens in batches):
            raise InputError(
                "a resample ablation takes each head's output from another sequence of the same "
                "length, but a batch has one sequence only; give at least two of each length"
            )
        self._means: dict[HeadId, Float[Tensor, " k"]] = {}
        if knockout is Knockout.MEAN:
            sites = {head: Site(head) for head in heads}
            if reference is None and start is not None:
                means = mean_of_runs([start], sites)
                self._means = {head: mean.to(model.weights.W_E) for head, mean in means.items()}
            else:
                over = batches
                if reference is not None:
                    # Nothing is predicted on it.
                    over = token_batches(model, reference, targets_given=True)
                self._means = mean_values(model, over, sites)
        self._own_mean = reference is None

    @property
    def same_run(self) -> Hashable | None:
        """Its heads and what replaces them, unless that is drawn or comes from other text."""
        repeats = self.knockout is not Knockout.RESAMPLE and self._own_mean
        return (self.heads, self.knockout) if repeats else None

    def partners(self, tokens: Tokens) -> Tokens:
        """For each sequence another one of the batch, drawn at random."""
        if self.knockout is not Knockout.RESAMPLE:
            return tokens
        order = torch.randperm(len(tokens), generator=self._generator)
        partner = torch.empty_like(order)
        partner[order] = order.roll(-1)
        return tokens[partner.to(tokens.device)]

    def edits(self, trace: Trace, partners: Tokens) -> tuple[Edit, ...]:
        """The edits that ablate the heads in a run."""
        if self.knockout is Knockout.FIRST:
            first = IdealPattern.FIRST.of(trace.tokens, trace.logits.dtype)
            return tuple(Attend(head, first) for head in self.heads)
        other = self.model.trace(partners) if self.knockout is Knockout.RESAMPLE else trace
        shape = *trace.tokens.shape, self.model.config.d_head
        edits: list[Edit] = []
        for head in self.heads:
            if self.knockout is Knockout.ZERO:
                z = trace.streams[head.layer].new_zeros(shape)
            elif self.knockout is Knockout.MEAN:
                z = self._means[head].expand(shape)
            else:
                z = other.head_z(head)
            edits.append(HeadOutput(head, z))
        return tuple(edits)
