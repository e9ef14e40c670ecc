"""Small models of several variants, that every page must be able to show."""

import torch

from pathsum.model import Config, Model, construct, random_model
from pathsum.text import Tokenizer

SIZE = {"n_heads": 2, "d_model": 8, "d_head": 4, "d_vocab": 40, "n_ctx": 24}

# What a tokenizer may hold that a page must not run.
HOSTILE = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\u2028", '"&<>')


def _random(**changes: object) -> Model:
    config = Config(**{"n_layers": 2, **SIZE, **changes})  # pyright: ignore[reportArgumentType]
    return random_model(config, seed=3, biases=True, gains=True)


def hostile() -> Model:
    """A model whose tokens are written to break out of a page."""
    plain = _random(start_token=0)
    words = [*HOSTILE, *(f"w{number}" for number in range(SIZE["d_vocab"] - len(HOSTILE)))]
    counts = torch.arange(SIZE["d_vocab"]) * 50
    return Model(
        plain.weights,
        name="<b>hostile</b>",
        tokenizer=Tokenizer.of_words([word.replace(" ", "_") for word in words]),
        token_counts=counts,
    )


VARIANTS = {
    "two layers": _random,
    "rotary, shared keys, MLPs, rms": lambda: _random(
        positions="rotary", n_kv_heads=1, mlp="silu_gated", norm="rms", qk_norm="rms"
    ),
    "residual positions, LayerNorm, parallel": lambda: _random(
        positions="residual", norm="layer", mlp="gelu", block="parallel"
    ),
    "no positions, three layers": lambda: _random(n_layers=3, positions="none"),
    "one layer": lambda: _random(n_layers=1),
    "hostile tokens": hostile,
}

NO_HEADS = "zero layers"
CAPPED = "soft caps"
ALL = {
    **VARIANTS,
    "hand-built induction": construct.induction,
    NO_HEADS: lambda: _random(n_layers=0),
    CAPPED: lambda: _random(score_cap=20.0, logit_cap=30.0),
}
