"""`induction`: which heads do induction, through which lower head, how, and what it is worth.

The scores that find candidates are in `kinds/induction_stripe` and `kinds/prefix_matching`; this
file tests their mechanism.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pathsum.algebra.spectrum import positivity
from pathsum.base import Column, Progress, Record, Side, Table, silent, text_column
from pathsum.base.arguments import checked
from pathsum.base.errors import HeadError
from pathsum.base.estimate import Estimate
from pathsum.base.head_mapping import HeadMapping
from pathsum.base.p_value import ProbabilityColumn
from pathsum.circuits.composition import MEANING, composition
from pathsum.circuits.copying import layer_eigenvalues
from pathsum.circuits.tokens.qk import token_qk
from pathsum.circuits.tokens.token_basis import require_logit_edges, token_product
from pathsum.heads.atlas import NULL_HEADS, check_draws
from pathsum.heads.head_entry import why_silent
from pathsum.heads.kinds import INDUCTION_STRIPE, PREFIX_MATCHING, PREVIOUS_TOKEN
from pathsum.heads.kinds.kind import ALPHA, DataScore
from pathsum.heads.layer_view import (
    RandomFrames,
    compare_with_random_heads,
    in_full_precision,
    layer_view,
    layer_views,
)
from pathsum.heads.partners import PartnerEdge, candidate_partners, cut_edges
from pathsum.heads.probe import SEQUENCES, copy_losses, repeats_probe, second_copy, two_copies
from pathsum.heads.score import Score
from pathsum.model import HeadId, Model, Path, Trace
from pathsum.model.folding import centered_unembedding
from pathsum.model.sequences import require_tokens_out
from pathsum.paths import Replacement, ablate, replace
from pathsum.paths.intervene.ablation import After
from pathsum.text.probes import RepeatedTokens, shuffled

Mechanism: TypeAlias = Literal["K-composition", "Q-composition", "none"]

# A mechanism is named if cutting one edge removes at least this share of the stripe.
LEAST_SHARE_LOST = 0.25


@dataclass(frozen=True, eq=False)
class InductionHead(Record, kind="induction-head"):
    """One induction head and the evidence for how it works.

    `edges`          edges from lower heads into its query and key, and what cutting each one costs
    `ov_positivity`  Σλ/Σ|λ| of its full OV: the scatter's x
    `qk_positivity`  Σλ/Σ|λ| of its QK through the partner's OV: the scatter's y
    `k_share`        share of the score at the stripe, above the row's mean, from terms with a head
                     on the key side only; `q_share`, `qk_share` and `none_share` likewise
    `cost`           rise of the second copy's loss without the head, everything after recomputed;
                     `cost_patterns_kept` with all patterns kept
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
            (str(e.edge), e.stripe_left, e.share_lost, e.score, e.z, e.p) for e in self.edges[:6]
        )
        title = f"{self.head}: {self.mechanism_text}"
        meaning = f"p, z: of the composition score, against random rotations. {MEANING}"
        note = "\n".join((*self.evidence, meaning))
        return Table(columns, rows, title=title, note=note)

    @property
    def mechanism_text(self) -> str:
        """The mechanism and the partner in words."""
        if self.partner is None:
            return "no single edge"
        return f"{self.mechanism} with {self.partner}"


