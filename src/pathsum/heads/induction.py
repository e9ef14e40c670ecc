"""`induction`: find induction heads, their previous-token partners, mechanism and contribution.

`probe` has the scores that find candidates; `mechanism` has the tests of the mechanism.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Annotated

import torch

from pathsum.algebra.nulls import ALPHA
from pathsum.algebra.rotations import DRAWS
from pathsum.algebra.spectrum import positivity
from pathsum.base import Column, Progress, Record, Side, Table, silent, text_column
from pathsum.base.errors import HeadError
from pathsum.base.estimate import Estimate
from pathsum.base.options import checked
from pathsum.base.record import HeadMapping, computed_field
from pathsum.base.table import format_number, rows_table
from pathsum.circuits.composition import composition
from pathsum.circuits.composition_edges import MEANING
from pathsum.circuits.copying import layer_eigenvalues
from pathsum.circuits.token_basis import require_logit_edges, token_product
from pathsum.heads.kinds import why_silent
from pathsum.heads.mechanism import (
    LEAST_SHARE_LOST,
    Mechanism,
    PartnerEdge,
    candidate_partners,
    matching_through,
    measure_cut_edges,
    score_shares,
)
from pathsum.heads.null import RandomHeads, check_draws, score_on_runs
from pathsum.heads.probe import (
    INDUCTION_STRIPE,
    PREFIX_MATCHING,
    PREVIOUS_TOKEN,
    SEQUENCES,
    copy_losses,
    predictions_on_repeats,
    repeats_probe,
    text_probe,
)
from pathsum.heads.score import DataScore, Score, layer_views
from pathsum.model import HeadId, Model, Trace
from pathsum.model.sequences import TextOrTokens, require_causal, require_tokens_out
from pathsum.paths import ablate, replace
from pathsum.paths.ablation import After
from pathsum.text.token_pool import RepeatedTokens, shuffled


@dataclass(frozen=True, eq=False)
class InductionHead(Record, kind="induction-head"):
    """One induction head and the evidence for its mechanism.

    `edges`          edges from lower heads into its query and key, with the cost of cutting each
    `ov_positivity`  Σλ/Σ|λ| of its full OV: the scatter's x
    `qk_positivity`  Σλ/Σ|λ| of its QK through the partner's OV: the scatter's y
    `k_share`        share of the score at the stripe, above the row's mean, from terms with a head
                     on the key side only; `q_share`, `qk_share` and `none_share` likewise
    `cost`           rise of the second copy's loss without the head, with all later computation
                     repeated; `cost_patterns_kept` with all patterns frozen
    `recovered`      share of the ablation cost that the ideal induction pattern recovers;
                     `partner_recovered` likewise for the partner's ideal previous-token pattern
    """

    head: Annotated[HeadId, text_column("head")]
    mechanism: Annotated[Mechanism, text_column("mechanism")]
    partner: Annotated[HeadId | None, text_column("partner")]
    stripe: Annotated[Score, Column("stripe", ".2f")]
    prefix_matching: Annotated[Score, Column("prefix", ".2f")]
    k_share: Annotated[float, Column("K share", ".0%")]
    q_share: float
    qk_share: float
    none_share: float
    ov_positivity: Annotated[float, Column("OV λ", "+.2f")]
    qk_positivity: Annotated[float | None, Column("QK λ", "+.2f")]
    cost: Annotated[Estimate, Column("cost", ".2f")]
    recovered: Annotated[Estimate | None, Column("recovered", ".0%")]
    edges: tuple[PartnerEdge, ...]
    cost_patterns_kept: Estimate
    partner_recovered: Estimate | None

    def to_table(self) -> Table:
        """The strongest edges, and the evidence below."""
        meaning = f"p, z: of the composition score, against random rotations. {MEANING}"
        title, note = f"{self.head}: {self.mechanism_text}", "\n".join((*self.evidence, meaning))
        return rows_table(self.edges[:6], title, note, PartnerEdge)

    @computed_field
    def evidence(self) -> tuple[str, ...]:
        """The measurements in words."""
        qk = self.qk_positivity
        through = "" if qk is None else f", QK through the partner {qk:+.2f}"
        shares = (self.k_share, self.q_share, self.qk_share, self.none_share)
        k, q, both, neither = (format_number(share, ".0%") for share in shares)
        lines = [
            (
                f"score at the stripe: {k} from terms with a head on the key side only, {q} on the "
                f"query side only, {both} on both sides, {neither} on neither"
            ),
            f"eigenvalue positivity: OV {self.ov_positivity:+.2f}{through}",
            (
                f"without the head, the loss on repeats rises by {self.cost} nats; with all "
                f"patterns frozen, it rises by {self.cost_patterns_kept}"
            ),
        ]
        if self.recovered is not None:
            share = f"{self.recovered.value:.0%}"
            lines.append(f"the ideal induction pattern recovers {share} of this cost")
        if self.partner_recovered is not None:
            lines.append(
                f"the ideal previous-token pattern in {self.partner} recovers "
                f"{self.partner_recovered.value:.0%} of the cost of ablating it"
            )
        return tuple(lines)

    @property
    def mechanism_text(self) -> str:
        """The mechanism and the partner in words."""
        if self.partner is None:
            return "no single edge"
        return f"{self.mechanism} with {self.partner}"


@dataclass(frozen=True, eq=False)
class Induction(Record, HeadMapping[InductionHead], kind="induction"):
    """The induction heads of a model, indexed by head: `induction["L1H4"]`.

    If there are none, `why_none` is the reason. `rejected` maps each head that attends like an
    induction head without being one to the reason. `stripes` has the induction stripe of every
    head. `first_copy` and `second_copy` are losses on repeated random tokens.
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
            what = f"its heads are {labels[0]} to {labels[-1]}" if labels else "it has no layers"
            return HeadError(f"head {head} does not exist in {self.model}: {what}")
        why = self.rejected.get(head) or (
            f"has a stripe of {self.stripes[head]:.2f}, and an induction head needs at least "
            f"{INDUCTION_STRIPE.info.threshold} with p ≤ {ALPHA}"
        )
        return HeadError(f"{head} is not an induction head of {self.model}: it {why}")

    def to_table(self) -> Table:
        """One row per head."""
        rejected = [f"{head} {why}" for head, why in self.rejected.items()] if self.heads else []
        legend = (
            "λ: eigenvalue positivity of OV, and of QK through the partner; cost of ablating the "
            "head: nats on the second copy; recovered: share of the cost, by the ideal pattern"
        )
        losses = (
            f"loss {self.first_copy} nats on first occurrences, {self.second_copy} on repeats; "
            f"best stripe {self.best_stripe:.3f}"
        )
        notes = (self.why_none, *rejected, legend if self.heads else "", losses, self.note)
        note = "\n".join(filter(None, notes))
        return rows_table(self.heads, f"induction in {self.model}", note, InductionHead)


