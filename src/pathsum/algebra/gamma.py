"""The upper tail of the gamma distribution, far out."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

FAR = 1e-100
"""Below this the tail is computed by its continued fraction: the library function underflows."""

TERMS = 400
"""More than the fraction needs at `FAR`, for shapes up to 10⁶."""


def log_upper_gamma(
    shape: Float[Tensor, "*batch"], at: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """log Q(a, x), the log of the chance that a gamma variable of shape a and scale 1 exceeds x.

    >>> log_upper_gamma(torch.tensor([1.0]), torch.tensor([5000.0]))  # Q(1, x) = exp(−x)
    tensor([-5000.], dtype=torch.float64)

    In float64. From the incomplete gamma function where that is a number worth taking a logarithm
    of, beyond it from `Q(a, x) = x^a e^−x / Γ(a) · 1/(x + 1 − a − 1(1 − a)/(x + 3 − a − …))`.
    """
    shape, at = shape.double(), at.double()
    near = torch.special.gammaincc(shape, at)
    log_tail = near.log()
    far = near < FAR
    if bool(far.any()):
        log_tail[far] = _log_tail(shape[far], at[far])
    return log_tail


def _log_tail(a: Float[Tensor, "some"], x: Float[Tensor, "some"]) -> Float[Tensor, "some"]:
    """The continued fraction by Lentz's method.

    Far in the tail x is well above a and it converges in a few steps.
    """
    b = x + 1.0 - a
    c = torch.full_like(x, torch.inf)
    d = 1.0 / b
    fraction = d.clone()
    for i in range(1, TERMS):
        numerator = -i * (i - a)
        b = b + 2.0
        d = 1.0 / (numerator * d + b)
        c = b + numerator / c
        step = c * d
        fraction = fraction * step
        if bool(((step - 1.0).abs() < 1e-15).all()):
            break
    return a * x.log() - x - torch.lgamma(a) + fraction.log()
