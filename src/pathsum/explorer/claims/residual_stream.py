"""Claims about the residual stream, on the model that is looked at."""

import torch

from pathsum.circuits import bandwidth
from pathsum.explorer.claims.claim import Measured, Statement, Subject
from pathsum.explorer.parameters import AboutText
from pathsum.model.folding import fold
from pathsum.model.symmetries import scrambled

EXACT = 1e-3


def _sum_of_paths(subject: Subject) -> Measured:
    asked = AboutText(model=subject.asked.model, step=subject.asked.step, example=0)
    paths = subject.bench.run(asked).trace.paths()
    remainder = paths.remainder()
    return Measured(
        f"{paths.count:,} {'path leaves' if paths.count == 1 else 'paths leave'} "
        f"{remainder:.1g} of the logits",
        remainder < EXACT,
        view=subject.link("paths", e=0),
    )


def _no_basis(subject: Subject) -> Measured:
    model = fold(subject.model)
    turned = scrambled(model, seed=0)
    tokens = torch.tensor([subject.bench.examples(subject.asked)[0].ids])
    before = model(tokens).log_softmax(-1)
    difference = float((turned(tokens).log_softmax(-1) - before).abs().max())
    return Measured(
        f"log-probabilities move by at most {difference:.1g}",
        difference < EXACT * float(before.abs().max()),
        view=subject.link("text", e=0),
        note="stream rotated at random, and every head's inner basis changed",
    )


def _shared_channel(subject: Subject) -> Measured:
    found = subject.bench.result(subject.asked, "bandwidth", bandwidth)
    last = found.stream[-1]
    wanted = found.embedding.effective + sum(head.writes for head in found.heads)
    return Measured(
        f"embedding and heads want {wanted:.0f} effective dimensions of {found.dimension}",
        wanted > found.dimension or last.free < found.dimension / 4,
        view=subject.link("atlas"),
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
        "Rotate the stream, and every matrix that reads or writes it, and nothing changes. So "
        "single coordinates of the stream mean nothing by themselves.",
        _no_basis,
    ),
    Statement(
        "bandwidth",
        "The stream is a channel in demand",
        "Everything the model moves goes through the same d_model dimensions. Parts of the model "
        "share them, and together want more than there are.",
        _shared_channel,
    ),
)
