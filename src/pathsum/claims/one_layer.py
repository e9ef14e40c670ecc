"""Claims about one-layer models, and about which paths matter on text: by order, and by layer.

The paper's gains are 1.8, 5.2 and 0.3 nats for orders 0, 1 and 2 (from secondary sources). Its
first layer gains 1.3 alone and 0.05 given the second, its second 5.2 alone and 4.0 given the first.
"""

from dataclasses import replace

from pathsum.base import Progress
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.circuits import positional, skip_trigrams
from pathsum.circuits.token_basis import common_tokens
from pathsum.circuits.trigrams import SkipTrigrams
from pathsum.claims import claim
from pathsum.claims.claim import Bar, BarsPicture, Measurement, Subject, statement
from pathsum.claims.examples import examples, text_pieces
from pathsum.heads import Atlas, atlas
from pathsum.model import Model
from pathsum.paths import TermImportance, by_layer, term_importance
from pathsum.paths.terms import TermSetGain
from pathsum.text.trigrams import Pattern

SAVED = "loss saved, nats per token"


def measured_terms(subject: Subject) -> TermImportance:
    """Losses and gains by order and by layer; the note names the text.

    The text is the model's held-out text, else pieces of the example texts.
    """

    def compute(model: Model, progress: Progress) -> TermImportance:
        tokens, name = model.held_out, "held-out text"
        if tokens is None:
            texts = text_pieces(model, examples(model))
            tokens, name = texts.tokens, texts.name
        # The gain of a single layer equals the gain of its order.
        sets = by_layer(model) if model.config.n_layers > 1 else ()
        terms = term_importance(model, tokens, sets=sets, progress=progress)
        predictions = len(tokens) * (tokens.shape[1] - 1)
        note = f"on {name}, {len(tokens)} sequences with {predictions:,} predictions"
        return replace(terms, note=note)

    return subject.result("terms on text", compute)


def gain_bars(terms: TermImportance) -> tuple[Bar, ...]:
    """The gain of each order."""
    names = ("direct path", "single heads", *(f"{n} in a row" for n in range(2, len(terms.gain))))
    return tuple(
        Bar.of(f"order {order}: {names[order]}", gain)
        for order, gain in enumerate(terms.gain_estimates)
    )


def _layers(subject: Subject) -> list[TermSetGain]:
    return [gain for gain in measured_terms(subject).sets if gain.name.startswith("layer ")]


@statement("two-terms")
def virtual_heads(subject: Subject) -> Measurement:
    """Virtual heads matter least

    Beyond the direct path, paths through one head do most of the work. Paths through two heads in a
    row (virtual heads) add little.
    """
    terms = measured_terms(subject)
    single, virtual = terms.gain[1], sum(terms.gain[2:])
    if single <= 0:
        raise InputError(f"single heads gain nothing ({single:.2f} nats), so there is no share")
    return Measurement(
        Estimate(virtual / single),
        f"virtual heads gain {virtual:.2f} nats, single heads {single:.2f}",
        view=subject.link("paths", example=0),
        picture=BarsPicture("Gain of paths through heads", SAVED, gain_bars(terms)[1:]),
        note=terms.note,
    )


@statement("two-direct")
def heads_over_direct_path(subject: Subject) -> Measurement:
    """Single heads gain more than the direct path

    In the paper's model, paths through one head save most of the loss, several times as much as
    the direct path.
    """
    terms = measured_terms(subject)
    names = ["the direct path alone", "and paths through one head"]
    names += [f"and paths through {order}" for order in range(2, len(terms.loss))]
    losses = zip(names, terms.loss_estimates, strict=True)
    return Measurement(
        Estimate(terms.gain[1] - terms.gain[0]),
        f"single heads gain {terms.gain[1]:.2f} nats, the direct path {terms.gain[0]:.2f}",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "Remaining loss as longer paths are added",
            "loss, nats per token",
            (Bar("a uniform guess", terms.uniform), *(Bar.of(*bar) for bar in losses)),
        ),
        note=f"{terms.note}; the direct path is compared with a uniform guess over "
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
        "; ".join(f"{layer.name}: {layer.given_others.value:.2f} nats" for layer in layers),
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "Gain of each layer, given all others",
            SAVED,
            tuple(Bar.of(layer.name, layer.given_others) for layer in layers),
        ),
        note=f"the direct contribution of its heads to the logits; {measured_terms(subject).note}",
    )


@statement("two-first")
def first_layer(subject: Subject) -> Measurement:
    """The first layer adds almost nothing to the second

    Alone, the first layer's heads help to predict. Given the second layer, their direct
    contribution to the logits gains almost nothing.
    """
    layer = _layers(subject)[0]
    gain, given_others = layer.alone, layer.given_others
    if gain.value <= 0:
        raise InputError(
            f"alone, the first layer gains nothing ({gain.value:.2f} nats), so there is no share"
        )
    return Measurement(
        Estimate(given_others.value / gain.value),
        f"{gain.value:.2f} nats alone, {given_others.value:.2f} given the others",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "Gain of the first layer",
            SAVED,
            (Bar.of("alone", gain), Bar.of("given the other layers", given_others)),
        ),
        note=f"the direct contribution of its heads to the logits; {measured_terms(subject).note}",
    )


TERMS = (virtual_heads, heads_over_direct_path, last_layer, first_layer)


TRIPLES = 50
MOST_BARS = 12
PAPERS_PATTERNS = (Pattern.COPY, Pattern.COPY_VARIANT, Pattern.PIECES, Pattern.PIECES_VARIANT)
# The scores that these claims need.
SCORES = ("copying", "copying_weights", "induction")
HALF = 0.5


