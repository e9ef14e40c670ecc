"""Random rotations of the directions that matrices read and write: a null that keeps each spectrum.

A low-rank matrix U D Vᵀ in a stream of d dimensions, between two fixed matrices whose product is C
(d × d), has the nonzero eigenvalues of

    D (Vᵀ C U).

If its directions are unrelated to C, the frames U and V are uniformly random. Then only the
singular values S of C matter: `Vᵀ C U` is distributed as `Vᵀ diag(S) U`, and all matrices between
the same two share its draws, so that each costs r × r products, independent of d.

Heads of real models prefer some axes of the stream, which rotations do not preserve. Where both
sides of a matrix meet in the stream itself (C = 1), `permuted_cores` draws signed permutations of
the axes instead; the larger of the two p-values counts.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from pathsum.algebra.decompositions import cholesky, eigh, eigvals, log_determinant, solve_lower
from pathsum.algebra.factored import Factored
from pathsum.algebra.spectrum import positivity, singular_values, svd
from pathsum.base.errors import InputError
from pathsum.base.options import batch_size

DRAWS = 200
"""The default number of random rotations."""
TIE = 1e-9
"""Ratios closer than this are equal: a matrix of rank one has a ratio of ±1, as every draw has."""
STOP_AT = 10
"""Draws at or above a value after which it gets no more draws, because it is not unusual."""
_DRAWS_AT_ONCE = 10
"""Draws, each with its negative, between two checks of which matrices need more."""
_MARGIN = 0.01
"""The relative distance at which a bound decides about a ratio: far above rounding."""
_STEEPEST = 0.80475
"""The largest log(1 + x²) / x over x > 0, at x = 1.98."""
_RHO_DIVISOR = 12.0
"""The divisor of ρ in `by_determinant`, a little more than 4 e: |λ| near e ρ give the best bound,
and the upper bound is often four times Σ|λ|."""


def seeded(seed: int) -> torch.Generator:
    """A generator that starts from a seed; numpy's integers are seeds too.

    >>> torch.rand(1, generator=seeded(3)) == torch.rand(1, generator=seeded(3))
    tensor([True])
    """
    try:
        return torch.Generator().manual_seed(operator.index(seed))
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        description = (
            f"a {type(seed).__name__}" if not isinstance(seed, int | float | str) else seed
        )
        raise InputError(
            f"seed is {description!s:.40}; give an integer of at most 63 bits"
        ) from error


def random_frames(
    count: int, d: int, r: int, generator: torch.Generator
) -> Float[Tensor, "count d r"]:
    """Orthonormal frames of r directions in d dimensions, uniformly random, in float64.

    >>> F = random_frames(3, 8, 2, torch.Generator().manual_seed(0))
    >>> torch.allclose(F.mT @ F, torch.eye(2, dtype=torch.float64).expand(3, 2, 2))
    True
    """
    if r > d:
        raise InputError(f"{r} orthonormal directions do not fit into {d} dimensions")
    # Drawn in float32, which is faster and random enough, and whitened in float64. Gaussian noise
    # has no preferred direction, and whitening its columns by Cholesky keeps it so.
    noise = torch.randn((count, d, r), generator=generator).double()
    whitener = cholesky(noise.mT @ noise)
    return solve_lower(whitener, noise.mT).mT


def root(W: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch r k"]:
    """The part of W that is invariant under rotations of the stream: (Wᵀ W)^½, or W where d ≤ k.

    A uniformly random frame times it is W rotated at random. Taken from the k × k product, which
    costs a tenth of a QR of W.
    """
    d, k = W.shape[-2:]
    if d <= k:
        return W
    wide = W.double()
    squares, vectors = eigh(wide.mT @ wide)
    return ((vectors * squares.clamp_min(0).sqrt()[..., None, :]) @ vectors.mT).to(W)


def significant_values(f: Factored) -> Float[Tensor, "*batch q"]:
    """Singular values in float64; those below the rounding error of the factors are set to 0."""
    values = singular_values(f.to(torch.float64))
    noise = values[..., :1] * max(values.shape[-1], 10) * torch.finfo(f.dtype).eps
    return torch.where(values > noise, values, torch.zeros_like(values))


def rotated_spectra(
    C: Sequence[Float[Tensor, " s"]],
    D: Sequence[Float[Tensor, "*batch r"]],
    d: int,
    *,
    draws: int,
    seed: int = 0,
) -> Complex[Tensor, "*batch half q"]:
    """Eigenvalues of `D₁ (V₁ᵀ C₁ U₂) D₂ … Dₙ (Vₙᵀ Cₙ U₁)` over random frames; draws/2 of them.

    `D` has the singular values of n matrices in a row, and `C` the singular values of the
    matrices that follow them (n = 1 for a single matrix). The other half of the draws are the
    negatives: −V is as likely as V, so every λ is as likely as −λ.
    """
    # No more than d singular values of a matrix in d dimensions differ from 0.
    r = min(D[0].shape[-1], d)
    return spectra_between(rotated_cores(C, d, r, draws=draws, seed=seed), D)


def rotated_cores(
    C: Sequence[Float[Tensor, " s"]], d: int, r: int, *, draws: int, seed: int = 0
) -> list[Float[Tensor, "half r r"]]:
    """`Vᵢᵀ Cᵢ U` over random frames of r directions, which matrices of any spectrum share."""
    generator = seeded(seed)
    return [_random_core(S, d, r, (draws + 1) // 2, generator) for S in C]


def random_orders(count: int, d: int, generator: torch.Generator) -> Int[Tensor, "count d"]:
    """Permutations of d axes, uniformly random."""
    return torch.rand((count, d), generator=generator).argsort(-1)


def permuted_cores(f: Factored, *, draws: int, seed: int = 0) -> Float[Tensor, "half r r"]:
    """`Vᵀ S U` of one matrix `U D Vᵀ` over random signed permutations S of the stream's axes."""
    parts, generator = svd(f.to(torch.float64)), seeded(seed)
    U, Vh = parts.U.cpu(), parts.Vh.cpu()
    orders = random_orders((draws + 1) // 2, len(U), generator)
    signs = torch.randint(2, orders.shape, generator=generator).double() * 2 - 1
    return torch.stack([Vh @ (s[:, None] * U[o]) for o, s in zip(orders, signs, strict=True)])


def spectra_between(
    cores: Sequence[Float[Tensor, "half r r"]], D: Sequence[Float[Tensor, "*batch own"]]
) -> Complex[Tensor, "*batch half r"]:
    """`rotated_spectra`, given its `rotated_cores`."""
    half, r, _ = cores[0].shape
    batch = D[0].shape[:-1]
    flat = [values[..., :r].double().reshape(-1, 1, r).cpu() for values in D]
    parts = zip(*(values.split(batch_size(8 * half * r * r)) for values in flat), strict=True)
    return torch.cat([_spectra(cores, part) for part in parts]).reshape(*batch, half, r)


def _spectra(
    cores: Sequence[Float[Tensor, "*#batch r r"]], D: Sequence[Float[Tensor, "*#batch r"]]
) -> Complex[Tensor, "*batch r"]:
    """Eigenvalues of `diag(D₁) core₁ diag(D₂) core₂ …`."""
    product = D[0][..., None] * cores[0]
    for values, core in zip(D[1:], cores[1:], strict=True):
        product = product @ (values[..., None] * core)
    return eigvals(product)


def rotated_ratios(
    C: Float[Tensor, " s"],
    D: Float[Tensor, "*batch r"],
    d: int,
    *,
    draws: int,
    seed: int = 0,
) -> Float[Tensor, "*batch draws"]:
    """`positivity` of `rotated_spectra` for single matrices, with the negatives.

    >>> flat = rotated_ratios(torch.ones(64), torch.ones(16), 64, draws=400)
    >>> steep = rotated_ratios(torch.ones(64), torch.arange(1, 17) ** -4.0, 64, draws=400)
    >>> bool(flat.std() < 0.2 < 0.8 < steep.std())
    True

    NaN for a matrix that is zero.
    """
    half = positivity(rotated_spectra([C], [D], d, draws=draws, seed=seed))
    return torch.cat((half, -half), -1)


def sequential_p(
    ratios: Float[Tensor, " matrix"],
    cores: Sequence[Float[Tensor, "half r r"]],
    D: Sequence[Float[Tensor, "matrix own"]],
) -> Float[Tensor, " matrix"]:
    """The share of rotations with at least the `positivity` of each matrix; NaN where that is NaN.

    (1 + draws at or above) / (1 + draws). Draws for a matrix end when `STOP_AT` of them are at or
    above its ratio, or when all are made (twice as many as `cores`: each counts with its negative).
    That is Besag and Clifford's sequential test with draws taken in pairs. A p-value at or below
    STOP_AT / draws uses all draws; larger p-values take a fraction of the eigenvalues.
    """
    n, half = len(ratios), len(cores[0])
    floor = ratios.double().cpu() - TIE
    flat = [
        values[:, : core.shape[-1]].double().cpu() for values, core in zip(D, cores, strict=True)
    ]
    count, used = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
    is_active = ~floor.isnan()
    for start in range(0, half, _DRAWS_AT_ONCE):
        active = is_active.nonzero()[:, 0]
        if not len(active):
            break
        part = [core[start : start + _DRAWS_AT_ONCE] for core in cores]
        above = _at_or_above(floor[active], part, [values[active] for values in flat])
        running = count[active, None] + above.cumsum(-1)
        below = (running < STOP_AT).sum(-1)  # draws that did not end it
        last = below.clamp(max=above.shape[-1] - 1)
        count[active] = running.gather(-1, last[:, None])[:, 0]
        used[active] += last + 1
        is_active[active] = below == above.shape[-1]
    p = (1 + count).double() / (1 + 2 * used)
    return torch.where(floor.isnan(), torch.nan, p)


def _at_or_above(
    floor: Float[Tensor, " matrix"],
    cores: Sequence[Float[Tensor, "half r r"]],
    spectra: Sequence[Float[Tensor, "matrix r"]],
) -> Int[Tensor, "matrix half"]:
    """The number of each draw's ratio and its negative that are at or above the floor: 0, 1 or 2.

    Eigenvalues are computed only where bounds on Σ|λ| leave it open.
    """
    size = floor.abs()[:, None].expand(-1, len(cores[0]))
    smaller, larger = torch.zeros_like(size).bool(), torch.zeros_like(size).bool()
    if len(cores) == 1:
        bounds = _SumBounds(cores[0], spectra[0])
        smaller = bounds.trace < size * bounds.low * (1 - _MARGIN)
        larger = bounds.trace > size * bounds.high * (1 + _MARGIN)
        # Where both are zero there is no ratio, and no bound.
        undecided = (~(smaller | larger) & (bounds.high > 0)).nonzero(as_tuple=True)
        low = bounds.by_determinant(*undecided)
        smaller[undecided] = bounds.trace[undecided] < size[undecided] * low * (1 - _MARGIN)
    # A ratio x or its negative is above a positive least if |x| is; both are above a negative one
    # if |x| is not, and else one of them.
    counts = torch.where(smaller, torch.where(floor < 0, 2, 0)[:, None], 1)
    matrix, draw = (~(smaller | larger)).nonzero(as_tuple=True)
    for part in torch.arange(len(matrix)).split(batch_size(8 * cores[0][0].numel())):
        rows, floors = matrix[part], floor[matrix[part]]
        ratio = positivity(
            _spectra([core[draw[part]] for core in cores], [D[rows] for D in spectra])
        )
        counts[rows, draw[part]] = (ratio >= floors).long() + (-ratio >= floors).long()
    return counts


def _random_core(
    S: Float[Tensor, " s"], d: int, r: int, count: int, generator: torch.Generator
) -> Float[Tensor, "count r r"]:
    """`Vᵀ diag(S) U` with random frames; S is padded with zeros to d."""
    s = min(len(S), d)
    left = random_frames(count, d, r, generator)[:, :s]
    right = random_frames(count, d, r, generator)[:, :s]
    return left.mT @ (S[:s].double().cpu()[:, None] * right)


class _SumBounds:
    """|Σλ|, and bounds on Σ|λ|, for every matrix `diag(D) core`, much cheaper than eigenvalues.

    A ratio Σλ / Σ|λ| is compared with the ratios of hundreds of random matrices. Σλ is the trace,
    and bounds on Σ|λ| mostly show on which side of a number the ratio is.

    Matrices are scaled by the largest entries of D and of `core`, which cancel in every ratio. No
    matrix is formed: each bound is a product of a function of D and a function of `core`.

    >>> bounds = _SumBounds(torch.eye(2).double()[None], torch.tensor([[1.0, 1.0]]).double())
    >>> float(bounds.trace), float(bounds.low), float(bounds.high)
    (2.0, 2.0, 2.0)
    """

    trace: Float[Tensor, "matrix draw"]
    low: Float[Tensor, "matrix draw"]
    high: Float[Tensor, "matrix draw"]

    def __init__(self, core: Float[Tensor, "draw r r"], spectra: Float[Tensor, "matrix r"]) -> None:
        r, largest = core.shape[-1], core.abs().amax()
        self._D, self._C = D, C = spectra / spectra.amax(-1, keepdim=True), core / largest
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
        """A higher lower bound of some of them where D spans decades, one determinant each.

        With c the largest log(1 + x²) / x, each |λ| is at least ρ log(1 + |λ/ρ|²) / c, so

            Σ|λ| ≥ ρ log |det(1 + M² / ρ²)| / c      for every ρ,

        and eigenvalues much smaller than ρ contribute 0.
        """
        D, C, high = self._D[matrix], self._C[draw], self.high[matrix, draw]
        effective = D.sum(-1).square() / D.square().sum(-1)
        rho = high / (_RHO_DIVISOR * effective)
        M = D[:, :, None] * C / rho[:, None, None]
        eye = torch.eye(M.shape[-1], dtype=M.dtype)
        return rho * log_determinant(torch.baddbmm(eye, M, M)) / _STEEPEST
