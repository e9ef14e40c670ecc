"""Folding: an equivalent model whose normalizations have neither gain nor bias."""

from dataclasses import replace

import torch
from torch import Tensor

from pathsum.errors import NotExactError
from pathsum.model.model import Model
from pathsum.model.reads import fold_bias
from pathsum.model.store import MemoryStore
from pathsum.model.weights import LAYER_NAMES, Weights


def fold(model: Model) -> Model:
    """An equivalent model with the gains and biases of its normalizations folded into the reads.

    Same logits, and a stream without a preferred basis but for LayerNorm's ones-vector. Tied
    embeddings come out untied, because W_U takes up the final gain. Where positions are added
    after the normalization (positions="qk") each layer's W_pos is divided by the gain, so that the
    read it meets gives the same; a gain of exactly 0 cannot be undone and is refused. QK-norm gains
    stay: they act after the norm that they belong to, inside the head.
    """
    config, weights = model.config, model.weights
    if config.norm == "none":
        return model
    flat: dict[str, Tensor] = {}
    for layer in range(config.n_layers):
        folded = _fold_layer(weights, layer)
        flat |= {f"layers.{layer}.{name}": tensor for name, tensor in folded.items()}
    flat["W_E"] = weights.W_E
    flat["W_U"] = weights.W_U if weights.ln_f_w is None else weights.ln_f_w[:, None] * weights.W_U
    if weights.b_U is not None or weights.ln_f_b is not None:
        flat["b_U"] = fold_bias(weights.W_U, weights.ln_f_b, weights.b_U)
    if config.positions == "residual":
        assert weights.W_pos is not None
        flat["W_pos"] = weights.W_pos
    flat = {name: tensor.contiguous() for name, tensor in flat.items()}
    return replace(
        model,
        weights=Weights(config.replace(tied=False), MemoryStore(flat)),
        transformations=(*model.transformations, "normalization gains and biases folded"),
    )


def _fold_layer(weights: Weights, layer: int) -> dict[str, Tensor]:
    raw = weights.layers[layer]
    kept = {name: getattr(raw, name) for name in LAYER_NAMES if not name.startswith("ln")}
    folded: dict[str, Tensor] = {name: t for name, t in kept.items() if t is not None}
    reads = [("W_Q", "b_Q", "ln1"), ("W_K", "b_K", "ln1"), ("W_V", "b_V", "ln1")]
    reads += [("W_in", "b_in", "ln2"), ("W_gate", "b_gate", "ln2")]
    for name, bias, norm in reads:
        W = kept[name]
        gain, shift = getattr(raw, f"{norm}_w"), getattr(raw, f"{norm}_b")
        if W is None:
            continue
        if gain is not None:
            folded[name] = gain[:, None] * W
        if shift is not None:
            folded[bias] = fold_bias(W, shift, kept[bias])
    if raw.W_pos is not None and raw.ln1_w is not None:
        if bool((raw.ln1_w == 0).any()):
            raise NotExactError(
                f"the gain before layer {layer} is exactly 0 in some dimension, and positions are "
                "added after it, so folding the gain would lose their part there; use the model "
                "unfolded"
            )
        folded["W_pos"] = raw.W_pos / raw.ln1_w
    elif raw.W_pos is not None:
        folded["W_pos"] = raw.W_pos
    return folded


def without_gains(weights: Weights) -> bool:
    """Whether the normalizations of these weights have neither gain nor bias."""
    names = ("ln1_w", "ln1_b", "ln2_w", "ln2_b", "ln_f_w", "ln_f_b")
    return not any(
        name.rsplit(".", 1)[-1] in names and not _is_plain(name, weights.read(name))
        for name in weights.names
    )


def _is_plain(name: str, tensor: Tensor) -> bool:
    neutral = torch.ones_like(tensor) if name.endswith("_w") else torch.zeros_like(tensor)
    return torch.equal(tensor, neutral)
