"""Folding: the reads of heads and logits, with normalization folded into their weights.

With gain w and bias b, a normalized read is `((x C) · s ⊙ w + b) W`, where C removes the mean
(LayerNorm only) and s is one number per position. So with

    W' = C diag(w) W        b' = b W + (the read's own bias)

a head reads `s · (x W') + b'`: linear except for s, which a trace records. QK-norm gains, which
multiply queries and keys column by column, are folded in the same way; its scale multiplies last.

    a layer's reads       fold_read unfolded fold_bias layer_reads score_read value_reads
    and QK-norm           with_qk_gain
    outputs of biases     value_bias bias_in_z attention_bias
    the unembedding       folded_unembedding logit_bias centered_unembedding apply_unembedding
                          unembed_through
    the token basis       embeddings_as_read read_scales embed_through token_basis_note
    a whole model         fold: fold_gains center_writes fold_value_biases center_unembedding
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.base import HeadId, Side, parse_option
from pathsum.base.errors import NotExactError
from pathsum.base.shapes import HeadPattern
from pathsum.model.config import Config, Norm
from pathsum.model.store import MemoryStore
from pathsum.model.transformer import normalize
from pathsum.model.weights import LAYER_NAMES, LayerWeights, Weights, for_query_heads, kv_head

if TYPE_CHECKING:
    from pathsum.model.model import Model

ROWS = 16_384
"""Rows of an embedding that are copied at a time."""


def fold_read(
    norm: Norm, W: Float[Tensor, "*lead d k"], gain: Float[Tensor, " d"] | None
) -> Float[Tensor, "*lead d k"]:
    """C diag(gain) W: the read with centering and gain folded in; the scale is omitted."""
    if gain is not None:
        W = gain[:, None] * W
    if norm == "layer":
        W = W - W.mean(-2, keepdim=True)
    return W


def unfolded(
    norm: Norm, x: Float[Tensor, "*pos d"], gain: Float[Tensor, " d"] | None
) -> Float[Tensor, "*pos d"]:
    """x C diag(gain): the input of the stored read where the folded read has input x."""
    x = remove_mean(x, norm == "layer")
    return x if gain is None else x * gain


def fold_bias(
    W: Float[Tensor, "*lead d k"],
    norm_bias: Float[Tensor, " d"] | None,
    read_bias: Float[Tensor, "*lead k"] | None,
) -> Float[Tensor, "*lead k"]:
    """norm_bias W + read_bias: the part of a read that does not depend on the stream."""
    bias = W.new_zeros((*W.shape[:-2], W.shape[-1])) if read_bias is None else read_bias
    return bias if norm_bias is None else bias + norm_bias @ W


@dataclass(frozen=True, eq=False)
class Reads:
    """One layer's reads, normalization and QK-norm gains folded in (see above).

    A query before rotation is `s_q (s · x W_Q + pos_Q[position] + b_Q)`, a key likewise, a value
    `s · x W_V + b_V`. `pos_Q` and `pos_K` are the position parts of positions="qk" models.
    """

    W_Q: Float[Tensor, "head d k"]
    W_K: Float[Tensor, "kv d k"]
    W_V: Float[Tensor, "kv d k"]
    b_Q: Float[Tensor, "head k"]
    b_K: Float[Tensor, "kv k"]
    b_V: Float[Tensor, "kv k"]
    pos_Q: Float[Tensor, "head ctx k"] | None
    pos_K: Float[Tensor, "kv ctx k"] | None


def layer_reads(weights: Weights, layer: int) -> Reads:
    """A layer's folded reads. Costs a pass over its weights."""
    config, tensors = weights.config, weights.attention[layer]
    q_gain = W_gain = tensors.W_Q.new_ones(()) if tensors.q_norm_w is None else tensors.q_norm_w
    k_gain = K_gain = tensors.W_K.new_ones(()) if tensors.k_norm_w is None else tensors.k_norm_w
    if config.qk_norm in ("rms_per_head", "rms_all"):
        W_gain, K_gain = q_gain[..., None, :], k_gain[..., None, :]
    W_pos = tensors.W_pos
    return Reads(
        W_Q=fold_read(config.norm, tensors.W_Q, tensors.ln1_w) * W_gain,
        W_K=fold_read(config.norm, tensors.W_K, tensors.ln1_w) * K_gain,
        W_V=fold_read(config.norm, tensors.W_V, tensors.ln1_w),
        b_Q=fold_bias(tensors.W_Q, tensors.ln1_b, tensors.b_Q) * q_gain,
        b_K=fold_bias(tensors.W_K, tensors.ln1_b, tensors.b_K) * k_gain,
        b_V=fold_bias(tensors.W_V, tensors.ln1_b, tensors.b_V),
        pos_Q=None if W_pos is None else torch.einsum("cd,hdk->hck", W_pos, tensors.W_Q) * W_gain,
        pos_K=None if W_pos is None else torch.einsum("cd,hdk->hck", W_pos, tensors.W_K) * K_gain,
    )


