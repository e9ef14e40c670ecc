"""Reads and writes of heads: factors of one head, and of all heads of a layer.

For head h, with reads folded (gain, centering, QK-norm gains):

    writes      P  = OVᵀ OV  = W_Oᵀ (W_Vᵀ W_V) W_O
    Q reads     G  = M Mᵀ,  M = QK            = W_Q R_Δ W_Kᵀ
    K reads     G  = M Mᵀ,  M = QKᵀ           = W_K R_Δᵀ W_Qᵀ
    V reads     G  = M Mᵀ,  M = OV            = W_V W_O

Each is a Gram matrix `Xᵀ A X` with X [k, d] and A [k, k] positive semidefinite. The rotation R_Δ
exists on rotary models only; it sits inside A, and A averaged over offsets gives G averaged over
offsets (`rotated_gram`).

For one head `write_factor` and `read_factor` return F [r, d] with FᵀF = P or G, in float64, from a
QR of the side that the stream does not see, so no accuracy is lost by squaring: `OV = W_V W_O =
Q (R W_O)`, and F = R W_O has the same norm against anything that follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.algebra.decompositions import psd_root, triangle
from pathsum.algebra.nulls import AxisMoments, UnitMoments
from pathsum.algebra.spectrum import remove_mean
from pathsum.base.options import parse_choice
from pathsum.model import Config, Head, Model
from pathsum.model.folding import fold_read
from pathsum.model.rotary import angular_frequencies, mean_cos_sin, rotate
from pathsum.model.weights import for_query_heads

CompositionKind: TypeAlias = Literal["q", "k", "v"]
KINDS: tuple[CompositionKind, ...] = get_args(CompositionKind)
GramName: TypeAlias = Literal["write", "q", "k", "v"]
Center: TypeAlias = Literal["auto", "on", "off"]
"""Whether the mean of the stream is removed: `"auto"` where the model's normalization does so."""


def is_centered(config: Config, center: Center) -> bool:
    """Whether writes and reads are centered, given the option and the model's normalization."""
    center = parse_choice(get_args(Center), center, "center")
    return config.norm == "layer" if center == "auto" else center == "on"


def write_factor(head: Head, centered: bool) -> Float[Tensor, "r d"]:
    """F with FᵀF = OVᵀ OV: everything that the head can write."""
    return remove_mean(triangle(head.W_V.double()) @ head.W_O.double(), centered)


def read_factor(
    head: Head, kind: CompositionKind, centered: bool, offset: int | None = None
) -> Float[Tensor, "r d"]:
    """F with FᵀF = M Mᵀ, M the matrix that the head's query, key or value side reads with.

    On a rotary model M Mᵀ is averaged over offsets unless one is chosen. For kind "v" the head's
    own write is on the far side of M, and is centered where writes are.
    """
    if kind == "v":
        far = remove_mean(head.W_O.double(), centered)
        return remove_mean(triangle(far.mT) @ head.W_V.double().mT, centered)
    W_Q, W_K = head.W_Q.double(), head.W_K.double()
    near, far = (W_Q, W_K) if kind == "q" else (W_K, W_Q)
    far = remove_mean(far.mT, centered).mT
    config = head.model.config.at(head.id.layer)
    scale = abs(config.score_scale)
    if config.positions != "rotary":
        root = triangle(far)
    elif offset is not None:
        # W_Q R(Δ) W_Kᵀ: rotating queries by Δ is rotating keys by −Δ.
        step = -offset if kind == "q" else offset
        root = triangle(rotate(config, far, torch.full((len(far),), step, device=far.device)))
    else:
        gram = (far.mT @ far)[None]
        root = psd_root(rotated_gram(config, gram, config.offsets, back=kind == "k")[0])
    return remove_mean(scale * root @ near.mT, centered)


def layer_factors(
    model: Model, layer: int, centered: bool
) -> Mapping[GramName, Float[Tensor, "head k d"]]:
    """X of each Gram matrix of a layer: W_O of writes, folded W_Qᵀ, W_Kᵀ and W_Vᵀ of reads.

    Each factor is divided by its largest entry, which changes no score and keeps squares finite.
    """
    raw, sees_no_mean = model.weights.attention[layer], centered or model.config.norm == "layer"
    q, k, v = (fold_read("none", W, raw.ln1_w).mT for W in (raw.W_Q, raw.W_K, raw.W_V))
    q = q if raw.q_norm_w is None else q * raw.q_norm_w[..., None]
    k = k if raw.k_norm_w is None else k * raw.k_norm_w[..., None]
    shared = (for_query_heads(X, model.config.n_heads) for X in (k, v))
    q, k, v = (_unit_peak(X, sees_no_mean) for X in (q, *shared))
    return {"write": _unit_peak(raw.W_O, centered), "q": q, "k": k, "v": v}


def _unit_peak(X: Float[Tensor, "n k d"], centered: bool) -> Float[Tensor, "n k d"]:
    """Factors with 1 as their largest entry; zero if only rounding is left once centered."""
    before, X = X.abs().amax((-2, -1), keepdim=True), remove_mean(X, centered)
    peak = X.abs().amax((-2, -1), keepdim=True)
    noise = 4 * torch.finfo(X.dtype).eps * before if centered else torch.zeros_like(peak)
    return torch.where(peak > noise, X / peak, 0.0).contiguous()


