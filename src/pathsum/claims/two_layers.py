"""Claims about models with two or more layers: which heads compose, and induction heads."""

from pathsum.algebra.spectrum import positivity
from pathsum.base import Side
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.circuits import Composition, composition
from pathsum.circuits.composition_edges import Edges
from pathsum.circuits.qk_ov import token_qk
from pathsum.circuits.reads_and_writes import KINDS
from pathsum.claims import claim
from pathsum.claims.claim import Bar, Measurement, Point, Subject, statement
from pathsum.claims.one_layer import TERMS
from pathsum.heads import Atlas, HeadEntry, Induction, InductionHead, atlas, induction
from pathsum.heads.probe import repeats_probe, second_copy
from pathsum.model import Path
from pathsum.model.losses import sequence_losses

ALPHA = 0.01
MOST_BARS = 10
SMALL_P = "a small p means that two heads share directions, not that they form a circuit"


def _atlas(subject: Subject) -> Atlas:
    return subject.result("atlas", lambda model, to: atlas(model, progress=to))


def _composition(subject: Subject) -> Composition:
    return subject.result("composition", lambda model, to: composition(model, progress=to))


def _edges(subject: Subject, max_p: float | None = None) -> Edges:
    edges = _composition(subject).edges(max_p=max_p)
    if not edges.tested:
        raise InputError("no head of this model reads another, so there is no composition")
    return edges


def _previous_token_head(subject: Subject, above: int = 0) -> HeadEntry:
    """The head that attends most to the previous token, with at least `above` layers above it."""
    layers = subject.model.config.n_layers
    heads = [entry for entry in _atlas(subject).heads if entry.head.layer < layers - above]
    return max(heads, key=lambda entry: entry.scores["previous_token"].value)


def _induction(subject: Subject) -> Induction:
    return subject.result("induction", lambda model, to: induction(model, progress=to))


def _best_induction_head(subject: Subject) -> InductionHead:
    result = _induction(subject)
    if not result.heads:
        raise InputError(result.why_none)
    return max(result.heads, key=lambda head: head.stripe.value)


@statement("two-composition")
def heads_compose(subject: Subject) -> Measurement:
    """Heads read each other

    A head can read the output of an earlier head with its queries, its keys or its values.
    Composition scores measure how much it does; random rotations of the stream are the null.
    """
    edges = _edges(subject, max_p=ALPHA)
    return Measurement(
        Estimate(edges.found / edges.expected),
        f"{edges.found} of {edges.tested} edges have p ≤ {ALPHA}; "
        f"{edges.expected:.1f} expected under the null",
        view=subject.link("composition"),
        picture=claim.GraphPicture(),
        note=SMALL_P,
    )


@statement("two-sparse")
def composition_is_sparse(subject: Subject) -> Measurement:
    """Few pairs of heads compose

    Most pairs of heads share no more directions than random heads do; a few pairs stand out.
    """
    edges = _edges(subject, max_p=ALPHA)
    composed = _composition(subject)
    kinds = {kind: composed.edges([kind], max_p=ALPHA, k=1) for kind in KINDS}
    bars = tuple(
        Bar(
            f"{kind.upper()}-composition",
            of_kind.found / max(of_kind.tested, 1),
            null=ALPHA,
            link=subject.link("composition"),
        )
        for kind, of_kind in kinds.items()
    )
    return Measurement(
        Estimate(edges.found / edges.tested, null=ALPHA),
        f"{edges.found} of {edges.tested} edges have p ≤ {ALPHA}",
        view=subject.link("composition"),
        picture=claim.BarsPicture(
            f"Edges of each kind with p ≤ {ALPHA}",
            "share of the edges (line: null)",
            bars,
            composition_is_sparse.rule.holds,
        ),
        note=SMALL_P,
    )