def value_reads(weights: Weights, layer: int) -> Float[Tensor, "head d k"]:
    """The folded W_V of each query head of a layer."""
    config, tensors = weights.config, weights.attention[layer]
    return for_query_heads(fold_read(config.norm, tensors.W_V, tensors.ln1_w), config.n_heads)


def with_qk_gain(
    x: Float[Tensor, "any k"], gain: Float[Tensor, "*head k"] | None, head: int
) -> Float[Tensor, "any k"]:
    """x times a head's QK-norm gain, per head where a norm spans all heads, else shared."""
    return x if gain is None else x * (gain if gain.ndim == 1 else gain[head])


def score_read(
    weights: Weights, head: HeadId, side: Side
) -> tuple[Float[Tensor, "d k"], Float[Tensor, " k"]]:
    """W_Q and b_Q, or W_K and b_K, of one head, normalization folded in, before QK-norm gains."""
    tensors, index = weights.attention[head.layer], head.head
    matrices, biases = tensors.W_Q, tensors.b_Q
    if side is Side.K:
        matrices, biases, index = tensors.W_K, tensors.b_K, kv_head(weights.config, index)
    W, bias = matrices[index], None if biases is None else biases[index]
    return fold_read(weights.config.norm, W, tensors.ln1_w), fold_bias(W, tensors.ln1_b, bias)


def folded_unembedding(weights: Weights) -> Float[Tensor, "d vocab"]:
    """W_U with the final normalization's gain and centering folded in."""
    return fold_read(weights.config.norm, weights.W_U, weights.ln_f_w)


def logit_bias(weights: Weights) -> Float[Tensor, " vocab"]:
    """b_U with the final normalization's bias folded in: the contribution of `bias_U`."""
    return fold_bias(weights.W_U, weights.ln_f_b, weights.b_U)


def centered_unembedding(weights: Weights) -> Float[Tensor, "d vocab"]:
    """The folded W_U without its mean over the vocabulary: logits relative to their mean.

    Adding c·1ᵀ to W_U changes no probability, so no reported number may depend on it. A copy
    of W_U; for a few writes use `unembed_through`.
    """
    return remove_mean(folded_unembedding(weights))


def unembed_through(weights: Weights, W: Float[Tensor, "*k d"]) -> Float[Tensor, "*k vocab"]:
    """`W @ centered_unembedding(weights)` without a copy of W_U: effects of writes on logits."""
    return remove_mean(apply_unembedding(weights, W))


def apply_unembedding(weights: Weights, x: Float[Tensor, "*k d"]) -> Float[Tensor, "*k vocab"]:
    """`x` times the folded W_U, without a copy of W_U: logits without scale and bias."""
    return unfolded(weights.config.norm, x, weights.ln_f_w) @ weights.W_U


def value_bias(layer: LayerWeights) -> Float[Tensor, "head k"]:
    """The folded b_V of each query head, part of its z at every position (without sinks)."""
    return for_query_heads(fold_bias(layer.W_V, layer.ln1_b, layer.b_V), len(layer.W_O), dim=0)


def bias_in_z(layer: LayerWeights, head: int, pattern: HeadPattern) -> Float[Tensor, "*place k"]:
    """The contribution of biases to one head's z; sinks take a share of each row."""
    bias = value_bias(layer)[head]
    return bias if layer.sinks is None else bias * pattern.sum(-1, keepdim=True)


def attention_bias(weights: Weights, layer: int) -> Float[Tensor, " d"]:
    """Σ_h b_V W_O + b_O: the constant output of a layer's heads, whatever they attend to."""
    tensors = weights.attention[layer]
    output = torch.einsum("hk,hkd->d", value_bias(tensors), tensors.W_O)
    return output if tensors.b_O is None else output + tensors.b_O


