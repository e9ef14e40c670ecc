"""Induction, verified: which heads do it, through whom, how, and what it is worth."""

import math

import torch

from pathsum.algebra.spectrum import positivity
from pathsum.circuits.composition.composition import Composition, composition
from pathsum.circuits.copying import copying_ratios
from pathsum.circuits.tokens.qk import token_qk
from pathsum.heads.atlas import DRAWN, DRAWS_FOR_CHANCE
from pathsum.heads.induction_record import Induction, InductionHead, Mechanism
from pathsum.heads.kinds.induction_stripe import INDUCTION_STRIPE, measure
from pathsum.heads.kinds.prefix_matching import measure as prefix_matching
from pathsum.heads.kinds.previous_token import measure as previous_token
from pathsum.heads.layer_view import (
    RandomFrames,
    in_full_precision,
    layer_views,
    random_heads,
)
from pathsum.heads.partners import PartnerEdge, candidates, cut_edges
from pathsum.heads.probe import repeats_probe
from pathsum.heads.repeat_loss import copy_losses, second_copy, two_copies
from pathsum.heads.score import Score, against_null
from pathsum.heads.verdicts import ALPHA
from pathsum.model import HeadId, Model, Path, Trace
from pathsum.paths import Estimate, Replacement, ablate, replace
from pathsum.paths.intervene.ablation import After
from pathsum.result import Progress, silent
from pathsum.text.probes import RepeatedTokens

# A mechanism is named where cutting one edge takes away at least this share of the stripe.
LEAST_SHARE_LOST = 0.25
DRAWS = 10


@torch.no_grad()
def induction(
    model: Model, *, draws: int = DRAWS, seed: int = 0, progress: Progress = silent
) -> Induction:
    """Find induction heads and test how they work, on repeated random tokens.

    A head whose stripe passes is a candidate. Then each edge from a lower head into its query or
    its key is patched from another draw, alone: the edge that takes away most of the stripe is its
    partner, and its side names the mechanism.

    >>> from pathsum.model import construct
    >>> by_k, by_q = induction(construct.induction()), induction(construct.induction_by_q())
    >>> by_k.heads[0].mechanism, str(by_k.heads[0].partner)
    ('K-composition', 'L0H0')
    >>> by_q.heads[0].mechanism
    'Q-composition'
    """
    model = in_full_precision(model)
    probe = repeats_probe(model, draws, seed)
    trace = model.trace(probe.tokens)
    scores, previous = first_look(trace, probe, seed)
    threshold = INDUCTION_STRIPE.info.threshold
    stripes = {head: stripe for head, (stripe, _) in scores.items()}
    candidates = [head for head, stripe in stripes.items() if stripe.passes(threshold, ALPHA)]
    rejected = {
        head: f"attends like one (stripe {stripes[head].value:.2f}) but writes nothing: {why}"
        for head in candidates
        if (why := _why_silent(model, head))
    }
    found = [head for head in candidates if head not in rejected]
    best = max((stripe.value for stripe in stripes.values()), default=0.0)
    heads: list[InductionHead] = []
    if model.config.n_layers > 1:
        composed = composition(model)
        for number, head in enumerate(found):
            progress(number, len(found), f"testing {head}")
            heads.append(_verify(trace, probe, head, scores[head], composed, previous))
        progress(len(found), len(found), "testing")
    first, second = copy_losses(trace, probe)
    return Induction(
        model=model.name,
        heads=tuple(heads),
        why_none="" if heads else _why_none(model, best, threshold, rejected),
        rejected={str(head): why for head, why in rejected.items()},
        first_copy=first,
        second_copy=second,
        best_stripe=best,
        stripes={str(head): stripe.value for head, stripe in stripes.items()},
        note=f"{draws} draws of {probe.length} random tokens, {probe.repeats} times",
    )


def first_look(
    trace: Trace, probe: RepeatedTokens, seed: int
) -> tuple[dict[HeadId, tuple[Score, Score]], dict[HeadId, float]]:
    """Stripe and prefix matching of every head against chance, and previous-token scores."""
    frames = RandomFrames(trace.model, DRAWN, seed)
    scores: dict[HeadId, tuple[Score, Score]] = {}
    previous: dict[HeadId, float] = {}
    for layer, view in enumerate(layer_views(trace, probe)):
        chance = random_heads(trace.model, layer, view.few(DRAWS_FOR_CHANCE), frames)
        stripes = against_null(measure(view), measure(chance).mean(0))
        prefixes = against_null(prefix_matching(view), prefix_matching(chance).mean(0))
        back = previous_token(view).mean(0)
        for head, pair in enumerate(zip(stripes, prefixes, strict=True)):
            scores[HeadId(layer, head)] = pair
            previous[HeadId(layer, head)] = float(back[head])
    return scores, previous


