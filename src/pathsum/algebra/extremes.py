"""The largest entries of a factored matrix, exactly, without forming the matrix.

Blocks of `A @ B` go through one buffer, one GEMM each, and a block is read in full only where the
largest entry of a row can still matter. Rows of A and columns of B are visited by descending
length: since |a · b| ≤ ‖a‖ ‖b‖, the longest of each bound a block and all blocks after it, and a
block that cannot reach the answer is never computed.

The result equals a stable sort of the dense product, with entries computed in the dtype of the
factors (half precision is converted to float32). Equal entries come in order of row, then column.
Entries that differ by rounding alone may swap places, as they may between two dense products that
are blocked differently. Factors whose product could overflow are rejected (`_check_finite`).

Memory: one copy of the factors, one block, and a few tensors for the candidate entries of a block.
Those are few, unless most of a block ties; then they take about ten times the block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from pathsum.algebra.factored import Factored, RowMaxima, TopEntries
from pathsum.algebra.spectrum import widened
from pathsum.base.errors import InputError

BLOCK_BYTES = 4 * 2**20
"""The size of one block of the product: large enough for a GEMM, small enough for a cache."""


def topk(
    f: Factored, k: int, *, largest: bool = True, block_bytes: int = BLOCK_BYTES
) -> TopEntries:
    """The k largest (or smallest) of all m n entries, best first, with their rows and columns.

    >>> f = Factored(torch.tensor([[1.0], [2.0], [2.0]]), torch.tensor([[3.0, -5.0]]))
    >>> top = topk(f, 2)
    >>> top.values, top.rows, top.columns
    (tensor([6., 6.]), tensor([1, 2]), tensor([0, 0]))

    Equal entries come in order of row, then column. A batch gives one answer for each element,
    [*batch, k]. `block_bytes` is the size of the block that is held at a time; it changes speed and
    memory, not the answer.

    Not for a single row or column: `f.row(i).topk(k)` is direct. Not for k near m n, where the
    answer is larger than the matrix.
    """
    m, n = f.shape[-2:]
    if not 1 <= k <= m * n:
        raise InputError(
            f"the top {k} entries of a {m} × {n} matrix were requested: "
            f"k must be between 1 and {m * n}, the number of entries"
        )
    # The smallest entries of A B are the largest of (−A) B, and signs do not touch rounding.
    sign = 1.0 if largest else -1.0
    bests = [_topk(Factored(g.A * sign, g.B), k, block_bytes) for g in _matrices(f)]
    values = _reshape_batch([best.values for best in bests], f, k)
    keys = _reshape_batch([best.keys for best in bests], f, k).long()
    # Adding zero turns −0.0, which the sign may have made, into 0.0.
    return TopEntries(values * sign + 0.0, keys // n, keys % n)


def argmax_rows(f: Factored, *, block_bytes: int = BLOCK_BYTES) -> RowMaxima:
    """The largest entry of every row and its column, [*batch, m]; ties go to the first column.

    >>> f = Factored(torch.tensor([[1.0], [-1.0]]), torch.tensor([[3.0, -5.0, -5.0]]))
    >>> best = argmax_rows(f)
    >>> best.values, best.columns
    (tensor([3., 5.]), tensor([0, 1]))

    A row is dropped once no remaining column is long enough to beat its best. For
    columns use `f.T`, for smallest entries `-f`. Not for a few rows: `f.row(i).max()` is direct.
    """
    maxima = [_argmax_rows(g, block_bytes) for g in _matrices(f)]
    m = f.shape[-2]
    return RowMaxima(
        _reshape_batch([best.values for best in maxima], f, m),
        _reshape_batch([best.columns for best in maxima], f, m).long(),
    )


def row_ranks(
    f: Factored, columns: Int[Tensor, "count"], *, block_bytes: int = BLOCK_BYTES
) -> Int[Tensor, "*batch m"]:
    """How many entries of row i are greater than its entry in column `columns[i]`, [*batch, m].

    Rank 0 is the largest entry of the row, or equal to it.

    >>> f = Factored(torch.eye(3), torch.tensor([[5.0, 6, 7], [1, 3, 2], [0, 0, 0]]))
    >>> row_ranks(f, torch.arange(3))  # where does the diagonal stand?
    tensor([2, 0, 0])

    Entries that agree with it up to rounding may be counted or not. If only the largest entry
    matters use `argmax_rows`, which can stop earlier.
    """
    m, n = f.shape[-2:]
    if columns.shape != (m,):
        raise InputError(
            f"columns has shape {list(columns.shape)} and the matrix has {m} rows: "
            f"one column for each row is needed, shape [{m}]"
        )
    if int(columns.min()) < 0 or int(columns.max()) >= n:
        raise InputError(
            f"columns go from {int(columns.min())} to {int(columns.max())} "
            f"and the matrix has {n} columns: each must be between 0 and {n - 1}"
        )
    ranks = [_row_ranks(g, columns, block_bytes) for g in _matrices(f)]
    return _reshape_batch(ranks, f, m).long()


class _Best:
    """The k best entries so far. An entry is a value and a key, row · n + column, that breaks ties.

    An entry must beat the k-th best: `floor` is its value and `floor_key` its key.
    """

    def __init__(self, k: int, factor: Tensor) -> None:
        self.k = k
        self.values = factor.new_empty(0)
        self.keys = factor.new_empty(0, dtype=torch.long)
        self.floor = -math.inf
        self.floor_key = -1
        self._pending: list[tuple[Tensor, Tensor]] = []

    def offer(self, values: Float[Tensor, "some"], keys: Int[Tensor, "some"]) -> None:
        self._pending.append((values, keys))
        # Sorting k entries for every few that arrive would cost more than a floor that lags.
        if sum(new.numel() for new, _ in self._pending) * 8 >= self.k:
            self.settle()

    def settle(self) -> None:
        values = torch.cat([self.values, *(new for new, _ in self._pending)])
        keys = torch.cat([self.keys, *(new for _, new in self._pending)])
        self._pending = []
        order = keys.argsort()
        order = order[values[order].argsort(descending=True, stable=True)][: self.k]
        self.values, self.keys = values[order], keys[order]
        if len(order) == self.k:
            self.floor = float(self.values[-1])
            self.floor_key = int(self.keys[-1])


def _topk(f: Factored, k: int, block_bytes: int) -> _Best:
    high, wide = block_shape(f, block_bytes)
    rows = [
        (strip, strip.ids * f.shape[-1], f.A[strip.ids])
        for strip in _strips(length_bounds(f.A), high)
    ]
    pairs = list(itertools.product(rows, _column_strips(f, wide)))
    reach = [row[0].length * column[0].length for row, column in pairs]
    buffer = f.A.new_empty(high * wide)
    best = _Best(k, f.A)
    # The most promising first: the first block that cannot reach the floor ends the search.
    for number in sorted(range(len(pairs)), key=lambda number: -reach[number]):
        if reach[number] < best.floor:
            break
        (_, row_keys, left), (column_strip, right) = pairs[number]
        block = _product(left, right, buffer)
        _offer_block(best, block, row_keys, column_strip.ids)
    best.settle()
    return best


def _offer_block(
    best: _Best,
    block: Float[Tensor, "high wide"],
    row_keys: Int[Tensor, "high"],
    ids: Int[Tensor, "wide"],
) -> None:
    """Offer the entries of a block that can still enter: one pass, and more over rows with hits."""
    peaks = block.amax(1)
    hit = (peaks >= best.floor).nonzero().squeeze(1)
    if not len(hit):
        return
    peaks = peaks[hit]
    floor = best.floor
    if floor > -math.inf:
        # A row that only ties with the floor needs a smaller key.
        hit = hit[(peaks > floor) | (row_keys[hit] + ids[0] < best.floor_key)]
    elif block.numel() > best.k:
        # In the first block only the best k matter, and ties with the last of them.
        floor = float(block.flatten().topk(best.k).values[-1])
    candidates = block[hit]
    at_row, at_column = (candidates >= floor).nonzero(as_tuple=True)
    best.offer(candidates[at_row, at_column], row_keys[hit][at_row] + ids[at_column])


def _argmax_rows(f: Factored, block_bytes: int) -> RowMaxima:
    m, n = f.shape
    high, wide = block_shape(f, block_bytes)
    columns = _column_strips(f, wide)
    lengths = length_bounds(f.A)
    buffer = f.A.new_empty(high * wide)
    best = RowMaxima(
        f.A.new_full((m,), -math.inf), torch.full((m,), n, dtype=torch.long, device=f.device)
    )
    for start in range(0, m, high):
        rows = slice(start, start + high)
        piece = RowMaxima(best.values[rows], best.columns[rows])
        for strip, right in columns:
            alive = _reachable(lengths[rows], strip, piece.values)
            if not len(alive):
                break
            left = f.A[rows] if len(alive) == len(piece.values) else f.A[rows][alive]
            block = _product(left, right, buffer)
            _improve(piece, alive, block, strip.ids)
    return best


def _improve(
    best: RowMaxima,
    alive: Int[Tensor, "alive"],
    block: Float[Tensor, "alive wide"],
    ids: Int[Tensor, "wide"],
) -> None:
    """Update `best` in place, at the rows `alive`, by the columns of a block."""
    peaks = block.amax(1)
    hit = (peaks >= best.values[alive]).nonzero().squeeze(1)
    peaks, rows = peaks[hit], alive[hit]
    # max gives the first of equal entries, as argmax does, ten times faster.
    columns = ids[block[hit].max(1).indices]
    better = (peaks > best.values[rows]) | (columns < best.columns[rows])
    best.values[rows[better]] = peaks[better]
    best.columns[rows[better]] = columns[better]


def _row_ranks(f: Factored, columns: Int[Tensor, "m"], block_bytes: int) -> Int[Tensor, "m"]:
    m = f.shape[0]
    high, wide = block_shape(f, block_bytes)
    wide = min(wide, 2**24)  # counts are summed in the block's own dtype: exact up to here
    columns = columns.to(f.device)
    values = f.entries(torch.arange(m, device=f.device), columns)
    lengths = length_bounds(f.A)
    ranks = torch.zeros(m, dtype=torch.long, device=f.device)
    buffer = f.A.new_empty(high * wide)
    for strip, right in _column_strips(f, wide):
        for rows in _reachable(lengths, strip, values).split(high):
            block = _product(f.A[rows], right, buffer)
            # The entry itself is excluded: its two computed values may differ by rounding.
            own = torch.searchsorted(strip.ids, columns[rows]).clamp_(max=len(strip.ids) - 1)
            inside = (strip.ids[own] == columns[rows]).nonzero().squeeze(1)
            block[inside, own[inside]] = -math.inf
            ranks[rows] += block.gt_(values[rows, None]).sum(1).long()
    return ranks


# --- blocks: their size, their bounds, their order


def block_shape(f: Factored, block_bytes: int) -> tuple[int, int]:
    """Nearly square blocks of at most `block_bytes`; a short side leaves its share to the other."""
    m, n = f.shape[-2:]
    entries = max(1, block_bytes // f.A.itemsize)
    high = min(m, max(math.isqrt(entries), entries // n))
    return high, min(n, max(1, entries // high))


def length_bounds(vectors: Float[Tensor, "count r"]) -> Float[Tensor, "count"]:
    """Upper bounds of the lengths of the rows, in float64, above zero, tight up to rounding.

    A computed length is short by at most r/2 + 2 roundings and by the squares that underflowed; a
    computed a · b exceeds ‖a‖ ‖b‖ by at most r roundings. More than both is added here, so that the
    product of two bounds holds for the entry that a GEMM delivers, not only for the true one. A
    length whose square overflows is infinite, so it excludes no block.
    """
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    r = vectors.shape[1]
    limits = torch.finfo(vectors.dtype)
    slack = 1.0 + 2.0 * (r + 4) * limits.eps
    return lengths.double() * slack + 2.0 * math.sqrt(r * limits.tiny)


class _Strip(NamedTuple):
    """Rows (or columns) that go through a GEMM together, none longer than `length`."""

    ids: Int[Tensor, "count"]
    length: float


def _strips(lengths: Float[Tensor, "count"], size: int) -> list[_Strip]:
    """The indices by descending length, `size` at a time.

    Inside a strip they ascend, so the first of equal entries has the smallest index.
    """
    order = lengths.argsort(descending=True, stable=True)
    return [_Strip(ids.sort().values, float(lengths[ids[0]])) for ids in order.split(size)]


def _column_strips(f: Factored, wide: int) -> list[tuple[_Strip, Float[Tensor, "r _"]]]:
    """The columns of B by descending length, a strip at a time."""
    return [(strip, f.B[:, strip.ids]) for strip in _strips(length_bounds(f.B.mT), wide)]


def _product(
    left: Float[Tensor, "high r"], right: Float[Tensor, "r wide"], buffer: Float[Tensor, "size"]
) -> Float[Tensor, "high wide"]:
    high, wide = left.shape[0], right.shape[1]
    block = buffer[: high * wide].view(high, wide)
    return torch.mm(left, right, out=block)


def _reachable(
    lengths: Float[Tensor, "high"], strip: _Strip, values: Float[Tensor, "high"]
) -> Int[Tensor, "some"]:
    """The rows that have an entry in the strip which may be as large as their value."""
    return (lengths * strip.length >= values).nonzero().squeeze(1)


# --- batches


def _matrices(f: Factored) -> Iterator[Factored]:
    """The matrices of a batch in row-major order: detached, at least float32, and checked."""
    for index in itertools.product(*(range(size) for size in f.batch_shape)):
        matrix = f[index]
        matrix = widened(Factored(matrix.A.detach(), matrix.B.detach()))
        _check_finite(matrix)
        yield matrix


def _check_finite(f: Factored) -> None:
    """Raise InputError unless every entry of the product is finite in every order of summation.

    An entry and its partial sums are at most Σₖ maxᵢ|A[i, k]| · maxⱼ|B[k, j]|. If that exceeds the
    largest number of the dtype, whether an entry becomes infinite, NaN or neither depends on how a
    kernel sums (with or without fused multiply-add), so such factors are rejected.
    """
    a, b = f.A.abs().amax(0).double(), f.B.abs().amax(1).double()
    if not bool(a.isfinite().all() & b.isfinite().all()):
        raise InputError(
            "the factors contain NaN or infinity, so entries of the product cannot be ordered; "
            "check where the factors come from"
        )
    # Divided first: in float64 the product itself could overflow.
    largest = torch.finfo(f.dtype).max
    if float((a / largest * b).sum()) >= 1.0:
        raise InputError(
            f"entries of the product overflow {f.dtype}: the factors reach {float(a.max()):.3g} "
            f"and {float(b.max()):.3g}; scale them down or use float64"
        )


def _reshape_batch(
    parts: Sequence[Shaped[Tensor, "size"]], f: Factored, size: int
) -> Shaped[Tensor, "*batch size"]:
    """The results for each of `_matrices(f)`, reshaped to the batch."""
    if not parts:
        return torch.empty((*f.batch_shape, size), device=f.device)
    return torch.stack(list(parts)).reshape(*f.batch_shape, size)
