"""Causal attention for training: fused kernels, and on processors short rows in blocks.

At the contexts of small models a processor's fused kernel spends much of its time on bookkeeping.
Plain products of blocks of rows, each with the columns that it may see, need fewer passes: nothing
above the diagonal but the corner of a block is computed, and probabilities are kept for the way
back instead of being made twice.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsum.errors import FailedError
from pathsum.shapes import PerHead, PerKey

# Beyond so many positions the probabilities that are kept outgrow the caches.
LONGEST = 512
ROWS = 64


def causal_attention(query: PerHead, key: PerKey, value: PerKey, scale: float) -> PerHead:
    """Values mixed by the causal softmax of scaled scores, [batch, head, pos, d_head]."""
    grouped = key.shape[1] != query.shape[1]
    plain = query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)
    if not plain or grouped or query.shape[2] > LONGEST:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=grouped
        )
    return _InBlocks.apply(query, key, value, scale)


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        batch, heads, length, k = query.shape
        q = (query * scale).reshape(-1, length, k)
        key, value = key.reshape(-1, length, k), value.reshape(-1, length, k)
        future = query.new_full((ROWS, ROWS), -torch.inf).triu_(1)
        # In the order in which the write reads it, so that nobody has to copy.
        mixed = query.new_empty(batch, length, heads, k).transpose(1, 2)
        patterns: list[Tensor] = []
        for start in range(0, length, ROWS):
            stop = min(start + ROWS, length)
            scores = torch.bmm(q[:, start:stop], key[:, :stop].mT)
            scores[..., start:] += future[: stop - start, : stop - start]
            patterns.append(scores.softmax(-1))
            rows = torch.bmm(patterns[-1], value[:, :stop])
            mixed[:, :, start:stop] = rows.view(batch, heads, -1, k)
        ctx.save_for_backward(q, key, value, *patterns)
        ctx.scale = scale
        return mixed

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        if torch.is_grad_enabled():
            raise FailedError("attention in blocks has a gradient, and its gradient has none")
        q, key, value, *patterns = ctx.saved_tensors
        shape = outer[0].shape
        gradient = outer[0].reshape(q.shape)
        to_q, to_key, to_value = torch.empty_like(q), torch.zeros_like(q), torch.zeros_like(q)
        for number, pattern in enumerate(patterns):
            start, stop = number * ROWS, number * ROWS + pattern.shape[1]
            rows = gradient[:, start:stop]
            to_value[:, :stop].baddbmm_(pattern.mT, rows)
            to_pattern = torch.bmm(rows, value[:, :stop].mT)
            # Of a softmax: p ⊙ (g − Σ g p).
            to_pattern -= torch.linalg.vecdot(to_pattern, pattern)[..., None]
            to_scores = to_pattern.mul_(pattern)
            to_q[:, start:stop] = torch.bmm(to_scores, key[:, :stop])
            to_key[:, :stop].baddbmm_(to_scores.mT, q[:, start:stop])
        return to_q.mul_(ctx.scale).view(shape), to_key.view(shape), to_value.view(shape), None