@dataclass(frozen=True, eq=False)
class Grams:
    """The k × k part of Gram matrices `Xᵀ A X` of trace 1, one per head, with their statistics.

    `empty` marks heads whose Gram matrix is zero, `along_ones` is the share of the trace along the
    ones-vector, and `diagonal` and `squares` are the diagonals of the matrix and of its square.
    """

    A: Float[Tensor, "head k k"]
    square: Float[Tensor, " head"]
    cube: Float[Tensor, " head"]
    empty: Bool[Tensor, " head"]
    along_ones: Float[Tensor, " head"]
    diagonal: Float[Tensor, "head d"]
    squares: Float[Tensor, "head d"]

    @property
    def moments(self) -> UnitMoments:
        """The moments that the null needs."""
        return UnitMoments(self.square, self.cube)

    @property
    def axes(self) -> AxisMoments:
        """The moments that the null of permuted axes needs."""
        return AxisMoments.of(self.diagonal, self.squares, self.moments)

    @classmethod
    def concat(cls, layers: Sequence["Grams"]) -> "Grams":
        """The Gram matrices of several layers, on the CPU."""
        columns = zip(*(vars(grams).values() for grams in layers), strict=True)
        return cls(*(torch.cat(column).cpu() for column in columns))


def layer_grams(
    model: Model,
    layer: int,
    factors: Mapping[GramName, Float[Tensor, "head k d"]],
    offset: int | None,
) -> dict[GramName, Grams]:
    """The Gram matrices of one layer's heads, given `layer_factors`."""
    config = model.config.at(layer)
    grams = {name: (X @ X.mT).double() for name, X in factors.items()}
    of_keys, of_queries = grams["k"], grams["q"]
    if config.positions == "rotary":
        # The QK-norm gains in the factors multiply before the rotation.
        offsets = config.offsets if offset is None else range(offset, offset + 1)
        of_keys = rotated_gram(config, of_keys, offsets)
        of_queries = rotated_gram(config, of_queries, offsets, back=True)
    inner = {"write": grams["v"], "q": of_keys, "k": of_queries, "v": grams["write"]}
    return {name: _grams(X, inner[name], grams[name]) for name, X in factors.items()}


def _grams(
    X: Float[Tensor, "head k d"], A: Float[Tensor, "head k k"], gram: Float[Tensor, "head k k"]
) -> Grams:
    """Traces need k × k products only: `tr(Xᵀ A X) = tr(A X Xᵀ)`, and its powers likewise."""
    product = A @ gram
    trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    A, product = (torch.where(trace > 0, M / trace, 0.0) for M in (A, product))
    square = (product * product.mT).sum((-2, -1))
    cube = (product @ product * product.mT).sum((-2, -1))
    X64 = X.double()
    AX = A @ X64
    along = (X64.sum(-1) * AX.sum(-1)).sum(-1) / X.shape[-1]
    diagonals = ((X64 * AX).sum(1), (AX * (gram @ AX)).sum(1))
    return Grams(A.to(X.dtype), square, cube, ~(trace > 0).flatten(), along, *diagonals)


def rotated_gram(
    config: Config, A: Float[Tensor, "n k k"], offsets: range, *, back: bool = False
) -> Float[Tensor, "n k k"]:
    """The mean of R(Δ) A R(Δ)ᵀ over consecutive offsets, A symmetric; `back` rotates by −Δ.

    With R = diag(c) + diag(s) J (c and s the cosine and sine of each dimension's angle, J the
    quarter turn in every plane)

        R A Rᵀ = cᵢ Aᵢⱼ cⱼ + cᵢ (A Jᵀ)ᵢⱼ sⱼ + sᵢ (J A)ᵢⱼ cⱼ + sᵢ (J A Jᵀ)ᵢⱼ sⱼ,

    so the mean over offsets needs only the means of cᵢcⱼ, cᵢsⱼ and sᵢsⱼ: three k × k tables per
    model, whatever the context and the number of heads. J only moves rows and changes signs.
    """
    cc, cs, ss = (table.to(A.device) for table in _means(config, offsets, -1 if back else 1))
    first, second = _planes(config)
    # J in row convention: J[i, moved[i]] = sign[i], zero elsewhere.
    moved, sign = torch.arange(config.d_head), torch.zeros(config.d_head, dtype=torch.float64)
    moved[first], moved[second] = second, first
    sign[first], sign[second] = 1.0, -1.0
    moved, sign = moved.to(A.device), sign.to(A.device)
    JA = A[:, moved] * sign[:, None]
    mixed = cs.mT * JA  # A Jᵀ is the transpose of J A
    return cc * A + mixed + mixed.mT + ss * (JA.mT[:, moved] * sign[:, None])


def _planes(config: Config) -> tuple[Tensor, Tensor]:
    """The two dimensions of each rotated plane."""
    dimensions = torch.arange(config.rotary_width)
    if config.rotary_pairing == "halves":
        first, second = dimensions.chunk(2)
        return first, second
    return dimensions[::2], dimensions[1::2]


@lru_cache(maxsize=8)
def _means(config: Config, offsets: range, sign: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means over offsets of cᵢcⱼ, cᵢsⱼ and sᵢsⱼ, each [k, k] in float64."""
    first, second = _planes(config)
    speed = torch.zeros(config.d_head, dtype=torch.float64)
    speed[first] = speed[second] = sign * angular_frequencies(config)
    # cos a cos b = ½ (cos(a − b) + cos(a + b)), and likewise for the other products.
    cos_less, sin_less = mean_cos_sin(speed[:, None] - speed, offsets)
    cos_more, sin_more = mean_cos_sin(speed[:, None] + speed, offsets)
    return (cos_less + cos_more) / 2, (sin_more - sin_less) / 2, (cos_less - cos_more) / 2
