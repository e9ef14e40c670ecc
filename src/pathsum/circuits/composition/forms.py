"""All inner products between what heads write and what heads read with, in bounded memory.

A form is `Xᵀ A X` with X [k, d] and A [k, k] positive semidefinite: what a head writes (`OVᵀ OV`,
with X = W_O and A = W_Vᵀ W_V) or what it reads with (`M Mᵀ`). The squared norm of a write followed
by a read is the inner product of their forms,

    ‖OV M‖² = tr(OVᵀ OV · M Mᵀ) = tr(P G) = Σ_ij P_ij G_ij,

so n forms against m are one product of an n × d² matrix with a d² × m matrix. Neither is ever whole
in memory. The sum is cut into blocks of (i, j); a block of every writer is made from a few columns
of X and multiplied with the same block of a few layers of readers at a time, so that both are read
from a cache. Blocks below the diagonal are the ones above it counted twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import local
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.algebra.decompositions import psd_root
from pathsum.algebra.nulls import UnitMoments
from pathsum.base import Progress, silent
from pathsum.base.errors import InputError
from pathsum.circuits.composition.stored_factor import Outer
from pathsum.model.processes import shared_map, shared_sum

BLOCK_BYTES = 128 << 20
"""Bytes that composition's threads may take together for blocks and what they are made from."""
WIDEST_BLOCK = 144
"""Columns of a block. All factors are read again for each of them, so wide ones are faster."""
BLOCK_ROWS = 96
"""Rows of a block: as many as stay in a processor's cache for all writers of a small model."""
DIAGONAL_STRIP = 48
"""Blocks on the diagonal are made in strips of so many rows, each from the diagonal on."""
MOST_WORKERS = 4
"""Threads that make blocks at a time, each in its share of the memory."""
READERS_AT_ONCE = 27
"""About so many heads are multiplied with all that one of them can read: that is faster."""

Method: TypeAlias = Literal["blocks", "factors"]


@dataclass(frozen=True, eq=False)
class Forms:
    """One form `Xᵀ A X` of trace 1 for each of n heads, layer by layer.

    `moments` are those of the forms; `empty` marks heads whose form is zero, which has no trace to
    divide by.
    """

    layers: tuple[Outer, ...]
    inner: Float[Tensor, "n k k"]
    moments: UnitMoments
    empty: Bool[Tensor, " n"]

    @classmethod
    def of(
        cls, outer: Outer, inner: Float[Tensor, "n k k"], gram: Float[Tensor, "n k k"]
    ) -> "Forms":
        """The forms of one layer's outer and inner factors, in float64; `gram` is X Xᵀ.

        Traces need k × k products only: `tr(Xᵀ A X) = tr(A X Xᵀ)`, and its powers likewise.
        """
        product = inner @ gram
        trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)
        empty = ~(trace > 0)
        safe = torch.where(empty, torch.ones_like(trace), trace)
        across = product.mT / safe[:, None, None]
        square = (product * across).sum((-2, -1)) / safe
        cube = (product @ product * across).sum((-2, -1)) / safe**2
        moments = UnitMoments(square, cube)
        # Where a head is empty the form is zero; `composition` adds a note.
        scale = torch.where(empty, torch.zeros_like(trace), 1 / safe)
        # Thousands of inner factors are kept, in the dtype that they are multiplied in.
        return cls((outer,), (inner * scale[:, None, None]).to(outer.dtype), moments, empty)

    def layer(self, index: int, heads: int) -> "Forms":
        """The forms of one layer alone."""
        part = slice(index * heads, (index + 1) * heads)
        moments = UnitMoments(self.moments.square[part], self.moments.cube[part])
        return Forms((self.layers[index],), self.inner[part], moments, self.empty[part])

    def __len__(self) -> int:
        return self.inner.shape[0]

    @property
    def d(self) -> int:
        """The width of the stream."""
        return self.layers[0].d

    @property
    def dtype(self) -> torch.dtype:
        """What products are computed in: the dtype of the weights."""
        return self.layers[0].dtype

    def along_ones(self) -> Float[Tensor, " n"]:
        """The share of each form that lies along the ones-vector; by chance it is 1/d."""
        shares: list[Tensor] = []
        for layer, inner in zip(self.layers, self.inner.split(len(self.layers[0])), strict=True):
            sums = layer.sums()
            shares.append((sums[:, None] @ inner.double() @ sums[..., None]).flatten())
        return torch.cat(shares) / self.d

    def roots(self) -> Float[Tensor, "n k d"]:
        """Y with `Yᵀ Y = Xᵀ A X`: the whole outer factors, times a root of A."""
        whole: list[Tensor] = []
        for layer in self.layers:
            factors = layer.space(layer.distinct, self.d)
            layer.columns(0, self.d, factors)
            whole.append(layer.for_heads(factors))
        return psd_root(self.inner.double()).to(self.dtype) @ torch.cat(whole)