def _verify(
    trace: Trace,
    probe: RepeatedTokens,
    head: HeadId,
    scores: tuple[Score, Score],
    composed: Composition,
    previous: dict[HeadId, float],
) -> InductionHead:
    model = trace.model
    edges = cut_edges(trace, probe, head, candidates(head, composed, previous), composed)
    mechanism, partner = _mechanism(edges)
    ratios = {ratio.head: ratio.ratio for ratio in copying_ratios(model).heads}
    shares = _score_shares(trace, probe, head)
    tokens, start = two_copies(probe), second_copy(probe)
    ideal = replace(model, head, tokens, pattern="induction", from_position=start)
    below = None
    if partner is not None and mechanism == "K-composition":
        below = replace(model, partner, tokens, pattern="previous", from_position=start)
    qk = None
    if partner is not None:
        through = Path("embed", [partner])
        matching = (
            token_qk(model, head, key_through=through)
            if mechanism == "K-composition"
            else token_qk(model, head, query_through=through)
        )
        ratio = float(positivity(matching.eigenvalues()))
        # Pointers to positions carry no tokens to match: there is no such eigenvalue then.
        qk = None if math.isnan(ratio) else ratio
    kept = ablate(model, head, tokens, after=After.PATTERNS_PRESERVED, from_position=start).cost
    evidence = _evidence(shares, ratios[str(head)], qk, (ideal.cost, kept), ideal.share, below)
    return InductionHead(
        head=head,
        stripe=scores[0],
        prefix_matching=scores[1],
        mechanism=mechanism,
        partner=partner,
        edges=edges,
        ov_positivity=ratios[str(head)],
        qk_positivity=qk,
        none_share=shares["none"],
        q_share=shares["q"],
        k_share=shares["k"],
        qk_share=shares["qk"],
        cost=ideal.cost,
        cost_patterns_kept=kept,
        recovered=ideal.share,
        partner_recovered=None if below is None else below.share,
        evidence=evidence,
    )


def _mechanism(edges: tuple[PartnerEdge, ...]) -> tuple[Mechanism, HeadId | None]:
    """The edge that takes away most of the stripe, if it takes away enough."""
    if not edges or edges[0].share_lost < LEAST_SHARE_LOST:
        return "none", None
    side: Mechanism = "K-composition" if edges[0].side == "k" else "Q-composition"
    return side, edges[0].writer


def _score_shares(trace: Trace, probe: RepeatedTokens, head: HeadId) -> dict[str, float]:
    """How much of the score at the stripe each group of terms carries.

    Each row's mean is taken out first: softmax ignores what is the same for all sources.
    """
    scores = trace.scores(head)
    rows = torch.arange(probe.first + probe.length, probe.first + 2 * probe.length)
    columns = rows - probe.length + 1
    counts = 1.0 + rows

    def above_the_row(group: torch.Tensor) -> float:
        means = group.tril()[:, rows].sum(-1) / counts
        return float((group[:, rows, columns] - means).mean())

    groups = {"none": scores.none, "q": scores.q, "k": scores.k, "qk": scores.qk}
    parts = {name: above_the_row(group) for name, group in groups.items()}
    total = sum(parts.values())
    return {name: part / total if total else float("nan") for name, part in parts.items()}


def _evidence(
    shares: dict[str, float],
    ov: float,
    qk: float | None,
    costs: tuple[Estimate, Estimate],
    recovered: Estimate | None,
    below: Replacement | None,
) -> tuple[str, ...]:
    through = "" if qk is None else f", its QK through the partner {qk:+.2f}"
    groups = (
        f"score at the stripe: {shares['k']:.0%} from terms with a head on the key side alone, "
        f"{shares['q']:.0%} on the query side alone, {shares['qk']:.0%} on both, "
        f"{shares['none']:.0%} on neither"
    )
    cost = (
        f"without it the second copy's loss rises by {costs[0]} nats, "
        f"with all patterns kept by {costs[1]}"
    )
    told = [groups, f"eigenvalue positivity: its OV {ov:+.2f}{through}", cost]
    if recovered is not None:
        told.append(f"the ideal induction pattern recovers {recovered.value:.0%} of that")
    if below is not None and below.share is not None:
        told.append(
            f"the ideal previous-token pattern in {below.head} recovers {below.share.value:.0%} "
            "of what its own ablation costs"
        )
    return tuple(told)


def _why_silent(model: Model, name: HeadId) -> str:
    """Why a head moves nothing from source to destination; empty if it moves something."""
    head = model.head(name)
    for matrix, weight in (("W_O", head.W_O), ("W_V", head.W_V)):
        if not bool(weight.any()):
            return f"its {matrix} is zero"
    return "" if bool((head.W_V @ head.W_O).any()) else "its OV = W_V W_O is zero"


def _why_none(model: Model, best: float, threshold: float, rejected: dict[HeadId, str]) -> str:
    layers = model.config.n_layers
    if layers == 0:
        return "No induction: this model has no layers, so no position knows of another."
    if layers == 1:
        return (
            "No induction: one layer of heads matches a token with what stands at a position, "
            "never with what stood before it; to find what followed, a head must read another "
            f"head below it. The best stripe is {best:.3f}."
        )
    if rejected:
        return "No induction: " + "; ".join(f"{head} {why}" for head, why in rejected.items()) + "."
    return (
        f"No induction: no head's stripe reaches {threshold} with p ≤ {ALPHA} "
        f"(the best is {best:.3f})."
    )
