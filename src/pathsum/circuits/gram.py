"""Many symmetric forms of low rank, and all inner products between two sets of them.

A form is `Xᵀ A X` with X [k, d] and A [k, k] positive semidefinite: what a head writes (`OVᵀ OV`,
with X = W_O and A = W_Vᵀ W_V) or what it reads with (`M Mᵀ`). The squared norm of a write followed
by a read is the inner product of their forms,

    ‖OV M‖² = tr(OVᵀ OV · M Mᵀ) = tr(P G),

and tr(P G) = Σ_ij P_ij G_ij over a symmetric d × d matrix: n forms against m are one product of an
n × d² matrix with a d² × m matrix. Neither is ever whole in memory. The sum is cut into square
blocks of (i, j); a block of every form is made from a few columns of X, used, and dropped, and
blocks below the diagonal are the ones above it counted twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.circuits.composition_null import Moments
from pathsum.result import Progress, silent

# Bytes that one block of all forms may take. Large enough for products to run at full rate.
BLOCK_BYTES = 128 << 20
# Beyond this a block of one form no longer stays in the cache of a core while it is made.
WIDEST_BLOCK = 144
# Up to so many heads all pairs are multiplied, also those that nobody asked for: it is quicker.
PAIRS_AT_ONCE = 128


class Outer:
    """The outer factors X of one layer's forms, any range of their columns at a time.

    Holds the stored weights as they are and applies what normalisation does to a read (gain,
    centring) to the columns asked for, so that a model is not copied. Each factor is scaled by its
    largest entry, which no score sees and which keeps squares of it finite.
    """

    def __init__(
        self,
        stored: Float[Tensor, "n k d"],
        *,
        gain: Float[Tensor, " d"] | None = None,
        centred: bool = False,
        copies: int = 1,
    ) -> None:
        self._stored = stored
        self._copies = copies
        whole = stored if gain is None else stored * gain
        peak = _largest(whole)
        mean = whole.mean(-1, keepdim=True) if centred else torch.zeros_like(whole[..., :1])
        if centred:
            left = _largest(whole - mean)
            rounding = 4 * torch.finfo(whole.dtype).eps * peak
            peak = torch.where(left > rounding, left, torch.zeros_like(left))
        # A factor that is zero, or only rounding once centred, stays zero.
        scale = torch.where(peak > 0, 1 / peak, torch.zeros_like(peak))
        # X = shift + stored · factor, in one pass over what is asked for.
        self._shift = -mean * scale
        self._factor = scale if gain is None else scale * gain
        sums = torch.zeros_like(mean) if centred else whole.sum(-1, keepdim=True)
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
        """Room for columns of n factors, laid out as the weights are: that makes filling quick."""
        k = self._stored.shape[1]
        if self._stored.stride(-1) == 1:
            return self._stored.new_empty(n, k, width)
        return self._stored.new_empty(n, width, k).mT

    def columns(self, start: int, stop: int, out: Float[Tensor, "n k b"]) -> None:
        """Columns start … stop − 1 of every factor, written to `out`."""
        wide = self._factor.shape[-1] > 1
        factor = self._factor[..., start:stop] if wide else self._factor
        stored = self._stored[..., start:stop]
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
        whole = self.space(len(self), self.d)
        self.columns(0, self.d, whole)
        return (whole @ whole.mT).double()


def _largest(factors: Float[Tensor, "n k d"]) -> Float[Tensor, "n 1 1"]:
    """The largest magnitude in each factor."""
    return torch.linalg.vector_norm(factors, torch.inf, dim=(-2, -1), keepdim=True)


@dataclass(frozen=True, eq=False)
class Forms:
    """One form `Xᵀ A X` of trace 1 for each of n heads, layer by layer.

    `moments` are those of the forms; `empty` marks heads whose form is zero, which has no trace to
    divide by.
    """

    layers: tuple[Outer, ...]
    inner: Float[Tensor, "n k k"]
    moments: Moments
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
        moments = Moments(
            square.diagonal(dim1=-2, dim2=-1).sum(-1), (square * product.mT).sum((-2, -1))
        )
        # Where a head is empty the form is zero, and whoever reports on it says so.
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
            Moments(square, cube),
            torch.cat([part.empty for part in parts]),
        )

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

    def columns(self, start: int, stop: int) -> Float[Tensor, "n k b"]:
        """Columns start … stop − 1 of X of every form."""
        whole = self.layers[0].space(len(self), stop - start)
        for layer, out in zip(self.layers, whole.split([len(x) for x in self.layers]), strict=True):
            layer.columns(start, stop, out)
        return whole

    def along_ones(self) -> Float[Tensor, " n"]:
        """The share of each form that lies along the ones-vector; by chance it is 1/d."""
        sums = torch.cat([layer.sums() for layer in self.layers])
        return (sums[:, None] @ self.inner.double() @ sums[..., None]).flatten() / self.d

    def roots(self) -> Float[Tensor, "n k d"]:
        """Y with `Yᵀ Y = Xᵀ A X`: the whole outer factors, times a root of A."""
        values, vectors = torch.linalg.eigh(self.inner.double())
        root = values.clamp(min=0).sqrt()[..., :, None] * vectors.mT
        return root.to(self.dtype) @ self.columns(0, self.d)


def products(
    write: Forms, reads: Sequence[Forms], heads: int, progress: Progress = silent
) -> list[Float[Tensor, "n n"]]:
    """tr(P G) for each writer (row) and reader (column) of the same or a later place, in float64.

    `write` holds layers 0 … L−2 and each of `reads` layers 1 … L−1, `heads` a layer, so that
    reader layer r reads every writer layer w ≤ r of its list. Other entries are not to be used.

    Two ways lead there, and the one with fewer multiplications is taken (see `flops`).
    """
    by_blocks, by_factors = flops(write, reads, heads)
    if by_factors <= by_blocks:
        return _by_factors(write, reads, heads, progress)
    return _by_blocks(write, reads, heads, progress)


def flops(write: Forms, reads: Sequence[Forms], heads: int) -> tuple[int, int]:
    """What the two ways cost: by blocks of the d × d forms, and by products of k × k factors.

    By blocks: d² for each pair, and d² k to make each form, the symmetric half of both alike.
    By factors: ‖Y_w Y_rᵀ‖² needs 2 d k² for each pair, and nothing is squared before it is summed.
    So blocks win for many heads with d < 2 k² (GPT-2: 768 against 8,192), factors elsewhere.
    """
    n, k = write.inner.shape[:2]
    layers = n // heads
    pairs = len(reads) * heads * heads * (layers * (layers + 1) // 2)
    made = n * (1 + len(reads))
    d = write.d
    return pairs * d * d + made * d * d * k, pairs * 2 * d * k * k


def block_width(n_forms: int, d: int, itemsize: int) -> int:
    """How wide a block is, so that one block of that many forms fits into `BLOCK_BYTES`.

    A multiple of 16, and not a power of two: rows of 2ⁿ numbers all fall into the same few lines of
    a cache, which halves the rate of a product.
    """
    fits = int((BLOCK_BYTES / (n_forms * itemsize)) ** 0.5)
    width = max(16, min(fits, WIDEST_BLOCK) // 16 * 16)
    if width > 16 and width & (width - 1) == 0:
        width -= 16
    return min(d, width)


def _by_blocks(
    write: Forms, reads: Sequence[Forms], heads: int, progress: Progress
) -> list[Float[Tensor, "n n"]]:
    d = write.d
    width = block_width(2 * len(write), d, write.dtype.itemsize)
    starts = range(0, d, width)
    totals = [_zeros(write) for _ in reads]
    sides = (write, *reads)
    steps = len(starts) * (len(starts) + 1) // 2
    done = 0
    for right_start in starts:
        right_stop = min(right_start + width, d)
        right = [side.inner @ side.columns(right_start, right_stop) for side in sides]
        for left_start in range(0, right_start + 1, width):
            left_stop = min(left_start + width, d)
            # A block off the diagonal stands for its mirror image too.
            weight = 1.0 if left_start == right_start else 2.0
            blocks = (
                torch.bmm(side.columns(left_start, left_stop).mT, r).flatten(1)
                for side, r in zip(sides, right, strict=True)
            )
            written = next(blocks)
            for total, read in zip(totals, blocks, strict=True):
                _add_pairs(total, written, read, heads, weight)
            done += 1
            progress(done, steps, "composition")
    return totals


def _zeros(write: Forms) -> Float[Tensor, "n n"]:
    n = len(write)
    return torch.zeros(n, n, dtype=torch.float64, device=write.inner.device)


def _add_pairs(total: Tensor, written: Tensor, read: Tensor, heads: int, weight: float) -> None:
    """Add one block's part of every inner product that is asked for.

    Writers of the first half of the layers against readers of the second half are one wide product;
    what is left are two triangles half as large. Thin products would run at half the rate.
    """
    n = len(written)
    if n <= max(heads, PAIRS_AT_ONCE):
        total.add_(written @ read.mT, alpha=weight)
        return
    half = n // heads // 2 * heads
    total[:half, half:].add_(written[:half] @ read[half:].mT, alpha=weight)
    _add_pairs(total[:half, :half], written[:half], read[:half], heads, weight)
    _add_pairs(total[half:, half:], written[half:], read[half:], heads, weight)


def _by_factors(
    write: Forms, reads: Sequence[Forms], heads: int, progress: Progress
) -> list[Float[Tensor, "n n"]]:
    n, k = write.inner.shape[:2]
    written = write.roots()
    totals: list[Tensor] = []
    layers = n // heads
    at_a_time = max(1, BLOCK_BYTES // (heads * k * k * write.dtype.itemsize))
    for number, read in enumerate(reads):
        total = _zeros(write)
        roots = read.roots()
        for layer in range(layers):
            start, end = layer * heads, (layer + 1) * heads
            reading = roots[start:end].flatten(0, 1).mT
            for first in range(0, end, at_a_time):
                last = min(first + at_a_time, end)
                meets = written[first:last].flatten(0, 1) @ reading
                squares = meets.square_().view(last - first, k, heads, k)
                total[first:last, start:end] = squares.sum((1, 3), dtype=torch.float64)
            progress(number * layers + layer + 1, layers * len(reads), "composition")
        totals.append(total)
    return totals
