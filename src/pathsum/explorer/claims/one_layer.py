"""Claims about models of one layer."""

from pathsum.circuits import Copying, copying, positional, skip_trigrams
from pathsum.circuits.tokens.token import common_tokens
from pathsum.explorer.answers.terms import importance
from pathsum.explorer.claims.claim import Measured, Statement, Subject
from pathsum.heads import Induction, induction
from pathsum.model import Model

ALPHA = 0.01
HALF = 0.5
TRIPLES = 50


def _individual_heads(subject: Subject) -> Measured:
    found = importance(subject.bench, subject.asked)
    gain = found.gain_estimates[1]
    return Measured(
        f"direct path gains {found.gain[0]:.2f} nats over guessing, heads {gain.value:.2f} more",
        gain.value > 0,
        gain,
        view=subject.link("paths", e=0),
        note="on the example texts",
    )


def _eigenvalue_ratios(model: Model) -> Copying:
    return copying(model, measures="eigenvalues")


def _copying_heads(subject: Subject) -> Measured:
    found = subject.bench.result(subject.asked, "copying", _eigenvalue_ratios)
    copies = [head for head in found.heads if head.ratio > 0 and head.p <= ALPHA]
    most = max(found.heads, key=lambda head: head.ratio)
    return Measured(
        f"{len(copies)} of {len(found.heads)} heads",
        len(copies) * 2 >= len(found.heads),
        view=subject.link("head", hd=most.head),
        note=f"Σλ/Σ|λ| above 0 with p ≤ {ALPHA}; the most {most.ratio:+.2f}, {most.head}",
    )


def _skip_trigrams(subject: Subject) -> Measured:
    found = subject.bench.result(subject.asked, "trigrams", _strongest)
    best = found[0]
    patterned = sum(str(triple.pattern) != "other" for triple in found)
    return Measured(
        f"strongest: {best}",
        len(found) > 0 and best.score > 0,
        view=subject.link("head", hd=best.head),
        note=f"{patterned} of the {len(found)} strongest have one of the paper's patterns",
    )


def _bugs(subject: Subject) -> Measured:
    found = subject.bench.result(subject.asked, "trigrams", _strongest)
    named = f", for instance {found.bugs[0]}" if found.bugs else ""
    head = found.bugs[0].head if found.bugs else found[0].head
    return Measured(
        f"{len(found.bugs)} cross terms behind the {len(found)} strongest{named}",
        len(found.bugs) > 0,
        view=subject.link("head", hd=head),
    )


def _strongest(model: Model):
    return skip_trigrams(model, k=min(TRIPLES, int(common_tokens(model).sum()) ** 2))


def _positional_heads(subject: Subject) -> Measured:
    found = positional(subject.model).heads
    by_position = [head for head in found if head.share >= HALF]
    most = max(found, key=lambda head: head.share)
    return Measured(
        f"{len(by_position)} of {len(found)} heads",
        len(by_position) > 0,
        view=subject.link("head", hd=most.head),
        note=(
            "position makes at least half of the variance of their scores; most: "
            f"{most.head}, {most.share:.0%}, looking {most.peak} back"
        ),
    )


def _no_induction(subject: Subject) -> Measured:
    found: Induction = subject.bench.result(subject.asked, "induction", induction)
    drop = found.first_copy.value - found.second_copy.value
    return Measured(
        f"best stripe {found.best_stripe:.2f}; random tokens cost {drop:+.2f} nats less the "
        "second time",
        not found.heads,
        view=subject.link("text", e=subject.probe_example()),
        note=found.why_none,
    )


ONE = (
    Statement(
        "one-heads",
        "One layer adds skip-trigrams to the bigrams",
        "Logits are the direct path plus one term for each head: where it attends (QK) and what "
        "attending there does (OV). The two circuits can be read on their own.",
        _individual_heads,
    ),
    Statement(
        "one-copying",
        "Most heads copy",
        "A head copies where attending to a token raises that same token: the eigenvalues of its "
        "full OV circuit are positive. Large parts of a one-layer model do just that.",
        _copying_heads,
        "10 of 12 heads",
    ),
    Statement(
        "one-trigrams",
        "Heads are tables of skip-trigrams",
        "[source] … [destination] → [out]: the destination attends to the source, and the source "
        "raises the out. Many of the strongest copy, or finish a word that was begun.",
        _skip_trigrams,
        "e.g. keep … in → mind",
    ),
    Statement(
        "one-bugs",
        "The factored form has bugs",
        "A head multiplies what attends with what is raised, so two true skip-trigrams of one "
        "source force their cross terms: keep … in → mind and keep … at → bay make "
        "keep … in → bay. The paper calls these bugs.",
        _bugs,
        "e.g. keep … in → bay",
    ),
    Statement(
        "one-positional",
        "Some heads look by position",
        "The score has a part that no token enters, only the distance. Heads in which it prevails "
        "look at the same few places back whatever stands there.",
        _positional_heads,
    ),
    Statement(
        "one-no-induction",
        "One layer cannot do induction",
        "To find what followed an earlier copy a head must know what stood before each source. "
        "That takes another head below it, which a one-layer model does not have.",
        _no_induction,
    ),
)
