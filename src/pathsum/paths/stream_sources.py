"""Where paths begin: what a run's stream is made of before any head has moved anything.

    embed     the token embedding
    pos       the position embedding, where it is in the stream (positions="residual")
    bias2     what the biases of layer 2's heads write: Σ_h b_V W_O + b_O
    mlp3      the output of layer 3's MLP, as recorded
    bias_U    the logits' own bias

b_V enters after the pattern and after the scale, and the rows of a pattern sum to 1. So what it
writes is the same at every position, whatever the heads attend to: it is a source *written by* its
layer, readable from the next one on. A normalization's bias, folded into the value read, likewise.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import Source, Trace, Weights
from pathsum.model.reads import fold_bias
from pathsum.shapes import Stream


def stream_sources(weights: Weights) -> tuple[Source, ...]:
    """The sources that heads and logits read from the stream, from the bottom up."""
    config = weights.config
    found = [Source("embed")]
    if config.positions == "residual":
        found.append(Source("pos"))
    for layer in range(config.n_layers):
        if _has_any(weights, f"layers.{layer}.", ("b_V", "b_O", "ln1_b")):
            found.append(Source("bias", layer))
        if config.mlp != "none":
            found.append(Source("mlp", layer))
    return tuple(found)


def all_sources(weights: Weights) -> tuple[Source, ...]:
    """The same and, last, `bias_U` where the logits have a bias of their own."""
    found = stream_sources(weights)
    if _has_any(weights, "", ("b_U", "ln_f_b")):
        found += (Source("unembed_bias"),)
    return found


def source_stream(trace: Trace, source: Source) -> Stream:
    """What a source puts into the stream, [batch, pos, d]."""
    weights, tokens = trace.model.weights, trace.tokens
    if source.kind == "embed":
        return weights.W_E[tokens]
    if source.kind == "mlp":
        return trace.mlp_outputs[source.layer]
    if source.kind == "pos":
        assert weights.W_pos is not None
        row = weights.W_pos[: tokens.shape[1]]
    else:
        row = attention_bias(weights, source.layer)
    return row.expand(*tokens.shape, -1)


def attention_bias(weights: Weights, layer: int) -> Float[Tensor, " d"]:
    """Σ_h b_V W_O + b_O: what a layer's heads write whatever they attend to."""
    raw = weights.layers[layer]
    b_V = fold_bias(raw.W_V, raw.ln1_b, raw.b_V)
    b_V = b_V.repeat_interleave(weights.config.heads_per_kv, dim=0)
    written = torch.einsum("hk,hkd->d", b_V, raw.W_O)
    return written if raw.b_O is None else written + raw.b_O


def _has_any(weights: Weights, prefix: str, names: tuple[str, ...]) -> bool:
    return any(f"{prefix}{name}" in weights.store.shapes for name in names)
