"""The in-context-learning score: how much better a model predicts late in a text than early."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model import Model
from pathsum.model.losses import Batches, split_by_memory, token_batches
from pathsum.paths import Estimate
from pathsum.result.estimate import ratio

EARLY, LATE = 50, 500


@torch.no_grad()
def in_context_learning(
    model: Model, batches: Batches, *, early: int = EARLY, late: int = LATE, window: int = 1
) -> Estimate:
    """Loss at token `late` minus loss at token `early`: negative where context helps.

    The 2022 paper's tokens are 50 and 500; before induction heads form its models score about
    −0.15 nats and after it about −0.4, whatever their size. A shorter context needs other tokens,
    and the number is then another one. A `window` above 1 takes the mean over as many tokens that
    end at each of the two: fewer sequences then give the same interval.
    """
    check_places(early, late, window)
    losses: list[Tensor] = []
    for tokens in token_batches(model, batches):
        if tokens.shape[1] <= late:
            raise InputError(
                f"sequences of {tokens.shape[1]} tokens have no token {late}; longer ones, or a "
                f"late of at most {tokens.shape[1] - 1}, would be right"
            )
        for part in split_by_memory(model, tokens):
            logits = model(part[:, : late + 1])
            wanted = part[:, 1 : late + 1]
            losses.append(F.cross_entropy(logits[:, :-1].mT, wanted, reduction="none"))
    return late_minus_early(torch.cat(losses), early=early, late=late, window=window)


def late_minus_early(
    losses: Float[Tensor, "sequence next"], *, early: int, late: int, window: int = 1
) -> Estimate:
    """The same from losses that are known; column i holds the loss of token i + 1."""
    check_places(early, late, window)
    means = [losses[:, place - window : place].double().mean(1) for place in (early, late)]
    difference = means[1] - means[0]
    return ratio(difference, torch.ones_like(difference))


def check_places(early: int, late: int, window: int) -> None:
    """An error where the two windows are not two, or begin before the first predicted token."""
    if not 0 < early < late:
        raise InputError(f"early={early} and late={late}: 0 < early < late would be right")
    if not 1 <= window <= early:
        raise InputError(
            f"window={window} tokens cannot end at token {early}; 1 to {early} would be right"
        )
