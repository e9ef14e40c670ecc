"""Claims about models with two or more layers."""

from pathsum.errors import InputError
from pathsum.explorer.answers.atlas import whole_atlas
from pathsum.explorer.answers.composition import all_composition
from pathsum.explorer.answers.whole_model import terms
from pathsum.explorer.claims.claim import Measurement, Statement, Subject
from pathsum.explorer.claims.picture import (
    EdgePicture,
    GraphPicture,
    HeadPicture,
    LossPicture,
    PatternPicture,
    TermsPicture,
)
from pathsum.heads import Induction, induction
from pathsum.heads.induction import InductionHead
from pathsum.heads.probe import repeats_probe
from pathsum.paths import Estimate

ALPHA = 0.01
PREVIOUS = 0.5


def _composition(subject: Subject) -> Measurement:
    found = all_composition(subject.bench, subject.params).edges(max_p=ALPHA, k=1)
    return Measurement(
        f"{found.found} of {found.tested} edges have p ≤ {ALPHA}; chance would give "
        f"{found.expected:.1f}",
        found.found > 2 * found.expected,
        view=subject.link("circuit"),
        picture=GraphPicture(),
    )


def _mostly_k(subject: Subject) -> Measurement:
    best = all_composition(subject.bench, subject.params).edges(k=1).edges
    if not best:
        raise InputError("no head of this model reads another, so there is no composition")
    edge = best[0]
    previous = whole_atlas(subject.bench, subject.params)[edge.writer].scores["previous_token"]
    name = str(edge.edge)
    return Measurement(
        f"{name}: score {edge.score:.3f}, z {edge.z:.0f}",
        edge.kind == "k" and previous.value >= PREVIOUS,
        view=subject.link("circuit", edge=name),
        picture=EdgePicture(name),
        note=f"{edge.writer} gives the previous token {previous.value:.2f} of its attention",
    )


def _previous_token(subject: Subject) -> Measurement:
    found = whole_atlas(subject.bench, subject.params)
    best = max(found, key=lambda entry: entry.scores["previous_token"].value)
    score = best.scores["previous_token"]
    return Measurement(
        f"{best.head}: {score.value:.3f} of its attention (chance {score.null:.3f})",
        score.value >= PREVIOUS,
        Estimate.around(score.value, score.stderr),
        view=subject.link("text", e=subject.probe_example(), h=str(best.head)),
        picture=PatternPicture(str(best.head), subject.probe_example()),
    )


def _induction_heads(subject: Subject) -> Measurement:
    best = _best(subject)
    stripe = best.stripe
    return Measurement(
        f"{best.head}: {stripe.value:.2f} on the token after the earlier copy "
        f"(chance {stripe.null:.2f})",
        True,
        Estimate.around(stripe.value, stripe.stderr),
        view=_on_probe(subject, best),
        picture=PatternPicture(str(best.head), subject.probe_example()),
        note=f"induction heads found: {len(_found(subject).heads)}",
    )


def _mechanism(subject: Subject) -> Measurement:
    best = _best(subject)
    strongest = best.edges[0] if best.edges else None
    if strongest is None:
        raise InputError(f"{best.head} is in the first layer, so no edge into it can be cut")
    name = f"{strongest.writer}→{best.head}.{strongest.side}"
    return Measurement(
        f"{best.head}: {best.mechanism_text}; cutting that edge takes away "
        f"{strongest.share_lost:.0%} of the stripe",
        best.mechanism == "K-composition",
        view=subject.link("circuit", edge=name),
        picture=EdgePicture(name),
        note=f"{best.k_share:.0%} of the score at the stripe comes from terms with a head only on "
        "the key side",
    )


def _positive_corner(subject: Subject) -> Measurement:
    found = [head for head in _found(subject).heads if head.qk_positivity is not None]
    if not found:
        raise InputError("no induction head has a partner whose OV matches tokens")
    pairs = [(head.ov_positivity, head.qk_positivity or 0.0) for head in found]
    measured = "; ".join(
        f"{head.head}: OV {ov:+.2f}, QK {qk:+.2f}"
        for head, (ov, qk) in zip(found, pairs, strict=True)
    )
    return Measurement(
        measured,
        all(ov > 0 and qk > 0 for ov, qk in pairs),
        view=subject.link("head", h=str(found[0].head)),
        picture=HeadPicture(str(found[0].head), "eigenvalues"),
        note="eigenvalue positivity Σλ/Σ|λ|; QK through the previous-token head",
    )


def _random_tokens(subject: Subject) -> Measurement:
    found = _found(subject)
    drop = found.first_copy.value - found.second_copy.value
    return Measurement(
        f"{found.first_copy.value:.2f} nats per token in the first copy, "
        f"{found.second_copy.value:.2f} in the second",
        drop > 0 and found.second_copy.below(found.first_copy),
        found.second_copy,
        view=subject.link("text", e=subject.probe_example()),
        picture=LossPicture(subject.probe_example()),
        note="the interval is that of the second copy, where only the first one can help",
    )


