"""Linear algebra, independent of transformers. In reading order:

factored        Factored: a matrix of low rank, kept as the product A @ B
decompositions  eig, eigh, svd, qr of dense matrices, with finite input checked in one place
spectrum        norm, eigenvalues and singular values of a Factored; rank, bases and angles
extremes        the largest entries of a Factored, by streaming
nulls           the distribution of ‖X Y‖² / (‖X‖² ‖Y‖²) over random rotations, with z and p
rotations       eigenvalues of matrices of given spectrum under random rotations; seeds
"""

from pathsum.algebra.extremes import argmax_rows, row_ranks, topk
from pathsum.algebra.factored import Factored
from pathsum.algebra.nulls import AxisMoments, RotationNull, UnitMoments, axis_null, unit_null
from pathsum.algebra.spectrum import (
    center_rows,
    eigenvalues,
    eigenvectors,
    norm,
    orthonormal,
    positivity,
    principal_angles,
    singular_values,
    svd,
)

__all__ = [
    "AxisMoments",
    "Factored",
    "RotationNull",
    "UnitMoments",
    "argmax_rows",
    "axis_null",
    "center_rows",
    "eigenvalues",
    "eigenvectors",
    "norm",
    "orthonormal",
    "positivity",
    "principal_angles",
    "row_ranks",
    "singular_values",
    "svd",
    "topk",
    "unit_null",
]
