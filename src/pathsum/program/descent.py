"""L-BFGS with a diagonal first guess of the curvature, for a convex function and few evaluations.

torch's optimizer starts with a step of length 1 along the gradient and spends its first evaluations
on finding the scale of the problem; here the diagonal of the Hessian gives it.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

HISTORY = 10
"""Pairs of steps and changes of gradient that are remembered."""
SHORTEST = 1e-4
"""A line search that has to go below this share of a step has arrived."""

Function = Callable[[Float[Tensor, " n"]], tuple[float, Float[Tensor, " n"]]]


def minimize(
    function: Function, x: Float[Tensor, " n"], curvature: Float[Tensor, " n"], evaluations: int
) -> Float[Tensor, " n"]:
    """The best point found with so many evaluations of `function` (value and gradient).

    >>> def parabola(x):
    ...     return float((x - 3).square().sum()), 2 * (x - 3)
    >>> minimize(parabola, Tensor([0.0]), curvature=Tensor([2.0]), evaluations=5)
    tensor([3.])
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    value, gradient = function(x)
    used, length = 1, 1.0
    while used < evaluations:
        step = _direction(gradient, curvature, pairs)
        slope = float(gradient @ step)
        if slope >= 0:
            break
        while True:
            there, new_gradient = function(x + length * step)
            used += 1
            if there <= value + 1e-4 * length * slope:
                break
            length *= 0.35
            if used >= evaluations or length < SHORTEST:
                return x
        moved, change = length * step, new_gradient - gradient
        if float(moved @ change) > 0:
            pairs = [*pairs[1 - HISTORY :], (moved, change)]
        x, value, gradient, length = x + moved, there, new_gradient, 1.0
    return x


def _direction(
    gradient: Tensor, curvature: Tensor, pairs: list[tuple[Tensor, Tensor]]
) -> Float[Tensor, " n"]:
    """−H⁻¹ gradient by the two-loop recursion."""
    q = -gradient
    shares: list[Tensor] = []
    for moved, change in reversed(pairs):
        share = (moved @ q) / (moved @ change)
        shares.append(share)
        q = q - share * change
    scale = 1.0
    if pairs:
        moved, change = pairs[-1]
        scale = float((moved @ change) / (change.square() / curvature).sum())
    q = scale * q / curvature
    for (moved, change), share in zip(pairs, reversed(shares), strict=True):
        q = q + moved * (share - (change @ q) / (moved @ change))
    return q
