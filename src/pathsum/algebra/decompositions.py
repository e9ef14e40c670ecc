"""Dense decompositions of LAPACK, with their input checked.

LAPACK may crash on NaN and infinity, or return without an error. Every decomposition in pathsum
goes through this file: each function raises InputError if its input is not finite.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.base.errors import InputError

_THREADED_FROM = 8
"""Smaller batches finish before threads have started."""


def is_finite(numbers: Tensor) -> bool:
    """Whether no number is NaN or infinite; many times faster than `isfinite().all()`."""
    plain = numbers.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    if not plain.numel():
        return True
    # Both are NaN if any number is.
    low, high = torch.aminmax(plain)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def require_finite(matrix: Tensor, name: str = "a matrix to decompose") -> Tensor:
    """`matrix` itself; raises InputError if it contains NaN or infinity."""
    if not is_finite(matrix):
        kind = "NaN" if bool(matrix.isnan().any()) else "infinite values"
        raise InputError(
            f"{name} of shape {list(matrix.shape)} contains {kind}: the numbers behind it "
            f"overflowed {matrix.dtype} or were not finite; check the weights, or use float64"
        )
    return matrix


def eigh(
    symmetric: Float[Tensor, "*batch n n"],
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch n n"]]:
    """Eigenvalues (ascending) and orthonormal eigenvectors (columns) of symmetric matrices."""
    values, vectors = torch.linalg.eigh(require_finite(symmetric))
    return values, vectors


def eigvalsh(symmetric: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    """Eigenvalues of symmetric matrices, ascending."""
    return torch.linalg.eigvalsh(require_finite(symmetric))


def psd_root(symmetric: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """R with `Rᵀ R = M` for positive semidefinite M; negative eigenvalues, rounding, become 0."""
    values, vectors = eigh(symmetric)
    return values.clamp(min=0).sqrt()[..., :, None] * vectors.mT


def eig(
    square: Float[Tensor, "*batch n n"],
) -> tuple[Complex[Tensor, "*batch n"], Complex[Tensor, "*batch n n"]]:
    """Eigenvalues and right eigenvectors (columns) of square matrices, in LAPACK's order."""
    values, vectors = torch.linalg.eig(require_finite(square))
    return values, vectors


def eigvals(square: Float[Tensor, "*batch n n"]) -> Complex[Tensor, "*batch n"]:
    """Eigenvalues of square matrices, in LAPACK's order.

    A batch is spread over all cores, which `torch.linalg.eigvals` does not do.
    """
    require_finite(square)
    cores = torch.get_num_threads()
    count = math.prod(square.shape[:-2])
    if cores == 1 or count < _THREADED_FROM or square.device.type != "cpu":
        return torch.linalg.eigvals(square)
    flat = square.flatten(0, -3)
    with ThreadPoolExecutor(cores) as pool:
        parts = list(pool.map(torch.linalg.eigvals, flat.tensor_split(cores)))
    return torch.cat(parts).unflatten(0, square.shape[:-2])


def log_determinant(square: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """log |det M|; −∞ where M is singular."""
    return torch.linalg.slogdet(require_finite(square)).logabsdet


def thin_svd(
    matrix: Float[Tensor, "*batch m n"],
) -> tuple[Float[Tensor, "*batch m q"], Float[Tensor, "*batch q"], Float[Tensor, "*batch q n"]]:
    """U, S (descending) and Vh with `M = U diag(S) Vh`, q = min(m, n)."""
    left, values, right = torch.linalg.svd(require_finite(matrix), full_matrices=False)
    return left, values, right


def svdvals(matrix: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch q"]:
    """Singular values, descending."""
    return torch.linalg.svdvals(require_finite(matrix))


def qr(
    matrix: Float[Tensor, "*batch m n"],
) -> tuple[Float[Tensor, "*batch m q"], Float[Tensor, "*batch q n"]]:
    """Q with orthonormal columns and upper triangular R, `M = Q R`, q = min(m, n)."""
    Q, R = torch.linalg.qr(require_finite(matrix))
    return Q, R


def triangle(matrix: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch q n"]:
    """R alone of the QR decomposition: `Rᵀ R = Mᵀ M` without squaring the condition number."""
    return torch.linalg.qr(require_finite(matrix), mode="r").R


def cholesky(symmetric: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Lower triangular L with `L Lᵀ = M` for positive definite M."""
    return torch.linalg.cholesky(require_finite(symmetric))


def pinv(matrix: Tensor) -> Tensor:
    """The pseudo-inverse, real or complex."""
    return torch.linalg.pinv(require_finite(matrix))


def gram_of_rows(rows: Float[Tensor, "r d"], at_a_time: int = 8192) -> Float[Tensor, "d d"]:
    """FᵀF in float64, `at_a_time` rows at a time."""
    d = rows.shape[1]
    total = torch.zeros(d, d, dtype=torch.float64, device=rows.device)
    for part in rows.split(at_a_time):
        total += (part.mT @ part).double()
    return total


def compact(rows: Float[Tensor, "r d"]) -> Float[Tensor, "q d"]:
    """A matrix with the same FᵀF and at most d rows, in float64."""
    return rows.double() if len(rows) <= rows.shape[1] else psd_root(gram_of_rows(rows))


def inverse(square: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Inverses of square matrices; raises InputError if one is singular."""
    result, is_singular = torch.linalg.inv_ex(require_finite(square, "a matrix to invert"))
    if bool(is_singular.any()):
        raise InputError(f"a matrix of shape {list(square.shape)} is singular; it has no inverse")
    return result


def solve_lower(
    triangle: Float[Tensor, "*batch n n"], right: Float[Tensor, "*batch n m"]
) -> Float[Tensor, "*batch n m"]:
    """X with `L X = right`, for lower triangular L."""
    return torch.linalg.solve_triangular(
        require_finite(triangle), require_finite(right), upper=False
    )
