"""Term importance: all orders in one pass, against the paper's repeated runs.

The repeated runs are `tests/paths/multi_run.py`: patterns saved in a first run without unembedding,
then a forced run for each order. Both find the same losses, which is checked first.
"""

import torch
from tests.paths.multi_run import multi_run_losses

from benchmarks.measurement import Measurement, best_seconds
from pathsum.model import Config, random_model
from pathsum.paths import term_importance

REPEATS = 7


def main() -> list[Measurement]:
    """Two layers, 8 heads, d_model 256, vocabulary 2048, 8 sequences of 256 tokens."""
    config = Config(n_layers=2, n_heads=8, d_model=256, d_head=32, d_vocab=2048, n_ctx=256)
    model = random_model(config)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.d_vocab, (8, 256), generator=generator)
    ours, theirs = term_importance(model, tokens).loss, multi_run_losses(model, tokens)
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-4
    one, many = best_seconds(
        REPEATS, lambda: term_importance(model, tokens), lambda: multi_run_losses(model, tokens)
    )
    what = "term importance, 2 layers × 8 heads, 2048 tokens"
    return [Measurement(what, ours=one, unit="s", other="the paper's repeated runs", theirs=many)]
