"""Claims about the residual stream, measured on any model."""

import torch

from pathsum.circuits import bandwidth
from pathsum.explorer.claims.claim import Measurement, Statement, Subject
from pathsum.explorer.claims.picture import LossPicture, ScatterPicture, TermsPicture
from pathsum.explorer.params import TextParams
from pathsum.model.folding import fold
from pathsum.model.symmetries import scrambled

EXACT = 1e-3


def _sum_of_paths(subject: Subject) -> Measurement:
    text = TextParams(model=subject.params.model, step=subject.params.step, example=0)
    paths = subject.bench.run(text).trace.paths()
    remainder = paths.remainder()
    return Measurement(
        f"{paths.count:,} {'path adds' if paths.count == 1 else 'paths add'} up to the logits with "
        f"a relative error of {remainder:.1g}",
        remainder < EXACT,
        view=subject.link("paths", e=0),
        picture=TermsPicture("order"),
    )


def _no_basis(subject: Subject) -> Measurement:
    model = fold(subject.model)
    rotated = scrambled(model, seed=0)
    tokens = torch.tensor([subject.bench.examples(subject.params)[0].ids])
    before = model(tokens).log_softmax(-1)
    difference = float((rotated(tokens).log_softmax(-1) - before).abs().max())
    return Measurement(
        f"log-probabilities change by at most {difference:.1g}",
        difference < EXACT * float(before.abs().max()),
        view=subject.link("text", e=0),
        picture=LossPicture(0),
        note="after a random rotation of the stream and of every head's inner basis",
    )


def _shared_channel(subject: Subject) -> Measurement:
    found = subject.bench.result(subject.params, "bandwidth", bandwidth)
    last = found.stream[-1]
    used = found.embedding.effective + sum(head.writes for head in found.heads)
    return Measurement(
        f"embedding and heads use {used:.0f} effective dimensions of {found.dimension}",
        used > found.dimension or last.free < found.dimension / 4,
        view=subject.link("atlas"),
        picture=ScatterPicture(),
        note=f"before the unembedding {last.free} of {found.dimension} dimensions are unused",
    )


STREAM = (
    Statement(
        "paths",
        "The logits are a sum over paths",
        "Heads read from and write to the residual stream by linear maps and only add to it. With "
        "attention patterns held fixed, the logits are exactly a sum over paths through the heads.",
        _sum_of_paths,
        "exact for attention-only models",
    ),
    Statement(
        "basis",
        "The residual stream has no privileged basis",
        "Rotate the stream, together with every matrix that reads or writes it, and the outputs "
        "stay the same. So single coordinates of the stream have no meaning of their own.",
        _no_basis,
    ),
    Statement(
        "bandwidth",
        "The stream is a bottleneck",
        "Everything the model moves goes through the same d_model dimensions. The embedding and "
        "the heads share them, and together use more than there are.",
        _shared_channel,
    ),
)
