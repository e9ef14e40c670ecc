"""What the functions around `Factored` return: small frozen records of tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class SVD:
    """The thin singular value decomposition `U diag(S) Vh`.

    With q = min(r, m, n): `U` is [*batch, m, q], `S` [*batch, q] in descending order, `Vh`
    [*batch, q, n]. The entry of largest magnitude in each column of `U` is positive, which fixes
    the sign that the decomposition leaves open (singular values that coincide leave more open).
    """

    U: Tensor
    S: Tensor
    Vh: Tensor


@dataclass(frozen=True, eq=False)
class Eigen:
    """Eigenvalues and right eigenvectors: `M @ vectors = vectors * values`.

    `values` is [*batch, q], complex, in the order of `eigenvalues`; `vectors` is [*batch, n, q],
    complex, each column of length 1 with its entry of largest magnitude real and positive.
    """

    values: Tensor
    vectors: Tensor


@dataclass(frozen=True, eq=False)
class TopEntries:
    """The k most extreme entries of a matrix, best first: three tensors of shape [*batch, k]."""

    values: Tensor
    rows: Tensor
    columns: Tensor


@dataclass(frozen=True, eq=False)
class RowMaxima:
    """The largest entry of every row and where it is: two tensors of shape [*batch, m]."""

    values: Tensor
    columns: Tensor
