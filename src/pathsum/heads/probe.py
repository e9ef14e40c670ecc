"""The probe of `atlas` and `induction`: repeated random tokens, and the loss on each copy."""

from pathsum.base import Progress, silent
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.base.shapes import Tokens
from pathsum.model import Keep, Model, Trace
from pathsum.model.losses import sequence_losses
from pathsum.text.probes import RepeatedTokens, random_repeats

LENGTH, REPEATS, SEQUENCES = 25, 4, 10


def repeats_probe(model: Model, sequences: int = SEQUENCES, seed: int = 0) -> RepeatedTokens:
    """25 random tokens, 4 times, after the start token; shorter where the context is shorter."""
    config = model.config
    ids = model.token_pool().ids()
    available = config.n_ctx - (config.start_token is not None)
    repeats = REPEATS if available >= 3 * REPEATS else 2
    length = min(LENGTH, available // repeats, len(ids))
    if length < 2:
        raise InputError(
            f"repeats of at least 2 tokens do not fit: the context has {config.n_ctx} positions "
            f"and {len(ids)} tokens may be drawn; use a longer context or a larger vocabulary"
        )
    return random_repeats(ids, length, repeats, sequences, seed, config.start_token)


def attention_trace(
    model: Model, tokens: Tokens, progress: Progress = silent, what: str = "tokens"
) -> Trace:
    """A run that keeps patterns and streams but no logits, which a large vocabulary makes large."""

    def running(done: int, total: int, _: str) -> None:
        progress(done, total, f"running the model on {what}")

    return model.trace(tokens, keep=Keep(patterns="all", streams="all"), progress=running)


def second_copy(probe: RepeatedTokens) -> int:
    """Where the second copy begins: the first position whose next token can be known."""
    return probe.first + probe.length


def two_copies(probe: RepeatedTokens) -> Tokens:
    """The probe up to the end of its second copy."""
    return probe.tokens[:, : second_copy(probe) + probe.length]


def copy_losses(trace: Trace, probe: RepeatedTokens) -> tuple[Estimate, Estimate]:
    """Mean loss on the first copy, which is unpredictable, and on the second.

    The second copy's first token is left out: nothing before it shows that a copy begins.
    """
    start = second_copy(probe)
    end = start + probe.length
    first = sequence_losses(trace.logits[:, :start], trace.tokens[:, :start])
    second = sequence_losses(trace.logits[:, :end], trace.tokens[:, :end], start)
    return first.mean(), second.mean()
