"""All inner products between what heads write and what heads read with, in bounded memory.

A form is `Xᵀ A X` with X [k, d] and A [k, k] positive semidefinite: what a head writes (`OVᵀ OV`,
with X = W_O and A = W_Vᵀ W_V) or what it reads with (`M Mᵀ`). The squared norm of a write followed
by a read is the inner product of their forms,

    ‖OV M‖² = tr(OVᵀ OV · M Mᵀ) = tr(P G) = Σ_ij P_ij G_ij,

so n forms against m are one product of an n × d² matrix with a d² × m matrix. Neither is ever whole
in memory. The sum is cut into square blocks of (i, j); a block of every form is made from a few
columns of X, used, and dropped, and blocks below the diagonal are the ones above it counted twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import local
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.algebra.decompositions import psd_root
from pathsum.algebra.nulls import UnitMoments
from pathsum.circuits.composition.stored_factor import StoredFactor
from pathsum.errors import InputError
from pathsum.model.processes import shared_map, shared_sum
from pathsum.result import Progress, silent

BLOCK_BYTES = 256 << 20
"""Bytes that one block of all forms may take. Large enough for products to run at full rate."""
WIDEST_BLOCK = 144
"""Wider blocks of one form no longer stay in a core's cache while they are made."""
DIAGONAL_STRIP = 48
"""Blocks on the diagonal are made in strips of so many rows, each from the diagonal on."""
MOST_WORKERS = 4
"""Threads that make blocks at a time, each in its share of the memory."""
READERS_AT_ONCE = 64
"""About so many heads are multiplied with all that one of them can read: that is faster."""

Method: TypeAlias = Literal["blocks", "factors"]


class Outer:
    """The outer factors X of one layer's forms, any range of their columns at a time.

    Leaves the weights where they are stored and applies what normalization does to a read (gain,
    centering) to the requested columns, so that a model is not copied. Each factor is scaled by its
    largest entry, which changes no score and keeps squares of it finite.
    """

    def __init__(
        self,
        stored: StoredFactor,
        *,
        gain: Float[Tensor, " d"] | None = None,
        centered: bool = False,
        copies: int = 1,
    ) -> None:
        self._stored = stored
        self._copies = copies
        whole = stored.whole() if gain is None else stored.whole() * gain
        peak = _largest(whole)
        mean = whole.mean(-1, keepdim=True) if centered else torch.zeros_like(whole[..., :1])
        if centered:
            left = _largest(whole - mean)
            rounding = 4 * torch.finfo(whole.dtype).eps * peak
            peak = torch.where(left > rounding, left, torch.zeros_like(left))
        # A factor that is zero, or only rounding once centered, stays zero.
        scale = torch.where(peak > 0, 1 / peak, torch.zeros_like(peak))
        # X = shift + stored · factor, in one pass over the requested columns.
        self._shift = -mean * scale
        self._factor = scale if gain is None else scale * gain
        sums = torch.zeros_like(mean) if centered else whole.sum(-1, keepdim=True)
        self._sums = (sums * scale)[..., 0]

    def __len__(self) -> int:
        return self._stored.shape[0] * self._copies

    @property
    def d(self) -> int:
        """The width of the stream."""
        return self._stored.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self._stored.dtype

    def space(self, n: int, width: int) -> Float[Tensor, "n k b"]:
        """An empty buffer for columns of n factors, with the memory layout of the weights."""
        return self._stored.space(n, width)

    def columns(self, start: int, stop: int, out: Float[Tensor, "n k b"]) -> None:
        """Columns start … stop − 1 of every factor, written to `out`."""
        wide = self._factor.shape[-1] > 1
        factor = self._factor[..., start:stop] if wide else self._factor
        stored = self._stored.columns(start, stop)
        if self._copies == 1:
            torch.addcmul(self._shift, stored, factor, out=out)
        else:
            part = torch.addcmul(self._shift, stored, factor)
            out.unflatten(0, (-1, self._copies)).copy_(part[:, None])

    def sums(self) -> Float[Tensor, "n k"]:
        """X times the ones-vector, in float64."""
        return self._sums.double().repeat_interleave(self._copies, 0)

    def gram(self) -> Float[Tensor, "n k k"]:
        """X Xᵀ of every factor, in float64."""
        whole = torch.addcmul(self._shift, self._stored.whole(), self._factor)
        return (whole @ whole.mT).double().repeat_interleave(self._copies, 0)


