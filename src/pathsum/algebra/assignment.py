"""The assignment problem: the one-to-one pairing with the largest sum of values.

`displacement` is the loss of the other rows if one row takes a given column. It does not depend on
that row's values, so the best pairing is known for any values of that row.
"""

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor, from_numpy

from pathsum.base.errors import InputError


def best_assignment(
    values: Float[Tensor, "row column"],
) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """Rows and columns of the pairing with the largest sum, each used at most once.

    >>> import torch
    >>> rows, columns = best_assignment(torch.tensor([[9.0, 8.0], [8.0, 1.0]]))
    >>> rows.tolist(), columns.tolist()  # 8 + 8, although 9 is the largest
    ([0, 1], [1, 0])

    Exact: shortest augmenting paths with potentials (the Hungarian method), min(m, n)² · max(m, n)
    steps. With fewer rows than columns some columns stay unpaired, and the other way round.
    """
    if not bool(values.isfinite().all()):
        raise InputError("some values are not finite, so no pairing is best; leave those pairs out")
    costs = -values.double().cpu().numpy()
    if costs.shape[0] <= costs.shape[1]:
        columns = _assigned_columns(costs)
        return from_numpy(np.arange(len(columns))), from_numpy(columns)
    rows = _assigned_columns(costs.T)
    order = np.argsort(rows)
    return from_numpy(rows[order]), from_numpy(order)


def displacement(values: Float[Tensor, "row column"]) -> Float[Tensor, "row option"]:
    """The loss of all other rows if a row takes this column instead of its best one.

    Negative where they gain. If the values x of one row alone change, the best pairing gives it the
    column with the largest `x − displacement`. If there are more rows than columns, the options
    after the columns are all the same: to stay unpaired, with x = 0.

    >>> import torch
    >>> displacement(torch.tensor([[9.0, 8.0], [8.0, 1.0]]))[0].tolist()
    [7.0, 0.0]

    The row that loses its column takes another one, and so on, until one takes the column that was
    given up: a shortest path between rows. All of them are found together in rows³ steps.
    """
    m, n = values.shape
    size = max(m, n)
    # Padded with zeros to a square matrix.
    square = np.zeros((size, size))
    square[:m, :n] = values.double().cpu().numpy()
    rows, columns = (part.numpy() for part in best_assignment(values))
    every = np.arange(size)
    column_of = np.empty_like(every)
    column_of[rows] = columns
    column_of[np.setdiff1d(every, rows)] = np.setdiff1d(every, columns)
    # loss[i, k]: what row i loses by taking the column of row k.
    moved = square[:, column_of]
    loss = moved.diagonal()[:, None] - moved
    for through in range(size):
        np.minimum(loss, loss[:, through, None] + loss[through], out=loss)
    found = np.empty((size, size))
    found[:, column_of] = loss.T
    return from_numpy(found[:m])


def _assigned_columns(costs: Float[np.ndarray, "row column"]) -> Int[np.ndarray, " row"]:
    """For each of m ≤ n rows its column in the cheapest pairing."""
    m, n = costs.shape
    row_potential, column_potential = np.zeros(m), np.zeros(n)
    row_of = np.full(n, -1)
    for row in range(m):
        _augment(costs, row, row_potential, column_potential, row_of)
    columns = np.empty(m, dtype=np.int64)
    taken = np.flatnonzero(row_of >= 0)
    columns[row_of[taken]] = taken
    return columns


def _augment(
    costs: Float[np.ndarray, "row column"],
    start: int,
    row_potential: Float[np.ndarray, " row"],
    column_potential: Float[np.ndarray, " column"],
    row_of: Int[np.ndarray, " column"],
) -> None:
    """Assign a column to one more row, along the cheapest path through the assigned ones."""
    n = costs.shape[1]
    distance, before = np.full(n, np.inf), np.full(n, -1)
    done = np.zeros(n, dtype=bool)
    row, column, reached = start, -1, 0.0
    visited: list[tuple[int, float]] = [(start, 0.0)]
    while True:
        through = reached + costs[row] - row_potential[row] - column_potential
        better = ~done & (through < distance)
        distance[better], before[better] = through[better], column
        column = int(np.where(done, np.inf, distance).argmin())
        reached = float(distance[column])
        done[column] = True
        row = int(row_of[column])
        if row < 0:
            break
        visited.append((row, reached))
    for seen, at in visited:
        row_potential[seen] += reached - at
    closed = done & (distance < np.inf)
    column_potential[closed] -= reached - distance[closed]
    while column >= 0:
        previous = int(before[column])
        row_of[column] = start if previous < 0 else row_of[previous]
        column = previous
