"""Removing means: from the rows of a factored matrix, and from plain rows.

With C = I − 11ᵀ/n the projection off the ones-vector, `M C` has rows of mean zero. Centering a
factored matrix keeps its rank, because one factor is centered.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.factored import Factored


def center_rows(f: Factored) -> Factored:
    """`A B C`: the mean of every row is taken from its entries.

    For rows that a softmax is taken over: a constant along a row changes nothing there.

    >>> import torch
    >>> center_rows(Factored(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0, 4.0]]))).dense()
    tensor([[-2.,  2.],
            [-4.,  4.]])
    """
    return Factored(f.A, remove_mean(f.B))


def remove_both_means(form: Float[Tensor, "d d"], centered: bool) -> Float[Tensor, "d d"]:
    """C F C if `centered`, else F: a form that neither reads nor writes along the ones-vector."""
    return remove_mean(remove_mean(form, centered).mT, centered).mT


def remove_mean(
    rows: Float[Tensor, "*batch d"], centered: bool = True
) -> Float[Tensor, "*batch d"]:
    """Rows without their component along the ones-vector, or unchanged if not `centered`."""
    return rows - rows.mean(-1, keepdim=True) if centered else rows
