"""The in-context-learning score: how much better a model predicts late in a text than early."""

import torch
import torch.nn.functional as F

from pathsum.errors import InputError
from pathsum.model import Model
from pathsum.paths import Estimate
from pathsum.paths.estimates import ratio
from pathsum.paths.losses import Batches, token_batches

EARLY, LATE = 50, 500


@torch.no_grad()
def in_context_learning(
    model: Model, batches: Batches, *, early: int = EARLY, late: int = LATE
) -> Estimate:
    """Loss at token `late` minus loss at token `early`: negative where context helps.

    The 2022 paper's tokens are 50 and 500; before induction heads form its models score about
    −0.15 nats and after it about −0.4, whatever their size. A shorter context needs other tokens,
    and the number is then another one.
    """
    if not 0 < early < late:
        raise InputError(f"early={early} and late={late}: 0 < early < late would be right")
    differences: list[torch.Tensor] = []
    for tokens in token_batches(model, batches):
        if tokens.shape[1] <= late:
            raise InputError(
                f"sequences of {tokens.shape[1]} tokens have no token {late}; longer ones, or a "
                f"late of at most {tokens.shape[1] - 1}, would be right"
            )
        logits = model(tokens)
        at = [
            F.cross_entropy(logits[:, place - 1], tokens[:, place], reduction="none")
            for place in (early, late)
        ]
        differences.append((at[1] - at[0]).double())
    values = torch.cat(differences)
    return ratio(values, torch.ones_like(values))
