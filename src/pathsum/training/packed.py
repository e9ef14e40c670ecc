"""Queries, keys and values of all heads by one parameter, with a gradient made in one piece.

    packed = [(x + p) W_QK, x W_V]          W_QKV = [W_QK, W_V]

Queries and keys read the stream with positions added, values without, so there are two products.
Autograd would give each half of W_QKV a gradient padded with zeros and add the two, and likewise
for x; here each product writes its own part of the one gradient, and the second adds to the first.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.shapes import Stream


def read_with_positions(
    x: Stream,
    table: Float[Tensor, "pos d"],
    weight: Float[Tensor, "d n"],
    placed: int,
) -> Float[Tensor, "batch pos n"]:
    """x @ weight, positions added to x for the first `placed` columns."""
    if torch.is_autocast_enabled(x.device.type):
        # Autocast chooses types product by product, which products into given memory escape.
        W_QK, W_V = weight.tensor_split((placed,), dim=-1)
        return torch.cat(((x + table) @ W_QK, x @ W_V), dim=-1)
    return _Read.apply(x, table, weight, placed)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, weight: Tensor, placed: int) -> Tensor:
        moved = x + table
        ctx.save_for_backward(x, moved, weight)
        ctx.placed = placed
        packed = x.new_empty(*x.shape[:2], weight.shape[1])
        rows = packed.flatten(0, 1)
        torch.mm(moved.flatten(0, 1), weight[:, :placed], out=rows[:, :placed])
        torch.mm(x.flatten(0, 1), weight[:, placed:], out=rows[:, placed:])
        return packed

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, moved, weight = ctx.saved_tensors
        placed: int = ctx.placed
        rows = outer[0].flatten(0, 1)
        to_placed, to_value = rows[:, :placed], rows[:, placed:]
        of_weight = torch.empty_like(weight)
        torch.mm(moved.flatten(0, 1).T, to_placed, out=of_weight[:, :placed])
        torch.mm(x.flatten(0, 1).T, to_value, out=of_weight[:, placed:])
        of_moved = to_placed @ weight[:, :placed].T
        of_table = of_moved.view(x.shape).sum(0)
        of_x = of_moved.addmm_(to_value, weight[:, placed:].T).view(x.shape)
        return of_x, of_table, of_weight, None
