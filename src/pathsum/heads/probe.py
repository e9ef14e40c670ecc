"""The probe of `atlas` and `induction`: repeated random tokens or text, and losses on repeats.

`in_context_learning` is the score of the 2022 paper on any text: how much better a model predicts
late in it than early.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.base.options import checked
from pathsum.base.shapes import Tokens
from pathsum.heads.pattern_scores import induction_cells
from pathsum.model import Keep, Model, Trace
from pathsum.model.losses import find_metric, next_tokens, run_losses, sequence_losses
from pathsum.model.sequences import TextOrTokens, require_text, token_batches
from pathsum.text.token_pool import RepeatedTokens, random_repeats

LENGTH, REPEATS, SEQUENCES = 25, 4, 10
EARLY, LATE = 50, 500
TEXT_SEQUENCES = 64
"""The most sequences of a text that are measured."""


def repeats_probe(model: Model, sequences: int = SEQUENCES, seed: int = 0) -> RepeatedTokens:
    """25 random tokens, 4 times, after the start token; shorter where the context is shorter."""
    if why := why_no_repeats(model):
        raise InputError(f"{why}; use a longer context or a larger vocabulary, or give text=")
    length, repeats = _repeats(model)
    ids = model.token_pool().ids()
    return random_repeats(ids, length, repeats, sequences, seed, model.config.start_token)


def why_no_repeats(model: Model) -> str:
    """Why repeated tokens do not fit into a model's context; empty if they do."""
    if _repeats(model)[0] >= 2:
        return ""
    return (
        f"repeats of at least 2 tokens do not fit: the context has {model.config.n_ctx} positions "
        f"and {len(model.token_pool().ids())} tokens may be drawn"
    )


def _repeats(model: Model) -> tuple[int, int]:
    """The length of a copy and the number of copies that fit."""
    available = model.config.n_ctx - (model.config.start_token is not None)
    repeats = REPEATS if available >= 3 * REPEATS else 2
    return min(LENGTH, available // repeats, len(model.token_pool().ids())), repeats


def random_tokens(model: Model, sequences: int, seed: int = 0) -> RepeatedTokens:
    """Random tokens without repeats, of the whole context or of `LENGTH`."""
    length = min(LENGTH, model.config.n_ctx)
    drawn = model.token_pool().draw(sequences, length, torch.Generator().manual_seed(seed))
    return RepeatedTokens(drawn, length, repeats=1, first=0)


def text_probe(model: Model, text: TextOrTokens) -> RepeatedTokens:
    """Text as a probe of one copy; its repeats are where tokens occur again."""
    batches = token_batches(model, text)
    lengths = sorted({batch.shape[1] for batch in batches})
    if len(lengths) > 1:
        raise InputError(
            f"the sequences have {lengths[0]} to {lengths[-1]} tokens; give sequences of one length"
        )
    tokens = torch.cat(batches)[:TEXT_SEQUENCES].cpu()
    start = int(model.config.start_token is not None)
    probe = RepeatedTokens(tokens, tokens.shape[1] - start, repeats=1, first=start)
    if not bool(induction_cells(probe)[:, :-1].any()):
        raise InputError(
            "no token of the text occurs twice before its end, so induction cannot be seen in it; "
            "give text with repeats"
        )
    return probe


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


def predictions_on_repeats(probe: RepeatedTokens) -> tuple[Tokens, dict[str, Any]]:
    """Tokens, and the predictions on them that induction can make, as options of `ablate`."""
    if probe.repeats > 1:
        return two_copies(probe), {"from_position": second_copy(probe)}
    again = induction_cells(probe).any(-1)
    return probe.tokens, {"targets": next_tokens(probe.tokens).masked_fill(~again, -1)}


def copy_losses(trace: Trace, probe: RepeatedTokens) -> tuple[Estimate, Estimate]:
    """Mean loss on the first copy, which is unpredictable, and on the second.

    The second copy's first token is left out: nothing before it shows that a copy begins. On text,
    the losses after tokens that occur for the first time, and after all others.
    """
    if probe.repeats == 1:
        again, loss = induction_cells(probe).any(-1), find_metric("loss")
        after = next_tokens(probe.tokens)
        new, known = (
            loss.of(trace.logits, after.masked_fill(hidden, -1).to(trace.logits.device))
            for hidden in (again, ~again)
        )
        return new.mean(), known.mean()
    start = second_copy(probe)
    end = start + probe.length
    first = sequence_losses(trace.logits[:, :start], trace.tokens[:, :start])
    second = sequence_losses(trace.logits[:, :end], trace.tokens[:, :end], start)
    return first.mean(), second.mean()


@torch.no_grad()
@checked
def in_context_learning(
    model: Model,
    batches: TextOrTokens | None = None,
    *,
    early: int | None = None,
    late: int | None = None,
    window: int = 1,
) -> Estimate:
    """Loss at token `late` minus loss at token `early`: negative where context helps.

    On `batches`, by default the held-out text that the model comes with. The 2022 paper uses tokens
    50 and 500: its models score about −0.15 nats before induction heads form and about −0.4 after,
    whatever their size. Sequences too short for token 500 are compared at their last token and at a
    tenth of that, and such scores are not comparable with the paper's. With a `window` above 1 each
    loss is a mean over that many tokens up to and including the named one, which narrows the
    interval.
    """
    read = token_batches(model, require_text(model, batches))
    shortest = min(tokens.shape[1] for tokens in read)
    if late is None and early is None and shortest < 3:
        raise InputError(
            f"a sequence of {shortest} tokens has no early and late token to compare; use "
            "sequences of at least 3 tokens"
        )
    late = min(LATE, shortest - 1) if late is None else late
    early = max(1, min(EARLY, late // 10)) if early is None else early
    check_places(early, late, window)
    losses: list[Tensor] = []
    for tokens in read:
        length = tokens.shape[1]
        if length <= late:
            raise InputError(
                f"sequences of {length} tokens have no token {late}; use longer sequences, or a "
                f"late of at most {length - 1}"
            )
        losses.append(run_losses(model, tokens[:, : late + 1]))
    return late_minus_early(torch.cat(losses), early=early, late=late, window=window)


def late_minus_early(
    losses: Float[Tensor, "sequence next"], *, early: int, late: int, window: int = 1
) -> Estimate:
    """The score from known losses; column i holds the loss of token i + 1."""
    check_places(early, late, window)
    at_early, at_late = (
        losses[:, place - window : place].double().mean(1) for place in (early, late)
    )
    return mean_estimate(at_late - at_early)


def check_places(early: int, late: int, window: int) -> None:
    """An error if early is not before late, or a window begins before the first prediction."""
    if not 0 < early < late:
        raise InputError(f"early={early} and late={late}, but 0 < early < late is required")
    if not 1 <= window <= early:
        raise InputError(
            f"a window of {window} tokens cannot end at token {early}; use 1 to {early}"
        )