@torch.no_grad()
@checked
def induction(
    model: Model,
    *,
    text: TextOrTokens | None = None,
    sequences: int = SEQUENCES,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress = silent,
) -> Induction:
    """Find induction heads on repeated random tokens, and test their mechanism.

    Args:
        model: The model.
        text: Token ids [n, pos], or texts of one length, for a model trained on sequences of one
            format. They replace the random tokens, and prefix matching replaces the stripe.
        sequences: The number of sequences of random tokens.
        draws: The number of random heads in the null.
        seed: The seed of random tokens and heads.
        progress: Called as the work proceeds.

    Returns:
        The induction heads, each with partner, mechanism and tests; if there are none, `why_none`
        gives the reason.

    Example:
        >>> from pathsum.model import construct
        >>> by_k, by_q = induction(construct.induction()), induction(construct.induction_by_q())
        >>> by_k.heads[0].mechanism, by_k.heads[0].partner, by_q.heads[0].mechanism
        ('K-composition', 'L0H0', 'Q-composition')

    Each edge from a lower head into the query or key is patched from a run on shuffled tokens. The
    edge that removes most of the stripe determines the partner and the mechanism.
    """
    check_draws(draws)
    require_tokens_out(model, "induction")
    require_causal(model, "induction")
    probe = repeats_probe(model, sequences, seed) if text is None else text_probe(model, text)
    score = _stripe_score(probe)
    trace = model.trace(probe.tokens, progress=progress)
    threshold = score.info.threshold
    stripes, previous = _stripes_and_previous(trace, probe)
    # Random heads are only needed for heads above the threshold.
    large = [head for head, stripe in stripes.items() if stripe >= threshold]
    scores = induction_scores(trace, probe, large, draws=draws, seed=seed, progress=progress)
    candidates = [head for head, it in scores.items() if it[score.name].passes(threshold, ALPHA)]
    rejected = {
        head: f"has a stripe of {stripes[head]:.2f} but writes nothing: {why}"
        for head in candidates
        if (why := why_silent(model, head))
    }
    accepted = {head: scores[head] for head in candidates if head not in rejected}
    heads = _test_heads(trace, probe, accepted, previous, progress)
    best = max(stripes.values(), default=0.0)
    measured_on = f"{sequences} sequences: {probe.repeats} copies of {probe.length} random tokens"
    if text is not None:
        count, length = probe.tokens.shape
        measured_on = f"{count} sequences of the given text ({length} tokens)"
    why_none = "" if heads else _why_none(model, best, threshold, rejected)
    losses = copy_losses(trace, probe)
    return Induction(model.name, heads, why_none, rejected, stripes, *losses, best, measured_on)


def _stripe_score(probe: RepeatedTokens) -> DataScore:
    """The score for candidates: prefix matching on text, which has no second copy."""
    return PREFIX_MATCHING if probe.repeats == 1 else INDUCTION_STRIPE