@statement("two-k")
def strongest_edge(subject: Subject) -> Measurement:
    """The strongest is K-composition with a previous-token head

    The strongest edge goes from a head that attends one token back into the keys of a later head.
    """
    edges = _edges(subject).edges
    writer = _previous_token_head(subject, above=1)
    by_k = [edge for edge in edges if edge.kind == "k" and edge.writer == writer.head]
    if not by_k:
        raise InputError(f"{writer.head} has no K edge to a later head")
    edge, rank = by_k[0], edges.index(by_k[0])
    bars = tuple(
        Bar(
            str(e.edge),
            e.z,
            link=subject.link("composition", edge=str(e.edge)),
        )
        for e in edges[:MOST_BARS]
    )
    return Measurement(
        Estimate(float(rank)),
        f"{edge.edge}: z {edge.z:.0f}, rank {rank + 1} of {len(edges)}",
        view=subject.link("composition", edge=str(edge.edge)),
        picture=claim.BarsPicture(
            "The strongest edges between heads", "z of the composition", bars
        ),
        note=f"{writer.head} gives the previous token "
        f"{writer.scores['previous_token'].value:.2f} of its attention",
    )


@statement("two-previous")
def previous_token_head(subject: Subject) -> Measurement:
    """A head attends one token back

    It writes to every position which token precedes it. This predicts little by itself, but a later
    head uses it.
    """
    best = _previous_token_head(subject)
    score = claim.as_estimate(best.scores["previous_token"])
    null = "" if score.null is None else f" (null {score.null:.3f})"
    return Measurement(
        score,
        f"{best.head}: {score.value:.3f} of its attention{null}",
        view=subject.probe_link(str(best.head)),
        picture=subject.pattern_picture(str(best.head)),
        note="on random tokens, repeated",
    )


@statement("two-induction")
def induction_heads(subject: Subject) -> Measurement:
    """Induction heads

    [a][b] … [a] → [b]: at the second [a] the head attends to the token after the first one, and
    raises it. This is how the model learns in context.
    """
    best = max(_atlas(subject).heads, key=lambda entry: entry.scores["induction"].value)
    stripe = best.scores["induction"]
    null = "" if stripe.null is None else f" (null {stripe.null:.2f})"
    return Measurement(
        claim.as_estimate(stripe),
        f"{best.head}: {stripe.value:.2f} on the token after the earlier copy{null}",
        view=subject.probe_link(str(best.head), near_end=5),
        picture=subject.pattern_picture(str(best.head)),
        note=f"induction heads found: {len(_induction(subject).heads)}",
    )


@statement("two-mechanism")
def mechanism(subject: Subject) -> Measurement:
    """They work by K-composition

    Through the previous-token head, the induction head's keys carry the token before each position;
    its query is the current token. Cutting this edge removes the pattern.
    """
    best = _best_induction_head(subject)
    by_k = [edge for edge in best.edges if edge.side is Side.K]
    if not by_k:
        raise InputError(f"{best.head} is in the first layer, so no edge into it can be cut")
    name = str(by_k[0].edge)
    bars = tuple(
        Bar(str(cut.edge), cut.share_lost, link=subject.link("composition", edge=str(cut.edge)))
        for cut in best.edges[:MOST_BARS]
    )
    return Measurement(
        Estimate(by_k[0].share_lost),
        f"cutting {name} removes {by_k[0].share_lost:.0%} of the stripe of {best.head}",
        view=subject.link("composition", edge=name),
        picture=claim.BarsPicture(
            f"Share of the induction stripe of {best.head} lost by cutting one edge",
            "share of the stripe lost",
            bars,
            mechanism.rule.holds,
        ),
        note=f"{best.mechanism_text}; {best.k_share:.0%} of the score at the stripe comes from "
        "terms with a head only on the key side",
    )


