"""Subspaces of the stream: how many dimensions a matrix uses, and angles between two of them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

USED = 0.1
"""A direction counts as used if it carries this part of what an even spread would give it."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """How a matrix spreads over the d dimensions of the stream.

    `variance`   share of each principal direction in the squared norm, descending, adds up to 1
    `effective`  (Σλ)² / Σλ², the participation ratio: d if even, 1 if all is in one direction
    `for_90`     how many directions hold 90 % of the squared norm
    `used`       how many hold at least a tenth of an even share, 0.1/d
    """

    variance: Float[Tensor, " d"]
    effective: float
    for_90: int
    used: int


def spectrum(form: Float[Tensor, "d d"], d: int) -> Spectrum:
    """The spectrum of a matrix from its form FᵀF, in a stream of d dimensions."""
    values = torch.linalg.eigvalsh(form).flip(0).clamp(min=0)
    return spectrum_of_squares(values, d)


def spectrum_of_squares(squares: Float[Tensor, " q"], d: int) -> Spectrum:
    """The spectrum of squared singular values in descending order, of any scale."""
    total = squares.sum()
    variance = squares / torch.where(total > 0, total, torch.ones_like(total))
    held = variance.cumsum(0)
    return Spectrum(
        variance=variance,
        effective=float(1 / (variance**2).sum()) if bool(total > 0) else 0.0,
        for_90=int((held < 0.9 * held[-1]).sum()) + 1 if bool(total > 0) else 0,
        used=int((variance >= USED / max(d, 1)).sum()) if bool(total > 0) else 0,
    )


def rank_of(singular_values: Float[Tensor, " q"], dtype: torch.dtype) -> int:
    """How many singular values are more than rounding of weights stored in `dtype`."""
    least = singular_values.max() * max(len(singular_values), 10) * torch.finfo(dtype).eps
    return int((singular_values > least).sum())


def basis(factor: Float[Tensor, "r d"], dtype: torch.dtype) -> Float[Tensor, "q d"]:
    """An orthonormal basis of the row space of a factor, rounding left out."""
    _, values, Vh = torch.linalg.svd(factor, full_matrices=False)
    return Vh[: rank_of(values, dtype)] if bool(values.max() > 0) else Vh[:0]