def _stripes_and_previous(
    trace: Trace, probe: RepeatedTokens
) -> tuple[dict[HeadId, float], dict[HeadId, float]]:
    """The induction stripe and the previous-token score of every head, without a null."""
    stripes: dict[HeadId, float] = {}
    previous: dict[HeadId, float] = {}
    for layer, view in enumerate(layer_views(trace, probe)):
        for score, values in ((_stripe_score(probe), stripes), (PREVIOUS_TOKEN, previous)):
            means = score.measure(view).nanmean(0).tolist()
            values.update((HeadId(layer, head), value) for head, value in enumerate(means))
    return stripes, previous


def induction_scores(
    trace: Trace,
    probe: RepeatedTokens,
    heads: Sequence[HeadId],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[HeadId, dict[str, Score]]:
    """Induction stripe and prefix matching of heads, by name, with their p-values."""
    measured = list(dict.fromkeys((_stripe_score(probe), PREFIX_MATCHING)))
    result = score_on_runs(
        *([(trace, probe)], measured, RandomHeads(trace.model, draws, seed)),
        what="random tokens",
        phase="candidates against random heads",
        heads=heads,
        progress=progress,
    )
    return {
        head: {name: replace_fields(score, part=None) for name, score in by_name.items()}
        for head, by_name in result.scores.items()
    }


def _test_heads(
    trace: Trace,
    probe: RepeatedTokens,
    candidates: dict[HeadId, dict[str, Score]],
    previous: dict[HeadId, float],
    progress: Progress,
) -> tuple[InductionHead, ...]:
    """Cut the edges into each candidate and measure its contribution."""
    if trace.model.config.n_layers < 2:
        return ()
    composed = composition(trace.model, progress=progress)
    shuffled_run = trace
    if candidates:
        shuffled_run = trace.model.trace(shuffled(probe.tokens, probe.first), progress=progress)
    heads: list[InductionHead] = []
    for number, (head, scores) in enumerate(candidates.items()):

        def step(what: str, number: int = number, head: HeadId = head) -> None:
            progress(number, len(candidates), f"{what} {head}")

        writers = candidate_partners(head, composed, previous)
        edges = measure_cut_edges(trace, probe, head, writers, composed, shuffled_run, step)
        heads.append(_verify(trace, probe, head, scores, edges, step))
    progress(len(candidates), len(candidates), "testing")
    return tuple(heads)


def _verify(
    trace: Trace,
    probe: RepeatedTokens,
    head: HeadId,
    scores: dict[str, Score],
    edges: tuple[PartnerEdge, ...],
    step: Callable[[str], None],
) -> InductionHead:
    model = trace.model
    step("eigenvalues of")
    mechanism: Mechanism = "none"
    partner = None
    if edges and edges[0].share_lost >= LEAST_SHARE_LOST:
        partner = edges[0].writer
        mechanism = "K-composition" if edges[0].side is Side.K else "Q-composition"
    require_logit_edges(model, "copying")
    product = token_product(model.weights, head.layer)
    ov = float(positivity(layer_eigenvalues(model.weights, head.layer, product)[head.head]))
    qk = None if partner is None else matching_through(model, head, partner, mechanism)
    step("score terms of")
    shares = score_shares(trace, probe, head)
    tokens, predictions = predictions_on_repeats(probe)
    step("ideal pattern of")
    ideal = replace(model, head, tokens, pattern="induction", **predictions)
    below = None
    if partner is not None and mechanism == "K-composition":
        step("ideal pattern below")
        below = replace(model, partner, tokens, pattern="previous", **predictions).share
    step("ablating")
    frozen = ablate(model, head, tokens, after=After.FREEZE_PATTERNS, **predictions)
    return InductionHead(
        head=head,
        stripe=scores[_stripe_score(probe).name],
        prefix_matching=scores[PREFIX_MATCHING.name],
        mechanism=mechanism,
        partner=partner,
        edges=edges,
        ov_positivity=ov,
        qk_positivity=qk,
        **shares,
        cost=ideal.cost,
        cost_patterns_kept=frozen.cost,
        recovered=ideal.share,
        partner_recovered=below,
    )


def _why_none(model: Model, best: float, threshold: float, rejected: dict[HeadId, str]) -> str:
    why = f"no head's stripe reaches {threshold} with p ≤ {ALPHA} (the best is {best:.3f})"
    if rejected:
        why = "; ".join(f"{head} {why}" for head, why in rejected.items())
    if model.config.n_layers == 1:
        why = (
            "in a one-layer model, keys encode the token at a position, but not the preceding "
            "token. To find the token that followed an earlier copy, a head must read a head in a "
            f"lower layer. The best stripe is {best:.3f}"
        )
    if model.config.n_layers == 0:
        why = "this model has no layers, so positions do not see each other"
    return f"No induction: {why}."
