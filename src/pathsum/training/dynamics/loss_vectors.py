"""Per-token losses of a run: their principal components, and their slope in log(index)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import eigh


@dataclass(frozen=True, eq=False)
class Components:
    """Snapshots in the plane of their first two principal components, and the variance explained.

    Signs are fixed: the first component grows from the first snapshot to the last, and the second
    is positive where it is largest.
    """

    coordinates: Float[Tensor, "step 2"]
    explained: tuple[float, float]


def principal_components(vectors: Float[Tensor, "step token"]) -> Components:
    """PCA of the per-token losses, one vector per snapshot (a figure of the 2022 paper).

    Computed from the small matrix of inner products between snapshots: its eigenvectors times the
    square roots of its eigenvalues are the coordinates.
    """
    centered = (vectors - vectors.mean(0)).double()
    values, axes = eigh(centered @ centered.T)
    values, axes = values.flip(0).clamp_min(0.0), axes.flip(1)
    coordinates = torch.zeros(len(vectors), 2, dtype=torch.float64)
    count = min(2, len(vectors))
    coordinates[:, :count] = axes[:, :count] * values[:count].sqrt()
    if coordinates[-1, 0] < coordinates[0, 0]:
        coordinates[:, 0] *= -1
    if coordinates[coordinates[:, 1].abs().argmax(), 1] < 0:
        coordinates[:, 1] *= -1
    total = max(float(values.sum()), 1e-300)
    shares = [float(value) / total for value in values[:2]] + [0.0, 0.0]
    return Components(coordinates, (shares[0], shares[1]))


@dataclass(frozen=True, eq=False)
class Slopes:
    """d loss / d log(token index) around some indices, one row per snapshot."""

    index: tuple[float, ...]
    values: Float[Tensor, "step index"]


def log_slopes(by_index: Float[Tensor, "step next"]) -> Slopes:
    """The slope of the mean loss in log(token index), per octave.

    Column i is the loss of token i + 1. In each octave [m, 2m] a straight line in log(index) is
    fitted by least squares; its slope is reported at the octave's middle, √2 m. A loss of
    a + b log(index) has slope b everywhere.
    """
    length = by_index.shape[1]
    log_index = torch.arange(1, length + 1, dtype=torch.float64).log()
    losses = by_index.double()
    middles: list[float] = []
    columns: list[Tensor] = []
    first = 2
    while 2 * first <= length:
        inside = slice(first - 1, 2 * first)
        x = log_index[inside] - log_index[inside].mean()
        columns.append(losses[:, inside] @ x / (x @ x))
        middles.append(first * 2**0.5)
        first *= 2
    values = torch.stack(columns, 1) if columns else losses.new_zeros(len(losses), 0)
    return Slopes(tuple(middles), values)
