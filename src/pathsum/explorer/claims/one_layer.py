"""Claims about one-layer models."""

from pathsum.circuits import positional, skip_trigrams
from pathsum.circuits.tokens.token import common_tokens
from pathsum.errors import InputError
from pathsum.explorer.answers.atlas import whole_atlas
from pathsum.explorer.answers.whole_model import terms
from pathsum.explorer.claims.claim import Measurement, Statement, Subject
from pathsum.explorer.claims.picture import HeadPicture, LossPicture, TermsPicture
from pathsum.heads import Induction, induction
from pathsum.heads.kinds import COPYING_BY_WEIGHTS
from pathsum.model import Model

HALF = 0.5
TRIPLES = 50


def _individual_heads(subject: Subject) -> Measurement:
    found = terms(subject.bench, subject.params)
    gain = found.gain_estimates[1]
    return Measurement(
        f"the direct path gains {found.gain[0]:.2f} nats over a uniform guess, the heads "
        f"{gain.value:.2f} more",
        gain.value > 0,
        gain,
        view=subject.link("paths", e=0),
        picture=TermsPicture("order"),
        note="on the example texts",
    )


def _copying_heads(subject: Subject) -> Measurement:
    found = whole_atlas(subject.bench, subject.params)
    copies = found.of_kind("copying")
    ratios = found.values(COPYING_BY_WEIGHTS.info.name)
    most = max(ratios, key=lambda head: ratios[head])
    return Measurement(
        f"{len(copies)} of {len(found)} heads",
        len(copies) * 2 >= len(found),
        view=subject.link("head", h=most),
        picture=HeadPicture(most, "eigenvalues"),
        note=f"Σλ/Σ|λ| above 0 beyond chance (p ≤ {found.alpha}), and the attended token itself "
        f"raised on the probe; the largest ratio is {ratios[most]:+.2f}, of {most}",
    )


def _skip_trigrams(subject: Subject) -> Measurement:
    found = subject.bench.result(subject.params, "trigrams", _strongest)
    if len(found) == 0:
        raise InputError(found.note)
    best = found[0]
    patterned = sum(str(triple.pattern) != "other" for triple in found)
    return Measurement(
        f"strongest: {best}",
        len(found) > 0 and best.score > 0,
        view=subject.link("head", h=best.head),
        picture=HeadPicture(best.head, "trigrams"),
        note=f"{patterned} of the {len(found)} strongest have one of the paper's patterns",
    )


def _bugs(subject: Subject) -> Measurement:
    found = subject.bench.result(subject.params, "trigrams", _strongest)
    if len(found) == 0:
        raise InputError(found.note)
    named = f", for instance {found.bugs[0]}" if found.bugs else ""
    head = found.bugs[0].head if found.bugs else found[0].head
    return Measurement(
        f"{len(found.bugs)} cross terms behind the {len(found)} strongest{named}",
        len(found.bugs) > 0,
        view=subject.link("head", h=head),
        picture=HeadPicture(head, "trigrams"),
    )


def _strongest(model: Model):
    return skip_trigrams(model, k=min(TRIPLES, int(common_tokens(model).sum()) ** 2))


def _positional_heads(subject: Subject) -> Measurement:
    found = positional(subject.model).heads
    by_position = [head for head in found if head.share >= HALF]
    most = max(found, key=lambda head: head.share)
    return Measurement(
        f"{len(by_position)} of {len(found)} heads",
        len(by_position) > 0,
        view=subject.link("head", h=most.head),
        picture=HeadPicture(most.head, "offsets"),
        note=(
            "position explains at least half of the variance of their scores; the most "
            f"positional is {most.head} ({most.share:.0%}, strongest {most.peak} tokens back)"
        ),
    )


def _no_induction(subject: Subject) -> Measurement:
    found: Induction = subject.bench.result(subject.params, "induction", induction)
    drop = found.first_copy.value - found.second_copy.value
    return Measurement(
        f"the best induction stripe is {found.best_stripe:.2f}; the second copy of random tokens "
        f"costs {drop:+.2f} nats less",
        not found.heads,
        view=subject.link("text", e=subject.probe_example()),
        picture=LossPicture(subject.probe_example()),
        note=found.why_none,
    )


ONE = (
    Statement(
        "one-heads",
        "One layer adds skip-trigrams to the bigrams",
        "Logits are the direct path plus one term per head: where it attends (QK) and what "
        "attending there does (OV). The two circuits can be read separately.",
        _individual_heads,
    ),
    Statement(
        "one-copying",
        "Most heads copy",
        "A head copies if attending to a token raises that same token: then the eigenvalues of its "
        "full OV circuit are mostly positive. Most heads of a one-layer model do this.",
        _copying_heads,
        "10 of 12 heads",
    ),
    Statement(
        "one-trigrams",
        "Heads are tables of skip-trigrams",
        "[source] … [destination] → [out]: the destination attends to the source, and the source "
        "raises the out token. Many of the strongest ones copy, or complete a word.",
        _skip_trigrams,
        "e.g. keep … in → mind",
    ),
    Statement(
        "one-bugs",
        "The factored form has bugs",
        "A head is a product of QK and OV, so two correct skip-trigrams with the same source force "
        "their cross terms: keep … in → mind and keep … at → bay imply keep … in → bay. The paper "
        "calls these bugs.",
        _bugs,
        "e.g. keep … in → bay",
    ),
    Statement(
        "one-positional",
        "Some heads attend by position",
        "Part of the attention score depends on distance alone. Heads in which it dominates attend "
        "a fixed distance back, whatever token is there.",
        _positional_heads,
    ),
    Statement(
        "one-no-induction",
        "One layer cannot do induction",
        "To find what followed an earlier copy, a head must know which token precedes each source. "
        "That takes another head below it, which a one-layer model does not have.",
        _no_induction,
    ),
)
