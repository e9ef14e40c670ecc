"""Claims about the residual stream, measured on any model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pathsum.base.estimate import Estimate
from pathsum.circuits import bandwidth
from pathsum.explorer.params import TextParams
from pathsum.model.folding import fold
from pathsum.model.symmetries import scrambled
from pathsum.paper import rules
from pathsum.paper.claim import Measurement, Statement, Subject
from pathsum.paper.picture import (
    Bar,
    BarsPicture,
    Point,
    PointsPicture,
    Stack,
    StacksPicture,
)

# Points of a group that a picture shows, evenly spaced.
MOST_POINTS = 120
# Orders below this share of the largest are drawn as one bar, if there are so many of them.
NEAR_ZERO, FEWEST_FOLDED = 0.01, 3


def order_bars(orders: Sequence[float]) -> list[Bar]:
    """A bar for each order; the last ones in one bar, if they are several and all near zero.

    >>> [bar.name for bar in order_bars([9.0, 3.0, 1.0, 0.01, -0.02, 0.01])][2:]
    ['paths through 2 heads', 'paths through 3 to 5 heads']
    """
    least = NEAR_ZERO * max(map(abs, orders))
    end = max((order for order, value in enumerate(orders) if abs(value) >= least), default=0) + 1
    end = len(orders) if len(orders) - end < FEWEST_FOLDED else end
    bars = [
        Bar(f"paths through {order} {'head' if order == 1 else 'heads'}", value)
        for order, value in enumerate(orders[:end])
    ]
    if end < len(orders):
        bars.append(Bar(f"paths through {end} to {len(orders) - 1} heads", sum(orders[end:])))
    return bars


def _sum_of_paths(subject: Subject) -> Measurement:
    text = TextParams(model=subject.params.model, step=subject.params.step, example=0)
    trace = subject.bench.run(text).trace
    paths = trace.paths()
    token = int(trace.logits[0, -1].argmax())
    toward = paths.toward(position=-1, token=token)
    orders = [float(value) for _, value in toward.by_order.items()]
    bars = order_bars(orders)
    bars.append(Bar("their sum", sum(orders)))
    logit = float(trace.uncapped_logits[0, -1, token])
    bars.append(Bar("the model's logit", logit))
    largest = float(trace.uncapped_logits.abs().max())
    # Orders are summed by another computation than the total, so both are compared.
    remainder = max(paths.remainder(), abs(sum(orders) - logit) / largest)
    return Measurement(
        Estimate(remainder),
        f"{paths.count:,} {'path adds' if paths.count == 1 else 'paths add'} up to the logits with "
        f"a relative error of {remainder:.1g}",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            f"The logit of the last prediction, {subject.model.output_text(token)!r}, by order",
            "logit",
            tuple(bars),
        ),
        note="With patterns, normalization scales and MLP outputs held fixed this is an identity, "
        "so a failure would be one of the arithmetic.",
    )


def _no_basis(subject: Subject) -> Measurement:
    model = fold(subject.model)
    rotated = scrambled(model, seed=0)
    tokens = torch.tensor([subject.bench.examples(subject.params)[0].ids])
    runs = [each.trace(tokens) for each in (model, rotated)]
    before, after = (run.logits[0].log_softmax(-1) for run in runs)
    difference = float((after - before).abs().max())
    here, there = (run.model.weights.W_E[tokens[0, -1]] for run in runs)
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
                *_pairs(here, there, "coordinates of a token's embedding"),
            ),
            "diagonal",
        ),
        note="a random rotation of the stream and of every head's inner basis, with every matrix "
        "that reads or writes them",
    )


def _pairs(before: Tensor, after: Tensor, group: str) -> list[Point]:
    """Some entries before and after, over the largest."""
    scale = float(before.abs().max()) or 1.0
    places = range(0, len(before), max(1, len(before) // MOST_POINTS))
    return [
        Point(f"{group}, {place}", float(before[place]) / scale, float(after[place]) / scale, group)
        for place in places
    ]


def _shared_channel(subject: Subject) -> Measurement:
    found = subject.bench.slow_result(
        subject.params, "bandwidth", lambda model, to: bandwidth(model, progress=to)
    )
    last = found.stream[-1]
    writes = found.embedding.effective + sum(head.writes for head in found.heads)
    names = [f"before layer {use.layer}" for use in found.stream[:-1]] + ["before unembedding"]
    return Measurement(
        Estimate(writes / found.dimension),
        f"embedding and heads write {writes:.0f} effective dimensions into {found.dimension}",
        view=subject.link("atlas"),
        picture=StacksPicture(
            f"What the {found.dimension} dimensions of the stream are used for",
            "dimensions",
            ("written and read", "written only", "read only", "free"),
            tuple(
                Stack(name, (use.both, use.written, use.read, use.free))
                for name, use in zip(names, found.stream, strict=True)
            ),
        ),
        note=f"before the unembedding {last.free} of {found.dimension} dimensions are free; "
        "effective dimensions are participation ratios of singular values",
    )


STREAM = (
    Statement(
        "paths",
        "The logits are a sum over paths",
        "Heads read from and write to the residual stream by linear maps and only add to it. With "
        "attention patterns held fixed, the logits are exactly a sum over paths through the heads.",
        rules.PATHS,
        _sum_of_paths,
        "exact for attention-only models",
        0.0,
    ),
    Statement(
        "basis",
        "The residual stream has no privileged basis",
        "Rotate the stream, together with every matrix that reads or writes it, and the outputs "
        "stay the same. So single coordinates of the stream have no meaning of their own.",
        rules.BASIS,
        _no_basis,
    ),
    Statement(
        "bandwidth",
        "The stream is a bottleneck",
        "Everything the model moves goes through the same d_model dimensions. The embedding and "
        "the heads share them, and together use more than there are.",
        rules.BANDWIDTH,
        _shared_channel,
        "far more dimensions are computed than the stream has",
    ),
)
