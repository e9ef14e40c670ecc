"""Claims about one-layer models."""

from pathsum.base import Progress
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.circuits import positional, skip_trigrams
from pathsum.circuits.tokens.token import common_tokens
from pathsum.circuits.trigrams.trigram_records import SkipTrigrams
from pathsum.circuits.trigrams.triple import Pattern
from pathsum.explorer.answers.atlas import atlas_with
from pathsum.heads.atlas import Atlas
from pathsum.heads.kinds import COPYING_BY_DATA, COPYING_BY_WEIGHTS, INDUCTION_STRIPE
from pathsum.model import Model
from pathsum.paper import rules
from pathsum.paper.claim import Measurement, Statement, Subject, as_estimate
from pathsum.paper.on_text import order_bars, terms_on_text
from pathsum.paper.picture import Bar, BarsPicture, OffsetsPicture

TRIPLES = 50
MOST_BARS = 12
PAPERS_PATTERNS = (
    Pattern.COPY,
    Pattern.COPY_VARIANT,
    Pattern.PIECES,
    Pattern.PIECES_VARIANT,
)


def _individual_heads(subject: Subject) -> Measurement:
    found = terms_on_text(subject)
    gain = found.gain_estimates[1]
    return Measurement(
        gain,
        f"the direct path gains {found.gain[0]:.2f} nats over a uniform guess, the heads "
        f"{gain.value:.2f} more",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "Loss saved by the direct path, and by the heads on top of it",
            "loss saved, nats per token",
            order_bars(found),
        ),
        note=found.note,
    )


def _copying_heads(subject: Subject) -> Measurement:
    found = _atlas(subject)
    copies = {entry.head for entry in found.of_kind("copying")}
    bars = tuple(
        Bar.of(
            f"{entry.head}{' copies' if entry.head in copies else ''}",
            entry.scores[COPYING_BY_WEIGHTS.info.name],
            subject.link("head", head=str(entry.head)),
        )
        for entry in found
    )
    most = max(found, key=lambda entry: entry.scores[COPYING_BY_WEIGHTS.info.name].value)
    return Measurement(
        Estimate(len(copies) / len(found)),
        f"{len(copies)} of {len(found)} heads",
        view=subject.link("head", head=str(most.head)),
        picture=BarsPicture(
            "Eigenvalues of each head's full OV circuit: the share that is positive",
            "Σλ / Σ|λ| of W_E OV W_U (line: by chance)",
            bars,
        ),
        note=f"a head copies if Σλ/Σ|λ| is above 0 beyond chance (p ≤ {found.alpha}) and the "
        "attended token itself is raised on the probe",
    )


def _atlas(subject: Subject) -> Atlas:
    """With the scores that these claims are about."""
    names = (COPYING_BY_DATA.info.name, COPYING_BY_WEIGHTS.info.name, INDUCTION_STRIPE.info.name)
    return atlas_with(subject.bench, subject.params, names)


def _skip_trigrams(subject: Subject) -> Measurement:
    found = _strongest(subject)
    shares = {one.pattern: one.share for one in found.classes}
    if not shares:
        raise InputError(
            "the patterns' shares are measured on text, and this model comes with none; use "
            "pathsum trigrams MODEL --corpus …"
        )
    share = sum(shares.get(pattern, 0.0) for pattern in PAPERS_PATTERNS)
    best = found[0]
    return Measurement(
        Estimate(share),
        f"{share:.0%} of the gain; the strongest is {best}",
        view=subject.link("head", head=best.head),
        picture=BarsPicture(
            "What skip-trigrams gain where they are right, by pattern",
            "share of the gain",
            tuple(Bar(str(pattern), value) for pattern, value in shares.items()),
        ),
        note="the paper's patterns are the copies [b]…[a]→[b] and the pieces [ab]…[a]→[b], with "
        "their variants; on held-out text",
    )


