"""Linear algebra that knows nothing of transformers.

`Factored` is a matrix of low rank kept as a product (`factored`). Around it: norms, eigenvalues and
singular values (`spectrum`), the largest entries by streaming (`extremes`, over `blocks`), means
taken out (`centering`), angles between subspaces (`subspaces`), and what a random rotation would
give (`nulls`, whose tail is in `gamma`).
"""

from pathsum.algebra.centering import center_columns, center_rows
from pathsum.algebra.extremes import argmax_rows, row_ranks, topk
from pathsum.algebra.factored import Factored
from pathsum.algebra.nulls import GramTraces, RotationNull, rotation_null
from pathsum.algebra.records import SVD, Eigen, RowMaxima, TopEntries
from pathsum.algebra.spectrum import (
    eigenvalues,
    eigenvectors,
    norm,
    positivity,
    singular_values,
    svd,
)
from pathsum.algebra.subspaces import orthonormal, overlap, principal_angles

__all__ = [
    "SVD",
    "Eigen",
    "Factored",
    "GramTraces",
    "RotationNull",
    "RowMaxima",
    "TopEntries",
    "argmax_rows",
    "center_columns",
    "center_rows",
    "eigenvalues",
    "eigenvectors",
    "norm",
    "orthonormal",
    "overlap",
    "positivity",
    "principal_angles",
    "rotation_null",
    "row_ranks",
    "singular_values",
    "svd",
    "topk",
]