def _resting(subject: Subject) -> Measurement:
    best = _best(subject)
    probe = repeats_probe(subject.model)
    pattern = subject.model.trace(probe.tokens).pattern(best.head)
    end = probe.first + probe.length
    resting = float(pattern[:, probe.first + 1 : end, 0].mean())
    return Measurement(
        f"{best.head} gives the first token {resting:.2f} of its attention while no token has "
        "repeated",
        resting >= 0.5,
        view=_on_probe(subject, best),
        picture=PatternPicture(str(best.head), subject.probe_example()),
    )


def _term_orders(subject: Subject) -> Measurement:
    found = terms(subject.bench, subject.params)
    gains = ", ".join(f"order {order} {gain:.2f}" for order, gain in enumerate(found.gain))
    return Measurement(
        f"gains in nats: {gains}",
        found.gain[1] > max(found.gain[2:]) and found.gain[0] > max(found.gain[2:]),
        found.gain_estimates[2],
        view=subject.link("paths", e=0),
        picture=TermsPicture("order"),
        note="on the example texts; the interval is that of order 2",
    )


def _later_layers(subject: Subject) -> Measurement:
    found = terms(subject.bench, subject.params)
    layers = [gain for gain in found.sets if gain.name.startswith("layer ")]
    measured = "; ".join(
        f"{gain.name}: {gain.alone.value:.2f} alone, {gain.given_others.value:.2f} given the others"
        for gain in layers
    )
    last, first = layers[-1], layers[0]
    return Measurement(
        measured,
        last.given_others.value > first.given_others.value,
        last.given_others,
        view=subject.link("paths", e=0),
        picture=TermsPicture("layer"),
        note="the interval is that of the last layer, given the others",
    )


def _found(subject: Subject) -> Induction:
    return subject.bench.result(subject.params, "induction", induction)


def _best(subject: Subject) -> InductionHead:
    found = _found(subject)
    if not found.heads:
        raise InputError(found.why_none)
    return max(found.heads, key=lambda head: head.stripe.value)


def _on_probe(subject: Subject, head: InductionHead) -> str:
    example = subject.probe_example()
    length = len(subject.bench.examples(subject.params)[example].ids)
    return subject.link("text", e=example, h=str(head.head), t=max(0, length - 5))


TWO = (
    Statement(
        "two-composition",
        "Heads read each other",
        "What one head writes, a later one can read with its queries, its keys or its values. "
        "Composition scores measure how much; a random rotation of the stream gives the score by "
        "chance.",
        _composition,
    ),
    Statement(
        "two-k",
        "The strongest is K-composition with a previous-token head",
        "Few pairs of heads stand out. The strongest edge goes from a head that attends one token "
        "back into the keys of a later head.",
        _mostly_k,
        "K-composition with one previous-token head",
    ),
    Statement(
        "two-previous",
        "A head attends one token back",
        "It tells every position which token precedes it. That predicts little by itself, but a "
        "later head uses it.",
        _previous_token,
    ),
    Statement(
        "two-induction",
        "Induction heads",
        "[a][b] … [a] → [b]: at the second [a] the head attends to the token after the first one, "
        "and raises it. This is how the model learns in context.",
        _induction_heads,
    ),
    Statement(
        "two-mechanism",
        "They work by K-composition",
        "Through the previous-token head, the induction head's keys carry the token before each "
        "position; its query is the current token. Cut that one edge and the pattern is gone.",
        _mechanism,
        "K-composition",
    ),
    Statement(
        "two-corner",
        "Positive eigenvalues on both sides",
        "An induction head copies (OV) and matches same with same through the previous-token head "
        "(QK). Both matrices have mostly positive eigenvalues.",
        _positive_corner,
        "every induction head sits in the positive corner",
    ),
    Statement(
        "two-random",
        "It works on random tokens",
        "On random tokens that repeat, word statistics cannot help. Still, the model predicts the "
        "second copy far better.",
        _random_tokens,
    ),
    Statement(
        "two-resting",
        "With nothing to copy, the head rests",
        "Where the current token has not occurred before, there is nothing to attend to. The head "
        "then attends to the first token, which does little.",
        _resting,
    ),
    Statement(
        "two-terms",
        "Virtual heads matter least",
        "Beyond the direct path, paths through one head do most of the work. Paths through two "
        "heads in a row (virtual heads) add little.",
        _term_orders,
        "1.8, 5.2 and 0.3 nats (second-hand)",
    ),
    Statement(
        "two-layers",
        "The last layer matters most",
        "Alone, both layers help; given the other, the first adds almost nothing to the logits "
        "directly. Its work goes into the second layer.",
        _later_layers,
        "first layer 1.3 alone, 0.05 given the second; second 5.2 alone, 4.0 given the first "
        "(second-hand)",
    ),
)