@dataclass(frozen=True, eq=False)
class Induction(Record, HeadMapping[InductionHead], kind="induction"):
    """The induction heads of a model, or why it has none; `found["L1H4"]` is one of them.

    `rejected` says, per head, why one that attends like an induction head is not one; `stripes` is
    the induction stripe of every head. `first_copy` and `second_copy` are losses on repeated random
    tokens.
    """

    model: str
    heads: tuple[InductionHead, ...]
    why_none: str
    rejected: dict[HeadId, str]
    stripes: dict[HeadId, float]
    first_copy: Estimate
    second_copy: Estimate
    best_stripe: float
    note: str

    def missing(self, label: str) -> HeadError:
        """The reason why a head is not an induction head."""
        head = HeadId.parse(label)
        if head not in self.stripes:
            labels = list(self.stripes)
            there = f"its heads are {labels[0]} to {labels[-1]}" if labels else "it has no layers"
            return HeadError(f"head {head} does not exist in {self.model}: {there}")
        why = self.rejected.get(head) or (
            f"has a stripe of {self.stripes[head]:.2f}, and an induction head needs at least "
            f"{INDUCTION_STRIPE.info.threshold} with p ≤ {ALPHA}"
        )
        return HeadError(f"{head} is not an induction head of {self.model}: it {why}")

    def to_table(self) -> Table:
        """One row per head."""
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
                *(h.head, h.mechanism[0] + f" with {h.partner}" if h.partner else "none"),
                *(h.stripe.value, h.prefix_matching.value, h.k_share, h.ov_positivity),
                *(h.qk_positivity, h.cost.value, h.recovered and h.recovered.value),
            )
            for h in self.heads
        )
        rejected = [f"{head} {why}" for head, why in self.rejected.items()] if self.heads else []
        legend = (
            "λ: eigenvalue positivity of OV, and of QK through the partner; cost: nats on the "
            "second copy without the head; recovered: share of the cost, by the ideal pattern"
        )
        losses = (
            f"repeated random tokens: loss {self.first_copy} nats on the first copy, "
            f"{self.second_copy} on the second; best stripe {self.best_stripe:.3f}"
        )
        notes = (self.why_none, *rejected, legend if self.heads else "", losses, self.note)
        note = "\n".join(filter(None, notes))
        return Table(columns, rows, title=f"induction in {self.model}", note=note)


@torch.no_grad()
@checked
def induction(
    model: Model,
    *,
    sequences: int = SEQUENCES,
    draws: int = NULL_HEADS,
    seed: int = 0,
    progress: Progress = silent,
) -> Induction:
    """Find induction heads on repeated random tokens, and test how they work.

    A head whose stripe passes against `draws` random heads is a candidate, unless it writes
    nothing. Then each edge from a lower head into its query or key is patched, alone, from a run on
    shuffled tokens: the edge that removes most of the stripe names the partner and the mechanism.

    >>> from pathsum.model import construct
    >>> by_k, by_q = induction(construct.induction()), induction(construct.induction_by_q())
    >>> by_k.heads[0].mechanism, by_k.heads[0].partner, by_q.heads[0].mechanism
    ('K-composition', 'L0H0', 'Q-composition')
    """
    check_draws(draws)
    require_tokens_out(model, "induction")
    model = in_full_precision(model)
    probe = repeats_probe(model, sequences, seed)
    trace = model.trace(probe.tokens, progress=progress)
    threshold = INDUCTION_STRIPE.info.threshold
    stripes, previous = _mean_scores(trace, probe, (INDUCTION_STRIPE, PREVIOUS_TOKEN))
    # Chance is measured where it can decide.
    large = [head for head, stripe in stripes.items() if stripe >= threshold]
    scores = attention_scores(trace, probe, large, draws=draws, seed=seed, progress=progress)
    candidates = [head for head, it in scores.items() if it.stripe.passes(threshold, ALPHA)]
    rejected = {
        head: f"attends like one (stripe {stripes[head]:.2f}) but writes nothing: {why}"
        for head in candidates
        if (why := why_silent(model, head))
    }
    found = [head for head in candidates if head not in rejected]
    best = max(stripes.values(), default=0.0)
    heads: list[InductionHead] = []
    if model.config.n_layers > 1:
        composed = composition(model, progress=progress)
        other = trace
        if found:
            other = model.trace(shuffled(probe.tokens, probe.first), progress=progress)
        for number, head in enumerate(found):

            def step(what: str, number: int = number, head: HeadId = head) -> None:
                progress(number, len(found), f"{what} {head}")

            writers = candidate_partners(head, composed, previous)
            edges = cut_edges(trace, probe, head, writers, composed, other, step)
            heads.append(_verify(trace, probe, head, scores[head], edges, step))
        progress(len(found), len(found), "testing")
    first, second = copy_losses(trace, probe)
    return Induction(
        model=model.name,
        heads=tuple(heads),
        why_none="" if heads else _why_none(model, best, threshold, rejected),
        rejected=rejected,
        stripes=stripes,
        first_copy=first,
        second_copy=second,
        best_stripe=best,
        note=f"{sequences} sequences of {probe.length} random tokens, {probe.repeats} times",
    )


