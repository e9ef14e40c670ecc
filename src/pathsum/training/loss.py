"""The mean loss of predictions, with a gradient that is made in the memory of the probabilities.

    d loss / d logits = (softmax(logits) − 1[target]) / n

PyTorch's own cross-entropy makes it in three passes over fresh memory (zeros, scattered ones, the
gradient), and on a small model with a large vocabulary those passes are a tenth of a step.
"""

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
        log_p = logits.log_softmax(-1, dtype=wide)
        ctx.save_for_backward(log_p, targets)
        ctx.dtype = logits.dtype
        return -log_p.gather(1, targets[:, None]).mean()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise FailedError("the loss of training has a gradient, and its gradient has none")
        log_p, targets = ctx.saved_tensors
        gradient = log_p.exp_()
        gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
        return gradient.mul_(outer[0] / len(targets)).to(ctx.dtype), None
