"""`in_context_learning`: how much better a model predicts late in a text than early."""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.arguments import checked
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, ratio
from pathsum.model import Model
from pathsum.model.losses import run_losses
from pathsum.model.sequences import TextOrTokens, require_text, token_batches

EARLY, LATE = 50, 500


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
    checked = token_batches(model, require_text(model, batches))
    shortest = min(tokens.shape[1] for tokens in checked)
    if late is None and early is None and shortest < 3:
        raise InputError(
            f"a sequence of {shortest} tokens has no early and late token to compare; use "
            "sequences of at least 3 tokens"
        )
    late = min(LATE, shortest - 1) if late is None else late
    early = max(1, min(EARLY, late // 10)) if early is None else early
    check_places(early, late, window)
    losses: list[Tensor] = []
    for tokens in checked:
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
    difference = at_late - at_early
    return ratio(difference, torch.ones_like(difference))


def check_places(early: int, late: int, window: int) -> None:
    """An error if early is not before late, or a window begins before the first prediction."""
    if not 0 < early < late:
        raise InputError(f"early={early} and late={late}, but 0 < early < late is required")
    if not 1 <= window <= early:
        raise InputError(
            f"a window of {window} tokens cannot end at token {early}; use 1 to {early}"
        )
