"""References: the content of edges outside the circuit: zero, a mean over text, or another run."""

import enum
from typing import TYPE_CHECKING

from pathsum.base.errors import InputError
from pathsum.model import Model, Trace
from pathsum.model.edits import Writes
from pathsum.model.losses import split_by_memory
from pathsum.model.sequences import TextOrTokens, TokenBatches, token_batches
from pathsum.paths.circuit.cut import one_sequence
from pathsum.paths.intervene.patching import check_runs

if TYPE_CHECKING:
    from pathsum.paths.circuit.circuit import Prediction


class Reference(enum.StrEnum):
    """The content of edges that are not kept; another run is given as its trace.

    `ZERO`   nothing
    `MEAN`   the mean of what its writer writes, over a text and its positions
    `OTHER`  what it carries in the run to which the circuit's edges were cut (`other`, `corrupted`)
    """

    ZERO = "zero"
    MEAN = "mean"
    OTHER = "other"


def reference_writes(
    start: Trace,
    reference: Reference | Trace,
    text: TextOrTokens | None = None,
    of: "Prediction | None" = None,
) -> Writes:
    """The reference's replacement for each write of a run."""
    other, sequence = reference, 0 if of is None else of.sequence
    if other is Reference.OTHER:
        if of is None or of.other is None:
            raise InputError(
                "reference is 'other', but the circuit was found without another run; pass other= "
                "to trace.circuit, corrupted= to a Prompt, --other on the command line, or a trace"
            )
        other = of.other
    if isinstance(other, Trace):
        length = start.tokens.shape[1]
        if other.tokens.shape[1] < length:
            raise InputError(
                f"the reference has {other.tokens.shape[1]} tokens, but the prediction is after "
                f"{length}; edges can only be taken from a run of the same length"
            )
        there = one_sequence(other, sequence, length)
        check_runs(start, there)
        return Writes.of(there)
    own = Writes.of(start)
    if reference is Reference.ZERO:
        return own.zeros()
    if text is None:
        return mean_writes(start.model, [start.tokens], own)
    return mean_writes(start.model, token_batches(start.model, text), own)


def mean_writes(model: Model, batches: TokenBatches, like: Writes) -> Writes:
    """The mean of what each writer writes over sequences and positions, at every position."""
    total, count = like.zeros(), 0
    embed, z, mlp = total.embed[:, 0].double(), list(total.z), list(total.mlp_outputs)
    z, mlp = [one[:, :, 0].double() for one in z], [one[:, 0].double() for one in mlp]
    for batch in batches:
        for tokens in split_by_memory(model, batch):
            here = Writes.of(model.trace(tokens))
            embed = embed + here.embed.double().sum((0, 1))
            z = [old + one.double().sum((0, 2)) for old, one in zip(z, here.z, strict=True)]
            outputs = zip(mlp, here.mlp_outputs, strict=True)
            mlp = [old + one.double().sum((0, 1)) for old, one in outputs]
            count += tokens.numel()
    dtype = like.embed.dtype
    return Writes(
        embed=(embed / count).to(dtype)[:, None].expand_as(like.embed),
        z=tuple(
            (one / count).to(dtype)[:, :, None].expand_as(there)
            for one, there in zip(z, like.z, strict=True)
        ),
        mlp_outputs=tuple(
            (one / count).to(dtype)[:, None].expand_as(there)
            for one, there in zip(mlp, like.mlp_outputs, strict=True)
        ),
    )
