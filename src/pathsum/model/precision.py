"""Low precision: the difference between a half-precision forward pass and the float32 one.

Checkpoints in bfloat16 and float16 are computed in float32 with their weights as stored, so that
decompositions add up to within rounding. A program that computes in the stored precision gives
slightly different logits; this file measures the difference.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch

from pathsum.algebra.centering import remove_mean
from pathsum.base import Column, Record, Table, parse_choice, text_column
from pathsum.base.errors import InputError
from pathsum.model.forward import run_logits
from pathsum.model.losses import sequence_losses, split_by_memory
from pathsum.model.model import Model
from pathsum.model.sequences import TextOrTokens, token_batches

LowPrecision: TypeAlias = Literal["bfloat16", "float16"]


@dataclass(frozen=True, eq=False)
class PrecisionGap(Record, kind="precision-gap"):
    """The logits of one forward pass in low precision against those in float32.

    `largest` and `rms` are of the difference of logits, each row's mean over the vocabulary removed
    (it changes no probability), `logit_sd` the standard deviation of the float32 logits around that
    mean. `kl` is the mean of KL(float32 ‖ low) in nats, `agreement` the share of positions where
    both predict the same token, and the losses are means over predicted tokens.
    """

    model: str
    stored: str
    computed: LowPrecision
    largest: float
    rms: float
    logit_sd: float
    kl: float
    agreement: float
    loss: float
    loss_low: float
    positions: int

    def to_table(self) -> Table:
        """One row per measure."""
        rows = (
            ("largest difference of logits", self.largest),
            ("rms difference of logits", self.rms),
            ("sd of logits in float32", self.logit_sd),
            ("KL(float32 ‖ low), nats", self.kl),
            ("same prediction", self.agreement),
            ("loss in float32, nats", self.loss),
            (f"loss in {self.computed}, nats", self.loss_low),
        )
        note = (
            f"stored in {self.stored}; {self.positions} positions. Every decomposition adds up to "
            "the float32 numbers."
        )
        title = f"{self.model}: a forward pass in {self.computed} against float32"
        return Table((text_column(""), Column("", ".3g")), rows, title=title, note=note)


@torch.no_grad()
def precision_gap(
    model: Model, tokens: TextOrTokens, dtype: LowPrecision | None = None
) -> PrecisionGap:
    """The difference between the model's forward passes in low precision and in float32.

    `dtype` is by default the precision that the checkpoint is stored in.

    >>> import pathsum as ps
    >>> model = ps.construct.induction()
    >>> precision_gap(model, "a b c a b", "bfloat16").agreement > 0.5
    True
    """
    stored = model.weights.store.dtypes["W_E"]
    known = get_args(LowPrecision)
    name = str(stored).removeprefix("torch.")
    if dtype is None and name not in known:
        raise InputError(
            f"the weights of {model.name!r} are stored in {name}, which is what they are computed "
            f"in; name a lower precision, {' or '.join(map(repr, known))}, to compare with"
        )
    chosen = parse_choice(known, name if dtype is None else dtype, "dtype")
    full, low = model.to(torch.float32), model.to(getattr(torch, chosen))
    count = squares = size = kl = same = largest = loss = loss_low = predicted = 0.0
    for batch in token_batches(model, tokens):
        for part in split_by_memory(model, batch, 3):
            ids = part.to(model.weights.device)
            here = run_logits(full.weights, ids)
            there = run_logits(low.weights, ids).float()
            losses = sequence_losses(here, ids)
            loss += float(losses.total.sum())
            loss_low += float(sequence_losses(there, ids).total.sum())
            predicted += float(losses.count.sum())
            same += float((here.argmax(-1) == there.argmax(-1)).sum())
            count += ids.numel()
            log_p, log_q = here.log_softmax(-1), there.log_softmax(-1)
            kl += float((log_p.exp() * (log_p - log_q)).sum())
            here = remove_mean(here)
            gap = remove_mean(there) - here
            largest = max(largest, float(gap.abs().max()))
            squares += float(gap.square().mean(-1).sum())
            size += float(here.square().mean(-1).sum())
    return PrecisionGap(
        model=model.name,
        stored=name,
        computed=chosen,
        largest=largest,
        rms=(squares / count) ** 0.5,
        logit_sd=(size / count) ** 0.5,
        kl=kl / count,
        agreement=same / count,
        loss=loss / max(1.0, predicted),
        loss_low=loss_low / max(1.0, predicted),
        positions=int(count),
    )
