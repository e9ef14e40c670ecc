"""Claims about the residual stream, measured on any model, and about zero-layer models."""

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.circuits import bandwidth
from pathsum.circuits.bigram import DirectPath, block_rows
from pathsum.circuits.bigram_fit import count_bigrams
from pathsum.circuits.token_basis import token_frequencies
from pathsum.claims import claim
from pathsum.claims.claim import Bar, Measurement, Point, PointsPicture, Subject, statement
from pathsum.model import Model
from pathsum.model.folding import fold
from pathsum.model.symmetries import scrambled

CARD = "card.json"
# Points of a group in a picture, at most: evenly spaced entries, most frequent tokens and pairs.
MOST_ENTRIES, MOST_POINTS = 120, 150
# Pairs of neighbors are drawn if the first token occurs at least so often in the held-out text.
LEAST_OCCURRENCES = 50
# Orders below this share of the largest are drawn as one bar, if there are at least so many.
NEAR_ZERO, FEWEST_FOLDED = 0.01, 3


@statement("paths")
def sum_of_paths(subject: Subject) -> Measurement:
    """The logits are a sum over paths

    Heads read from and write to the residual stream by linear maps and only add to it. With
    attention patterns held fixed, the logits are exactly a sum over paths through the heads.
    """
    trace = subject.model.trace(_first_example(subject))
    paths = trace.paths()
    token = int(trace.logits[0, -1].argmax())
    orders = [float(v) for _, v in paths.toward(position=-1, token=token).by_order.items()]
    logit = float(trace.uncapped_logits[0, -1, token])
    bars = (*order_bars(orders), Bar("their sum", sum(orders)), Bar("the model's logit", logit))
    # The total is not computed from the orders, so both are compared.
    largest = float(trace.uncapped_logits.abs().max())
    remainder = max(paths.remainder(), abs(sum(orders) - logit) / largest)
    return Measurement(
        Estimate(remainder),
        f"{paths.count:,} {'path adds' if paths.count == 1 else 'paths add'} up to the logits with "
        f"a relative error of {remainder:.1g}",
        view=subject.link("paths", example=0),
        picture=claim.BarsPicture(
            f"The logit of the last prediction, {subject.model.output_text(token)!r}, by order",
            "logit",
            bars,
        ),
        note="With patterns, normalization scales and MLP outputs held fixed this is an identity, "
        "so a failure would be numerical.",
    )


def order_bars(orders: Sequence[float]) -> list[Bar]:
    """A bar for each order; several last orders near zero share a bar.

    >>> [bar.name for bar in order_bars([9.0, 3.0, 1.0, 0.01, -0.02, 0.01])][2:]
    ['paths through 2 heads', 'paths through 3 to 5 heads']
    """
    least = NEAR_ZERO * max(map(abs, orders))
    end = 1 + max((at for at, value in enumerate(orders) if abs(value) >= least), default=0)
    end = len(orders) if len(orders) - end < FEWEST_FOLDED else end
    bars = [
        Bar(f"paths through {order} {'head' if order == 1 else 'heads'}", value)
        for order, value in enumerate(orders[:end])
    ]
    if end < len(orders):
        bars.append(Bar(f"paths through {end} to {len(orders) - 1} heads", sum(orders[end:])))
    return bars


@statement("basis")
def no_privileged_basis(subject: Subject) -> Measurement:
    """The residual stream has no privileged basis

    Rotate the stream, together with every matrix that reads or writes it, and the outputs stay the
    same. So individual coordinates of the stream have no meaning.
    """
    model = fold(subject.model)
    tokens = _first_example(subject)
    runs = [version.trace(tokens) for version in (model, scrambled(model, seed=0))]
    before, after = (run.logits[0].log_softmax(-1) for run in runs)
    difference = float((after - before).abs().max())
    embedded, rotated = (run.model.weights.W_E[tokens[0, -1]] for run in runs)
    return Measurement(
        Estimate(difference),
        f"log-probabilities change by at most {difference:.1g} nats",
        view=subject.link("text", example=0),
        picture=PointsPicture(
            "Before and after a random rotation of the stream",
            "before the rotation, over the largest",
            "after it",
            (
                *_pairs(before[-1], after[-1], "log-probabilities of the last prediction"),
                *_pairs(embedded, rotated, "coordinates of a token's embedding"),
            ),
            "diagonal",
        ),
        note="a random rotation of the stream and of every head's inner basis, with every matrix "
        "that reads or writes them",
    )