def _bugs(subject: Subject) -> Measurement:
    found = _strongest(subject)
    if found.cost is None:
        raise InputError(
            "what bugs cost is measured on text, and this model comes with none; use "
            "pathsum trigrams MODEL --corpus …"
        )
    cost = found.cost.cost_where_active if found.cost.positions else 0.0
    ranked = sorted(zip(found.bugs, found.cost.each, strict=True), key=lambda one: -abs(one[1]))
    bars = tuple(
        Bar(f"{bug} ({bug.head})", 1e6 * each, link=subject.link("head", head=str(bug.head)))
        for bug, each in ranked[:MOST_BARS]
    )
    return Measurement(
        Estimate(cost),
        f"{len(found.bugs)} cross terms behind the {len(found)} strongest skip-trigrams add "
        f"{cost:+.4f} nats where they act",
        view=subject.link("head", head=str(ranked[0][0].head if ranked else found[0].head)),
        picture=BarsPicture(
            "What each bug costs on held-out text (below 0: it helps)",
            "loss added, millionths of a nat per token",
            bars,
        )
        if bars
        else None,
        note=f"at {found.cost.positions} of {found.cost.predicted} predictions of held-out text",
    )


def _strongest(subject: Subject) -> SkipTrigrams:
    def compute(model: Model, progress: Progress) -> SkipTrigrams:
        k = min(TRIPLES, int(common_tokens(model).sum()) ** 2)
        return skip_trigrams(model, k=k, progress=progress)

    found = subject.bench.slow_result(subject.params, "trigrams", compute)
    if len(found) == 0:
        raise InputError(found.note)
    return found


def _positional_heads(subject: Subject) -> Measurement:
    found = [head for head in positional(subject.model).heads if head.share == head.share]
    if not found:
        raise InputError("no head's scores vary, so position explains nothing of them")
    most = max(found, key=lambda head: head.share)
    others = sum(head.share >= rules.POSITIONAL.holds for head in found)
    return Measurement(
        Estimate(most.share),
        f"{most.head}: {most.share:.0%}, strongest {most.peak} tokens back",
        view=subject.link("head", head=most.head),
        picture=OffsetsPicture(most.head),
        note=f"position explains at least half of the variance in {others} of {len(found)} heads",
    )


def _no_induction(subject: Subject) -> Measurement:
    found = _atlas(subject)
    best = max(found, key=lambda entry: entry.scores["induction"].value)
    stripe = best.scores["induction"]
    return Measurement(
        as_estimate(stripe),
        f"the best head, {best.head}, gives {stripe.value:.3f} of its attention to the token after "
        "the earlier copy",
        view=subject.probe_link(str(best.head)),
        picture=subject.pattern_picture(str(best.head)),
        note="random tokens, repeated: an induction head would draw a stripe parallel to the "
        "diagonal",
    )


ONE = (
    Statement(
        "one-heads",
        "One layer adds skip-trigrams to the bigrams",
        "Logits are the direct path plus one term per head: where it attends (QK) and what "
        "attending there does (OV). The two circuits can be read separately.",
        rules.HEADS_GAIN,
        _individual_heads,
    ),
    Statement(
        "one-copying",
        "Most heads copy",
        "A head copies if attending to a token raises that same token: then the eigenvalues of its "
        "full OV circuit are mostly positive. Most heads of a one-layer model do this.",
        rules.COPYING,
        _copying_heads,
        "10 of 12 heads",
        10 / 12,
    ),
    Statement(
        "one-trigrams",
        "Most skip-trigrams copy, or complete a word",
        "[source] … [destination] → [out]: the destination attends to the source, and the source "
        "raises the out token. Many of the strongest ones copy, or complete a word.",
        rules.TRIGRAMS,
        _skip_trigrams,
        "e.g. keep … in → mind",
    ),
    Statement(
        "one-bugs",
        "The factored form has bugs",
        "A head is a product of QK and OV, so two correct skip-trigrams with the same source force "
        "their cross terms: keep … in → mind and keep … at → bay imply keep … in → bay. The paper "
        "calls these bugs.",
        rules.BUGS,
        _bugs,
        "e.g. keep … in → bay",
    ),
    Statement(
        "one-positional",
        "Some heads attend by position",
        "Part of the attention score depends on distance alone. Heads in which it dominates attend "
        "a fixed distance back, whatever token is there.",
        rules.POSITIONAL,
        _positional_heads,
    ),
    Statement(
        "one-no-induction",
        "One layer cannot do induction",
        "To find what followed an earlier copy, a head must know which token precedes each source. "
        "That takes another head below it, which a one-layer model does not have.",
        rules.NO_INDUCTION,
        _no_induction,
    ),
)
