"""The mean loss of predictions, with a gradient that is made in the memory of the probabilities.

    d loss / d logits = (softmax(logits) − 1[target]) / n

PyTorch's own cross-entropy takes logarithms of all probabilities forward, exponentials of them
backward, and makes the gradient in three passes over fresh memory; on a small model with a large
vocabulary those passes are a tenth of a step. Here only a target's probability has a logarithm.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.errors import FailedError


def mean_loss(logits: Float[Tensor, "n vocab"], targets: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """−log p of each target, averaged; in float32 whatever the logits are in.

    >>> logits = torch.zeros(2, 4, requires_grad=True)
    >>> mean_loss(logits, torch.tensor([0, 3])).item()  # log 4
    1.3862943649291992
    """
    return _MeanLoss.apply(logits, targets)


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        p = logits.softmax(-1, dtype=wide)
        ctx.save_for_backward(p, targets)
        ctx.dtype = logits.dtype
        log_p = p.gather(1, targets[:, None]).log()[:, 0]
        # A probability too small for its type has lost its digits, and has to be had from logits.
        lost = log_p < math.log(torch.finfo(wide).tiny)
        if lost.any():
            rows = logits[lost].to(wide)
            log_p[lost] = rows.log_softmax(-1).gather(1, targets[lost, None])[:, 0]
        return -log_p.mean()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise FailedError("the loss of training has a gradient, and its gradient has none")
        gradient, targets = ctx.saved_tensors
        gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
        return gradient.mul_(outer[0] / len(targets)).to(ctx.dtype), None
