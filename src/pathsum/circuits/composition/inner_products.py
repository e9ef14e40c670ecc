"""All inner products between what heads write and what heads read with, in bounded memory.

tr(P G) = Σ_ij P_ij G_ij over symmetric d × d matrices: n forms against m are one product of an
n × d² matrix with a d² × m matrix. Neither is ever whole in memory. The sum is cut into square
blocks of (i, j); a block of every form is made from a few columns of X, used, and dropped, and
blocks below the diagonal are the ones above it counted twice.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.composition.gram import Forms
from pathsum.result import Progress, silent

# Bytes that one block of all forms may take. Large enough for products to run at full rate.
BLOCK_BYTES = 256 << 20
# Beyond this a block of one form no longer stays in the cache of a core while it is made.
WIDEST_BLOCK = 144
# Up to so many heads all pairs are multiplied, also those that nobody asked for: it is quicker.
PAIRS_AT_ONCE = 128


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


class _Side:
    """Blocks of many forms, made in the same memory again and again.

    Fresh memory for each block would cost more than the products: the system clears every page of
    it first.
    """

    def __init__(self, forms: Forms, width: int) -> None:
        self._forms = forms
        self._left = forms.layers[0].space(len(forms), width)
        self._columns = torch.empty_like(self._left)
        self._right = self._left.new_empty(self._left.numel())
        self._block = self._left.new_empty(len(forms) * width * width)

    def turn_to(self, start: int, stop: int) -> None:
        """Make A X for columns start … stop − 1, the right half of the blocks to come."""
        n, k = self._forms.inner.shape[:2]
        columns = self._forms.columns(start, stop, self._columns[..., : stop - start])
        self._turned = self._right[: n * k * (stop - start)].view(n, k, stop - start)
        torch.bmm(self._forms.inner, columns, out=self._turned)

    def block(self, start: int, stop: int) -> Float[Tensor, "n entries"]:
        """Rows start … stop − 1 of every form, in the columns turned to; valid until the next."""
        left = self._forms.columns(start, stop, self._left[..., : stop - start])
        n, width = len(self._forms), self._turned.shape[-1]
        made = self._block[: n * (stop - start) * width].view(n, stop - start, width)
        torch.bmm(left.mT, self._turned, out=made)
        return made.flatten(1)


def _by_blocks(
    write: Forms, reads: Sequence[Forms], heads: int, progress: Progress
) -> list[Float[Tensor, "n n"]]:
    d, n, kinds = write.d, len(write), len(reads)
    width = block_width(n * (1 + kinds), d, write.dtype.itemsize)
    starts = range(0, d, width)
    writing = _Side(write, width)
    reading = _Side(_layer_by_layer(reads, heads), width)
    total = torch.zeros(n, n * kinds, dtype=torch.float64, device=write.inner.device)
    steps = len(starts) * (len(starts) + 1) // 2
    done = 0
    for right in starts:
        stop = min(right + width, d)
        writing.turn_to(right, stop)
        reading.turn_to(right, stop)
        for left in range(0, right + 1, width):
            # A block off the diagonal stands for its mirror image too.
            weight = 1.0 if left == right else 2.0
            rows = (left, min(left + width, d))
            _add_pairs(total, writing.block(*rows), reading.block(*rows), heads, weight)
            done += 1
            progress(done, steps, "composition")
    return list(total.view(n, -1, kinds, heads).transpose(1, 2).flatten(2).unbind(1))


def _layer_by_layer(reads: Sequence[Forms], heads: int) -> Forms:
    """All kinds of read of a layer next to each other: wide products run at a higher rate."""
    layers = len(reads[0].layers)
    return Forms.join([read.layer(index, heads) for index in range(layers) for read in reads])


def _add_pairs(
    total: Float[Tensor, "w r"],
    written: Float[Tensor, "w entries"],
    read: Float[Tensor, "r entries"],
    heads: int,
    weight: float,
) -> None:
    """Add one block's part of every inner product that is asked for.

    Writers of the first half of the layers against readers of the second half are one wide product;
    what is left are two triangles half as large. Thin products would run at half the rate.
    """
    n = len(written)
    if n <= max(heads, PAIRS_AT_ONCE):
        total.add_(written @ read.mT, alpha=weight)
        return
    half = n // heads // 2 * heads
    after = half * (len(read) // n)
    total[:half, after:].add_(written[:half] @ read[after:].mT, alpha=weight)
    _add_pairs(total[:half, :after], written[:half], read[:after], heads, weight)
    _add_pairs(total[half:, after:], written[half:], read[after:], heads, weight)


def _by_factors(
    write: Forms, reads: Sequence[Forms], heads: int, progress: Progress
) -> list[Float[Tensor, "n n"]]:
    n, k = write.inner.shape[:2]
    written = write.roots()
    totals: list[Tensor] = []
    layers = n // heads
    at_a_time = max(1, BLOCK_BYTES // (heads * k * k * write.dtype.itemsize))
    for number, read in enumerate(reads):
        total = torch.zeros(n, n, dtype=torch.float64, device=written.device)
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
