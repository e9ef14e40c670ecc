"""What the test of induction heads finds, as records."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pathsum.errors import HeadError
from pathsum.heads.kinds.induction_stripe import INDUCTION_STRIPE
from pathsum.heads.partners import PartnerEdge
from pathsum.heads.score import Score
from pathsum.heads.verdicts import ALPHA
from pathsum.model import HeadId, HeadName
from pathsum.paths import Estimate
from pathsum.result import Column, Record, Table, text_column
from pathsum.result.p_value import ProbabilityColumn

Mechanism: TypeAlias = Literal["K-composition", "Q-composition", "none"]


@dataclass(frozen=True, eq=False)
class InductionHead(Record, kind="induction-head"):
    """One induction head and the evidence for how it works.

    `edges`          lower heads into its query and key: what cutting each edge alone takes away
    `ov_positivity`  Σλ/Σ|λ| of its full OV: the scatter's x
    `qk_positivity`  Σλ/Σ|λ| of its QK through the partner's OV: the scatter's y
    `k_share`        share of the score at the stripe, over the row's mean, that the terms with a
                     head on the key side carry; `q_share`, `qk_share` and `none_share` likewise
    `cost`           what the second copy's loss rises by without it, everything recomputed;
                     `cost_patterns_kept` with all patterns forced
    `recovered`      share of the ablation cost that the ideal induction pattern recovers;
                     `partner_recovered` that of the ideal previous-token pattern in the partner
    """

    head: HeadId
    stripe: Score
    prefix_matching: Score
    mechanism: Mechanism
    partner: HeadId | None
    edges: tuple[PartnerEdge, ...]
    ov_positivity: float
    qk_positivity: float | None
    none_share: float
    q_share: float
    k_share: float
    qk_share: float
    cost: Estimate
    cost_patterns_kept: Estimate
    recovered: Estimate | None
    partner_recovered: Estimate | None
    evidence: tuple[str, ...]

    def to_table(self) -> Table:
        """The strongest edges, and the evidence below."""
        columns = (
            text_column("edge"),
            Column("stripe left", ".3f"),
            Column("lost", ".0%"),
            Column("composition", ".3f"),
            Column("z", "+.1f"),
            ProbabilityColumn(),
        )
        rows = tuple(
            (f"{e.writer}→{e.reader}.{e.side}", e.stripe_left, e.share_lost, e.score, e.z, e.p)
            for e in self.edges[:6]
        )
        title = f"{self.head}: {self.told_mechanism}"
        return Table(columns, rows, title=title, note="\n".join(self.evidence))

    @property
    def told_mechanism(self) -> str:
        """The mechanism and the partner in words."""
        if self.partner is None:
            return "no single edge"
        return f"{self.mechanism} with {self.partner}"


@dataclass(frozen=True, eq=False)
class Induction(Record, kind="induction"):
    """The induction heads of a model, or why it has none; `found["L1H4"]` is one of them.

    `rejected` says, per head, why one that attends like an induction head is not one; `stripes` is
    every head's induction stripe. `first_copy` and `second_copy` are the losses on repeated random
    tokens.
    """

    model: str
    heads: tuple[InductionHead, ...]
    why_none: str
    rejected: dict[str, str]
    stripes: dict[str, float]
    first_copy: Estimate
    second_copy: Estimate
    best_stripe: float
    note: str

    def __getitem__(self, name: HeadName) -> InductionHead:
        head = HeadId.parse(name)
        for found in self.heads:
            if found.head == head:
                return found
        label = str(head)
        if label not in self.stripes:
            raise HeadError(
                f"{self.model} has no head {label}; its heads are {_span(self.stripes)}"
            )
        why = self.rejected.get(label) or (
            f"has a stripe of {self.stripes[label]:.2f}, and an induction head needs at least "
            f"{INDUCTION_STRIPE.info.threshold} with p ≤ {ALPHA}"
        )
        raise HeadError(f"{label} is not an induction head of {self.model}: it {why}")

    def to_table(self) -> Table:
        """One row a head."""
        columns = (
            text_column("head"),
            text_column("mechanism"),
            Column("stripe", ".2f"),
            Column("prefix", ".2f"),
            Column("K share", ".0%"),
            Column("OV λ", "+.2f"),
            Column("QK λ", "+.2f"),
            Column("cost", ".2f"),
            Column("recovered", ".0%"),
        )
        rows = tuple(
            (
                *(str(h.head), h.mechanism[0] + f" with {h.partner}" if h.partner else "none"),
                *(h.stripe.value, h.prefix_matching.value, h.k_share, h.ov_positivity),
                *(h.qk_positivity, h.cost.value, h.recovered and h.recovered.value),
            )
            for h in self.heads
        )
        losses = (
            f"repeated random tokens: loss {self.first_copy} nats on the first copy, "
            f"{self.second_copy} on the second; best stripe {self.best_stripe:.3f}"
        )
        read = (
            "λ: eigenvalue positivity of OV, and of QK through the partner; cost: nats on the "
            "second copy without the head; recovered: of that, by the ideal pattern"
        )
        rejected = [f"{head} {why}" for head, why in self.rejected.items()] if self.heads else []
        notes = (self.why_none, *rejected, read if self.heads else "", losses, self.note)
        note = "\n".join(filter(None, notes))
        return Table(columns, rows, title=f"induction in {self.model}", note=note)


def _span(heads: dict[str, float]) -> str:
    labels = list(heads)
    return f"{labels[0]} to {labels[-1]}" if labels else "none: it has no layers"