class JoinedForms:
    """The forms of so many layers, as they arrive.

    Inner factors are copied into their place at once: kept apart until all are there, they would
    lie between freed temporaries, and a deep model would hold twice its memory.
    """

    def __init__(self, layers: int) -> None:
        self._count, self._parts, self._inner = layers, list[Forms](), torch.empty(0)

    def add(self, part: Forms) -> None:
        """The forms of the next layer."""
        n, at = len(part), len(self._parts) * len(part)
        if not self._parts:
            self._inner = part.inner.new_empty(self._count * n, *part.inner.shape[1:])
        self._inner[at : at + n] = part.inner
        self._parts.append(replace(part, inner=self._inner[at : at + n]))

    def joined(self) -> Forms:
        """All of them, one after another."""
        square = torch.cat([part.moments.square for part in self._parts])
        cube = torch.cat([part.moments.cube for part in self._parts])
        layers = tuple(layer for part in self._parts for layer in part.layers)
        empty = torch.cat([part.empty for part in self._parts])
        return Forms(layers, self._inner, UnitMoments(square, cube), empty)


def inner_products(
    write: Forms,
    reads: Sequence[Forms],
    heads: int,
    progress: Progress = silent,
    *,
    method: Method | None = None,
    block_bytes: int = BLOCK_BYTES,
    width: int | None = None,
    readers_at_once: int = READERS_AT_ONCE,
) -> list[Float[Tensor, "n n"]]:
    """tr(P G) for each writer (row) and reader (column) of the same or a later place, in float64.

    `write` holds layers 0 … L−2 and each of `reads` layers 1 … L−1, `heads` per layer, so that
    reader layer r reads every writer layer w ≤ r of its list. Other entries are meaningless.

    Of the two methods the one with fewer multiplications is taken unless one is named (see
    `flops`). `block_bytes` bounds the memory, `width` sets the width of a block by hand.
    """
    if method is None:
        by_blocks, by_factors = flops(write, reads, heads)
        method = "factors" if by_factors <= by_blocks else "blocks"
    if method == "factors":
        return _by_factors(write, reads, heads, progress, block_bytes)
    workers = min(torch.get_num_threads(), MOST_WORKERS) if write.inner.device.type == "cpu" else 1
    # In a deep model more layers at a time waste little on pairs that do not meet.
    together = max(1, readers_at_once // heads, len(write) // heads // 10)
    if width is None:
        forms = len(write) * (1 + len(reads))
        held = len(write) + min(together * heads, len(write)) * len(reads)
        k, each = write.inner.shape[1], max(1, block_bytes // workers)
        width = block_width(forms, held, write.d, k, write.dtype.itemsize, each)
    return _by_blocks(write, reads, heads, progress, width, together, workers)


def flops(write: Forms, reads: Sequence[Forms], heads: int) -> tuple[int, int]:
    """Multiplications and additions of the two methods: by blocks of forms, and by k × k products.

    By blocks: d² for each pair, d² k to make each form from X and A X, both for the symmetric half
    alone, and 2 d k² for A X. By factors: ‖Y_w Y_rᵀ‖² needs 2 d k² for each pair, and nothing is
    squared before it is summed. So blocks win for many heads with d < 2 k² (GPT-2: 768 against
    8,192), factors elsewhere.
    """
    n, k = write.inner.shape[:2]
    layers = n // heads
    pairs = len(reads) * heads * heads * (layers * (layers + 1) // 2)
    made = n * (1 + len(reads))
    d = write.d
    return pairs * d * d + made * (d * d * k + 2 * d * k * k), pairs * 2 * d * k * k


def block_width(
    n_forms: int, held: int, d: int, k: int, itemsize: int, block_bytes: int = BLOCK_BYTES
) -> int:
    """How wide a block is, so that what one thread holds fits into `block_bytes`.

    That is A X of all forms, k numbers per column, and the blocks of `held` of them: all writers
    and the readers multiplied with them at a time. A multiple of 8, and not a power of two: rows of
    2ⁿ numbers all fall into the same few lines of a cache, which halves the rate of a product.
    """
    if not block_bytes >= 1:
        raise InputError(f"block_bytes={block_bytes} is out of range; use 1 or more")
    fits = block_bytes // ((n_forms * k + held * BLOCK_ROWS) * itemsize)
    width = max(16, min(fits, WIDEST_BLOCK) // 8 * 8)
    if width > 16 and width & (width - 1) == 0:
        width -= 8
    return min(d, width)


class _Side:
    """Blocks of many forms, made in the same memory again and again.

    Fresh memory for each block would cost more than the products: the system clears every page of
    it first. Columns of X are those of one layer at a time, which stay in a core's cache. Blocks
    are those of at most `held` forms.
    """

    def __init__(self, layers: Sequence[Forms], width: int, held: int) -> None:
        self._layers = [each for forms in layers for each in forms.layers]
        self._inner = [forms.inner for forms in layers]
        self._sizes = [len(layer) for layer in self._layers]
        most, k = max(layer.distinct for layer in self._layers), self._inner[0].shape[-1]
        self._columns = self._layers[0].space(most, max(width, BLOCK_ROWS))
        self._products = self._inner[0].new_empty(sum(self._sizes) * width * k)
        self._block = self._inner[0].new_empty(held * width * BLOCK_ROWS)
        self._start, self._made = 0, list[Tensor]()

    def set_columns(self, start: int, stop: int) -> None:
        """Make (A X)ᵀ for columns start … stop − 1, one half of the next blocks."""
        n, k, width = sum(self._sizes), self._inner[0].shape[-1], stop - start
        self._start = start
        self._made = list(self._products[: n * width * k].view(n, width, k).split(self._sizes))
        for layer, inner, made in zip(self._layers, self._inner, self._made, strict=True):
            columns = layer.for_heads(self._columns_of(layer, start, stop))
            torch.bmm(columns.mT, inner, out=made)

    def block(
        self, start: int, stop: int, layers: slice = slice(None)
    ) -> Float[Tensor, "n entries"]:
        """Rows start … stop − 1 of the forms of some layers in the columns set, column by column.

        Valid until the next call. Columns before the first row are left out.
        """
        skip = max(0, start - self._start)
        width, height = self._made[0].shape[1] - skip, stop - start
        sizes = self._sizes[layers]
        whole = self._block[: sum(sizes) * width * height].view(-1, width, height)
        parts = zip(self._layers[layers], self._made[layers], whole.split(sizes), strict=True)
        for layer, made, out in parts:
            # Heads that share X are one product.
            left = made[:, skip:].reshape(layer.distinct, -1, made.shape[-1])
            rows = self._columns_of(layer, start, stop)
            torch.bmm(left, rows, out=out.view(layer.distinct, -1, height))
        return whole.flatten(1)

    def _columns_of(self, layer: Outer, start: int, stop: int) -> Float[Tensor, "distinct k b"]:
        out = self._columns[: layer.distinct, :, : stop - start]
        layer.columns(start, stop, out)
        return out


def _by_blocks(
    write: Forms,
    reads: Sequence[Forms],
    heads: int,
    progress: Progress,
    width: int,
    together: int,
    workers: int,
) -> list[Float[Tensor, "n n"]]:
    d, n, kinds = write.d, len(write), len(reads)
    layers = range(n // heads)
    writers = [write.layer(index, heads) for index in layers]
    # All kinds of read of a layer next to each other: wide products run at a higher rate.
    readers = [read.layer(index, heads) for index in layers for read in reads]
    groups = _groups(len(layers), together)
    most = max(last - first for first, last in groups) * heads * kinds
    # Rows and columns of each group: writers that none of its readers can read have no place.
    shapes = [(last * heads, (last - first) * heads * kinds) for first, last in groups]
    sizes = [rows * columns for rows, columns in shapes]
    own = local()  # each thread makes blocks in memory of its own

    def column_of_blocks(right: int) -> Float[Tensor, " pairs"]:
        part = torch.zeros(sum(sizes), dtype=torch.float64, device=write.inner.device)
        products = [each.view(shape) for each, shape in zip(part.split(sizes), shapes, strict=True)]
        if not hasattr(own, "sides"):
            own.sides = _Side(writers, width, n), _Side(readers, width, most)
        writing, reading = own.sides
        stop = min(right + width, d)
        writing.set_columns(right, stop)
        reading.set_columns(right, stop)
        for top, bottom in _strips(right, stop):
            # Entries off the diagonal stand for their mirror image too.
            square = (bottom - top) ** 2 if top >= right else 0
            written = writing.block(top, bottom)
            for (first, last), into in zip(groups, products, strict=True):
                read = reading.block(top, bottom, slice(first * kinds, last * kinds))
                meets = written[: last * heads]
                for entries, weight in ((slice(square), 1.0), (slice(square, None), 2.0)):
                    if len(range(written.shape[1])[entries]):
                        into.add_(_all_pairs(meets[:, entries], read[:, entries]), alpha=weight)
        return part

    # The longest columns first, so that processes that share them finish together.
    starts = range(0, d, width)[::-1]
    total = shared_sum(starts, column_of_blocks, progress, "composition", workers)
    tables = [total.new_zeros(n, n) for _ in reads]
    for (first, last), shape, found in zip(groups, shapes, total.split(sizes), strict=True):
        by_kind = found.view(shape[0], last - first, kinds, heads).unbind(2)
        for table, values in zip(tables, by_kind, strict=True):
            table[: shape[0], first * heads : last * heads] = values.flatten(1)
    return tables


def _strips(right: int, stop: int) -> list[tuple[int, int]]:
    """The rows of each block in columns right … stop − 1: down to the diagonal, then along it.

    >>> _strips(100, 200)
    [(0, 50), (50, 100), (100, 148), (148, 196), (196, 200)]
    """
    above = -(-right // BLOCK_ROWS)
    edges = [right * i // above for i in range(above)]
    edges += [*range(right, stop, DIAGONAL_STRIP), stop]
    return list(pairwise(edges))


def _all_pairs(
    written: Float[Tensor, "w entries"], read: Float[Tensor, "r entries"]
) -> Float[Tensor, "w r"]:
    """written · readᵀ; the product with fewer rows than columns is faster."""
    if len(written) <= len(read):
        return written @ read.mT
    return (read @ written.mT).mT


def _groups(layers: int, most: int) -> list[tuple[int, int]]:
    """Layers in as few groups of at most `most` as there can be, of about equal size.

    >>> _groups(8, 3)
    [(0, 3), (3, 6), (6, 8)]
    """
    parts = torch.arange(layers).tensor_split(-(-layers // most))
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]


def _by_factors(
    write: Forms, reads: Sequence[Forms], heads: int, progress: Progress, block_bytes: int
) -> list[Float[Tensor, "n n"]]:
    n, k = write.inner.shape[:2]
    written = write.roots()
    at_a_time = max(1, block_bytes // (heads * k * k * write.dtype.itemsize))

    def layer_read(place: tuple[int, int]) -> Float[Tensor, "w heads"]:
        kind, layer = place
        end = (layer + 1) * heads
        total = torch.zeros(n, heads, dtype=torch.float64, device=written.device)
        reading = reads[kind].layer(layer, heads).roots().flatten(0, 1).mT
        for first in range(0, end, at_a_time):
            last = min(first + at_a_time, end)
            meets = written[first:last].flatten(0, 1) @ reading
            squares = meets.square_().view(last - first, k, heads, k)
            total[first:last] = squares.sum((1, 3), dtype=torch.float64)
        return total

    layers = n // heads
    places = [(kind, layer) for kind in range(len(reads)) for layer in range(layers)]
    found = shared_map(places, layer_read, progress, "composition")
    return [torch.cat(found[i * layers : (i + 1) * layers], 1) for i in range(len(reads))]
