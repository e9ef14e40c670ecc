"""Circuits between tokens at the shape of GPT-2 small: spectra of all heads, extremes of one.

Compared with transformer-lens, which has an environment of its own (`make peers`); without it those
lines have our cost only.
"""

import torch
from torch import Tensor

from benchmarks.measurement import Measurement, best_seconds, peak_memory, run_peer
from pathsum.algebra import Factored
from pathsum.circuits import copying, token_ov
from pathsum.circuits.copying import layer_eigenvalues
from pathsum.circuits.token_basis import token_product
from pathsum.model import Config, Model, random_model

LAYERS, HEADS, D, K, VOCAB = 12, 12, 768, 64, 50_257
BLOCK = 1024

# The circuit as its documentation builds it, one layer at a time to keep it in memory.
PEER_PROGRAM = f"""
import json, time, torch
torch.set_num_threads({torch.get_num_threads()})
from transformer_lens import FactoredMatrix
torch.manual_seed(0)
W_E, W_U = torch.randn({VOCAB}, {D}), torch.randn({D}, {VOCAB})
start, total = time.perf_counter(), 0
for layer in range({LAYERS}):
    OV = FactoredMatrix(torch.randn({HEADS}, {D}, {K}), torch.randn({HEADS}, {K}, {D}))
    begin = time.perf_counter()
    values = (W_E @ OV @ W_U).eigenvalues
    total += time.perf_counter() - begin
    assert values.shape == ({HEADS}, {K})
print(json.dumps(total))
"""


def main() -> list[Measurement]:
    """Measure."""
    config = Config(LAYERS, HEADS, D, K, VOCAB, 8, norm="none")
    model = random_model(config, seed=0)
    found = [*extremes(model), *spectra(model)]
    for one in found:
        print(one, flush=True)
    return found


def spectra(model: Model) -> list[Measurement]:
    """Eigenvalues of all 144 full OV circuits; then the same with the null of each ratio."""

    def ours() -> None:
        product = token_product(model.weights, 0)
        for layer in range(LAYERS):
            layer_eigenvalues(model.weights, layer, product)

    [seconds] = best_seconds(5, ours)
    theirs = run_peer("tl4", PEER_PROGRAM)
    name = "transformer-lens" if theirs is not None else "transformer-lens (environment missing)"
    [null] = best_seconds(1, lambda: copying(model, measures="eigenvalues"))
    return [
        Measurement("eigenvalues of 144 full OV", seconds, "s", name, theirs),
        Measurement("the same with the copying null, 400 draws", null, "s", "without it", seconds),
    ]


def extremes(model: Model) -> list[Measurement]:
    """The 100 largest of one full OV's 2.5 billion entries, against the bare products."""
    ov = token_ov(model, "L5H5")
    before = peak_memory(reset=True)
    [seconds] = best_seconds(2, lambda: ov.topk(100))
    after = peak_memory()
    [bare] = best_seconds(2, lambda: blocked_product(ov))
    return [
        Measurement("top 100 of one full OV", seconds, "s", "bare blocked GEMM", bare),
        Measurement("its memory above the model", after - before, "MB"),
    ]


def blocked_product(f: Factored) -> None:
    """Every block of the product once, and nothing else."""
    buffer = f.A.new_empty(BLOCK * BLOCK)
    right: list[Tensor] = [part.contiguous() for part in f.B.split(BLOCK, dim=1)]
    for rows in f.A.split(BLOCK):
        for columns in right:
            m, n = len(rows), columns.shape[1]
            torch.mm(rows, columns, out=buffer[: m * n].view(m, n))


if __name__ == "__main__":
    main()