def _mean_scores(
    trace: Trace, probe: RepeatedTokens, scores: Sequence[DataScore]
) -> list[dict[HeadId, float]]:
    """Some scores of every head on the probe, without what chance gives."""
    found = [dict[HeadId, float]() for _ in scores]
    for layer, view in enumerate(layer_views(trace, probe)):
        for score, values in zip(scores, found, strict=True):
            means = score.measure(view).mean(0).tolist()
            values.update((HeadId(layer, head), value) for head, value in enumerate(means))
    return found


@dataclass(frozen=True)
class AttentionScores:
    """What one head attends to on the probe: two scores against chance."""

    stripe: Score
    prefix_matching: Score


def attention_scores(
    trace: Trace,
    probe: RepeatedTokens,
    heads: Sequence[HeadId],
    *,
    draws: int = NULL_HEADS,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[HeadId, AttentionScores]:
    """Induction stripe and prefix matching of some heads."""
    frames = RandomFrames(trace.model, draws, seed)
    W_U = centered_unembedding(trace.model.weights)
    measures = (INDUCTION_STRIPE.measure, PREFIX_MATCHING.measure)
    found: dict[HeadId, AttentionScores] = {}
    layers = sorted({head.layer for head in heads})
    for number, layer in enumerate(layers):
        progress(number, len(layers), "candidates against random heads")
        own = sorted(head.head for head in heads if head.layer == layer)
        view = layer_view(trace, probe, layer, W_U)
        scores = compare_with_random_heads(trace.model, layer, view, frames, measures, heads=own)
        for head, both in zip(own, zip(*scores, strict=True), strict=True):
            found[HeadId(layer, head)] = AttentionScores(*both)
    return found


def _verify(
    trace: Trace,
    probe: RepeatedTokens,
    head: HeadId,
    scores: AttentionScores,
    edges: tuple[PartnerEdge, ...],
    step: Callable[[str], None],
) -> InductionHead:
    model = trace.model
    step("eigenvalues of")
    mechanism, partner = _mechanism(edges)
    require_logit_edges(model, "copying")
    product = token_product(model.weights, head.layer)
    ov = float(positivity(layer_eigenvalues(model.weights, head.layer, product)[head.head]))
    qk = None if partner is None else _matching_through(model, head, partner, mechanism)
    step("score terms of")
    shares = _score_shares(trace, probe, head)
    tokens, start = two_copies(probe), second_copy(probe)
    step("ideal pattern of")
    ideal = replace(model, head, tokens, pattern="induction", from_position=start)
    below = None
    if partner is not None and mechanism == "K-composition":
        step("ideal pattern below")
        below = replace(model, partner, tokens, pattern="previous", from_position=start)
    step("ablating")
    kept = ablate(model, head, tokens, after=After.PATTERNS_PRESERVED, from_position=start).cost
    return InductionHead(
        head=head,
        stripe=scores.stripe,
        prefix_matching=scores.prefix_matching,
        mechanism=mechanism,
        partner=partner,
        edges=edges,
        ov_positivity=ov,
        qk_positivity=qk,
        none_share=shares["none"],
        q_share=shares["q"],
        k_share=shares["k"],
        qk_share=shares["qk"],
        cost=ideal.cost,
        cost_patterns_kept=kept,
        recovered=ideal.share,
        partner_recovered=None if below is None else below.share,
        evidence=_evidence(shares, ov, qk, ideal, kept, below),
    )


def _mechanism(edges: tuple[PartnerEdge, ...]) -> tuple[Mechanism, HeadId | None]:
    """The edge whose cut removes most of the stripe, if it removes enough."""
    if not edges or edges[0].share_lost < LEAST_SHARE_LOST:
        return "none", None
    side: Mechanism = "K-composition" if edges[0].side is Side.K else "Q-composition"
    return side, edges[0].writer


def _matching_through(
    model: Model, head: HeadId, partner: HeadId, mechanism: Mechanism
) -> float | None:
    """Σλ/Σ|λ| of the head's QK through its partner's OV.

    None for pointers to positions: they carry no tokens to match, so there is no eigenvalue.
    """
    through = Path("embed", [partner])
    if mechanism == "K-composition":
        matching = token_qk(model, head, key_through=through)
    else:
        matching = token_qk(model, head, query_through=through)
    ratio = float(positivity(matching.eigenvalues()))
    return None if math.isnan(ratio) else ratio


def _score_shares(trace: Trace, probe: RepeatedTokens, head: HeadId) -> dict[str, float]:
    """The share of the score at the stripe that each group of terms carries.

    Each row's mean is removed first: softmax ignores what is the same for all sources.
    """
    scores = trace.scores(head)
    rows = torch.arange(probe.first + probe.length, probe.first + 2 * probe.length)
    columns = rows - probe.length + 1
    counts = 1.0 + rows

    def above_row_mean(group: Tensor) -> float:
        means = group.tril()[:, rows].sum(-1) / counts
        return float((group[:, rows, columns] - means).mean())

    groups = {"none": scores.none, "q": scores.q, "k": scores.k, "qk": scores.qk}
    parts = {name: above_row_mean(group) for name, group in groups.items()}
    total = sum(parts.values())
    return {name: part / total if total else math.nan for name, part in parts.items()}


def _evidence(
    shares: dict[str, float],
    ov: float,
    qk: float | None,
    ideal: Replacement,
    cost_patterns_kept: Estimate,
    below: Replacement | None,
) -> tuple[str, ...]:
    through = "" if qk is None else f", QK through the partner {qk:+.2f}"
    terms = (
        f"score at the stripe: {shares['k']:.0%} from terms with a head on the key side only, "
        f"{shares['q']:.0%} on the query side only, {shares['qk']:.0%} on both, "
        f"{shares['none']:.0%} on neither"
    )
    costs = (
        f"without the head the second copy's loss rises by {ideal.cost} nats, with all patterns "
        f"kept by {cost_patterns_kept}"
    )
    lines = [terms, f"eigenvalue positivity: OV {ov:+.2f}{through}", costs]
    if ideal.share is not None:
        lines.append(f"the ideal induction pattern recovers {ideal.share.value:.0%} of that")
    if below is not None and below.share is not None:
        lines.append(
            f"the ideal previous-token pattern in {below.head} recovers {below.share.value:.0%} "
            "of what its own ablation costs"
        )
    return tuple(lines)


def _why_none(model: Model, best: float, threshold: float, rejected: dict[HeadId, str]) -> str:
    layers = model.config.n_layers
    if layers == 0:
        return "No induction: this model has no layers, so positions do not see each other."
    if layers == 1:
        return (
            "No induction: one layer of heads matches a token with what is at a position, never "
            "with what came before it; to find what followed, a head must read a head in a layer "
            f"below. The best stripe is {best:.3f}."
        )
    if rejected:
        return "No induction: " + "; ".join(f"{head} {why}" for head, why in rejected.items()) + "."
    return (
        f"No induction: no head's stripe reaches {threshold} with p ≤ {ALPHA} "
        f"(the best is {best:.3f})."
    )
