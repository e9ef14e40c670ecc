"""What heads write to the stream and read from it: factors of one head, forms of all heads.

For head h, with reads folded (gain, centering, QK-norm gains):

    writes      P  = OVᵀ OV  = W_Oᵀ (W_Vᵀ W_V) W_O
    Q reads     G  = M Mᵀ,  M = QK            = W_Q R_Δ W_Kᵀ
    K reads     G  = M Mᵀ,  M = QKᵀ           = W_K R_Δᵀ W_Qᵀ
    V reads     G  = M Mᵀ,  M = OV            = W_V W_O

all of the shape `Xᵀ A X` with a k × k matrix A. The rotation R_Δ is there on rotary models only; it
sits inside A, and A averaged over offsets gives G averaged over offsets (`rotated_gram`).

For one head `write_factor` and `read_factor` give F [r, d] with FᵀF = P or G, in float64, from a QR
of the side that the stream does not see, so no accuracy is lost by squaring: `OV = W_V W_O =
Q (R W_O)`, and F = R W_O has the same norm against anything that follows.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.centering import remove_mean
from pathsum.algebra.decompositions import psd_root, triangle
from pathsum.base.allocator import Trimmer
from pathsum.base.arguments import parse_choice
from pathsum.circuits.composition.forms import Forms, JoinedForms
from pathsum.circuits.composition.stored_factor import (
    FactorName,
    Outer,
    StoredFactor,
    are_held,
    layer_bytes,
)
from pathsum.model import Config, Head, Model
from pathsum.model.processes import in_threads
from pathsum.model.rotary import angular_frequencies, check_offset, mean_cos_sin, rotate

CompositionKind: TypeAlias = Literal["q", "k", "v"]
KINDS: tuple[CompositionKind, ...] = get_args(CompositionKind)
Center: TypeAlias = Literal["auto", "on", "off"]
"""Whether the mean of the stream is removed: `"auto"` where the model's normalization does so."""
TRIM_BYTES = 64 << 20
"""How many bytes of layers are converted before freed memory is returned to the system.

The little that is kept of each layer lies between its freed temporaries, so the allocator would
hold on to most of them: in a deep model, more than everything else takes.
"""


def is_centered(config: Config, center: Center) -> bool:
    """What `center` means for this model."""
    center = parse_choice(get_args(Center), center, "center")
    return config.norm == "layer" if center == "auto" else center == "on"


def write_factor(head: Head, centered: bool) -> Float[Tensor, "r d"]:
    """F with FᵀF = OVᵀ OV: what the head writes, whatever it read."""
    return remove_mean(triangle(head.W_V.double()) @ head.W_O.double(), centered)


