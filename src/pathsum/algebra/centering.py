"""Taking means out of a factored matrix, which keeps its rank: one factor is centered.

With C = I − 11ᵀ/n the projection off the ones-vector, `M C` has rows of mean zero and `C M` columns
of mean zero.
"""

from __future__ import annotations

from pathsum.algebra.factored import Factored


def center_rows(f: Factored) -> Factored:
    """`A B C`: the mean of every row is taken from its entries.

    Right where a constant along a row changes nothing, as in a softmax over it.

    >>> import torch
    >>> center_rows(Factored(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0, 4.0]]))).dense()
    tensor([[-2.,  2.],
            [-4.,  4.]])
    """
    return Factored(f.A, f.B - f.B.mean(-1, keepdim=True))


def center_columns(f: Factored) -> Factored:
    """`C A B`: the mean of every column is taken from its entries.

    >>> import torch
    >>> center_columns(Factored(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0, 4.0]]))).dense()
    tensor([[-1., -4.],
            [ 1.,  4.]])
    """
    return Factored(f.A - f.A.mean(-2, keepdim=True), f.B)
