"""Loss on repeated random tokens: the first copy, which nothing can predict, and the second."""

from pathsum.model import Trace
from pathsum.model.losses import sequence_losses
from pathsum.paths import Estimate
from pathsum.shapes import Tokens
from pathsum.text.probes import RepeatedTokens


def two_copies(probe: RepeatedTokens) -> Tokens:
    """The probe up to the end of its second copy."""
    return probe.tokens[:, : second_copy(probe) + probe.length]


def second_copy(probe: RepeatedTokens) -> int:
    """Where the second copy begins: the first position whose next token can be known."""
    return probe.first + probe.length


def copy_losses(trace: Trace, probe: RepeatedTokens) -> tuple[Estimate, Estimate]:
    """Mean loss of the tokens of the first copy, and of those of the second but its first."""
    start = second_copy(probe)
    first = sequence_losses(trace.logits[:, :start], trace.tokens[:, :start])
    end = start + probe.length
    second = sequence_losses(trace.logits[:, :end], trace.tokens[:, :end], start)
    return first.mean(), second.mean()