def embeddings_as_read(
    weights: Weights, layer: int, tokens: Int[Tensor, " some"] | None = None
) -> Float[Tensor, "some d"]:
    """Embeddings (of all tokens, or of some) as the folded reads of a layer see them.

    Before layer 0 the stream is the embedding, so each one is normalized as the model does (in a
    model that adds positions to the stream: without them). In deeper layers, the scale depends on
    the output of lower layers and is omitted.
    """
    rows = weights.W_E if tokens is None else weights.W_E[tokens.to(weights.device)]
    if not _normalizes_embeddings(weights.config, layer):
        return rows
    return normalize(weights.config, rows[None], None, None)[0][0]


def read_scales(weights: Weights, layer: int) -> Float[Tensor, " vocab"] | None:
    """The number each token's embedding is multiplied by when a layer reads it.

    None where `embeddings_as_read` omits it.
    """
    if not _normalizes_embeddings(weights.config, layer):
        return None
    blocks = weights.W_E.split(ROWS)
    return torch.cat([normalize(weights.config, x[None], None, None)[1][0] for x in blocks])


def embed_through(
    weights: Weights, layer: int, W: Float[Tensor, "d k"]
) -> Float[Tensor, "vocab k"]:
    """Each token's embedding as a layer reads it, times a read with its normalization folded in."""
    scales = read_scales(weights, layer)
    rows = weights.W_E @ W
    return rows if scales is None else rows * scales[:, None]


def _normalizes_embeddings(config: Config, layer: int) -> bool:
    return layer == 0 and config.norm != "none" and config.norm_place != "after"


def token_basis_note(weights: Weights, layer: int) -> str:
    """A note on the factors that the token basis omits at this depth."""
    if layer == 0 or weights.config.norm == "none":
        return ""
    return "direct path, scale omitted"


class Folding(StrEnum):
    """A change of weights that changes no probability; see the function of each."""

    GAINS = "gains"
    WRITES = "writes"
    VALUE_BIASES = "value-biases"
    UNEMBEDDING = "unembedding"


def fold(model: "Model", which: Sequence[Folding | str] = (Folding.GAINS,)) -> "Model":
    """An equivalent model, changed by each of these foldings in turn; `transformations` lists them.

    `"gains"` (`fold_gains`), `"writes"` (`center_writes`), `"value-biases"` (`fold_value_biases`)
    and `"unembedding"` (`center_unembedding`). Log-probabilities do not change. Raises
    NotExactError where they would: `"writes"` without LayerNorm, `"value-biases"` with attention
    sinks, `"unembedding"` with a soft cap on logits. To fold both, fold gains before value biases,
    so that the biases of the norms are included.

    >>> from pathsum.model import construct
    >>> fold(construct.induction(), ["unembedding"]).transformations
    ('unembedding centered over the vocabulary',)
    """
    for name in which:
        change, description = _FOLDINGS[parse_option(Folding, name, "which")]
        weights = change(model.weights)
        if weights is not model.weights:
            transformations = (*model.transformations, description)
            model = replace(model, weights=weights, transformations=transformations)
    return model


def fold_gains(weights: Weights) -> Weights:
    """Gains and biases of normalizations multiplied into the reads that follow them.

    The stream then has no preferred basis, except for LayerNorm's ones-vector. Tied embeddings
    become untied, because the final gain is multiplied into W_U. If positions are added after the
    normalization (positions="qk"), each layer's W_pos is divided by the gain, so that the product
    with the folded read is unchanged; a gain of exactly 0 raises NotExactError. QK-norm
    gains stay, because they act inside the head, and so do the gains of norms after a block.
    """
    config = weights.config
    if config.norm == "none":
        return weights
    flat: dict[str, Tensor] = {}
    for layer in range(config.n_layers):
        folded = _fold_layer(weights, layer)
        flat |= {f"layers.{layer}.{name}": tensor for name, tensor in folded.items()}
    flat["W_E"] = weights.W_E
    flat["W_U"] = weights.W_U if weights.ln_f_w is None else weights.ln_f_w[:, None] * weights.W_U
    if weights.b_U is not None or weights.ln_f_b is not None:
        flat["b_U"] = logit_bias(weights)
    if config.positions == "residual":
        assert weights.W_pos is not None
        flat["W_pos"] = weights.W_pos
    return _untied(weights, flat)


def center_writes(weights: Weights) -> Weights:
    """All outputs into the stream with their mean over its dimensions removed.

    LayerNorm removes the mean from every read, so no component sees it; other norms do not.
    """
    if weights.config.norm != "layer":
        raise NotExactError(
            f"this model has norm={weights.config.norm!r}, which does not remove the mean of the "
            "stream, so centering the writes would change its predictions; only models with "
            "norm='layer' can be centered"
        )
    names = {"W_E", "W_O", "b_O", "W_out", "b_out", "b_experts"}
    if weights.config.positions == "residual":
        names.add("W_pos")
    flat = dict(weights.items()) | {"W_U": weights.W_U}
    for name, tensor in flat.items():
        if name.rsplit(".", 1)[-1] in names:
            flat[name] = remove_mean(tensor)
    return _untied(weights, flat)


