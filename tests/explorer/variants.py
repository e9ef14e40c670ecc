"""Small models of several variants, that every page must be able to show."""

import dataclasses

import torch

from pathsum.model import Config, Model, construct, from_tensors, random_model
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


def two_copying_heads() -> Model:
    """The hand-built induction model with half of what its induction head writes in another one."""
    built = construct.induction()
    config = dataclasses.replace(built.config, mlp="relu", d_mlp=8)
    weights = built.weights
    tensors = {"W_E": weights.W_E, "W_U": weights.W_U}
    tensors["W_pos"] = torch.stack(
        [layer.W_pos for layer in weights.layers if layer.W_pos is not None]
    )
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        tensors[name] = torch.stack([getattr(layer, name) for layer in weights.layers])
        tensors[name][1, 1] = tensors[name][1, 0]
    tensors["W_O"][1] /= 2
    random = torch.Generator().manual_seed(0)
    tensors["W_in"] = torch.randn(2, config.d_model, 8, generator=random) / 20
    tensors["W_out"] = torch.randn(2, 8, config.d_model, generator=random) / 20
    return from_tensors(config, tensors, tokenizer=built.tokenizer)


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
