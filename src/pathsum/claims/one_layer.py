"""Claims about one-layer models, and about which paths matter on text: by order, and by layer.

The paper's gains are known second-hand: 1.8, 5.2 and 0.3 nats for orders 0, 1 and 2; its first
layer 1.3 alone and 0.05 given the second, its second 5.2 alone and 4.0 given the first.
"""

from dataclasses import replace

from pathsum.base import Progress
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.circuits import positional, skip_trigrams
from pathsum.circuits.token_basis import common_tokens
from pathsum.circuits.trigram_text import Pattern
from pathsum.circuits.trigrams import SkipTrigrams
from pathsum.claims.claim import (
    Bar,
    BarsPicture,
    Measurement,
    OffsetsPicture,
    Subject,
    as_estimate,
    statement,
)
from pathsum.claims.examples import examples, text_pieces
from pathsum.heads import Atlas, atlas
from pathsum.model import Model
from pathsum.paths import TermImportance, by_layer, term_importance
from pathsum.paths.terms import TermSetGain

SAVED = "loss saved, nats per token"


def measured_terms(subject: Subject) -> TermImportance:
    """Losses and gains by order and by layer; the note names the text.

    The text is held-out text that comes with the model, else pieces of the example texts.
    """

    def compute(model: Model, progress: Progress) -> TermImportance:
        tokens, name = model.held_out, "held-out text"
        if tokens is None:
            texts = text_pieces(model, examples(model))
            tokens, name = texts.tokens, texts.name
        # A single layer gains what its order does.
        sets = by_layer(model) if model.config.n_layers > 1 else ()
        found = term_importance(model, tokens, sets=sets, progress=progress)
        predictions = len(tokens) * (tokens.shape[1] - 1)
        note = f"on {name}, {len(tokens)} sequences with {predictions:,} predictions"
        return replace(found, note=note)

    return subject.result("terms on text", compute)


def gain_bars(found: TermImportance) -> tuple[Bar, ...]:
    """The gain of each order."""
    names = ("direct path", "single heads", *(f"{n} in a row" for n in range(2, len(found.gain))))
    return tuple(
        Bar.of(f"order {order}: {names[order]}", gain)
        for order, gain in enumerate(found.gain_estimates)
    )


def _layers(subject: Subject) -> list[TermSetGain]:
    return [gain for gain in measured_terms(subject).sets if gain.name.startswith("layer ")]


@statement("two-terms")
def virtual_heads(subject: Subject) -> Measurement:
    """Virtual heads matter least

    Beyond the direct path, paths through one head do most of the work. Paths through two heads in a
    row (virtual heads) add little.
    """
    found = measured_terms(subject)
    single, virtual = found.gain[1], sum(found.gain[2:])
    if single <= 0:
        raise InputError(f"single heads gain nothing ({single:.2f} nats), so there is no share")
    return Measurement(
        Estimate(virtual / single),
        f"virtual heads gain {virtual:.2f} nats, single heads {single:.2f}",
        view=subject.link("paths", example=0),
        picture=BarsPicture("Gain of paths through heads", SAVED, gain_bars(found)[1:]),
        note=found.note,
    )


@statement("two-direct")
def heads_over_direct_path(subject: Subject) -> Measurement:
    """Single heads gain more than the direct path

    In the paper's model, paths through one head save most of the loss, several times as much as
    the direct path.
    """
    found = measured_terms(subject)
    names = ["the direct path alone", "and paths through one head"]
    names += [f"and paths through {order}" for order in range(2, len(found.loss))]
    losses = zip(names, found.loss_estimates, strict=True)
    return Measurement(
        Estimate(found.gain[1] - found.gain[0]),
        f"single heads gain {found.gain[1]:.2f} nats, the direct path {found.gain[0]:.2f}",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "Remaining loss as longer paths are added",
            "loss, nats per token",
            (Bar("a uniform guess", found.uniform), *(Bar.of(*named) for named in losses)),
        ),
        note=f"{found.note}; the direct path is compared with a uniform guess over "
        f"{subject.model.config.d_vocab_out:,} tokens, the paper's over some 50,000",
    )


@statement("two-layers")
def last_layer(subject: Subject) -> Measurement:
    """The last layer matters most

    Given everything else, the direct contribution of the last layer's heads to the logits gains
    most. The first layer acts mainly through the second.
    """
    layers = _layers(subject)
    return Measurement(
        Estimate(layers[-1].given_others.value - layers[0].given_others.value),
        "; ".join(f"{each.name}: {each.given_others.value:.2f} nats" for each in layers),
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "Gain of each layer, given all others",
            SAVED,
            tuple(Bar.of(each.name, each.given_others) for each in layers),
        ),
        note=f"the direct contribution of its heads to the logits; {measured_terms(subject).note}",
    )


@statement("two-first")
def first_layer(subject: Subject) -> Measurement:
    """The first layer adds almost nothing to the second

    Alone, the first layer's heads help to predict. Given the second layer, their direct
    contribution to the logits gains almost nothing.
    """
    first = _layers(subject)[0]
    alone, given = first.alone, first.given_others
    if alone.value <= 0:
        raise InputError(
            f"alone, the first layer gains nothing ({alone.value:.2f} nats), so there is no share"
        )
    return Measurement(
        Estimate(given.value / alone.value),
        f"{alone.value:.2f} nats alone, {given.value:.2f} given the others",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "Gain of the first layer",
            SAVED,
            (Bar.of("alone", alone), Bar.of("given the other layers", given)),
        ),
        note=f"the direct contribution of its heads to the logits; {measured_terms(subject).note}",
    )


