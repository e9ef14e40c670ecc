"""What the test of induction heads finds, as records."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pathsum.heads.partners import PartnerEdge
from pathsum.heads.score import Score
from pathsum.model import HeadId
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
            (f"{e.writer} → {e.reader}.{e.side}", e.stripe_left, e.share_lost, e.score, e.z, e.p)
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
    """What `induction` found: heads, or why there are none; loss on the first and second copy."""

    model: str
    heads: tuple[InductionHead, ...]
    why_none: str
    first_copy: Estimate
    second_copy: Estimate
    best_stripe: float
    note: str

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
        notes = (self.why_none, read if self.heads else "", losses, self.note)
        note = "\n".join(filter(None, notes))
        return Table(columns, rows, title=f"induction in {self.model}", note=note)
