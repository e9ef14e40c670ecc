"""Subspaces: rank, bases, principal angles; and the projection off the ones-vector (centering)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import qr, svdvals, thin_svd
from pathsum.algebra.factored import Factored
from pathsum.base.errors import InputError


def orthonormal(vectors: Float[Tensor, "*batch d p"]) -> Float[Tensor, "*batch d p"]:
    """An orthonormal basis of the span of the columns, which must be linearly independent."""
    d, p = vectors.shape[-2:]
    if p > d:
        raise InputError(
            f"{p} vectors in {d} dimensions cannot be linearly independent; "
            "pass the singular vectors that belong to nonzero singular values"
        )
    if torch.finfo(vectors.dtype).bits < 32:
        vectors = vectors.to(torch.float32)
    # A span does not depend on lengths; removing them keeps a tiny column from getting lost.
    lengths = torch.linalg.vector_norm(vectors, dim=-2, keepdim=True)
    if not bool((lengths > 0).all() & lengths.isfinite().all()):
        raise InputError(
            "a spanning vector is zero or not finite, so it has no direction; "
            "leave it out, or pass singular vectors"
        )
    return qr(vectors / lengths)[0]


def principal_angles(
    left: Float[Tensor, "*#batch d p"], right: Float[Tensor, "*#batch d q"]
) -> Float[Tensor, "*batch s"]:
    """The min(p, q) principal angles between two spans, in radians, ascending.

    With orthonormal bases X and Y the cosines are the singular values of `Xᵀ Y`, the sines those of
    `Y − X Xᵀ Y`. An angle is read from its cosine where that is small and from its sine otherwise:
    an arc cosine alone loses half the digits of small angles.

    >>> principal_angles(torch.eye(3)[:, :1], torch.tensor([[1.0], [1.0], [0.0]]))
    tensor([0.7854])

    Columns must be linearly independent; of a matrix of low rank pass its singular vectors.
    """
    x, y = orthonormal(left), orthonormal(right)
    if x.shape[-1] < y.shape[-1]:
        x, y = y, x
    shared = x.mT @ y
    cosines = svdvals(shared).clamp(max=1.0)
    sines = svdvals(y - x @ shared).clamp(max=1.0).flip(-1)
    return torch.where(cosines**2 < 0.5, cosines.acos(), sines.asin())


def numerical_rank(singular_values: Float[Tensor, " q"], dtype: torch.dtype) -> int:
    """The number of singular values above the rounding of a matrix stored in `dtype`."""
    noise = singular_values.max() * max(len(singular_values), 10) * torch.finfo(dtype).eps
    return int((singular_values > noise).sum())


def row_basis(matrix: Float[Tensor, "r d"], dtype: torch.dtype) -> Float[Tensor, "q d"]:
    """An orthonormal basis of the row space, as rows; `dtype` sets what counts as rounding."""
    _, values, Vh = thin_svd(matrix)
    return Vh[: numerical_rank(values, dtype)] if bool(values.max() > 0) else Vh[:0]


def center_rows(f: Factored) -> Factored:
    """`A B C`: the mean of every row is taken from its entries.

    For rows that a softmax is taken over: a constant along a row changes nothing there. With
    C = I − 11ᵀ/n the projection off the ones-vector, this is the product with C, and has the same
    rank.

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
