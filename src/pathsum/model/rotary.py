"""Rotary positions: queries and keys rotated by an angle that grows with position.

In row convention a query at i becomes `q R(i)` and a key at j `k R(j)`, with R block-diagonal in
planes. `R(i) R(j)ᵀ = R(i − j)`, so a score depends on the offset i − j alone:
`QK_Δ = W_Q R(Δ) W_Kᵀ`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.errors import ConfigError
from pathsum.model.config import Config


def angular_frequencies(config: Config) -> Float[Tensor, " plane"]:
    """Radians per position for each rotated plane, in float64."""
    if config.rotary_local_base is not None:
        raise ConfigError("layers rotate differently: pass config.at(layer)")
    width = config.rotary_width
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    frequencies = config.rotary_base**-exponents
    factors = torch.tensor(config.rotary_factors or (1.0,), dtype=torch.float64)
    return frequencies / factors


def rotate(
    config: Config, x: Float[Tensor, "*lead pos k"], places: Int[Tensor, " pos"]
) -> Float[Tensor, "*lead pos k"]:
    """Each row of x rotated by its position; dimensions past the rotary width stay."""
    angles = places.to(torch.float64)[:, None] * angular_frequencies(config).to(places.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    width = config.rotary_width
    turned, rest = x[..., :width], x[..., width:]
    if config.rotary_pairing == "halves":
        first, second = turned[..., : width // 2], turned[..., width // 2 :]
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    pair = (first * cos - second * sin, second * cos + first * sin)
    if config.rotary_pairing == "halves":
        joined = torch.cat(pair, -1)
    else:
        joined = torch.stack(pair, -1).flatten(-2)
    return torch.cat((joined, rest), -1)
