"""Claims about models of two layers and more."""

from pathsum.errors import InputError
from pathsum.explorer.answers.atlas import whole_atlas
from pathsum.explorer.answers.composition import all_composition
from pathsum.explorer.answers.terms import importance
from pathsum.explorer.claims.claim import Measured, Statement, Subject
from pathsum.heads import Induction, induction
from pathsum.heads.induction import InductionHead
from pathsum.heads.probe import repeats_probe
from pathsum.paths import Estimate

ALPHA = 0.01
PREVIOUS = 0.5


def _composition(subject: Subject) -> Measured:
    found = all_composition(subject.bench, subject.asked).edges(max_p=ALPHA, k=1)
    return Measured(
        f"{found.found} of {found.tested} edges have p ≤ {ALPHA}; chance would give "
        f"{found.expected:.1f}",
        found.found > 2 * found.expected,
        view=subject.link("circuit"),
    )


def _mostly_k(subject: Subject) -> Measured:
    best = all_composition(subject.bench, subject.asked).edges(k=1).edges
    if not best:
        raise InputError("no head of this model can read another, so there is no composition")
    edge = best[0]
    previous = whole_atlas(subject.bench, subject.asked)[edge.writer].scores["previous_token"]
    return Measured(
        f"{edge.kind.upper()}: {edge.writer} → {edge.reader}, score {edge.score:.3f}, "
        f"z {edge.z:.0f}",
        edge.kind == "k" and previous.value >= PREVIOUS,
        view=subject.link("circuit", edge=str(edge.edge)),
        note=f"{edge.writer} attends {previous.value:.2f} to the previous token",
    )


def _previous_token(subject: Subject) -> Measured:
    found = whole_atlas(subject.bench, subject.asked)
    best = max(found, key=lambda entry: entry.scores["previous_token"].value)
    score = best.scores["previous_token"]
    return Measured(
        f"{best.head}: {score.value:.3f} of its attention (chance {score.null:.3f})",
        score.value >= PREVIOUS,
        Estimate.around(score.value, score.stderr),
        view=subject.link("text", e=subject.probe_example(), h=str(best.head)),
    )


def _induction_heads(subject: Subject) -> Measured:
    best = _best(subject)
    stripe = best.stripe
    return Measured(
        f"{best.head}: {stripe.value:.2f} on the token after the earlier copy "
        f"(chance {stripe.null:.2f})",
        True,
        Estimate.around(stripe.value, stripe.stderr),
        view=_on_probe(subject, best),
        note=f"induction heads found: {len(_found(subject).heads)}",
    )


def _mechanism(subject: Subject) -> Measured:
    best = _best(subject)
    strongest = best.edges[0] if best.edges else None
    if strongest is None:
        raise InputError(f"no head lies below {best.head}, so nothing can be cut")
    pair = f"{strongest.writer}→{best.head}.{strongest.side}"
    return Measured(
        f"{best.head}: {best.mechanism_text}; cutting that edge takes away "
        f"{strongest.share_lost:.0%} of the stripe",
        best.mechanism == "K-composition",
        view=subject.link("circuit", edge=pair),
        note=f"{best.k_share:.0%} of the score at the stripe has a head on the key side alone",
    )


def _positive_corner(subject: Subject) -> Measured:
    found = [head for head in _found(subject).heads if head.qk_positivity is not None]
    if not found:
        raise InputError("no induction head has a partner whose OV matches tokens")
    pairs = [(head.ov_positivity, head.qk_positivity or 0.0) for head in found]
    told = "; ".join(
        f"{head.head}: OV {ov:+.2f}, QK {qk:+.2f}"
        for head, (ov, qk) in zip(found, pairs, strict=True)
    )
    return Measured(
        told,
        all(ov > 0 and qk > 0 for ov, qk in pairs),
        view=subject.link("head", hd=str(found[0].head)),
        note="eigenvalue positivity Σλ/Σ|λ|; QK through the previous-token head",
    )


def _random_tokens(subject: Subject) -> Measured:
    found = _found(subject)
    drop = found.first_copy.value - found.second_copy.value
    return Measured(
        f"{found.first_copy.value:.2f} nats a token the first time, "
        f"{found.second_copy.value:.2f} the second",
        drop > 0 and found.second_copy.below(found.first_copy),
        found.second_copy,
        view=subject.link("text", e=subject.probe_example()),
        note="interval of the second time; nothing but the first copy can help there",
    )


