"""`Factored`: a matrix of low rank, kept as a product of two factors.

A product `A @ B` with A [m, r] and B [r, n] needs (m + n) r numbers where the matrix needs m n.
With m = n = 50,257 and r = 64 that is 6.4 million against 2.5 billion: the factors fit anywhere,
the matrix almost nowhere. The type is small on purpose: it can add, multiply and return single
rows; spectra, extremes and nulls are functions in other files of this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.base.errors import InputError
from pathsum.base.options import checked_methods

BatchIndex: TypeAlias = int | slice | EllipsisType | Tensor | list[int] | None
Scale: TypeAlias = int | float | Tensor


@dataclass(frozen=True, eq=False)
class SVD:
    """The thin singular value decomposition `U diag(S) Vh`.

    With q = min(r, m, n): `U` is [*batch, m, q], `S` [*batch, q] in descending order, `Vh`
    [*batch, q, n]. The entry of largest magnitude in each column of `U` is positive, which fixes
    the sign.
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
    """The largest entry of every row and its column: two tensors of shape [*batch, m]."""

    values: Tensor
    columns: Tensor


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class Factored:
    """The matrix `A @ B`, stored as its two factors.

    `A` is [*batch, m, r] and `B` is [*batch, r, n]; batch dimensions broadcast. Both have the same
    real floating-point dtype and the same device.

    >>> f = Factored(torch.ones(50_257, 2), torch.eye(2, 50_257))
    >>> f
    Factored(50257 × 2 × 50257, float32)
    >>> f.trace(), f.row(7)[:3], f.eigenvalues()  # never 50,257 × 50,257 in memory
    (tensor(2.), tensor([1., 1., 0.]), tensor([2.+0.j, 0.+0.j]))

    Operators keep the product factored: `f @ g` and `f @ tensor` and `tensor @ f` multiply the
    inner factors, `f + g` stacks them (ranks add), `f * 2` scales one of them, `f.T` swaps them,
    `f[i]` picks from the batch.

    Not for matrices of high rank: once r is above m n / (m + n) the dense matrix is smaller.
    """

    A: Tensor
    B: Tensor

    def __post_init__(self) -> None:
        _check_factors(self.A, self.B)

    # --- shape and type

    @property
    def batch_shape(self) -> torch.Size:
        """The batch dimensions, broadcast over the two factors."""
        return _common_batch(self.A.shape[:-2], self.B.shape[:-2])

    @property
    def shape(self) -> torch.Size:
        """The shape of the matrix, [*batch, m, n]."""
        return torch.Size((*self.batch_shape, self.A.shape[-2], self.B.shape[-1]))

    @property
    def rank_bound(self) -> int:
        """The inner dimension r. The rank is at most min(r, m, n)."""
        return self.A.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of both factors."""
        return self.A.dtype

    @property
    def device(self) -> torch.device:
        """The device of both factors."""
        return self.A.device

    def __repr__(self) -> str:
        m, n = self.shape[-2:]
        batch = f"{list(self.batch_shape)} of " if self.batch_shape else ""
        device = "" if self.device.type == "cpu" else f", {self.device}"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Factored({batch}{m} × {self.rank_bound} × {n}, {dtype}{device})"

    # --- algebra: everything stays factored

    @property
    def T(self) -> Factored:
        """The transpose of each matrix (the batch stays in place): `(A B)ᵀ = Bᵀ Aᵀ`."""
        return Factored(self.B.mT, self.A.mT)

    def __matmul__(self, other: Factored | Tensor) -> Factored:
        """`(A B)(C D)`: the core `B C` goes to the side that leaves the smaller inner dimension."""
        if not isinstance(other, Factored | Tensor):
            return NotImplemented
        left = other.A if isinstance(other, Factored) else other
        _check_inner(self, left, self.shape[-1], left.shape[-2] if left.ndim > 1 else None)
        core = self.B @ left
        if not isinstance(other, Factored):
            return Factored(self.A, core)
        if self.rank_bound <= other.rank_bound:
            return Factored(self.A, core @ other.B)
        return Factored(self.A @ core, other.B)

    def __rmatmul__(self, other: Tensor) -> Factored:
        if not isinstance(other, Tensor):
            return NotImplemented
        _check_inner(self, other, self.shape[-2], other.shape[-1] if other.ndim > 1 else None)
        return Factored(other @ self.A, self.B)

    def __add__(self, other: Factored) -> Factored:
        """`A B + C D = [A C] [B; D]`: the inner dimensions add."""
        if not isinstance(other, Factored):
            return NotImplemented
        if self.shape[-2:] != other.shape[-2:]:
            raise InputError(
                f"cannot add {self} and {other}: a sum needs matrices of one shape, "
                f"and these are {_times(self)} and {_times(other)}"
            )
        batch = _common_batch(self.shape[:-2], other.shape[:-2])
        return Factored(
            torch.cat([_expand(self.A, batch), _expand(other.A, batch)], dim=-1),
            torch.cat([_expand(self.B, batch), _expand(other.B, batch)], dim=-2),
        )

    def __neg__(self) -> Factored:
        return self * -1.0

    def __sub__(self, other: Factored) -> Factored:
        return self + -other if isinstance(other, Factored) else NotImplemented

    def __mul__(self, scale: Scale) -> Factored:
        """Scaling by a number, or by a tensor with one number for each batch element."""
        if isinstance(scale, Tensor):
            _common_batch(self.batch_shape, scale.shape)
            scale = scale[..., None, None]
        elif not isinstance(scale, int | float):
            return NotImplemented
        # The smaller factor is scaled; the larger is shared with the result.
        if self.A.numel() <= self.B.numel():
            return Factored(self.A * scale, self.B)
        return Factored(self.A, self.B * scale)

    def __rmul__(self, scale: Scale) -> Factored:
        return self * scale

    def __truediv__(self, scale: Scale) -> Factored:
        return self * (1 / scale) if isinstance(scale, int | float | Tensor) else NotImplemented

    def __getitem__(self, index: BatchIndex | tuple[BatchIndex, ...]) -> Factored:
        """Index the batch dimensions (for entries of the matrix: `row`, `column`, `entries`)."""
        batch = self.batch_shape
        at = _batch_index(index, batch)
        return Factored(_expand(self.A, batch)[at], _expand(self.B, batch)[at])

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Factored:
        """The same product in another dtype or on another device."""
        return Factored(
            self.A.to(dtype=dtype, device=device), self.B.to(dtype=dtype, device=device)
        )

    # --- parts

    def row(self, i: int) -> Tensor:
        """Row i, [*batch, n]."""
        _check_range(i, i, self.shape[-2], "row")
        return (self.A[..., i, None, :] @ self.B).squeeze(-2)

    def column(self, j: int) -> Tensor:
        """Column j, [*batch, m]."""
        _check_range(j, j, self.shape[-1], "column")
        return (self.A @ self.B[..., j, None]).squeeze(-1)

    def entries(self, rows: Int[Tensor, "..."], columns: Int[Tensor, "..."]) -> Tensor:
        """The entries at (rows[i], columns[i]), [*batch, *index].

        The two index tensors broadcast, as in `matrix[rows, columns]`. Needs memory for r numbers
        on each side of every requested entry: not for large parts of the matrix.
        """
        rows, columns = torch.broadcast_tensors(rows, columns)
        m, n = self.shape[-2:]
        for index, size, axis in ((rows, m, "row"), (columns, n, "column")):
            if index.numel():
                _check_range(int(index.min()), int(index.max()), size, axis)
        left = self.A[..., rows.reshape(-1), :]
        right = self.B[..., :, columns.reshape(-1)].mT
        return (left * right).sum(-1).reshape(*self.batch_shape, *rows.shape)

    def diagonal(self) -> Tensor:
        """The diagonal, [*batch, min(m, n)]."""
        q = min(self.shape[-2:])
        return (self.A[..., :q, :] * self.B[..., :, :q].mT).sum(-1)

    def trace(self) -> Tensor:
        """The trace, [*batch]: `tr(A B) = Σ A ∘ Bᵀ`, (m r) multiplications."""
        self.require_square("a trace")
        return self.diagonal().sum(-1)

    def dense(self) -> Tensor:
        """The matrix itself, [*batch, m, n]: 10 GB for 50,257 × 50,257 in float32."""
        return self.A @ self.B

    # --- functions of other files, as methods

    def norm(self) -> Tensor:
        """The Frobenius norm, [*batch]: see `spectrum.norm`."""
        from pathsum.algebra import spectrum

        return spectrum.norm(self)

    def eigenvalues(self) -> Tensor:
        """The min(r, n) eigenvalues that may be nonzero: see `spectrum.eigenvalues`."""
        from pathsum.algebra import spectrum

        return spectrum.eigenvalues(self)

    def svd(self) -> SVD:
        """The thin singular value decomposition: see `spectrum.svd`."""
        from pathsum.algebra import spectrum

        return spectrum.svd(self)

    def topk(self, k: int, largest: bool = True) -> TopEntries:
        """The k largest (or smallest) of all entries, streamed: see `extremes.topk`."""
        from pathsum.algebra import extremes

        return extremes.topk(self, k, largest=largest)

    def argmax_rows(self) -> RowMaxima:
        """The largest entry of every row, streamed: see `extremes.argmax_rows`."""
        from pathsum.algebra import extremes

        return extremes.argmax_rows(self)

    def require_square(self, name: str) -> None:
        """Raise unless m = n; `name` is the quantity that only a square matrix has."""
        m, n = self.shape[-2:]
        if m != n:
            raise InputError(
                f"{name} was requested of a {m} × {n} matrix, but only square matrices have one; "
                "multiply it into a square one, or use svd()"
            )


def _times(f: Factored) -> str:
    return " × ".join(str(size) for size in f.shape[-2:])


def _expand(factor: Tensor, batch: torch.Size) -> Tensor:
    return factor.expand(*batch, *factor.shape[-2:])


def _common_batch(left: torch.Size, right: torch.Size) -> torch.Size:
    try:
        # numpy's: torch's own imports a symbolic algebra, which takes seconds.
        return torch.Size(np.broadcast_shapes(tuple(left), tuple(right)))
    except ValueError:
        raise InputError(
            f"batch dimensions {list(left)} and {list(right)} do not fit together: "
            "from the right, sizes must be equal or 1"
        ) from None


def _check_factors(A: object, B: object) -> None:
    if not isinstance(A, Tensor) or not isinstance(B, Tensor):
        raise InputError(
            f"factors are {type(A).__name__} and {type(B).__name__}: both must be torch tensors; "
            "convert with torch.as_tensor"
        )
    if A.ndim < 2 or B.ndim < 2:
        raise InputError(
            f"a factor has shape {list(A.shape if A.ndim < 2 else B.shape)}: factors are matrices, "
            "A [*batch, m, r] and B [*batch, r, n]"
        )
    if A.shape[-1] != B.shape[-2]:
        raise InputError(
            f"factors {list(A.shape)} and {list(B.shape)} do not multiply: the last dimension of A "
            f"is {A.shape[-1]} and the second-to-last of B is {B.shape[-2]}; "
            "both are the inner dimension r"
        )
    if 0 in A.shape[-2:] or 0 in B.shape[-2:]:
        raise InputError(
            f"factors {list(A.shape)} and {list(B.shape)} are empty: m, r and n must be at least 1"
        )
    if not (A.is_floating_point() and B.is_floating_point()) or A.dtype != B.dtype:
        raise InputError(
            f"factors are {A.dtype} and {B.dtype}: both must have one real floating-point dtype; "
            "convert them with .to(torch.float32) or .to(torch.float64)"
        )
    if A.device != B.device:
        raise InputError(
            f"factors are on {A.device} and {B.device}: both must be on one device; "
            "move one with .to(device)"
        )
    _common_batch(A.shape[:-2], B.shape[:-2])


def _check_inner(f: Factored, other: Tensor, needed: int, actual: int | None) -> None:
    if actual is None:
        raise InputError(
            f"{f} cannot be multiplied by a vector with @: the result would not be a matrix; "
            "write (x @ f.A) @ f.B or f.A @ (f.B @ x)"
        )
    if needed != actual:
        raise InputError(
            f"{f} and {list(other.shape)} do not multiply: the inner dimensions are "
            f"{needed} and {actual}, but must be equal"
        )
    if f.dtype != other.dtype or f.device != other.device:
        raise InputError(
            f"{f} and a {other.dtype} tensor on {other.device} do not multiply: "
            "both must have one dtype and one device; convert one with .to()"
        )
    _common_batch(f.batch_shape, other.shape[:-2])


def _check_range(low: int, high: int, size: int, axis: str) -> None:
    if low < -size or high >= size:
        index = high if high >= size else low
        raise InputError(f"{axis} {index} does not exist: the matrix has {size} {axis}s")


def _batch_index(
    index: BatchIndex | tuple[BatchIndex, ...], batch: torch.Size
) -> tuple[BatchIndex, ...]:
    """The index with `...` spelled out over the batch, so that it cannot reach the matrices."""
    parts = index if isinstance(index, tuple) else (index,)
    used = 0
    for part in parts:
        if part is not None and part is not ...:
            used += part.ndim if isinstance(part, Tensor) and part.dtype == torch.bool else 1
    if used > len(batch):
        raise InputError(
            f"index {index} addresses {used} batch dimensions and there are {len(batch)}: "
            "indexing picks matrices; for their entries use row, column or entries"
        )
    full = [slice(None)] * (len(batch) - used)
    return tuple(item for part in parts for item in (full if part is ... else (part,)))
