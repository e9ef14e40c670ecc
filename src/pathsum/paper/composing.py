"""Claims about composition: which heads read which, and who does it most."""

from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.circuits.composition.edges import Edges
from pathsum.circuits.composition.reads_and_writes import KINDS
from pathsum.explorer.answers.atlas import whole_atlas
from pathsum.explorer.answers.composition import all_composition
from pathsum.heads.atlas import HeadEntry
from pathsum.paper import rules
from pathsum.paper.claim import Measurement, Statement, Subject, as_estimate
from pathsum.paper.picture import Bar, BarsPicture, GraphPicture

ALPHA = 0.01
MOST_BARS = 10


def _composition(subject: Subject) -> Measurement:
    found = _edges(subject, max_p=ALPHA)
    return Measurement(
        Estimate(found.found / found.expected),
        f"{found.found} of {found.tested} edges have p ≤ {ALPHA}; chance would give "
        f"{found.expected:.1f}",
        view=subject.link("composition"),
        picture=GraphPicture(),
        note="a small p says that two heads share directions, not that they are a circuit",
    )


def _sparse(subject: Subject) -> Measurement:
    found = _edges(subject, max_p=ALPHA)
    composed = all_composition(subject.bench, subject.params)
    kinds = {kind: composed.edges([kind], max_p=ALPHA, k=1) for kind in KINDS}
    bars = tuple(
        Bar(
            f"{kind.upper()}-composition",
            each.found / max(each.tested, 1),
            null=ALPHA,
            link=subject.link("composition"),
        )
        for kind, each in kinds.items()
    )
    return Measurement(
        Estimate(found.found / found.tested, null=ALPHA),
        f"{found.found} of {found.tested} edges have p ≤ {ALPHA}",
        view=subject.link("composition"),
        picture=BarsPicture(
            f"Edges of each kind with p ≤ {ALPHA}",
            "share of the edges (line: by chance)",
            bars,
            rules.SPARSE.holds,
        ),
        note="a small p says that two heads share directions, not that they are a circuit",
    )


def _mostly_k(subject: Subject) -> Measurement:
    every = _edges(subject).edges
    writer = previous_token_head(subject, above=1)
    number = next(
        (at for at, edge in enumerate(every) if edge.kind == "k" and edge.writer == writer.head),
        None,
    )
    if number is None:
        raise InputError(f"{writer.head} has no K edge to a later head")
    edge = every[number]
    bars = tuple(
        Bar(str(each.edge), each.z, link=subject.link("composition", edge=str(each.edge)))
        for each in every[:MOST_BARS]
    )
    return Measurement(
        Estimate(float(number)),
        f"{edge.edge}: z {edge.z:.0f}, rank {number + 1} of {len(every)}",
        view=subject.link("composition", edge=str(edge.edge)),
        picture=BarsPicture("The strongest edges between heads", "z of the composition", bars),
        note=f"{writer.head} gives the previous token "
        f"{writer.scores['previous_token'].value:.2f} of its attention",
    )


def _previous_token(subject: Subject) -> Measurement:
    best = previous_token_head(subject)
    score = best.scores["previous_token"]
    chance = "" if score.null is None else f" (chance {score.null:.3f})"
    return Measurement(
        as_estimate(score),
        f"{best.head}: {score.value:.3f} of its attention{chance}",
        view=subject.probe_link(str(best.head)),
        picture=subject.pattern_picture(str(best.head)),
        note="on random tokens, repeated",
    )


def previous_token_head(subject: Subject, above: int = 0) -> HeadEntry:
    """The head that attends most to the previous token, with at least `above` layers above it."""
    layers = subject.model.config.n_layers
    found = [
        entry
        for entry in whole_atlas(subject.bench, subject.params)
        if entry.head.layer < layers - above
    ]
    return max(found, key=lambda entry: entry.scores["previous_token"].value)


def _edges(subject: Subject, max_p: float | None = None) -> Edges:
    found = all_composition(subject.bench, subject.params).edges(max_p=max_p)
    if not found.tested:
        raise InputError("no head of this model reads another, so there is no composition")
    return found


COMPOSING = (
    Statement(
        "two-composition",
        "Heads read each other",
        "What one head writes, a later one can read with its queries, its keys or its values. "
        "Composition scores measure how much; a random rotation of the stream gives the score by "
        "chance.",
        rules.COMPOSITION,
        _composition,
    ),
    Statement(
        "two-sparse",
        "Few pairs of heads compose",
        "Most pairs of heads have no more in common than chance gives, and the few that do stand "
        "out.",
        rules.SPARSE,
        _sparse,
        "most heads are in no significant composition",
    ),
    Statement(
        "two-k",
        "The strongest is K-composition with a previous-token head",
        "The strongest edge goes from a head that attends one token back into the keys of a later "
        "head.",
        rules.MOSTLY_K,
        _mostly_k,
        "K-composition with one previous-token head",
        0.0,
    ),
    Statement(
        "two-previous",
        "A head attends one token back",
        "It tells every position which token precedes it. That predicts little by itself, but a "
        "later head uses it.",
        rules.PREVIOUS,
        _previous_token,
    ),
)