@statement("one-heads")
def gain_of_heads(subject: Subject) -> Measurement:
    """One layer adds skip-trigrams to the bigrams

    Logits are the direct path plus one term per head: where it attends (QK) and what attending
    there does (OV). The two circuits can be read separately.
    """
    terms = measured_terms(subject)
    gain = terms.gain_estimates[1]
    return Measurement(
        gain,
        f"the direct path gains {terms.gain[0]:.2f} nats over a uniform guess, the heads "
        f"{gain.value:.2f} more",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "Loss saved by the direct path, and by the heads on top of it", SAVED, gain_bars(terms)
        ),
        note=terms.note,
    )


@statement("one-copying")
def heads_that_copy(subject: Subject) -> Measurement:
    """Most heads copy

    A head copies if attending to a token raises that same token: then the eigenvalues of its full
    OV circuit are mostly positive. Most heads of a one-layer model do this.
    """
    copying_heads = _atlas(subject)
    copies = {entry.head for entry in copying_heads.of_kind("copying")}
    scores = {entry.head: entry.scores["copying_weights"] for entry in copying_heads.heads}
    names = {head: f"{head} copies" if head in copies else str(head) for head in scores}
    bars = tuple(
        Bar.of(names[head], score, subject.link("head", head=head))
        for head, score in scores.items()
    )
    return Measurement(
        Estimate(len(copies) / len(copying_heads)),
        f"{len(copies)} of {len(copying_heads)} heads",
        view=subject.link("head", head=max(scores, key=lambda head: scores[head].value)),
        picture=BarsPicture(
            "Eigenvalues of each head's full OV circuit: the share that is positive",
            "Σλ / Σ|λ| of W_E OV W_U (line: null)",
            bars,
        ),
        note=f"a head copies if Σλ/Σ|λ| exceeds its null (p ≤ {copying_heads.alpha}) and the "
        "attended token itself is raised on the probe",
    )


def _atlas(subject: Subject) -> Atlas:
    """The atlas of these scores; for the user's model the complete atlas, which pages share."""
    name, scores = ("atlas", None) if subject.is_own else ("atlas of one layer", SCORES)
    return subject.result(name, lambda model, to: atlas(model, scores=scores, progress=to))


@statement("one-trigrams")
def trigram_patterns(subject: Subject) -> Measurement:
    """Most skip-trigrams copy, or complete a word

    In [source] … [destination] → [out], the destination attends to the source, and the source
    raises the out token. Many of the strongest skip-trigrams copy, or complete a word.
    """
    trigrams = _strongest(subject)
    shares = {row.pattern: row.share for row in trigrams.classes}
    if not shares:
        raise InputError(
            "the patterns' shares are measured on text, and this model comes without any; use "
            "pathsum trigrams MODEL --corpus …"
        )
    share = sum(shares.get(pattern, 0.0) for pattern in PAPERS_PATTERNS)
    strongest = trigrams[0]
    return Measurement(
        Estimate(share),
        f"{share:.0%} of the gain; the strongest is {strongest}",
        view=subject.link("head", head=strongest.head),
        picture=BarsPicture(
            "Gain of skip-trigrams where they are right, by pattern",
            "share of the gain",
            tuple(Bar("  ".join((c.pattern, *c.examples[:1])), c.share) for c in trigrams.classes),
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
    trigrams = _strongest(subject)
    if trigrams.cost is None:
        raise InputError(
            "the cost of bugs is measured on text, and this model comes without any; use "
            "pathsum trigrams MODEL --corpus …"
        )
    bug_cost = trigrams.cost
    cost = bug_cost.cost_where_active if bug_cost.positions else 0.0
    ranked = sorted(zip(trigrams.bugs, bug_cost.each, strict=True), key=lambda pair: -abs(pair[1]))
    bars = tuple(
        Bar(f"{bug} ({bug.head})", 1e6 * nats, link=subject.link("head", head=str(bug.head)))
        for bug, nats in ranked[:MOST_BARS]
    )
    return Measurement(
        Estimate(cost),
        f"{len(trigrams.bugs)} cross terms behind the {len(trigrams)} strongest skip-trigrams add "
        f"{cost:+.4f} nats where they act",
        view=subject.link("head", head=str(ranked[0][0].head if ranked else trigrams[0].head)),
        picture=BarsPicture(
            "Cost of each bug on held-out text (below 0: it helps)",
            "loss added, millionths of a nat per token",
            bars,
        )
        if bars
        else None,
        note=f"at {bug_cost.positions} of {bug_cost.predicted} predictions of held-out text",
    )


def _strongest(subject: Subject) -> SkipTrigrams:
    def compute(model: Model, progress: Progress) -> SkipTrigrams:
        k = min(TRIPLES, int(common_tokens(model).sum()) ** 2)
        return skip_trigrams(model, k=k, progress=progress)

    trigrams = subject.result("trigrams", compute)
    if len(trigrams) == 0:
        raise InputError(trigrams.note)
    return trigrams


@statement("one-positional")
def positional_heads(subject: Subject) -> Measurement:
    """Some heads attend by position

    Part of the attention score depends on distance alone. Where this part dominates, the head
    attends a fixed distance back, regardless of the token there.
    """
    profiles = [head for head in positional(subject.model).heads if head.share == head.share]
    if not profiles:
        raise InputError("no head's scores vary, so position cannot explain any variance")
    most = max(profiles, key=lambda head: head.share)
    count = sum(head.share >= HALF for head in profiles)
    return Measurement(
        Estimate(most.share),
        f"{most.head}: {most.share:.0%}, strongest {most.peak} tokens back",
        view=subject.link("head", head=most.head),
        picture=claim.OffsetsPicture(most.head),
        note=f"position explains at least half of the variance in {count} of {len(profiles)} heads",
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
        claim.as_estimate(stripe),
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
