"""Composition of all pairs of heads with nulls at the shapes of GPT-2 small and XL, 2 threads.

Compared with transformer-lens (`make peers`), which gives scores without nulls, and with the time
of the multiplications alone: our own count of them at the rate of a large matrix product on
this machine, measured before and after. Random weights; LayerNorm with gains, as GPT-2 has it.

At these shapes a pair costs d² by blocks of the symmetric forms and 2 d k² by products of factors:
0.6 against 6.3 million at d = 768, 2.6 against 13.1 million at d = 1600, k = 64.
"""

import ctypes

import torch

from benchmarks.measurement import Measurement, best_seconds, peak_memory, run_peer, status
from pathsum.circuits import composition
from pathsum.circuits.composition.forms import flops
from pathsum.circuits.composition.reads_and_writes import sides
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
    seconds, memory, bound = measured(model, rounds=5)
    theirs = run_peer("tl4", PEER_PROGRAM)
    name = "transformer-lens 4.3, no nulls"
    if theirs is None:
        name += " (not installed: make peers)"
    return [
        Measurement(
            "at GPT-2 small's shape (random weights)", seconds, "s", name, theirs and theirs[0]
        ),
        Measurement(
            "at GPT-2 small's shape (random weights), its own products alone",
            seconds,
            "s",
            "GEMM rate",
            bound,
        ),
        Measurement(
            "at GPT-2 small's shape (random weights), above the weights",
            memory,
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
    seconds, memory, bound = measured(model, rounds=1)
    return [
        Measurement(
            "at GPT-2 XL's shape, its own products alone", seconds, "s", "GEMM rate", bound
        ),
        Measurement("at GPT-2 XL's shape, above the weights", memory, "MB"),
        Measurement(
            "at GPT-2 XL's shape, the whole process", before + memory, "MB", "4 GB", 4096.0
        ),
    ]


def measured(model: Model, rounds: int) -> tuple[float, float, float]:
    """Seconds and MB above what was there before, and seconds of the multiplications alone."""
    forms = sides(model, centered=True, offset=None)
    count = flops(forms.write, (forms.q, forms.k, forms.v), model.config.n_heads)[0]
    del forms
    rate = gemm_rate()
    before = peak_memory(reset=True)
    [best] = best_seconds(rounds, lambda: composition(model))
    memory = peak_memory() - before
    return best, memory, count / max(rate, gemm_rate())


def gemm_rate(size: int = 3072) -> float:
    """Multiplications and additions per second in one large square product, the best of several."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / best_seconds(5, lambda: a @ b)[0]


def give_back() -> None:
    """Return freed memory to the system: drawing the weights in float64 leaves as much again."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)


if __name__ == "__main__":
    main()
