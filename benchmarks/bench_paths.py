"""All totals toward a prediction, against one trace of the same text."""

import torch

from benchmarks.measurement import Measurement, best_seconds
from pathsum.model import Config, random_model

REPEATS = 3


def main() -> list[Measurement]:
    """A model of GPT-2's size, attention-only and whole, 256 tokens."""
    shape = Config(
        n_layers=12,
        n_heads=12,
        d_model=768,
        d_head=64,
        d_vocab=5000,
        n_ctx=256,
        positions="residual",
    )
    found: list[Measurement] = []
    for name, config in (
        ("attention only", shape),
        ("with norms and MLPs", shape.replace(norm="layer", mlp="gelu")),
    ):
        model = random_model(config, biases=config.norm != "none", gains=config.norm != "none")
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(config.d_vocab, (1, 256), generator=generator)
        trace = model.trace(tokens)
        ours, theirs = best_seconds(
            REPEATS,
            lambda trace=trace: trace.paths().toward(-1, 7, "mean"),
            lambda model=model, tokens=tokens: model.trace(tokens),
        )
        found.append(
            Measurement(
                f"toward, 12 layers × 12 heads, 256 tokens, {name}",
                ours=ours,
                unit="s",
                other="one trace",
                theirs=theirs,
            )
        )
    return found
