"""Composition of all pairs of heads with nulls at the shapes of GPT-2 small and XL, 2 threads.

Compared with transformer-lens (`make peers`), which gives scores without nulls, and with its own
matrix products alone. Those are all that it needs: the Gram matrices of the weights, A X and Xᵀ A X
of every form, and the product of all pairs, the symmetric half of the last two counted. Their time
is given twice, both in the same run: as bare products, at the rate that each of these shapes has
when nothing else is done, and at the rate of one large square product, which none of them reaches.
Random weights; LayerNorm with gains, as GPT-2 has it.
"""

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from benchmarks.measurement import Measurement, best_seconds, peak_memory, run_peer, status
from pathsum.circuits import composition
from pathsum.circuits.composition import BLOCK_ROWS
from pathsum.model import Config, Model, random_model

THREADS = 2
SMALL = Config(12, 12, 768, 64, 1000, 8, positions="residual", norm="layer")
XL = Config(48, 25, 1600, 64, 1000, 8, positions="residual", norm="layer")

# What all_composition_scores does, on weights alone.
PEER_PROGRAM = f"""
import json, time, torch
torch.set_num_threads({THREADS})
from pathlib import Path
from transformer_lens import FactoredMatrix
from transformer_lens.utilities.matrix import composition_scores
torch.manual_seed(0)
shape = ({SMALL.n_layers}, {SMALL.n_heads}, {SMALL.d_model}, {SMALL.d_head})
W_Q, W_K, W_V, W_O = (torch.randn(shape) for _ in range(4))
W_O = W_O.transpose(-2, -1).contiguous()
def peak():
    rows = Path("/proc/self/status").read_text().splitlines()
    return int(next(row for row in rows if row.startswith("VmHWM")).split()[1]) / 1024
Path("/proc/self/clear_refs").write_text("5")
before, start = peak(), time.perf_counter()
OV, QK = FactoredMatrix(W_V, W_O), FactoredMatrix(W_Q, W_K.transpose(-2, -1))
for right in (QK, QK.T, OV):
    composition_scores(OV, right, broadcast_dims=True)
print(json.dumps([time.perf_counter() - start, peak() - before]))
"""


def main() -> list[Measurement]:
    """Measure, print and return."""
    torch.set_num_threads(THREADS)
    found = [*small(), *xl()]
    for each in found:
        ratio = "" if each.ratio is None else f"{each.ratio:8.4f} × {each.other}"
        print(f"{each.what:<56} {each.ours:8.2f} {each.unit:<3} {ratio}", flush=True)
    return found


def small() -> list[Measurement]:
    """GPT-2 small: 144 heads, 28,512 edges."""
    model = random_model(SMALL, gains=True)
    composition(model)
    found = measured(model, rounds=5)
    theirs = run_peer("tl4", PEER_PROGRAM)
    name = "transformer-lens 4.3, no nulls"
    if theirs is None:
        name += " (not installed: make peers)"
    return [
        Measurement(
            "at GPT-2 small's shape (random weights)",
            found.seconds,
            "s",
            name,
            theirs and theirs[0],
        ),
        *found.against_products("at GPT-2 small's shape (random weights)"),
        Measurement(
            "at GPT-2 small's shape (random weights), above the weights",
            found.memory,
            "MB",
            name,
            theirs and theirs[1],
        ),
    ]


def xl() -> list[Measurement]:
    """GPT-2 XL: 1,200 heads, 2.1 million edges; peak memory with the weights."""
    model = random_model(XL, gains=True)
    give_back()
    before = status("VmRSS")
    found = measured(model, rounds=1)
    total = before + found.memory
    limit = "4 GB"
    return [
        *found.against_products("at GPT-2 XL's shape"),
        Measurement("at GPT-2 XL's shape, above the weights", found.memory, "MB"),
        Measurement("at GPT-2 XL's shape, the whole process", total, "MB", limit, 4096.0),
    ]


@dataclass(frozen=True)
class Measured:
    """Seconds, MB above what was there before, and seconds of the matrix products alone."""

    seconds: float
    memory: float
    bare: float
    at_peak: float

    def against_products(self, what: str) -> list[Measurement]:
        """The time against that of the products, as bare ones and at the rate of a large one."""
        bare, peak = "its products alone, at their shapes", "the same at the rate of a large one"
        return [
            Measurement(what, self.seconds, "s", bare, self.bare),
            Measurement(what, self.seconds, "s", peak, self.at_peak),
        ]


def measured(model: Model, rounds: int) -> Measured:
    """Composition of a model, next to its products in the same run."""
    products = own_products(model.config)
    bare, rate = [sum(one.seconds() for one in products)], [gemm_rate()]
    before = peak_memory(reset=True)
    [best] = best_seconds(rounds, lambda: composition(model))
    memory = peak_memory() - before
    bare.append(sum(one.seconds() for one in products))
    rate.append(gemm_rate())
    total = sum(one.flops for one in products)
    return Measured(best, memory, min(bare), total / max(rate))


@dataclass(frozen=True)
class Products:
    """Matrix products of some shapes: [batch, m, k] times [batch, k, n], and all operations."""

    shapes: tuple[tuple[int, int, int, int], ...]
    flops: int

    def seconds(self, rounds: int = 5) -> float:
        """What the operations take at the rate of bare products of these shapes, all threads busy.

        Each thread multiplies matrices of its own, as in `composition`.
        """
        once = sum(2 * batch * m * k * n for batch, m, k, n in self.shapes)
        repeats = max(1, round(1e9 / once))

        together = threading.Barrier(THREADS)

        def multiply(_: int) -> tuple[float, float]:
            operands = [
                (torch.randn(batch, m, k), torch.randn(batch, k, n), torch.empty(batch, m, n))
                for batch, m, k, n in self.shapes
            ]
            together.wait()
            begin = time.perf_counter()
            for _ in range(repeats):
                for left, right, out in operands:
                    torch.bmm(left, right, out=out)
            return begin, time.perf_counter()

        found: list[float] = []
        with ThreadPoolExecutor(THREADS, "", torch.set_num_threads, (1,)) as pool:
            for _ in range(rounds):
                begins, ends = zip(*pool.map(multiply, range(THREADS)), strict=True)
                found.append(max(ends) - min(begins))
        torch.set_num_threads(THREADS)
        return min(found) * self.flops / (THREADS * repeats * once)


def own_products(config: Config) -> list[Products]:
    """All matrix products that composition needs: Grams, A X, Xᵀ A X, all pairs."""
    heads, layers, kinds = config.n_heads, config.n_layers, 3
    d, k, rows = config.d_model, config.d_head, min(BLOCK_ROWS, config.d_model)
    made, factors = (1 + kinds) * layers * heads, layers * 2 * (heads + config.n_kv_heads)
    # Blocks reach from the diagonal to the last column: half of all columns, on average.
    meeting = tuple((1, kinds * heads, rows * d // 2, heads * below) for below in range(1, layers))
    pairs = kinds * heads * heads * (layers * (layers - 1) // 2)
    return [
        Products(((heads, k, d, k),), factors * 2 * d * k * k),
        Products(((heads, rows, k, k),), made * 2 * d * k * k),
        Products(((heads, rows, k, d // 2),), made * d * d * k),
        Products(meeting, pairs * d * d),
    ]


def gemm_rate(size: int = 3072) -> float:
    """Multiplications and additions per second in one large square product, the best of several."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / best_seconds(5, lambda: a @ b)[0]


def give_back() -> None:
    """Return freed memory to the system: drawing the weights in float64 leaves as much again."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)


if __name__ == "__main__":
    main()