def _resting(subject: Subject) -> Measured:
    best = _best(subject)
    probe = repeats_probe(subject.model)
    pattern = subject.model.trace(probe.tokens).pattern(best.head)
    end = probe.first + probe.length
    resting = float(pattern[:, probe.first + 1 : end, 0].mean())
    return Measured(
        f"{best.head} gives the first token {resting:.2f} where nothing has come twice",
        resting >= 0.5,
        view=_on_probe(subject, best),
    )


def _term_orders(subject: Subject) -> Measured:
    found = importance(subject.bench, subject.asked)
    gains = ", ".join(f"order {order} {gain:.2f}" for order, gain in enumerate(found.gain))
    return Measured(
        f"gains in nats: {gains}",
        found.gain[1] > max(found.gain[2:]) and found.gain[0] > max(found.gain[2:]),
        found.gain_estimates[2],
        view=subject.link("paths", e=0),
        note="interval of order 2; on the example texts",
    )


def _later_layers(subject: Subject) -> Measured:
    found = importance(subject.bench, subject.asked)
    layers = [gain for gain in found.sets if gain.name.startswith("layer ")]
    told = "; ".join(
        f"{gain.name}: {gain.alone.value:.2f} alone, {gain.given_others.value:.2f} given the others"
        for gain in layers
    )
    last, first = layers[-1], layers[0]
    return Measured(
        told,
        last.given_others.value > first.given_others.value,
        last.given_others,
        view=subject.link("paths", e=0),
        note="interval of the last layer, given the others",
    )


def _found(subject: Subject) -> Induction:
    return subject.bench.result(subject.asked, "induction", induction)


def _best(subject: Subject) -> InductionHead:
    found = _found(subject)
    if not found.heads:
        raise InputError(found.why_none)
    return max(found.heads, key=lambda head: head.stripe.value)


def _on_probe(subject: Subject, head: InductionHead) -> str:
    example = subject.probe_example()
    length = len(subject.bench.examples(subject.asked)[example].ids)
    return subject.link("text", e=example, h=str(head.head), t=max(0, length - 5))


TWO = (
    Statement(
        "two-composition",
        "Heads read each other",
        "What one head writes a later one can read, with its queries, its keys or its values. "
        "Composition scores say how much, and a random rotation of the stream says how much by "
        "chance.",
        _composition,
    ),
    Statement(
        "two-k",
        "The strongest is K-composition with a previous-token head",
        "Of all pairs of heads few stand out. The strongest edge goes from a head that looks one "
        "token back into the keys of a later head.",
        _mostly_k,
        "K-composition with one previous-token head",
    ),
    Statement(
        "two-previous",
        "A head looks one token back",
        "It tells every position which token stood before it. By itself that predicts little; "
        "another head makes use of it.",
        _previous_token,
    ),
    Statement(
        "two-induction",
        "Induction heads",
        "[a][b] … [a] → [b]: at the second [a] the head attends to what followed the first one, "
        "and raises it. It is the model's way to learn in context.",
        _induction_heads,
    ),
    Statement(
        "two-mechanism",
        "They work by K-composition",
        "The induction head's keys carry, through the previous-token head, the token before each "
        "position; its query is the current token. Cut that one edge and the pattern goes.",
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
        "Take random tokens and repeat them: nothing learned about words can help. The second time "
        "the model predicts them far better.",
        _random_tokens,
    ),
    Statement(
        "two-resting",
        "With nothing to copy, the head rests",
        "Where the current token has not come before there is nothing to attend to. The head then "
        "looks at the first token, which does little.",
        _resting,
    ),
    Statement(
        "two-terms",
        "Virtual heads matter least",
        "Paths through one head do most of the work beyond the direct path. Paths through two "
        "heads in a row, which are heads of their own, add little.",
        _term_orders,
        "1.8, 5.2 and 0.3 nats (second-hand)",
    ),
    Statement(
        "two-layers",
        "The last layer's heads do most",
        "Taken alone both layers help; given the other, the first adds almost nothing to the "
        "logits by itself. It works for the second layer.",
        _later_layers,
        "first layer 1.3 alone, 0.05 given the second; second 5.2 alone, 4.0 given the first "
        "(second-hand)",
    ),
)
