"""Rotary positions: queries and keys rotated by an angle that grows with position.

In row convention a query at i becomes `q R(i)` and a key at j `k R(j)`, with R block-diagonal in
planes. `R(i) R(j)ᵀ = R(i − j)`, so a score depends on the offset i − j alone:
`QK_Δ = W_Q R(Δ) W_Kᵀ`.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.errors import ConfigError
from pathsum.model.config import Config


def angular_frequencies(config: Config) -> Float[Tensor, " plane"]:
    """Radians per position for each rotated plane, in float64."""
    if config.rotary_local_base is not None or config.rotary_layers:
        raise ConfigError("layers rotate differently: pass config.at(layer)")
    width = config.rotary_width
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    frequencies = config.rotary_base**-exponents
    factors = torch.tensor(config.rotary_factors or (1.0,), dtype=torch.float64)
    return frequencies / factors


def rotate(
    config: Config, x: Float[Tensor, "*lead pos k"], positions: Int[Tensor, " pos"]
) -> Float[Tensor, "*lead pos k"]:
    """Each row of x rotated by its position; dimensions past the rotary width stay."""
    # On the processor: some devices (MPS) have no float64, which large positions need.
    angles = positions.cpu().to(torch.float64)[:, None] * angular_frequencies(config)
    return rotate_by(config, x, angles.cos(), angles.sin())


def rotate_by(
    config: Config,
    x: Float[Tensor, "*lead pos k"],
    cos: Float[Tensor, "_ plane"],
    sin: Float[Tensor, "_ plane"],
) -> Float[Tensor, "*lead pos k"]:
    """Each row of x rotated by angles with this cosine and sine, or by a mean of both."""
    cos, sin = (part.to(x.dtype).to(x.device) for part in (cos, sin))
    width = config.rotary_width
    rotary, rest = x[..., :width], x[..., width:]
    if config.rotary_pairing == "halves":
        first, second = rotary[..., : width // 2], rotary[..., width // 2 :]
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)
    first, second = rotary.unflatten(-1, (-1, 2)).unbind(-1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((torch.stack(pair, -1).flatten(-2), rest), -1)


def mean_cos_sin(speed: Float[Tensor, "*n"], offsets: range) -> tuple[Tensor, Tensor]:
    """Means of cos(speed · Δ) and sin(speed · Δ) over consecutive offsets Δ, in closed form.

    With n offsets around the center c the sum is a geometric series,

        mean e^{iωΔ} = e^{iωc} sin(nω/2) / (n sin(ω/2)),

    so the cost does not depend on n.
    """
    n, half = len(offsets), speed.double() / 2
    # sin(ω/2) loses its digits near multiples of π, so these are taken off first.
    turns = (half / math.pi).round()
    rest = half - math.pi * turns
    ratio = torch.where(rest == 0, 1.0, (n * rest).sin() / (n * rest.sin()))
    ratio = torch.where((turns % 2 == 1) & (n % 2 == 0), -ratio, ratio)
    angle = speed.double() * (offsets.start + (n - 1) / 2)
    return ratio * angle.cos(), ratio * angle.sin()