TERMS = (virtual_heads, heads_over_direct_path, last_layer, first_layer)


TRIPLES = 50
MOST_BARS = 12
PAPERS_PATTERNS = (Pattern.COPY, Pattern.COPY_VARIANT, Pattern.PIECES, Pattern.PIECES_VARIANT)
# The scores that these claims are about.
SCORES = ("copying", "copying_weights", "induction")
HALF = 0.5


@statement("one-heads")
def gain_of_heads(subject: Subject) -> Measurement:
    """One layer adds skip-trigrams to the bigrams

    Logits are the direct path plus one term per head: where it attends (QK) and what attending
    there does (OV). The two circuits can be read separately.
    """
    found = measured_terms(subject)
    gain = found.gain_estimates[1]
    return Measurement(
        gain,
        f"the direct path gains {found.gain[0]:.2f} nats over a uniform guess, the heads "
        f"{gain.value:.2f} more",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "Loss saved by the direct path, and by the heads on top of it", SAVED, gain_bars(found)
        ),
        note=found.note,
    )


@statement("one-copying")
def heads_that_copy(subject: Subject) -> Measurement:
    """Most heads copy

    A head copies if attending to a token raises that same token: then the eigenvalues of its full
    OV circuit are mostly positive. Most heads of a one-layer model do this.
    """
    found = _atlas(subject)
    copies = {entry.head for entry in found.of_kind("copying")}
    scores = {entry.head: entry.scores["copying_weights"] for entry in found.heads}
    names = {head: f"{head} copies" if head in copies else str(head) for head in scores}
    bars = tuple(
        Bar.of(names[head], score, subject.link("head", head=head))
        for head, score in scores.items()
    )
    return Measurement(
        Estimate(len(copies) / len(found)),
        f"{len(copies)} of {len(found)} heads",
        view=subject.link("head", head=max(scores, key=lambda head: scores[head].value)),
        picture=BarsPicture(
            "Eigenvalues of each head's full OV circuit: the share that is positive",
            "Σλ / Σ|λ| of W_E OV W_U (line: null)",
            bars,
        ),
        note=f"a head copies if Σλ/Σ|λ| exceeds its null (p ≤ {found.alpha}) and the "
        "attended token itself is raised on the probe",
    )


def _atlas(subject: Subject) -> Atlas:
    """The atlas of these scores; of the user's own model the whole one, which pages show."""
    name, scores = ("atlas", None) if subject.is_own else ("atlas of one layer", SCORES)
    return subject.result(name, lambda model, to: atlas(model, scores=scores, progress=to))


@statement("one-trigrams")
def trigram_patterns(subject: Subject) -> Measurement:
    """Most skip-trigrams copy, or complete a word

    In [source] … [destination] → [out], the destination attends to the source, and the source
    raises the out token. Many of the strongest skip-trigrams copy, or complete a word.
    """
    found = _strongest(subject)
    shares = {one.pattern: one.share for one in found.classes}
    if not shares:
        raise InputError(
            "the patterns' shares are measured on text, and this model comes without any; use "
            "pathsum trigrams MODEL --corpus …"
        )
    share = sum(shares.get(pattern, 0.0) for pattern in PAPERS_PATTERNS)
    best = found[0]
    return Measurement(
        Estimate(share),
        f"{share:.0%} of the gain; the strongest is {best}",
        view=subject.link("head", head=best.head),
        picture=BarsPicture(
            "Gain of skip-trigrams where they are right, by pattern",
            "share of the gain",
            tuple(Bar("  ".join((c.pattern, *c.examples[:1])), c.share) for c in found.classes),
        ),
        note="the paper's patterns are the copies [b]…[a]→[b] and the pieces [ab]…[a]→[b], with "
        "their variants; on held-out text",
    )


@statement("one-bugs")
def bugs_of_the_factored_form(subject: Subject) -> Measurement:
    """The factored form has bugs

    A head is a product of QK and OV, so two correct skip-trigrams with the same source force their
    cross terms: keep … in → mind and keep … at → bay imply keep … in → bay. The paper calls these
    bugs.
    """
    found = _strongest(subject)
    if found.cost is None:
        raise InputError(
            "the cost of bugs is measured on text, and this model comes without any; use "
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
            "Cost of each bug on held-out text (below 0: it helps)",
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

    found = subject.result("trigrams", compute)
    if len(found) == 0:
        raise InputError(found.note)
    return found


@statement("one-positional")
def positional_heads(subject: Subject) -> Measurement:
    """Some heads attend by position

    Part of the attention score depends on distance alone. Where this part dominates, the head
    attends a fixed distance back, regardless of the token there.
    """
    found = [head for head in positional(subject.model).heads if head.share == head.share]
    if not found:
        raise InputError("no head's scores vary, so position cannot explain any variance")
    most = max(found, key=lambda head: head.share)
    others = sum(head.share >= HALF for head in found)
    return Measurement(
        Estimate(most.share),
        f"{most.head}: {most.share:.0%}, strongest {most.peak} tokens back",
        view=subject.link("head", head=most.head),
        picture=OffsetsPicture(most.head),
        note=f"position explains at least half of the variance in {others} of {len(found)} heads",
    )


@statement("one-no-induction")
def no_induction(subject: Subject) -> Measurement:
    """One layer cannot do induction

    To find the token that followed an earlier copy, a head must know which token precedes each
    source. That requires another head below it, which a one-layer model does not have.
    """
    best = max(_atlas(subject).heads, key=lambda entry: entry.scores["induction"].value)
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
    *(gain_of_heads, heads_that_copy, trigram_patterns),
    *(bugs_of_the_factored_form, positional_heads, no_induction),
)
