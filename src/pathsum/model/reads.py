"""What heads and logits read of the stream once normalization is folded into the weights.

With gain w and bias b, a normalized read is `((x C) · s ⊙ w + b) W`, where C removes the mean
(LayerNorm only) and s is one number a position. So with

    W' = C diag(w) W        b' = b W + (the read's own bias)

a head reads `s · (x W') + b'`: linear but for s, which a trace records. QK-norm gains, which
multiply queries and keys column by column, are folded in the same way; its scale multiplies last.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from pathsum.model.config import Config, Norm
from pathsum.model.weights import Weights
from pathsum.names import HeadId


def fold_read(
    norm: Norm, W: Float[Tensor, "*lead d k"], gain: Float[Tensor, " d"] | None
) -> Float[Tensor, "*lead d k"]:
    """C diag(gain) W: the read with what normalization does to it, but for the scale."""
    if gain is not None:
        W = gain[:, None] * W
    if norm == "layer":
        W = W - W.mean(-2, keepdim=True)
    return W


def fold_bias(
    W: Float[Tensor, "*lead d k"],
    norm_bias: Float[Tensor, " d"] | None,
    own: Float[Tensor, "*lead k"] | None,
) -> Float[Tensor, "*lead k"]:
    """norm_bias W + own: what a read sees at every position, whatever the stream holds."""
    bias = W.new_zeros((*W.shape[:-2], W.shape[-1])) if own is None else own
    return bias if norm_bias is None else bias + norm_bias @ W


@dataclass(frozen=True, eq=False)
class Reads:
    """One layer's reads, normalization and QK-norm gains folded in (see the module's text).

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
    """A layer's folded reads. Costs a pass over its weights; keep it if you need it often."""
    config, raw = weights.config, weights.layers[layer]
    q_gain = 1.0 if raw.q_norm_w is None else raw.q_norm_w
    k_gain = 1.0 if raw.k_norm_w is None else raw.k_norm_w
    placed = raw.W_pos is not None
    return Reads(
        W_Q=fold_read(config.norm, raw.W_Q, raw.ln1_w) * q_gain,
        W_K=fold_read(config.norm, raw.W_K, raw.ln1_w) * k_gain,
        W_V=fold_read(config.norm, raw.W_V, raw.ln1_w),
        b_Q=fold_bias(raw.W_Q, raw.ln1_b, raw.b_Q) * q_gain,
        b_K=fold_bias(raw.W_K, raw.ln1_b, raw.b_K) * k_gain,
        b_V=fold_bias(raw.W_V, raw.ln1_b, raw.b_V),
        pos_Q=torch.einsum("cd,hdk->hck", raw.W_pos, raw.W_Q) * q_gain if placed else None,
        pos_K=torch.einsum("cd,hdk->hck", raw.W_pos, raw.W_K) * k_gain if placed else None,
    )


def query_read(weights: Weights, head: HeadId) -> tuple[Float[Tensor, "d k"], Float[Tensor, " k"]]:
    """W_Q and b_Q of one head with the normalization folded in, before any QK-norm gain."""
    raw = weights.layers[head.layer]
    W, own = raw.W_Q[head.head], None if raw.b_Q is None else raw.b_Q[head.head]
    return fold_read(weights.config.norm, W, raw.ln1_w), fold_bias(W, raw.ln1_b, own)


def key_read(weights: Weights, head: HeadId) -> tuple[Float[Tensor, "d k"], Float[Tensor, " k"]]:
    """The same for W_K and b_K, which query heads may share."""
    raw, kv = weights.layers[head.layer], head.head // weights.config.heads_per_kv
    W, own = raw.W_K[kv], None if raw.b_K is None else raw.b_K[kv]
    return fold_read(weights.config.norm, W, raw.ln1_w), fold_bias(W, raw.ln1_b, own)


def folded_unembedding(
    weights: Weights,
) -> tuple[Float[Tensor, "d vocab"], Float[Tensor, " vocab"]]:
    """W_U and b_U with the final normalization's gain, bias and centering folded in."""
    W_U = fold_read(weights.config.norm, weights.W_U, weights.ln_f_w)
    return W_U, fold_bias(weights.W_U, weights.ln_f_b, weights.b_U)


def centered_unembedding(weights: Weights) -> Float[Tensor, "d vocab"]:
    """The folded W_U without its mean over the vocabulary: logits relative to their mean.

    Adding c·1ᵀ to W_U changes no probability, so nothing that is reported may depend on it. A copy
    of W_U; for a few writes use `unembed_through`.
    """
    W_U, _ = folded_unembedding(weights)
    return W_U - W_U.mean(-1, keepdim=True)


def unembed_through(weights: Weights, W: Float[Tensor, "*k d"]) -> Float[Tensor, "*k vocab"]:
    """`W @ centered_unembedding(weights)` without a copy of W_U: what writes do to each logit."""
    logits = unembed(weights, W)
    return logits - logits.mean(-1, keepdim=True)


def unembed(weights: Weights, x: Float[Tensor, "*k d"]) -> Float[Tensor, "*k vocab"]:
    """`x` times the folded W_U, without a copy of W_U: logits but for the scale and the bias."""
    if weights.config.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    if weights.ln_f_w is not None:
        x = x * weights.ln_f_w
    return x @ weights.W_U


def for_query_heads(
    config: Config, shared: Shaped[Tensor, "*lead kv a b"]
) -> Shaped[Tensor, "*lead head a b"]:
    """One matrix per query head, from one per key/value head."""
    copies = config.heads_per_kv
    return shared if copies == 1 else shared.repeat_interleave(copies, dim=-3)
