"""Bounds on Σ|λ| of matrices `diag(D) C` that cost a fraction of their eigenvalues.

A ratio Σλ / Σ|λ| is compared with that of hundreds of random matrices. Σλ is the trace, and bounds
on Σ|λ| mostly show on which side of a number the ratio is.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import log_determinant

_STEEPEST = 0.80475
"""The largest log(1 + x²) / x over x > 0, at x = 1.98."""
_COUNTED = 12.0
"""What `by_determinant` divides by, a little more than 4 e: |λ| near e ρ give the best bound, and
the upper bound is often four times Σ|λ|."""


class SumBounds:
    """|Σλ|, and what Σ|λ| is at least and at most, for every `diag(own) core`.

    Matrices are scaled by the largest of `own` and of `core`, which no ratio of the three sees. No
    matrix is formed: each bound is a product of what `own` gives with what `core` gives.

    >>> bounds = SumBounds(torch.eye(2).double()[None], torch.tensor([[1.0, 1.0]]).double())
    >>> float(bounds.trace), float(bounds.low), float(bounds.high)
    (2.0, 2.0, 2.0)
    """

    trace: Float[Tensor, "matrix draw"]
    low: Float[Tensor, "matrix draw"]
    high: Float[Tensor, "matrix draw"]

    def __init__(self, core: Float[Tensor, "draw r r"], own: Float[Tensor, "matrix r"]) -> None:
        r, largest = core.shape[-1], core.abs().amax()
        self._D, self._C = D, C = own / own.amax(-1, keepdim=True), core / largest
        trace = D @ C.diagonal(dim1=-2, dim2=-1).mT
        # At most the sum of singular values (Weyl), and that at most the sum of the norms of rows,
        # of the similar matrix D^½ C D^½.
        rows = (D @ C.square().flatten(0, 1).mT).unflatten(1, (-1, r)).sqrt()
        self.high = (D.sqrt()[:, None] * rows).sum(-1)
        # At least r |λ₁ … λᵣ|^(1/r): a mean is at least the geometric mean.
        log_product = D.log().sum(-1)[:, None] + log_determinant(core) - r * largest.log()
        # The square is at least |Σ λᵢ²| + |Σ λᵢ λⱼ| over i ≠ j. Cancellation in the first leaves
        # an error of the size of its terms.
        square = (D[:, :, None] * D[:, None, :]).flatten(1) @ (C * C.mT).flatten(1).mT
        by_squares = square.abs() + (trace.square() - square).abs() - 1e-12 * self.high.square()
        self.low = torch.maximum(r * (log_product / r).exp(), by_squares.clamp_min(0).sqrt())
        self.trace = trace.abs()

    def by_determinant(self, matrix: Tensor, draw: Tensor) -> Float[Tensor, " some"]:
        """A higher lower bound of some of them where D spans decades, for a determinant each.

        With c the largest log(1 + x²) / x, each |λ| is at least ρ log(1 + |λ/ρ|²) / c, so

            Σ|λ| ≥ ρ log |det(1 + M² / ρ²)| / c      for every ρ,

        and what is much smaller than ρ does not count.
        """
        D, C, high = self._D[matrix], self._C[draw], self.high[matrix, draw]
        counted = D.sum(-1).square() / D.square().sum(-1)
        rho = high / (_COUNTED * counted)
        M = D[:, :, None] * C / rho[:, None, None]
        eye = torch.eye(M.shape[-1], dtype=M.dtype)
        return rho * log_determinant(torch.baddbmm(eye, M, M)) / _STEEPEST
