"""Replacement: run the model with a description in place of a head, and compare losses.

A claim such as "this is an induction head" describes a head's attention pattern and its OV. To test
it, run the model with the description instead of the head:

    share = (loss without the head − loss with the description) / (loss without − loss of the model)

1 means that the description recovers the head's entire effect on the loss; 0 means that it is no
better than ablating the head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from pathsum.base import Progress, Record, Site, Table, parse_option, silent
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, ratio
from pathsum.base.options import checked
from pathsum.base.shapes import Tokens
from pathsum.model import HeadId, HeadName, Model, Trace
from pathsum.model.edit import Edit
from pathsum.model.losses import NATS, OWN_METRIC, MetricName, SequenceLosses
from pathsum.model.reference import AblationReference, Reference, parse_ablation
from pathsum.model.sequences import TextOrTokens, require_causal
from pathsum.paths.ablation import AFTER, AblatedOutputs, After, LossRuns, estimates_table
from pathsum.paths.descriptions import (
    CopyingPart,
    CopyingProjector,
    IdealPattern,
    OvDescription,
    PatternDescription,
    TopTokens,
    TopTokenTable,
    copying_projector,
    described_pattern,
    keep_copying_part,
    overlap,
    parse_ov,
    parse_pattern,
)

# A smaller cost, in nats or errors per prediction, is rounding error: too small to divide by. The
# cost of a custom metric is compared with the metric itself.
SMALLEST_COST = 1e-4


@dataclass(frozen=True, eq=False)
class Replacement(Record, kind="replacement"):
    """The share of a head's ablation cost that a description recovers, with 95% intervals.

    `share` is None if the cost is too small or not clearly above zero; `why_no_share` gives the
    reason. `overlap` is the share of the head's attention that the described pattern reproduces
    (None if the head's own pattern is used). `kept` describes the part of the OV that is kept.
    Losses are in `unit`: nats, or the unit of a custom metric.
    """

    model: str
    head: HeadId
    description: str
    knockout: AblationReference
    after: After
    loss: Estimate
    loss_ablated: Estimate
    loss_replaced: Estimate
    cost: Estimate
    share: Estimate | None
    why_no_share: str
    overlap: float | None
    kept: str
    sequences: int
    predictions: int
    unit: str = NATS

    def to_table(self) -> Table:
        """Losses of the model, with the description and with the ablation; then the share."""
        values = {
            "model": self.loss,
            f"{self.head} replaced": self.loss_replaced,
            f"{self.head} ablated": self.loss_ablated,
            "ablation cost": self.cost,
        }
        if self.share is not None:
            values["share of the cost recovered"] = self.share
        notes = [
            f"{self.knockout.value} ablation, {AFTER[self.after]}",
            f"{self.sequences} sequences, {self.predictions} predictions; {self.unit} each, 95%",
            self.kept,
            self.why_no_share,
        ]
        if self.overlap is not None:
            notes.insert(2, f"attention in common with the description: {self.overlap:.3f}")
        title = f"{self.model}: {self.head} as {self.description}"
        return estimates_table(values, "value", title, "\n".join(filter(None, notes)))


@checked
def replace(
    model: Model,
    head: HeadName,
    batches: TextOrTokens,
    *,
    pattern: PatternDescription | str | None = None,
    ov: OvDescription | str | None = None,
    reference: AblationReference | str = Reference.ZERO,
    text: TextOrTokens | None = None,
    after: After | str = After.RECOMPUTED,
    from_position: int = 0,
    targets: Int[Tensor, "n pos"] | None = None,
    metric: MetricName = "loss",
    seed: int = 0,
    progress: Progress = silent,
) -> Replacement:
    """Replace a head with a description, and measure the recovered share of its ablation cost.

    Args:
        model: The model.
        head: A label or pair.
        batches: A text, token ids or a corpus.
        pattern: The description of its pattern: "previous", "induction", "duplicate", "first",
            "uniform" or a `ScoreTerm`; by default the head's own pattern.
        ov: The description of its OV: "copying" or `TopTokens(n)`; by default the head's own OV.
        reference: The ablation, as for `ablate`.
        text: The text for "mean", as for `ablate`.
        after: What follows the ablation, as for `ablate`.
        from_position: The first position that is scored.
        targets: The correct outputs, as for `ablate`.
        metric: The score of predictions, as for `ablate`.
        seed: The seed of the sequences for "resample".
        progress: Called as the work proceeds.

    Returns:
        The losses of the model, the ablated model and the model with the description, and the
        recovered share of the cost.

    Example:
        >>> from pathsum.model import construct
        >>> model = construct.induction()
        >>> result = replace(model, "L1H0", "a b " * 8, pattern="induction")
        >>> round(result.share.value, 4)
        1.0

    A share above 1 means that the description does better than the head on this text; on other
    text it may do worse.
    """
    reference = parse_ablation(reference)
    after = parse_option(After, after, "after")
    description = _Description(model, head, parse_pattern(pattern), parse_ov(ov), from_position)
    runs, head = LossRuns(model, batches, targets, metric, from_position), description.head
    ablation = AblatedOutputs(model, (head,), reference, runs.batches, text, seed)
    variants, unit = (ablation.edits, description.edits), runs.metric.unit
    losses = runs.losses(ablation, variants, after, progress, "replacing")
    return _result(description, reference, after, losses, unit)


def _result(
    description: "_Description",
    reference: AblationReference,
    after: After,
    losses: Sequence[SequenceLosses],
    unit: str,
) -> Replacement:
    """The record of a replacement: losses of the model, with the ablation, with the description."""
    plain, ablated, replaced = losses
    share, why_no_share = recovered_share(description.head, plain, ablated, replaced, unit)
    return Replacement(
        model=description.model.name,
        head=description.head,
        description=str(description),
        knockout=reference,
        after=after,
        loss=plain.mean(),
        loss_ablated=ablated.mean(),
        loss_replaced=replaced.mean(),
        cost=ablated.above(plain),
        share=share,
        why_no_share=why_no_share,
        overlap=description.overlap,
        kept=description.kept,
        sequences=len(plain.total),
        predictions=int(plain.count.sum()),
        unit=unit,
    )


class _Description:
    """A head's description, as edits of a run."""

    def __init__(
        self,
        model: Model,
        head: HeadName,
        pattern: PatternDescription | None,
        ov: OvDescription | None,
        first: int,
    ) -> None:
        if pattern is None and ov is None:
            raise InputError(
                "no description is given to replace the head with; give pattern= (an ideal pattern "
                "or a ScoreTerm), ov= ('copying' or TopTokens(n)), or both"
            )
        if pattern is not None:
            require_causal(model, "a description of attention")
        self.model, self.head, self.pattern, self.ov = model, model.head(head).id, pattern, ov
        self._first, self._overlaps = first, list[tuple[float, int]]()
        self._projector: CopyingProjector | None = None
        if isinstance(ov, CopyingPart):
            self._projector = copying_projector(model.head(head))

    def __str__(self) -> str:
        pattern = self.pattern
        attention = pattern.description if isinstance(pattern, IdealPattern) else pattern
        return " with ".join(str(part) for part in (attention, self.ov) if part is not None)

    def edits(self, trace: Trace, partners: Tokens) -> tuple[Edit, ...]:  # noqa: ARG002
        """The edits of a run; the overlap with the head's own attention is noted."""
        edits: list[Edit] = []
        if self.pattern is not None:
            pattern = described_pattern(trace, self.head, self.pattern)
            edits.append(Edit(Site(self.head, value="pattern"), pattern))
            count, rows = len(trace.tokens), slice(self._first, None)
            mean = overlap(trace.pattern(self.head)[:, rows], pattern[:, rows])
            self._overlaps.append((mean * count, count))
        if self._projector is not None:
            edits += keep_copying_part(self.model.head(self.head), self._projector.matrix)
        if isinstance(self.ov, TopTokens):
            head = self.model.head(self.head)
            edits += TopTokenTable(head, trace.tokens, self.ov.count).edits()
        return tuple(edits)

    @property
    def overlap(self) -> float | None:
        """Averaged over sequences."""
        if not self._overlaps:
            return None
        return sum(value for value, _ in self._overlaps) / sum(count for _, count in self._overlaps)

    @property
    def kept(self) -> str:
        if self._projector is None:
            return ""
        return (
            f"copying part: {self._projector.kept} of {self._projector.eigenvalues} eigenvalues, "
            f"{self._projector.share:.3f} of their magnitude"
        )


def recovered_share(
    head: HeadId,
    plain: SequenceLosses,
    ablated: SequenceLosses,
    replaced: SequenceLosses,
    unit: str = NATS,
) -> tuple[Estimate | None, str]:
    """The share of a head's ablation cost that a description recovers, or why it is undefined."""
    cost, scale = ablated.above(plain), 1.0
    if unit == OWN_METRIC:
        scale = max(abs(plain.mean().value), abs(ablated.mean().value))
    if cost.value <= SMALLEST_COST * scale:
        what, nats = ("loss", " nats") if unit == NATS else (unit, "")
        return None, (
            f"no share: ablating {head} changes the {what} by {cost.value:+.2g}{nats}, so there is "
            "no cost that a description could recover"
        )
    if cost.stderr is not None and not cost.clear_of_zero:
        return None, (
            f"no share: the cost of ablating {head}, {cost}, is not clearly above zero on these "
            "sequences; use more of them, or text on which the head matters"
        )
    return ratio(ablated.total - replaced.total, ablated.total - plain.total), ""