def fold_value_biases(weights: Weights) -> Weights:
    """b_V moved into b_O: rows of a pattern sum to 1, so b_V W_O is written wherever heads attend.

    With attention sinks rows sum to less, and the output depends on the pattern.
    """
    config = weights.config
    if config.sinks:
        raise NotExactError(
            "this model has attention sinks, so the rows of its patterns sum to less than 1 and "
            "the output of value biases depends on the pattern; its value biases cannot be folded"
        )
    if weights.edited_edges:
        raise NotExactError(
            "this edited model replaces a head's output for single readers, and the output "
            "includes the value bias; fold the model before it is edited"
        )
    flat = dict(weights.items())
    biases = [name for name in flat if name.endswith(".b_V")]
    for name in biases:
        layer = name.removesuffix("b_V")
        b_V = for_query_heads(flat.pop(name), config.n_heads, dim=0)
        output = torch.einsum("hk,hkd->d", b_V, flat[f"{layer}W_O"])
        b_O = flat.get(f"{layer}b_O")
        flat[f"{layer}b_O"] = output if b_O is None else b_O + output
    return _rebuilt(config, weights, flat) if biases else weights


def center_unembedding(weights: Weights) -> Weights:
    """W_U and b_U without their mean over the vocabulary, which changes no probability.

    Under a soft cap on logits a common shift does change probabilities, which raises NotExactError.
    """
    cap = weights.config.logit_cap
    if cap is not None:
        raise NotExactError(
            f"this model caps its logits (logit_cap={cap:g}), so a shift of all logits changes its "
            "predictions; its unembedding cannot be centered"
        )
    flat = dict(weights.items())
    flat["W_U"] = remove_mean(weights.W_U)
    if weights.b_U is not None:
        flat["b_U"] = remove_mean(weights.b_U)
    return _untied(weights, flat)


_FOLDINGS: dict[Folding, tuple[Callable[[Weights], Weights], str]] = {
    Folding.GAINS: (fold_gains, "normalization gains and biases folded"),
    Folding.WRITES: (center_writes, "writes to the stream centered"),
    Folding.VALUE_BIASES: (fold_value_biases, "value biases folded into output biases"),
    Folding.UNEMBEDDING: (center_unembedding, "unembedding centered over the vocabulary"),
}


def _untied(weights: Weights, flat: dict[str, Tensor]) -> Weights:
    return _rebuilt(weights.config.replace(tied=False), weights, flat)


def _rebuilt(config: Config, weights: Weights, flat: dict[str, Tensor]) -> Weights:
    store = MemoryStore({name: tensor.contiguous() for name, tensor in flat.items()})
    return Weights(config, store, weights.dtype, weights.device, weights.edits)


def _fold_layer(weights: Weights, layer: int) -> dict[str, Tensor]:
    tensors = weights.layers[layer]
    stored = {name: getattr(tensors, name) for name in LAYER_NAMES if not name.startswith("ln")}
    if tensors.post1_w is not None:
        # Read layers hold the gain of the norm after the heads in W_O; stored ones do not.
        stored |= {n: weights.read_optional(f"layers.{layer}.{n}") for n in ("W_O", "b_O")}
    folded: dict[str, Tensor] = {name: t for name, t in stored.items() if t is not None}
    reads = [("W_Q", "b_Q", "ln1"), ("W_K", "b_K", "ln1"), ("W_V", "b_V", "ln1")]
    reads += [(f"W_{name}", f"b_{name}", "ln2") for name in ("in", "gate", "router")]
    for name, bias, norm in reads:
        W = stored[name]
        gain, shift = getattr(tensors, f"{norm}_w"), getattr(tensors, f"{norm}_b")
        if W is None:
            continue
        if gain is not None:
            folded[name] = gain[:, None] * W
        if shift is not None:
            folded[bias] = fold_bias(W, shift, stored[bias])
    if tensors.W_pos is not None and tensors.ln1_w is not None:
        if bool((tensors.ln1_w == 0).any()):
            raise NotExactError(
                f"the gain before layer {layer} is exactly 0 in some dimension, and positions are "
                "added after it, so folding the gain would lose their part there; use the model "
                "unfolded"
            )
        folded["W_pos"] = tensors.W_pos / tensors.ln1_w
    return folded
