"""Norms, eigenvalues and singular values of a factored matrix, from r × r products.

Every function works in float32 or float64: half-precision factors are read as float32. Factors are
balanced first (`balanced`), so that a product of a huge column and a tiny row costs no accuracy.
Results agree with dense linear algebra norm-wise: an error is small relative to the norms of the
balanced factors (for eigenvalues times their condition number), which is the size of the largest
singular value unless the factors cancel each other. A singular value or an eigenvalue 10⁻¹⁶ times
smaller than the largest is noise, here as in a dense decomposition.

Subspaces follow: rank, bases, principal angles; and the projection off the ones-vector (centering).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.algebra import decompositions
from pathsum.algebra.decompositions import qr, svdvals, thin_svd
from pathsum.algebra.factored import SVD, Eigen, Factored
from pathsum.base.errors import InputError


def widened(f: Factored) -> Factored:
    """`f` itself; half precision, which has no decompositions, is converted to float32."""
    return f.to(torch.promote_types(f.dtype, torch.float32))


def balanced(f: Factored) -> Factored:
    """The same product with factors of matching scale.

    For each inner index k, column k of A and row k of B are multiplied by 2ˢ and 2⁻ˢ so that their
    largest magnitudes are within a factor of 4. Powers of two are exact, so `A B` does not change.
    If one side of a term is zero, both are set to zero.

    >>> f = Factored(torch.tensor([[1e8, 1e-8]]), torch.tensor([[1e-8], [1e8]]))
    >>> balanced(f).A
    tensor([[0.7451, 0.6711]])

    Half-precision factors come back in float32. Raises on NaN and infinity.
    """
    f = widened(f)
    a = f.A.abs().amax(-2)
    b = f.B.abs().amax(-1)
    if not bool(a.isfinite().all() & b.isfinite().all()):
        raise InputError(
            f"{f} contains NaN or infinity, so it has no norm and no spectrum; "
            "check where the factors come from"
        )
    shift = torch.div(b.frexp().exponent - a.frexp().exponent, 2, rounding_mode="floor")
    # 2ˢ and 2⁻ˢ have to be normal numbers themselves.
    limit = 1 - math.frexp(torch.finfo(f.dtype).smallest_normal)[1]
    shift = shift.clamp(-limit, limit)
    nonzero = ((a > 0) & (b > 0)).to(f.dtype)
    return Factored(
        f.A * torch.ldexp(nonzero, shift)[..., None, :],
        f.B * torch.ldexp(nonzero, -shift)[..., :, None],
    )


def norm(f: Factored) -> Float[Tensor, "*batch"]:
    """The Frobenius norm `‖A B‖`, [*batch].

    `‖A B‖ = ‖R B‖` with `A = Q R`: a QR of the shorter factor, then one small product. The textbook
    `Σ (AᵀA) ∘ (B Bᵀ)` is the square of the same number and loses half the digits where factors
    cancel: with it `(f - f).norm()` would be 10⁻⁸ ‖f‖ and not 10⁻¹⁶ ‖f‖.

    A trace may be permuted cyclically, a norm may not: `‖A B C‖ ≠ ‖C A B‖`.
    """
    f = balanced(f)
    m, n = f.shape[-2:]
    if m <= n:
        core = _finite(decompositions.triangle(f.A) @ f.B)
    else:
        core = _finite(f.A @ decompositions.triangle(f.B.mT).mT)
    # Divided by the largest entry first: the square of 1e200 overflows.
    scale = core.abs().amax((-2, -1))
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return safe * torch.linalg.vector_norm(core / safe[..., None, None], dim=(-2, -1))


def eigenvalues(f: Factored) -> Complex[Tensor, "*batch q"]:
    """The eigenvalues that may be nonzero, complex, [*batch, min(r, n)].

    `A B` and `B A` have the same nonzero eigenvalues, and `B A` is r × r. (Where r > n the n × n
    matrix is the smaller one and is used as it is.) Sorted by descending magnitude, then by
    descending real part, then by descending imaginary part: a conjugate pair is adjacent, the
    one above the real axis first.

    >>> eigenvalues(Factored(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0]])))
    tensor([11.+0.j])

    Eigenvalues do not determine single entries: [[-1, 2], [-4, 5]] has eigenvalues 1 and 3 and a
    negative diagonal entry.
    """
    f.require_square("an eigenvalue")
    values = decompositions.eigvals(_core(balanced(f)))
    return values.gather(-1, _order(values))


def eigenvectors(f: Factored) -> Eigen:
    """Eigenvalues with right eigenvectors: if `(B A) v = λ v` then `(A B)(A v) = λ (A v)`.

    The columns of `vectors` have length 1, and their entry of largest magnitude is real and
    positive. Left eigenvectors are the right ones of `f.T`. The vector of an eigenvalue
    that is zero up to rounding is arbitrary, or zero.
    """
    f.require_square("an eigenvector")
    f = balanced(f)
    values, inner = decompositions.eig(_core(f))
    order = _order(values)
    values = values.gather(-1, order)
    inner = inner.gather(-1, order[..., None, :].expand(inner.shape))
    vectors = f.A.to(inner.dtype) @ inner if f.rank_bound <= f.shape[-1] else inner
    return Eigen(values, _unit_columns(vectors))


def svd(f: Factored) -> SVD:
    """The thin singular value decomposition, `A B = U diag(S) Vh`, q = min(r, m, n) values.

    QR of A and of Bᵀ, then the decomposition of the r × r product of the two triangles:
    `A B = Q_A (R_A R_Bᵀ) Q_Bᵀ`. It costs two QRs.

    >>> f = Factored(torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0, 4.0]]))
    >>> svd(f).S[0]  # the spectral norm
    tensor(10.)

    For the Frobenius norm alone use `norm`, which is cheaper.
    """
    f = balanced(f)
    q_a, r_a = decompositions.qr(f.A)
    q_b, r_b = decompositions.qr(f.B.mT)
    left, values, right = decompositions.thin_svd(_finite(r_a @ r_b.mT))
    left, right = q_a @ left, right @ q_b.mT
    peak = left.gather(-2, left.abs().argmax(-2, keepdim=True))
    sign = torch.where(peak < 0, -1.0, 1.0).to(left.dtype)
    return SVD(left * sign, values, right * sign.mT)


def singular_values(f: Factored) -> Float[Tensor, "*batch q"]:
    """The singular values alone, descending, [*batch, min(r, m, n)]."""
    f = balanced(f)
    return decompositions.svdvals(
        _finite(decompositions.triangle(f.A) @ decompositions.triangle(f.B.mT).mT)
    )


def positivity(values: Complex[Tensor, "*batch q"]) -> Float[Tensor, "*batch"]:
    """`Σλ / Σ|λ|` of eigenvalues: 1 where all are positive, −1 where all are negative.

    The sum over a real matrix is real (complex ones come in pairs) and equals the trace.

    >>> positivity(torch.tensor([3.0 + 0j, -1.0 + 0j]))
    tensor(0.5000)

    NaN where every eigenvalue is zero. The ratio is a summary, not a proof, and it is large under
    the null if the factors share directions: compare it with a null that keeps shared directions.
    """
    return values.real.sum(-1) / values.abs().sum(-1)


def _core(f: Factored) -> Float[Tensor, "*batch q q"]:
    """The small matrix whose eigenvalues are those of `A B` that may be nonzero."""
    return _finite(f.B @ f.A if f.rank_bound <= f.shape[-1] else f.dense())


def _finite(core: Float[Tensor, "*batch p q"]) -> Float[Tensor, "*batch p q"]:
    """The product itself; raises InputError if it overflowed."""
    if not bool(core.isfinite().all()):
        raise InputError(
            f"the product overflows {core.dtype}, so it has no spectrum; "
            "scale the factors down or use float64"
        )
    return core


def _order(values: Complex[Tensor, "*batch q"]) -> Tensor:
    """Indices by descending magnitude, then real part, then imaginary part."""
    # Stable sorts, the last key first.
    order = values.imag.argsort(dim=-1, descending=True, stable=True)
    for key in (values.real, values.abs()):
        refined = key.gather(-1, order).argsort(dim=-1, descending=True, stable=True)
        order = order.gather(-1, refined)
    return order


def _unit_columns(vectors: Complex[Tensor, "*batch n q"]) -> Complex[Tensor, "*batch n q"]:
    peak = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
    size = peak.abs()
    safe = torch.where(size > 0, size, torch.ones_like(size))
    # The largest entry is 1, so the length is at least that, or 0 if all entries are.
    rotated = vectors / safe * (peak.conj() / safe)
    length = torch.linalg.vector_norm(rotated, dim=-2, keepdim=True)
    return rotated / length.clamp(min=1)


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
            "omit it, or pass singular vectors"
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

    Use it for rows that enter a softmax, where a constant along a row has no effect. With
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
