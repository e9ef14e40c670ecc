"""Circuits of predictions, every edge cut: time, and the memory that they add at their peak.

The 12 × 12 model is random, so its predictions are the small remainders of many shares that cancel,
and its circuits are larger than those of trained models.
"""

import time

import torch

from benchmarks.measurement import Measurement, peak_memory
from pathsum.model import Config, Model, random_model
from pathsum.sources import load


def main() -> list[Measurement]:
    """A bundled model at 96 tokens, and a random 12 × 12 model of width 768 at 128."""
    config = Config(
        n_layers=12,
        n_heads=12,
        d_model=768,
        d_head=64,
        d_vocab=5000,
        n_ctx=128,
        positions="residual",
        norm="layer",
    )
    return [
        *measure("two-layer, 96 tokens", load("two-layer"), 96, 0.5),
        *measure("12 layers × 12 heads, d 768, 128 tokens", random_model(config), 128, 10.0),
    ]


def measure(what: str, model: Model, length: int, budget: float) -> list[Measurement]:
    """The circuit of the last prediction; half of the text repeats the other half."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(model.config.d_vocab, (1, length // 2), generator=generator)
    trace = model.trace(torch.cat((half, half), 1))
    before, begun = peak_memory(), time.perf_counter()
    found = trace.circuit()
    seconds = time.perf_counter() - begun
    size = f"{len(found.nodes)} nodes, {len(found.edges)} edges"
    return [
        Measurement(f"circuit, {what} ({size})", seconds, "s", "budget", budget),
        Measurement(f"memory at the peak, {what}", peak_memory() - before, "MB"),
    ]
