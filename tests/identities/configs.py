"""Random models of every variant, for properties that must hold on all of them."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from pathsum.model import Config, Model, random_model

Drawn = tuple[Model, Tensor]
"""A model and a batch that it can read."""


def close(found: Tensor, truth: Tensor, tolerance: float = 1e-9) -> bool:
    """Whether two tensors agree to within a share of the largest number."""
    return float((found - truth).abs().max()) <= tolerance * max(1.0, float(truth.abs().max()))


def relative(found: Tensor, truth: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((found - truth).abs().max() / truth.abs().max().clamp_min(1e-300))


def rotates(config: Config, layer: int) -> bool:
    """Whether a layer rotates its queries and keys."""
    every = config.rotary_layers or (True,) * config.n_layers
    return config.positions == "rotary" and every[layer]


@st.composite
def configs(
    draw: st.DrawFn,
    *,
    max_layers: int = 4,
    max_heads: int = 6,
    min_layers: int = 0,
    positions: tuple[str, ...] = ("qk", "residual", "rotary", "none"),
    norms: tuple[str, ...] = ("none", "layer", "rms"),
    mlps: tuple[str, ...] = (
        "none",
        "relu",
        "relu2",
        "gelu",
        "gelu_tanh",
        "silu",
        "silu_gated",
        "bilinear",
    ),
    tied: bool = True,
    causal: tuple[bool, ...] = (True, False),
) -> Config:
    """A config of any variant, small enough to compute everything densely."""
    n_layers = draw(st.integers(min_layers, max_layers))
    n_heads = draw(st.integers(1, max_heads))
    kv = draw(st.sampled_from([n for n in range(1, n_heads + 1) if n_heads % n == 0]))
    d_head = draw(st.sampled_from([2, 4, 6]))
    where = draw(st.sampled_from(positions))
    mlp = draw(st.sampled_from(mlps))
    extra: dict[str, Any] = {}
    if where == "rotary":
        extra["rotary_fraction"] = draw(st.sampled_from([1.0, 2 / d_head]))
        extra["rotary_pairing"] = draw(st.sampled_from(["halves", "adjacent"]))
        extra["rotary_base"] = draw(st.sampled_from([100.0, 10_000.0]))
        if n_layers and draw(st.booleans()):
            rotates = st.lists(st.booleans(), min_size=n_layers - 1, max_size=n_layers - 1)
            extra["rotary_layers"] = tuple(draw(st.permutations([True, *draw(rotates)])))
    if mlp != "none":
        extra["d_mlp"] = draw(st.integers(1, 9))
        extra["block"] = draw(st.sampled_from(["serial", "parallel"]))
    return Config(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=draw(st.integers(2, 13)),
        d_head=d_head,
        d_vocab=draw(st.integers(2, 17)),
        n_ctx=draw(st.integers(6, 10)),
        positions=where,  # pyright: ignore[reportArgumentType]
        norm=draw(st.sampled_from(norms)),  # pyright: ignore[reportArgumentType]
        mlp=mlp,  # pyright: ignore[reportArgumentType]
        n_kv_heads=kv,
        qk_norm=draw(st.sampled_from(["none", "rms"])),
        score_scale=draw(st.sampled_from([0.0, 0.7])),
        tied=draw(st.booleans()) if tied else False,
        causal=draw(st.sampled_from(causal)),
        **extra,
    )


@st.composite
def models(draw: st.DrawFn, dtype: torch.dtype = torch.float64, **limits: Any) -> Model:
    """A random model of any variant, with or without biases, gains and position tables each."""
    return random_model(
        draw(configs(**limits)),
        seed=draw(st.integers(0, 2**16)),
        dtype=dtype,
        position_tables=draw(st.sampled_from(["shared", "each"])),
        biases=draw(st.booleans()),
        gains=draw(st.booleans()),
    )


@st.composite
def models_with_tokens(
    draw: st.DrawFn, dtype: torch.dtype = torch.float64, **limits: Any
) -> tuple[Model, Tensor]:
    """A random model and a batch that it can read."""
    model = draw(models(dtype, **limits))
    batch, length = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    return model, torch.randint(model.config.d_vocab, (batch, length), generator=generator)


MLPS = (
    *("relu", "relu2", "gelu", "gelu_tanh", "silu"),
    *("silu_gated", "gelu_gated", "gelu_tanh_gated", "clamped_gated"),
)


@st.composite
def mlp_models_with_tokens(
    draw: st.DrawFn, dtype: torch.dtype = torch.float64, **limits: Any
) -> Drawn:
    """A random model with MLPs of any kind, experts, norms after blocks, sinks and windows."""
    sizes: dict[str, Any] = {"max_layers": 3, "max_heads": 2, "min_layers": 1, **limits}
    config = draw(configs(mlps=MLPS, **sizes))
    changes: dict[str, Any] = {}
    if draw(st.booleans()):
        experts = draw(st.integers(1, 3))
        changes |= {"n_experts": experts, "experts_per_token": draw(st.integers(1, experts))}
        changes |= {
            "shared_experts": draw(st.integers(0, experts - changes["experts_per_token"])),
            "router": draw(st.sampled_from(["chosen", "all"])),
        }
        changes["d_mlp"] = experts * draw(st.integers(1, 4))
    if config.norm == "rms":
        changes["norm_place"] = draw(st.sampled_from(["before", "after", "both"]))
    changes["sinks"] = draw(st.booleans())
    if config.n_layers and config.causal and draw(st.booleans()):
        changes["windows"] = (2, *(None for _ in range(config.n_layers - 1)))
    model = random_model(
        config.replace(**changes),
        seed=draw(st.integers(0, 2**16)),
        dtype=dtype,
        biases=draw(st.booleans()),
        gains=draw(st.booleans()),
    )
    batch, length = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    return model, torch.randint(model.config.d_vocab, (batch, length), generator=generator)