def read_factor(
    head: Head, kind: CompositionKind, centered: bool, offset: int | None = None
) -> Float[Tensor, "r d"]:
    """F with FᵀF = M Mᵀ, M the matrix that the head's query, key or value side reads with.

    On a rotary model M Mᵀ is averaged over offsets, unless one is chosen. For kind "v" the head's
    own write is on the far side of M and is centered too where writes are.
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
        root = psd_root(
            rotated_gram(config, (far.mT @ far)[None], range(config.n_ctx), back=kind == "k")[0]
        )
    return remove_mean(scale * root @ near.mT, centered)


@dataclass(frozen=True, eq=False)
class Sides:
    """The forms of all heads that can meet: writers of layers 0 … L−2, readers of 1 … L−1."""

    write: Forms
    q: Forms
    k: Forms
    v: Forms


def sides(model: Model, *, centered: bool, offset: int | None) -> Sides:
    """The forms of a model of at least two layers.

    Centered means that the ones-vector is projected out of every matrix that touches the stream;
    LayerNorm projects it out of the reads in any case.
    """
    check_offset(model.config, offset)
    n_layers = model.config.n_layers
    write, q, k, v = (JoinedForms(n_layers - 1) for _ in range(4))
    layers = in_threads(range(n_layers), lambda number: _layer(model, number, centered, offset))
    trimmer, at_once = Trimmer(), max(1, TRIM_BYTES // layer_bytes(model.weights))
    for number, layer in enumerate(layers):
        if number < n_layers - 1:
            write.add(layer.write)
        if number > 0:
            for side, part in ((q, layer.q), (k, layer.k), (v, layer.v)):
                side.add(part)
        if number % at_once == at_once - 1:
            trimmer.trim()
    return Sides(write.joined(), q.joined(), k.joined(), v.joined())


def _layer(model: Model, number: int, centered: bool, offset: int | None) -> Sides:
    """The forms of one layer's heads."""
    config, weights = model.config.at(number), model.weights
    blind = centered or config.norm == "layer"
    shared, held = config.heads_per_kv, are_held(weights)

    def small(name: str) -> Tensor | None:
        return weights.read_if_there(f"layers.{number}.{name}")

    def read(name: FactorName, copies: int) -> Outer:
        stored = StoredFactor(weights, number, name, held=held)
        return Outer(stored, gain=small("ln1_w"), centered=blind, copies=copies)

    stored_o = StoredFactor(weights, number, "W_O", held=held)
    outer_q, outer_o = read("W_Q", 1), Outer(stored_o, gain=small("post1_w"), centered=centered)
    outer_k, outer_v = read("W_K", shared), read("W_V", shared)
    gram_q, gram_k, gram_v, gram_o = (x.gram() for x in (outer_q, outer_k, outer_v, outer_o))
    gains = small("q_norm_w"), small("k_norm_w")
    inner_q, inner_k = _inner_of_scores(config, gains, gram_q, gram_k, offset)
    return Sides(
        write=Forms.of(outer_o, gram_v, gram_o),
        q=Forms.of(outer_q, inner_q, gram_q),
        k=Forms.of(outer_k, inner_k, gram_k),
        v=Forms.of(outer_v, gram_o, gram_v),
    )


def _inner_of_scores(
    config: Config,
    gains: tuple[Tensor | None, Tensor | None],
    gram_q: Float[Tensor, "n k k"],
    gram_k: Float[Tensor, "n k k"],
    offset: int | None,
) -> tuple[Float[Tensor, "n k k"], Float[Tensor, "n k k"]]:
    """A of the Q reads and A of the K reads: the other side's Gram matrix, rotated by R_Δ.

    QK-norm gains multiply queries and keys column by column: they belong to both sides of A.
    """
    q_gain, k_gain = gains
    of_keys, of_queries = _scaled(gram_k, k_gain), _scaled(gram_q, q_gain)
    if config.positions == "rotary":
        offsets = range(config.n_ctx) if offset is None else range(offset, offset + 1)
        of_keys = rotated_gram(config, of_keys, offsets)
        of_queries = rotated_gram(config, of_queries, offsets, back=True)
    return _scaled(of_keys, q_gain), _scaled(of_queries, k_gain)


def _scaled(
    matrices: Float[Tensor, "n k k"], gain: Float[Tensor, "*head k"] | None
) -> Float[Tensor, "n k k"]:
    """diag(gain) A diag(gain), with one gain for all heads or one per (key/value) head."""
    if gain is None:
        return matrices
    if gain.ndim == 2:
        gain = gain.repeat_interleave(len(matrices) // len(gain), 0)
    return gain.double()[..., :, None] * matrices * gain.double()[..., None, :]


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
    moved, sign = (part.to(A.device) for part in _quarter_turn(config))
    JA = A[:, moved] * sign[:, None]
    mixed = cs.mT * JA  # A Jᵀ is the transpose of J A
    return cc * A + mixed + mixed.mT + ss * (JA.mT[:, moved] * sign[:, None])


def _quarter_turn(config: Config) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
    """J, every rotated plane by 90° in row convention: J[i, moved[i]] = sign[i], zero elsewhere."""
    first, second = _planes(config)
    moved, sign = torch.arange(config.d_head), torch.zeros(config.d_head, dtype=torch.float64)
    moved[first], moved[second] = second, first
    sign[first], sign[second] = 1.0, -1.0
    return moved, sign


def _planes(config: Config) -> tuple[Tensor, Tensor]:
    """The two dimensions of each rotated plane."""
    width = config.rotary_width
    if config.rotary_pairing == "halves":
        first = torch.arange(width // 2)
        return first, first + width // 2
    first = torch.arange(0, width, 2)
    return first, first + 1


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