def _pairs(before: Tensor, after: Tensor, group: str) -> list[Point]:
    """Entries before and after, relative to the largest."""
    scale = float(before.abs().max()) or 1.0
    return [
        Point(f"{group}, {at}", float(before[at]) / scale, float(after[at]) / scale, group)
        for at in range(0, len(before), max(1, len(before) // MOST_ENTRIES))
    ]


@statement("bandwidth")
def shared_channel(subject: Subject) -> Measurement:
    """The stream is a bottleneck

    Everything the model moves goes through the same d_model dimensions. The embedding and the heads
    share them, and together use more than there are.
    """
    result = subject.result("bandwidth", lambda model, to: bandwidth(model, progress=to))
    unembedding = result.stream[-1]
    writes = result.embedding.effective + sum(head.writes for head in result.heads)
    names = [f"before layer {use.layer}" for use in result.stream[:-1]] + ["before unembedding"]
    return Measurement(
        Estimate(writes / result.dimension),
        f"embedding and heads write {writes:.0f} effective dimensions into {result.dimension}",
        view=subject.link("atlas"),
        picture=claim.StacksPicture(
            f"Use of the {result.dimension} dimensions of the stream",
            "dimensions",
            ("written and read", "written only", "read only", "free"),
            tuple(
                claim.Stack(name, (use.both, use.written, use.read, use.free))
                for name, use in zip(names, result.stream, strict=True)
            ),
        ),
        note=f"before the unembedding {unembedding.free} of {result.dimension} dimensions are "
        "free; effective dimensions are participation ratios of singular values",
    )


@statement("zero-current")
def current_token_only(subject: Subject) -> Measurement:
    """A zero-layer model sees only the current token

    Its logits are W_E W_U at every position. Nothing moves information between positions, so the
    rest of the text cannot matter.
    """
    ids = _first_example(subject)
    reversed_ids = ids.clone()
    reversed_ids[:, :-1] = ids[:, :-1].flip(1)
    before, after = (subject.model(text)[0, -1].log_softmax(-1) for text in (ids, reversed_ids))
    difference = float((before - after).abs().max())
    likely = before.topk(min(MOST_POINTS, len(before))).indices.tolist()
    points = (
        Point(subject.model.output_text(token), float(before[token]), float(after[token]), "tokens")
        for token in likely
    )
    return Measurement(
        Estimate(difference),
        f"reversing the earlier tokens changes the last prediction by {difference:.1g} nats",
        view=subject.link("text", example=0),
        picture=PointsPicture(
            "The likeliest tokens at the end of a text, and with the earlier tokens reversed",
            "log-probability after the text, nats",
            "after the reversed text, nats",
            tuple(points),
            "diagonal",
        ),
    )


def _first_example(subject: Subject) -> Tensor:
    return torch.tensor([subject.examples[0].ids])


@statement("zero-bigram")
def bigram_statistics(subject: Subject) -> Measurement:
    """It approximates bigram statistics

    The best that W_E W_U can do is to predict the next token from the current one. Training brings
    it close to the bigram table of the text.
    """
    over = subject.over_bigram or _from_card(subject)
    drift = subject.result("drift of frequencies", lambda model, _: frequency_drift(model))
    note = (
        "on held-out text that does not come with the model, the table from its training text; "
        "the picture is of the held-out text that does"
    )
    if drift is not None:
        note += (
            f". Measured here: W_E W_U maps the token frequencies to themselves within {drift:.3f} "
            "nats (KL), as a bigram table does"
        )
    return Measurement(
        Estimate.around(abs(over.value), over.stderr),
        f"loss {over.value:+.3f} nats from the loss of the smoothed bigram table",
        view=subject.link("text", example=0),
        picture=subject.result("bigrams of held-out text", lambda model, _: _bigrams(model)),
        note=note,
    )


def _from_card(subject: Subject) -> Estimate:
    """The loss over the bigram table's, with its standard error, from the model's card."""
    card = None if subject.folder is None else subject.folder / CARD
    if card is None or not card.is_file():
        raise InputError(
            f"{subject.name!r} has no card, so there is no bigram table of its training text to "
            "compare with; use pathsum bigram MODEL --corpus …"
        )
    recorded = json.loads(card.read_text(encoding="utf-8"))["measured"]["over_bigram"]
    return Estimate.around(recorded["value"], recorded["within"] / 1.96)


def _bigrams(model: Model) -> PointsPicture | None:
    """Frequent pairs of the held-out text: their frequency and the model's prediction."""
    if model.held_out is None:
        return None
    bigrams = count_bigrams([model.held_out], model.config.d_vocab)
    first, second = bigrams.first, bigrams.second
    followed = bigrams.followed()[first]
    often = (followed >= LEAST_OCCURRENCES).nonzero()[:, 0]
    often = often[bigrams.counts[often].argsort(descending=True)[:MOST_POINTS]]
    log_p = DirectPath(model).rows(first[often]).log_softmax(-1)
    predicted = log_p.gather(1, second[often][:, None])[:, 0].tolist()
    counts = (bigrams.counts[often] / followed[often]).log().tolist()
    pairs = zip(first[often].tolist(), second[often].tolist(), counts, predicted, strict=True)
    return PointsPicture(
        "The most frequent pairs of adjacent tokens in held-out text",
        "log of how often b follows a there, nats",
        "log-probability by W_E W_U, nats",
        tuple(
            Point(f"{model.token_text(a)}{model.token_text(b)}", x, y, "pairs")
            for a, b, x, y in pairs
        ),
        "diagonal",
    )


def frequency_drift(model: Model) -> float | None:
    """The change of token frequencies by one step of the direct path: a KL divergence in nats.

    A bigram table maps the frequencies of its text to themselves, Σ_a p(a) P(b | a) = p(b), and so
    must any approximation of it. Uses the model's token counts; None without them. For a uniform
    table, the result is the negentropy of p, about 2 nats.
    """
    if model.token_counts is None:
        return None
    p = token_frequencies(model).double().cpu()
    direct = DirectPath(model)
    after = torch.zeros_like(p)
    for block in torch.arange(len(p)).split(block_rows(model)):
        after += p[block] @ direct.rows(block).softmax(-1).double().cpu()
    occurs = p > 0
    return float((p[occurs] * (p[occurs] / after[occurs]).log()).sum())


STREAM = (sum_of_paths, no_privileged_basis, shared_channel)
ZERO = (current_token_only, bigram_statistics)
