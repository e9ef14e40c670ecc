"""Snapshots made by hand: weights that go from noise to a constructed induction head."""

import math
from pathlib import Path

import torch

from pathsum.heads.probe import PREFIX_MATCHING, repeats_probe
from pathsum.heads.score import layer_views
from pathsum.model import Model, Weights, construct
from pathsum.model.store import MemoryStore
from pathsum.training.checkpoint import save_snapshot

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def mixture(share: float) -> Model:
    """A share of the constructed model, the rest noise."""
    built = construct.induction(n_ctx=40)
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: share * tensor
        + (1 - share) * 0.1 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        for name, tensor in built.weights.items()
    }
    weights = Weights(built.config, MemoryStore(tensors))
    return Model(weights, name="planted", tokenizer=built.tokenizer)


def plant(folder: Path, shares: dict[int, float]) -> Path:
    """A folder with a snapshot a step, and nothing else of a run."""
    for step, share in shares.items():
        save_snapshot(folder, step, mixture(share))
    return folder


def gradual(middle: float, steps: tuple[int, ...] = STEPS) -> dict[int, float]:
    """The share rises evenly in log(step), and prefix matching has half its rise at `middle`."""
    half = share_of_half_the_rise()
    slope = 0.25
    return {
        step: min(1.0, max(0.0, half + slope * math.log(step / middle))) if step else 0.0
        for step in steps
    }


def share_of_half_the_rise() -> float:
    """By bisection: the share at which L1H0's prefix matching is half-way from noise to one."""

    def score(share: float) -> float:
        model = mixture(share)
        probe = repeats_probe(model)
        view = list(layer_views(model.trace(probe.tokens), probe))[1]
        return float(PREFIX_MATCHING.measure(view).mean(0)[0])

    wanted = (score(0.0) + score(1.0)) / 2
    low, high = 0.0, 1.0
    for _ in range(12):
        between = (low + high) / 2
        low, high = (between, high) if score(between) < wanted else (low, between)
    return (low + high) / 2


def text(sequences: int = 6, length: int = 40) -> torch.Tensor:
    """Sequences with a start token whose second half repeats the first."""
    generator = torch.Generator().manual_seed(0)
    half = (length - 1) // 2
    rows = torch.stack(
        [1 + torch.randperm(26, generator=generator)[:half].repeat(2) for _ in range(sequences)]
    )
    return torch.cat((torch.zeros(sequences, 1, dtype=torch.long), rows), 1)