@statement("two-corner")
def positive_corner(subject: Subject) -> Measurement:
    """Positive eigenvalues on both sides

    An induction head copies (OV) and matches tokens with themselves through the
    previous-token head (QK). Both matrices have mostly positive eigenvalues.
    """
    heads = {str(h.head): h for h in _induction(subject).heads if h.qk_positivity is not None}
    if not heads:
        raise InputError(_induction(subject).why_none or "no induction head has a partner")
    corner = {
        name: Point(
            *(name, head.ov_positivity, head.qk_positivity or 0.0),
            *("induction heads", subject.link("head", head=name)),
        )
        for name, head in heads.items()
    }
    lowest = min(corner.values(), key=lambda point: min(point.x, point.y))
    return Measurement(
        Estimate(min(lowest.x, lowest.y)),
        "; ".join(f"{name}: OV {p.x:+.2f}, QK {p.y:+.2f}" for name, p in corner.items()),
        view=lowest.link,
        picture=claim.PointsPicture(
            "Heads of the later layers by their eigenvalues",
            "copying: Σλ/Σ|λ| of OV",
            "matching: Σλ/Σ|λ| of QK through the previous-token head",
            (*corner.values(), *_other_heads(subject, set(corner))),
            "axes",
        ),
    )


def _other_heads(subject: Subject, induction_heads: set[str]) -> list[Point]:
    """Heads above the previous-token head that are not induction heads."""
    model = subject.model
    previous = _previous_token_head(subject, above=1).head
    points: list[Point] = []
    for head in model.heads:
        if head.label in induction_heads or head.id.layer <= previous.layer:
            continue
        ov = _atlas(subject)[head.label].scores["copying_weights"].value
        through = token_qk(model, head.label, key_through=Path("embed", [previous]))
        qk = float(positivity(through.eigenvalues()))
        if ov == ov and qk == qk:
            link = subject.link("head", head=head.label)
            points.append(Point(head.label, ov, qk, "other heads", link))
    return points


@statement("two-random")
def repeated_random_tokens(subject: Subject) -> Measurement:
    """It works on random tokens

    On random tokens that repeat, word statistics cannot help. Still, the model predicts the second
    copy far better.
    """
    model, example = subject.model, subject.probe_example()
    probe = repeats_probe(model)
    tokens, start = probe.tokens, second_copy(probe)
    end = start + probe.length
    logits = model.trace(tokens[:, :end]).logits
    first = sequence_losses(logits[:, :start], tokens[:, :start])
    second = sequence_losses(logits, tokens[:, :end], start)
    before, after = (losses.total / losses.count for losses in (first, second))
    return Measurement(
        mean_estimate(before - after),
        f"{float(before.mean()):.2f} nats per token in the first copy, "
        f"{float(after.mean()):.2f} in the second",
        view=subject.probe_link(),
        picture=None if example is None else claim.LossPicture(example),
        note=f"{len(tokens)} sequences of {probe.length} random tokens, paired",
    )


@statement("two-resting")
def resting(subject: Subject) -> Measurement:
    """With nothing to copy, the head attends to the first token

    If the current token has not occurred before, there is nothing to copy. The head then attends
    to the first token, which has little effect.
    """
    best = _best_induction_head(subject)
    probe = repeats_probe(subject.model)
    pattern = subject.model.trace(probe.tokens).pattern(best.head)[..., 0]
    end = second_copy(probe)
    at_rest = mean_estimate(pattern[:, probe.first + 1 : end].mean(1))
    later = float(pattern[:, end + 1 :].mean())
    return Measurement(
        at_rest,
        f"{best.head} gives the first token {at_rest.value:.2f} of its attention while no token "
        f"has repeated, {later:.2f} afterwards",
        view=subject.probe_link(str(best.head), near_end=5),
        picture=claim.LinesPicture(
            f"Attention of {best.head} to the first token, on random tokens that repeat",
            "position",
            "share of its attention",
            (claim.Line(str(best.head), tuple(pattern.mean(0).tolist())),),
            end,
            "the second copy begins",
        ),
    )


TWO = (
    *(heads_compose, composition_is_sparse, strongest_edge, previous_token_head),
    *(induction_heads, mechanism, positive_corner, repeated_random_tokens, resting),
    *TERMS,
)
