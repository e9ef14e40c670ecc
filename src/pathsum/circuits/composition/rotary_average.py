"""Rotary models: k × k matrices turned by one offset, or averaged over all of them.

A score is `q R(Δ) kᵀ`, so the form that queries are read with is `W_Q (R A Rᵀ) W_Qᵀ`, A = W_Kᵀ W_K.
With R = diag(c) + diag(s) J (c and s the cosine and sine of each dimension's angle, J the quarter
turn in every plane)

    R A Rᵀ = cᵢ Aᵢⱼ cⱼ + cᵢ (A Jᵀ)ᵢⱼ sⱼ + sᵢ (J A)ᵢⱼ cⱼ + sᵢ (J A Jᵀ)ᵢⱼ sⱼ,

so its mean over offsets needs nothing but the means of cᵢcⱼ, cᵢsⱼ and sᵢsⱼ: three k × k tables a
model, whatever the context and the number of heads.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import Config
from pathsum.model.rotary import angular_frequencies

OFFSETS_AT_A_TIME = 4096


def rotated_gram(
    config: Config, A: Float[Tensor, "n k k"], offset: int | None, *, back: bool = False
) -> Float[Tensor, "n k k"]:
    """R(Δ) A R(Δ)ᵀ at one offset, or its mean over offsets 0 … n_ctx − 1; `back` turns by −Δ."""
    offsets = range(config.n_ctx) if offset is None else range(offset, offset + 1)
    cc, cs, ss = (table.to(A.device) for table in _means(config, offsets, -1 if back else 1))
    J = _quarter_turn(config).to(A.device)
    return cc * A + cs * (A @ J.mT) + cs.mT * (J @ A) + ss * (J @ A @ J.mT)


def _quarter_turn(config: Config) -> Float[Tensor, "k k"]:
    """J: every rotated plane turned by 90°, in row convention; zero past the rotary width."""
    first, second = _planes(config)
    J = torch.zeros(config.d_head, config.d_head, dtype=torch.float64)
    J[first, second] = 1.0
    J[second, first] = -1.0
    return J


def _planes(config: Config) -> tuple[Tensor, Tensor]:
    """The two dimensions of each rotated plane."""
    width = config.rotary_width
    if config.rotary_pairing == "halves":
        first = torch.arange(width // 2)
        return first, first + width // 2
    first = torch.arange(0, width, 2)
    return first, first + 1


def _means(config: Config, offsets: range, sign: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means over offsets of cᵢcⱼ, cᵢsⱼ and sᵢsⱼ, each [k, k] in float64."""
    first, second = _planes(config)
    speed = torch.zeros(config.d_head, dtype=torch.float64)
    speed[first] = speed[second] = sign * angular_frequencies(config)
    cc, cs, ss = (torch.zeros(len(speed), len(speed), dtype=torch.float64) for _ in range(3))
    for start in range(offsets.start, offsets.stop, OFFSETS_AT_A_TIME):
        stop = min(start + OFFSETS_AT_A_TIME, offsets.stop)
        angle = torch.arange(start, stop, dtype=torch.float64)[:, None] * speed
        c, s = angle.cos(), angle.sin()
        cc += c.mT @ c
        cs += c.mT @ s
        ss += s.mT @ s
    n = len(offsets)
    return cc / n, cs / n, ss / n
