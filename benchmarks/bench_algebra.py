"""Streaming extremes against the bare GEMM of the same product, 50,257 × 64 × 50,257, 2 threads.

The GEMM alone is blocked too, at the fastest of several block sizes. Rounds alternate and the best
of each counts, so that other load on the machine affects both. In the first product all vectors
have one length and no block can be skipped; in the second their lengths vary by a factor of ten.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.measurement import Measurement, best_seconds, peak_memory
from pathsum.algebra import Factored
from pathsum.algebra.extremes import argmax_rows, row_ranks, topk

SIZE, RANK, K, ROUNDS, THREADS = 50_257, 64, 100, 4, 2
BLOCKS = [(512, 1024), (1024, 1024), (1024, 2048), (2048, 2048)]


def main() -> list[Measurement]:
    """Measure, print and return."""
    torch.set_num_threads(THREADS)
    start = peak_memory()
    equal, spread = products()
    topk(equal, K)
    memory = Measurement(f"topk({K}), memory above the torch import", peak_memory() - start, "MB")
    found = [memory, *measure("equal lengths", equal), *measure("lengths 1 … 0.1", spread)]
    for each in found:
        ratio = "" if each.ratio is None else f"{each.ratio:6.2f} × {each.other}"
        print(f"{each.what:<48} {each.ours:8.2f} {each.unit:<3} {ratio}", flush=True)
    return found


def products() -> tuple[Factored, Factored]:
    """One product that cannot be pruned, and one whose vectors differ in length."""
    seeded = torch.Generator().manual_seed(0)
    A = torch.nn.functional.normalize(torch.randn(SIZE, RANK, generator=seeded), dim=1)
    B = torch.nn.functional.normalize(torch.randn(RANK, SIZE, generator=seeded), dim=0)
    lengths = torch.logspace(0, -1, SIZE)[torch.randperm(SIZE, generator=seeded)]
    return Factored(A, B), Factored(A * lengths[:, None], B)


def measure(name: str, f: Factored) -> list[Measurement]:
    """The streaming functions on one product, each against its bare GEMM."""
    diagonal = torch.arange(SIZE)
    work: dict[str, Callable[[], object]] = {
        f"topk({K})": lambda: topk(f, K),
        f"topk({K}), smallest": lambda: topk(f, K, largest=False),
        "argmax_rows": lambda: argmax_rows(f),
        "row_ranks": lambda: row_ranks(f, diagonal),
    }
    blocked = [partial(bare, f, *shape) for shape in BLOCKS]
    best = best_seconds(ROUNDS, *blocked, *work.values())
    gemm = min(best[: len(BLOCKS)])
    return [
        Measurement(f"{label}, {name}", spent, "s", "bare blocked GEMM", gemm)
        for label, spent in zip(work, best[len(BLOCKS) :], strict=True)
    ]


def bare(f: Factored, high: int, wide: int) -> None:
    """The product, block by block, and nothing else."""
    buffer = torch.empty(high * wide)
    for left in f.A.split(high):
        for right in f.B.split(wide, dim=1):
            out = buffer[: left.shape[0] * right.shape[1]].view(left.shape[0], right.shape[1])
            torch.mm(left, right, out=out)


if __name__ == "__main__":
    main()
