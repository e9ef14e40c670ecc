"""Claims about induction heads: what they do, how, and where they rest."""

from pathsum.algebra.spectrum import positivity
from pathsum.base import Side
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, ratio
from pathsum.circuits.tokens.qk import token_qk
from pathsum.explorer.answers.atlas import whole_atlas
from pathsum.heads import Induction, induction
from pathsum.heads.induction import InductionHead
from pathsum.heads.kinds import COPYING_BY_WEIGHTS
from pathsum.heads.probe import repeats_probe, second_copy
from pathsum.model import Path
from pathsum.model.losses import sequence_losses
from pathsum.paper import rules
from pathsum.paper.claim import Measurement, Statement, Subject, as_estimate
from pathsum.paper.composing import previous_token_head
from pathsum.paper.picture import (
    Bar,
    BarsPicture,
    Line,
    LinesPicture,
    LossPicture,
    Point,
    PointsPicture,
)

MOST_BARS = 10


def _induction_heads(subject: Subject) -> Measurement:
    found = whole_atlas(subject.bench, subject.params)
    best = max(found, key=lambda entry: entry.scores["induction"].value)
    stripe = best.scores["induction"]
    chance = "" if stripe.null is None else f" (chance {stripe.null:.2f})"
    return Measurement(
        as_estimate(stripe),
        f"{best.head}: {stripe.value:.2f} on the token after the earlier copy{chance}",
        view=subject.probe_link(str(best.head), near_end=5),
        picture=subject.pattern_picture(str(best.head)),
        note=f"induction heads found: {len(_found(subject).heads)}",
    )


def _mechanism(subject: Subject) -> Measurement:
    best = _best(subject)
    by_k = [edge for edge in best.edges if edge.side is Side.K]
    if not by_k:
        raise InputError(f"{best.head} is in the first layer, so no edge into it can be cut")
    name = str(by_k[0].edge)
    bars = tuple(
        Bar(
            str(edge.edge),
            edge.share_lost,
            link=subject.link("composition", edge=str(edge.edge)),
        )
        for edge in best.edges[:MOST_BARS]
    )
    return Measurement(
        Estimate(by_k[0].share_lost),
        f"cutting {name} takes away {by_k[0].share_lost:.0%} of the stripe of {best.head}",
        view=subject.link("composition", edge=name),
        picture=BarsPicture(
            f"What cutting one edge takes away of the induction stripe of {best.head}",
            "share of the stripe lost",
            bars,
            rules.MECHANISM.holds,
        ),
        note=f"{best.mechanism_text}; {best.k_share:.0%} of the score at the stripe comes from "
        "terms with a head only on the key side",
    )


def _positive_corner(subject: Subject) -> Measurement:
    found = {str(h.head): h for h in _found(subject).heads if h.qk_positivity is not None}
    if not found:
        raise InputError(_found(subject).why_none or "no induction head has a partner")
    corner = {
        name: Point(
            name,
            head.ov_positivity,
            head.qk_positivity or 0.0,
            "induction heads",
            subject.link("head", head=name),
        )
        for name, head in found.items()
    }
    lowest = min(corner.values(), key=lambda point: min(point.x, point.y))
    return Measurement(
        Estimate(min(lowest.x, lowest.y)),
        "; ".join(f"{name}: OV {p.x:+.2f}, QK {p.y:+.2f}" for name, p in corner.items()),
        view=lowest.link,
        picture=PointsPicture(
            "Heads of the later layers by their eigenvalues",
            "copying: Σλ/Σ|λ| of OV",
            "matching: Σλ/Σ|λ| of QK through the previous-token head",
            (*corner.values(), *_other_heads(subject, set(corner))),
            "axes",
        ),
    )


