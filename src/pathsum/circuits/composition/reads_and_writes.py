"""What every head writes to the stream and reads from it, as symmetric forms.

For head h, with reads folded (gain, centering, QK-norm gains):

    writes      P  = OVᵀ OV  = W_Oᵀ (W_Vᵀ W_V) W_O
    Q reads     G  = M Mᵀ,  M = QK            = W_Q R_Δ W_Kᵀ
    K reads     G  = M Mᵀ,  M = QKᵀ           = W_K R_Δᵀ W_Qᵀ
    V reads     G  = M Mᵀ,  M = OV            = W_V W_O

all of the shape `Xᵀ A X` with a k × k matrix A. The rotation R_Δ is there on rotary models only; it
sits inside A, and A averaged over offsets gives G averaged over offsets.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.composition.gram import Forms, Outer
from pathsum.circuits.composition.rotary_average import rotated_gram
from pathsum.errors import InputError, NotExactError
from pathsum.model import Config, LayerWeights, Model

Center: TypeAlias = Literal["auto", "on", "off"]
"""Whether the mean of the stream is taken out: `"auto"` where the model's normalization does so."""


@dataclass(frozen=True, eq=False)
class Sides:
    """The forms of all heads that can meet: writers of layers 0 … L−2, readers of 1 … L−1."""

    write: Forms
    q: Forms
    k: Forms
    v: Forms


def is_centered(config: Config, center: Center) -> bool:
    """What `center` means for this model."""
    if center not in ("auto", "on", "off"):
        raise InputError(f"center={center!r} is not one of 'auto', 'on' and 'off'")
    return config.norm == "layer" if center == "auto" else center == "on"


def sides(model: Model, *, centered: bool, offset: int | None) -> Sides:
    """The forms of a model of at least two layers.

    Centered means that every matrix that touches the stream is remove_mean to what is orthogonal to
    the ones-vector; LayerNorm confines the reads in any case.
    """
    check_offset(model.config, offset)
    layers = [_layer(model, number, centered, offset) for number in range(model.config.n_layers)]
    below, above = layers[:-1], layers[1:]
    return Sides(
        write=Forms.join([layer.write for layer in below]),
        q=Forms.join([layer.q for layer in above]),
        k=Forms.join([layer.k for layer in above]),
        v=Forms.join([layer.v for layer in above]),
    )


def check_offset(config: Config, offset: int | None) -> None:
    """Refuse what has no bilinear score, and an offset where there is none."""
    if config.score_cap is not None:
        raise NotExactError(
            f"a soft cap bends the scores of this model (score_cap={config.score_cap:g}), so they "
            "are no bilinear form of what heads write, and composition with W_Q or W_K means "
            "nothing for them; a model without the cap would be right"
        )
    if offset is None:
        return
    if config.positions != "rotary":
        raise InputError(
            f"offset={offset} was given, but positions={config.positions!r} make QK the same at "
            "every offset; leave it out, or use a rotary model"
        )
    if not 0 <= offset < config.n_ctx:
        raise InputError(
            f"offset={offset} is not one that this model meets: destination − source goes from 0 "
            f"to {config.n_ctx - 1} in a context of {config.n_ctx}"
        )


def _layer(model: Model, number: int, centered: bool, offset: int | None) -> Sides:
    """The forms of one layer's heads."""
    config, raw = model.config, model.weights.layers[number]
    blind = centered or config.norm == "layer"
    shared = config.heads_per_kv

    def read(W: Tensor, copies: int) -> Outer:
        return Outer(W.mT, gain=raw.ln1_w, centered=blind, copies=copies)

    outer_q, outer_o = read(raw.W_Q, 1), Outer(raw.W_O, centered=centered)
    outer_k, outer_v = read(raw.W_K, shared), read(raw.W_V, shared)
    gram_q, gram_k, gram_v, gram_o = (x.gram() for x in (outer_q, outer_k, outer_v, outer_o))
    inner_q, inner_k = _inner_of_scores(config, raw, gram_q, gram_k, offset)
    return Sides(
        write=Forms.of(outer_o, gram_v, gram_o),
        q=Forms.of(outer_q, inner_q, gram_q),
        k=Forms.of(outer_k, inner_k, gram_k),
        v=Forms.of(outer_v, gram_o, gram_v),
    )


def _inner_of_scores(
    config: Config,
    raw: LayerWeights,
    gram_q: Float[Tensor, "n k k"],
    gram_k: Float[Tensor, "n k k"],
    offset: int | None,
) -> tuple[Float[Tensor, "n k k"], Float[Tensor, "n k k"]]:
    """A of the Q reads and A of the K reads: the other side's Gram matrix, turned by R_Δ.

    QK-norm gains multiply queries and keys column by column: they belong to both sides of A.
    """
    of_keys, of_queries = _scaled(gram_k, raw.k_norm_w), _scaled(gram_q, raw.q_norm_w)
    if config.positions == "rotary":
        of_keys = rotated_gram(config, of_keys, offset)
        of_queries = rotated_gram(config, of_queries, offset, back=True)
    return _scaled(of_keys, raw.q_norm_w), _scaled(of_queries, raw.k_norm_w)


def _scaled(
    matrices: Float[Tensor, "n k k"], gain: Float[Tensor, " k"] | None
) -> Float[Tensor, "n k k"]:
    """diag(gain) A diag(gain)."""
    if gain is None:
        return matrices
    return gain.double()[:, None] * matrices * gain.double()
