"""A factored matrix in blocks: how large they are, what bounds their entries, in what order.

The bound is |a · b| ≤ ‖a‖ ‖b‖ for a row a of A and a column b of B. With both taken by descending
length, the longest of each bound a block and all that come after it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from pathsum.algebra.factored import Factored
from pathsum.algebra.spectrum import widened
from pathsum.errors import InputError

BLOCK_BYTES = 4 * 2**20
"""The size of one block of the product: large enough for a GEMM, small enough for a cache."""


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
    length whose square overflows is infinite and rules nothing out.
    """
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    if not bool(lengths.isfinite().all()) and not bool(vectors.isfinite().all()):
        raise InputError(
            "the factors hold NaN or infinite numbers: their entries cannot be ordered; "
            "check where the factors come from."
        )
    r = vectors.shape[1]
    limits = torch.finfo(vectors.dtype)
    slack = 1.0 + 2.0 * (r + 4) * limits.eps
    return lengths.double() * slack + 2.0 * math.sqrt(r * limits.tiny)


@dataclass(frozen=True, eq=False)
class Strip:
    """Rows (or columns) that go through a GEMM together, none longer than `length`."""

    ids: Int[Tensor, "count"]
    length: float


def strips(lengths: Float[Tensor, "count"], size: int) -> list[Strip]:
    """The indices by descending length, `size` at a time.

    Inside a strip they ascend, so the first of equal entries is the one with the smallest index.
    """
    order = lengths.argsort(descending=True, stable=True)
    return [Strip(ids.sort().values, float(lengths[ids[0]])) for ids in order.split(size)]


def matrices(f: Factored) -> Iterator[Factored]:
    """The matrices of a batch one by one, in row-major order, without gradient, not in half."""
    for index in itertools.product(*(range(size) for size in f.batch_shape)):
        one = f[index]
        yield widened(Factored(one.A.detach(), one.B.detach()))


def stacked(
    parts: Sequence[Shaped[Tensor, "size"]], f: Factored, size: int
) -> Shaped[Tensor, "*batch size"]:
    """What was found for each of `matrices(f)`, in the shape of the batch."""
    if not parts:
        return torch.empty((*f.batch_shape, size), device=f.device)
    return torch.stack(list(parts)).reshape(*f.batch_shape, size)


def not_a_number() -> InputError:
    """The error for finite factors whose product is NaN."""
    return InputError(
        "an entry of the product is not a number: finite factors overflowed to infinities that "
        "cancel; scale the factors down or use float64."
    )