def _other_heads(subject: Subject, known: set[str]) -> list[Point]:
    """Heads above the previous-token head that are not induction heads."""
    model = subject.model
    previous = previous_token_head(subject, above=1).head
    found = whole_atlas(subject.bench, subject.params)
    others: list[Point] = []
    for head in model.heads:
        if head.label in known or head.id.layer <= previous.layer:
            continue
        ov = found[head.label].scores[COPYING_BY_WEIGHTS.info.name].value
        through = token_qk(model, head.label, key_through=Path("embed", [previous]))
        qk = float(positivity(through.eigenvalues()))
        if ov == ov and qk == qk:
            link = subject.link("head", head=head.label)
            others.append(Point(head.label, ov, qk, "other heads", link))
    return others


def _random_tokens(subject: Subject) -> Measurement:
    model, example = subject.model, subject.probe_example()
    probe = repeats_probe(model)
    tokens, start = probe.tokens, second_copy(probe)
    end = start + probe.length
    logits = model.trace(tokens[:, :end]).logits
    first = sequence_losses(logits[:, :start], tokens[:, :start])
    second = sequence_losses(logits, tokens[:, :end], start)
    each = [losses.total / losses.count for losses in (first, second)]
    drop = ratio(each[0] - each[1], each[0].new_ones(len(each[0])))
    return Measurement(
        drop,
        f"{float(each[0].mean()):.2f} nats per token in the first copy, "
        f"{float(each[1].mean()):.2f} in the second",
        view=subject.probe_link(),
        picture=None if example is None else LossPicture(example),
        note=f"{len(tokens)} sequences of {probe.length} random tokens, paired",
    )


def _resting(subject: Subject) -> Measurement:
    best = _best(subject)
    probe = repeats_probe(subject.model)
    pattern = subject.model.trace(probe.tokens).pattern(best.head)[..., 0]
    end = second_copy(probe)
    each = pattern[:, probe.first + 1 : end].mean(1)
    resting = ratio(each, each.new_ones(len(each)))
    later = float(pattern[:, end + 1 :].mean())
    return Measurement(
        resting,
        f"{best.head} gives the first token {resting.value:.2f} of its attention while no token "
        f"has repeated, {later:.2f} afterwards",
        view=subject.probe_link(str(best.head), near_end=5),
        picture=LinesPicture(
            f"Attention of {best.head} to the first token, on random tokens that repeat",
            "position",
            "share of its attention",
            (Line(str(best.head), tuple(pattern.mean(0).tolist())),),
            end,
            "the second copy begins",
        ),
    )


def _found(subject: Subject) -> Induction:
    return subject.bench.slow_result(
        subject.params, "induction", lambda model, to: induction(model, progress=to)
    )


def _best(subject: Subject) -> InductionHead:
    found = _found(subject)
    if not found.heads:
        raise InputError(found.why_none)
    return max(found.heads, key=lambda head: head.stripe.value)


INDUCING = (
    Statement(
        "two-induction",
        "Induction heads",
        "[a][b] … [a] → [b]: at the second [a] the head attends to the token after the first one, "
        "and raises it. This is how the model learns in context.",
        rules.INDUCTION,
        _induction_heads,
    ),
    Statement(
        "two-mechanism",
        "They work by K-composition",
        "Through the previous-token head, the induction head's keys carry the token before each "
        "position; its query is the current token. Cut that one edge and the pattern is gone.",
        rules.MECHANISM,
        _mechanism,
        "K-composition",
    ),
    Statement(
        "two-corner",
        "Positive eigenvalues on both sides",
        "An induction head copies (OV) and matches same with same through the previous-token head "
        "(QK). Both matrices have mostly positive eigenvalues.",
        rules.CORNER,
        _positive_corner,
        "every induction head sits in the positive corner",
    ),
    Statement(
        "two-random",
        "It works on random tokens",
        "On random tokens that repeat, word statistics cannot help. Still, the model predicts the "
        "second copy far better.",
        rules.RANDOM,
        _random_tokens,
    ),
    Statement(
        "two-resting",
        "With nothing to copy, the head rests",
        "Where the current token has not occurred before, there is nothing to attend to. The head "
        "then attends to the first token, which does little.",
        rules.RESTING,
        _resting,
    ),
)