def _largest(factors: Float[Tensor, "n k d"]) -> Float[Tensor, "n 1 1"]:
    """The largest magnitude in each factor."""
    # The norm of order ∞ is the same number and takes twenty times as long.
    high, low = (bound((-2, -1), keepdim=True) for bound in (factors.amax, factors.amin))
    return torch.maximum(high, -low)


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
        product = product / safe[:, None, None]
        square = product @ product
        moments = UnitMoments(
            square.diagonal(dim1=-2, dim2=-1).sum(-1), (square * product.mT).sum((-2, -1))
        )
        # Where a head is empty the form is zero; `composition` adds a note.
        scale = torch.where(empty, torch.zeros_like(trace), 1 / safe)
        # Thousands of inner factors are kept, in the dtype that they are multiplied in.
        return cls((outer,), (inner * scale[:, None, None]).to(outer.dtype), moments, empty)

    @classmethod
    def join(cls, parts: Sequence["Forms"]) -> "Forms":
        """The forms of several layers, one after another."""
        square = torch.cat([part.moments.square for part in parts])
        cube = torch.cat([part.moments.cube for part in parts])
        return cls(
            tuple(layer for part in parts for layer in part.layers),
            torch.cat([part.inner for part in parts]),
            UnitMoments(square, cube),
            torch.cat([part.empty for part in parts]),
        )

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
        sums = torch.cat([layer.sums() for layer in self.layers])
        return (sums[:, None] @ self.inner.double() @ sums[..., None]).flatten() / self.d

    def roots(self) -> Float[Tensor, "n k d"]:
        """Y with `Yᵀ Y = Xᵀ A X`: the whole outer factors, times a root of A."""
        whole = self.layers[0].space(len(self), self.d)
        for layer, out in zip(self.layers, whole.split([len(x) for x in self.layers]), strict=True):
            layer.columns(0, self.d, out)
        return psd_root(self.inner.double()).to(self.dtype) @ whole


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
    if width is None:
        forms = len(write) * (1 + len(reads))
        k, each = write.inner.shape[1], max(1, block_bytes // workers)
        width = block_width(forms, write.d, k, write.dtype.itemsize, each)
    return _by_blocks(write, reads, heads, progress, width, readers_at_once, workers)


def flops(write: Forms, reads: Sequence[Forms], heads: int) -> tuple[int, int]:
    """Multiplications of the two methods: by blocks of d × d forms, and by k × k products.

    By blocks: d² for each pair, and d² k to make each form; both need only the symmetric half.
    By factors: ‖Y_w Y_rᵀ‖² needs 2 d k² for each pair, and nothing is squared before it is summed.
    So blocks win for many heads with d < 2 k² (GPT-2: 768 against 8,192), factors elsewhere.
    """
    n, k = write.inner.shape[:2]
    layers = n // heads
    pairs = len(reads) * heads * heads * (layers * (layers + 1) // 2)
    made = n * (1 + len(reads))
    d = write.d
    return pairs * d * d + made * d * d * k, pairs * 2 * d * k * k


def block_width(n_forms: int, d: int, k: int, itemsize: int, block_bytes: int = BLOCK_BYTES) -> int:
    """How wide a block is, so that one block of that many forms fits into `block_bytes`.

    A multiple of 8, and not a power of two: rows of 2ⁿ numbers all fall into the same few lines of
    a cache, which halves the rate of a product.
    """
    if not block_bytes >= 1:
        raise InputError(f"block_bytes={block_bytes} is out of range; use 1 or more")
    # A block of w² entries and w columns of A X for each form: w² + k w numbers at most.
    fits = int((block_bytes / (n_forms * itemsize) + k**2 / 4) ** 0.5 - k / 2)
    width = max(16, min(fits, WIDEST_BLOCK) // 8 * 8)
    if width > 16 and width & (width - 1) == 0:
        width -= 8
    return min(d, width)


class _Side:
    """Blocks of many forms, made in the same memory again and again.

    Fresh memory for each block would cost more than the products: the system clears every page of
    it first. Columns of X are those of one layer at a time, which stay in a core's cache.
    """

    def __init__(self, forms: Forms, width: int) -> None:
        n, k = forms.inner.shape[:2]
        self._layers = forms.layers
        self._inner = forms.inner.split([len(layer) for layer in forms.layers])
        self._columns = forms.layers[0].space(max(map(len, forms.layers)), width)
        self._products = forms.inner.new_empty(n * k * width)
        self._block = forms.inner.new_empty(n * width * width)
        self._start, self._made = 0, list[Tensor]()

    def set_columns(self, start: int, stop: int) -> None:
        """Make A X for columns start … stop − 1, one half of the next blocks."""
        self._start = start
        self._made = self._parts(self._products, self._inner[0].shape[-1], stop - start)
        for layer, inner, made in zip(self._layers, self._inner, self._made, strict=True):
            torch.bmm(inner, self._columns_of(layer, start, stop), out=made)

    def block(self, start: int, stop: int) -> Float[Tensor, "n entries"]:
        """Rows start … stop − 1 of every form in the columns set; valid until the next call.

        Column by column. Rows of the block on the diagonal begin there: columns before them are
        left out.
        """
        skip = max(0, start - self._start)
        width, height = self._made[0].shape[-1] - skip, stop - start
        parts = self._parts(self._block, width, height)
        for layer, made, part in zip(self._layers, self._made, parts, strict=True):
            torch.bmm(made[..., skip:].mT, self._columns_of(layer, start, stop), out=part)
        n = sum(map(len, self._layers))
        return self._block[: n * width * height].view(n, -1)

    def _columns_of(self, layer: Outer, start: int, stop: int) -> Float[Tensor, "head k b"]:
        out = self._columns[: len(layer), :, : stop - start]
        layer.columns(start, stop, out)
        return out

    def _parts(self, memory: Float[Tensor, " _"], rows: int, columns: int) -> list[Tensor]:
        """The memory as one matrix per form, layer by layer."""
        n = sum(map(len, self._layers))
        whole = memory[: n * rows * columns].view(n, rows, columns)
        return list(whole.split([len(layer) for layer in self._layers]))


def _by_blocks(
    write: Forms,
    reads: Sequence[Forms],
    heads: int,
    progress: Progress,
    width: int,
    readers_at_once: int,
    workers: int,
) -> list[Float[Tensor, "n n"]]:
    d, n, kinds = write.d, len(write), len(reads)
    read_by_layer = _layer_by_layer(reads, heads)
    own = local()  # each thread makes blocks in memory of its own
    groups = _groups(n // heads, max(1, readers_at_once // heads))

    def column_of_blocks(right: int) -> Float[Tensor, "w r"]:
        part = torch.zeros(n, n * kinds, dtype=torch.float64, device=write.inner.device)

        def add(written: Tensor, read: Tensor, weight: float) -> None:
            for first, last in groups:
                readers = slice(first * heads * kinds, last * heads * kinds)
                found = written[: last * heads] @ read[readers].mT
                part[: last * heads, readers].add_(found, alpha=weight)

        stop = min(right + width, d)
        if not hasattr(own, "sides"):
            own.sides = (_Side(write, width), _Side(read_by_layer, width))
        writing, reading = own.sides
        writing.set_columns(right, stop)
        reading.set_columns(right, stop)
        for left in range(0, right, width):
            # A block off the diagonal stands for its mirror image too.
            add(writing.block(left, left + width), reading.block(left, left + width), 2.0)
        for first in range(right, stop, DIAGONAL_STRIP):
            rows = first, min(first + DIAGONAL_STRIP, stop)
            square = (rows[1] - rows[0]) ** 2
            written, read = writing.block(*rows), reading.block(*rows)
            add(written[:, :square], read[:, :square], 1.0)
            if written.shape[1] > square:
                add(written[:, square:], read[:, square:], 2.0)
        return part

    # The longest columns first, so that processes that share them finish together.
    starts = range(0, d, width)[::-1]
    total = shared_sum(starts, column_of_blocks, progress, "composition", workers)
    return list(total.view(n, -1, kinds, heads).transpose(1, 2).flatten(2).unbind(1))


def _groups(layers: int, most: int) -> list[tuple[int, int]]:
    """Layers in as few groups of at most `most` as there can be, of about equal size.

    >>> _groups(8, 3)
    [(0, 3), (3, 6), (6, 8)]
    """
    parts = torch.arange(layers).tensor_split(-(-layers // most))
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]


def _layer_by_layer(reads: Sequence[Forms], heads: int) -> Forms:
    """All kinds of read of a layer next to each other: wide products run at a higher rate."""
    layers = len(reads[0].layers)
    return Forms.join([read.layer(index, heads) for index in range(layers) for read in reads])


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
