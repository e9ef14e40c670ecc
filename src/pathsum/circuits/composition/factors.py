"""What one head writes and reads with, as a matrix with d columns, in float64.

A factor F [r, d] stands for a form FᵀF: for a write `OVᵀ OV`, for a read `M Mᵀ`. It is found by a
QR of the side that the stream does not see, so no accuracy is lost by squaring:
`OV = W_V W_O = Q (R W_O)`, and F = R W_O has the same norm against anything that follows.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.composition.composition_edges import CompositionKind
from pathsum.circuits.composition.rotary_average import rotated_gram
from pathsum.model import Head
from pathsum.model.rotary import rotate


def write_factor(head: Head, centered: bool) -> Float[Tensor, "r d"]:
    """F with FᵀF = OVᵀ OV: what the head writes, whatever it read."""
    return remove_mean(_triangle(head.W_V.double()) @ head.W_O.double(), centered)


def read_factor(
    head: Head, kind: CompositionKind, centered: bool, offset: int | None = None
) -> Float[Tensor, "r d"]:
    """F with FᵀF = M Mᵀ, M the matrix that the head's query, key or value side reads with.

    On a rotary model M Mᵀ is averaged over offsets, unless one is chosen. For kind "v" the head's
    own write is on the far side of M and is centered too where writes are.
    """
    if kind == "v":
        far = remove_mean(head.W_O.double(), centered)
        return remove_mean(_triangle(far.mT) @ head.W_V.double().mT, centered)
    W_Q, W_K = head.W_Q.double(), head.W_K.double()
    near, far = (W_Q, W_K) if kind == "q" else (W_K, W_Q)
    far = remove_mean(far.mT, centered).mT
    config = head.model.config
    scale = abs(config.score_scale)
    if config.positions != "rotary":
        root = _triangle(far)
    elif offset is not None:
        # W_Q R(Δ) W_Kᵀ: turning the queries forward is turning the keys back.
        step = -offset if kind == "q" else offset
        root = _triangle(rotate(config, far, torch.full((len(far),), step, device=far.device)))
    else:
        mean = rotated_gram(config, (far.mT @ far)[None], None, back=kind == "k")[0]
        values, vectors = torch.linalg.eigh(mean)
        root = values.clamp(min=0).sqrt()[:, None] * vectors.mT
    return remove_mean(scale * root @ near.mT, centered)


def remove_mean(rows: Float[Tensor, "r d"], centered: bool) -> Float[Tensor, "r d"]:
    """Rows without their part along the ones-vector, where the stream is centered."""
    return rows - rows.mean(-1, keepdim=True) if centered else rows


def compact(rows: Float[Tensor, "r d"]) -> Float[Tensor, "q d"]:
    """A factor of the same form with at most d rows, for matrices as tall as a vocabulary."""
    if len(rows) <= rows.shape[1]:
        return rows.double()
    values, vectors = torch.linalg.eigh(gram_of_rows(rows))
    return values.clamp(min=0).sqrt()[:, None] * vectors.mT


def gram_of_rows(rows: Float[Tensor, "r d"], at_a_time: int = 8192) -> Float[Tensor, "d d"]:
    """FᵀF in float64, some rows at a time."""
    d = rows.shape[1]
    total = torch.zeros(d, d, dtype=torch.float64, device=rows.device)
    for start in range(0, len(rows), at_a_time):
        part = rows[start : start + at_a_time]
        total += (part.mT @ part).double()
    return total


def _triangle(tall: Float[Tensor, "m r"]) -> Float[Tensor, "q r"]:
    return torch.linalg.qr(tall, mode="r").R
