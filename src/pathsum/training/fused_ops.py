"""Hand-written autograd functions of the training loop: mean loss, packed QKV read, attention.

All compute what plain PyTorch would, with fewer passes over memory; the tests compare them.

**Loss**, d loss / d logits = (softmax(logits) − 1[target]) / n. PyTorch's cross-entropy takes
logarithms of all probabilities forward, exponentials of them backward, and makes the gradient in
three passes over fresh memory; for a small model with a large vocabulary those passes are a tenth
of a step. Here only a target's probability has a logarithm, and the gradient reuses the memory of
the probabilities.

**Packed read**, packed = [(x + p) W_QK, x W_V] with W_QKV = [W_QK, W_V]. Queries and keys read the
stream with positions added, values without, so there are two products. Autograd would give each
half of W_QKV a gradient padded with zeros and add the two, and likewise for x; here each product
writes its own part of one gradient, and the second adds to the first.

**Causal attention** on packed queries, keys and values of equally many heads. Patterns of short
contexts fit into memory, so they are kept and the backward pass is six plain products, which
processors run at the full rate of their matrix units; PyTorch's fused kernel recomputes patterns
and, in bfloat16, reaches half that rate. Queries are taken in blocks, each against the keys up to
its own end, which leaves out most of the cells that the mask would remove.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.errors import FailedError
from pathsum.base.shapes import Stream


def mean_loss(logits: Float[Tensor, "n vocab"], targets: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """−log p of each target, averaged; in float32 or wider for any dtype of the logits.

    >>> logits = torch.zeros(2, 4, requires_grad=True)
    >>> round(mean_loss(logits, torch.tensor([0, 3])).item(), 4)  # log 4
    1.3863
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
        # A probability that underflowed has lost its digits; take its logarithm from the logits.
        underflowed = log_p < math.log(torch.finfo(wide).tiny)
        if underflowed.any():
            rows = logits[underflowed].to(wide)
            log_p[underflowed] = rows.log_softmax(-1).gather(1, targets[underflowed, None])[:, 0]
        return -log_p.mean()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise FailedError(
                "mean_loss has no second derivative: its gradient is written over its own memory; "
                "use torch.nn.functional.cross_entropy"
            )
        gradient, targets = ctx.saved_tensors
        gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
        return gradient.mul_(outer[0] / len(targets)).to(ctx.dtype), None


def read_with_positions(
    x: Stream,
    positions: Float[Tensor, "pos d"],
    weight: Float[Tensor, "d n"],
    n_positional: int,
) -> Float[Tensor, "batch pos n"]:
    """x @ weight, with `positions` added to x for the first `n_positional` columns."""
    if torch.is_autocast_enabled(x.device.type):
        # Autocast chooses dtypes per product, and does not see products into given memory.
        W_QK, W_V = weight.tensor_split((n_positional,), dim=-1)
        return torch.cat(((x + positions) @ W_QK, x @ W_V), dim=-1)
    return _PackedRead.apply(x, positions, weight, n_positional)


class _PackedRead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, positions: Tensor, weight: Tensor, n_positional: int
    ) -> Tensor:
        moved = x + positions
        ctx.save_for_backward(x, moved, weight)
        ctx.n_positional = n_positional
        packed = x.new_empty(*x.shape[:2], weight.shape[1])
        rows = packed.flatten(0, 1)
        torch.mm(moved.flatten(0, 1), weight[:, :n_positional], out=rows[:, :n_positional])
        torch.mm(x.flatten(0, 1), weight[:, n_positional:], out=rows[:, n_positional:])
        return packed

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, moved, weight = ctx.saved_tensors
        n: int = ctx.n_positional
        rows = outer[0].flatten(0, 1)
        to_query_key, to_value = rows[:, :n], rows[:, n:]
        weight_grad = torch.empty_like(weight)
        torch.mm(moved.flatten(0, 1).T, to_query_key, out=weight_grad[:, :n])
        torch.mm(x.flatten(0, 1).T, to_value, out=weight_grad[:, n:])
        moved_grad = to_query_key @ weight[:, :n].T
        positions_grad = moved_grad.view(x.shape).sum(0)
        x_grad = moved_grad.addmm_(to_value, weight[:, n:].T).view(x.shape)
        return x_grad, positions_grad, weight_grad, None


# Longer contexts are left to PyTorch's fused attention, which keeps no patterns.
LONGEST_KEPT = 512
_BLOCK = 128


def causal_attention(
    packed: Float[Tensor, "batch pos n"], d_head: int, scale: float
) -> Float[Tensor, "batch pos z"]:
    """softmax(scale · Q Kᵀ) V of every head, for packed = [Q, K, V] of equally many heads.

    >>> packed = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]]])  # one head of one dimension
    >>> causal_attention(packed, d_head=1, scale=1.0).flatten().tolist()
    [1.0, 2.0]
    """
    return _CausalAttention.apply(packed, d_head, scale)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, d_head: int, scale: float) -> Tensor:
        batch, length, _ = packed.shape
        # One copy for all three: [3, batch · head, pos, d_head].
        heads = packed.view(batch, length, 3, -1, d_head).permute(2, 0, 3, 1, 4).contiguous()
        query, key, value = heads.flatten(1, 2)
        z = torch.empty_like(query)
        patterns: list[Tensor] = []
        with torch.autocast(packed.device.type, enabled=False):
            for start, end in _blocks(length):
                future = packed.new_full((end - start, end), -torch.inf).triu(start + 1)
                scores = torch.baddbmm(future, query[:, start:end], key[:, :end].mT, alpha=scale)
                patterns.append(scores.softmax(-1))
                torch.bmm(patterns[-1], value[:, :end], out=z[:, start:end])
        ctx.save_for_backward(heads, *patterns)
        ctx.scale = scale
        return z.view(batch, -1, length, d_head).transpose(1, 2).flatten(2)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        heads, *patterns = ctx.saved_tensors
        batch, length, d_head = heads.shape[1], heads.shape[3], heads.shape[4]
        query, key, value = heads.flatten(1, 2)
        to_z = outer[0].view(batch, length, -1, d_head).transpose(1, 2).contiguous().flatten(0, 1)
        gradient = torch.empty_like(heads)
        to_query, to_key, to_value = gradient.flatten(1, 2)
        # What autograd itself calls; there is no public name for it.
        softmax_backward = torch.ops.aten._softmax_backward_data  # noqa: SLF001
        # The last block sees every key, so it fills what the other blocks add to.
        blocks = list(zip(_blocks(length), patterns, strict=True))[::-1]
        for (start, end), pattern in blocks:
            outer_block = to_z[:, start:end]
            to_pattern = torch.bmm(outer_block, value[:, :end].mT)
            to_scores = softmax_backward(to_pattern, pattern, -1, pattern.dtype)
            torch.bmm(to_scores, key[:, :end], out=to_query[:, start:end])
            if end == length:
                torch.bmm(pattern.mT, outer_block, out=to_value)
                torch.bmm(to_scores.mT, query[:, start:end], out=to_key)
            else:
                to_value[:, :end].baddbmm_(pattern.mT, outer_block)
                to_key[:, :end].baddbmm_(to_scores.mT, query[:, start:end])
        gradient[:2] *= ctx.scale
        packed = gradient.permute(1, 3, 0, 2, 4)
        return packed.flatten(2), None, None


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    """Equal blocks of queries, (start, end) each; a length that does not divide is one block."""
    size = _BLOCK if length % _BLOCK == 0 else length
    return ((start, start + size) for start in range(0, length, size))
