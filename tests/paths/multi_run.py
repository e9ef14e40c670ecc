"""The paper's procedure for term importance, step by step: the oracle of the one-pass computation.

Written independently of `pathsum.paths`, from the transformer's own parts. Tests compare losses
with it, a benchmark compares time.
"""

import torch
from torch import Tensor

from pathsum.model import Model, transformer


def head_outputs(
    model: Model, tokens: Tensor, patterns: list[Tensor], added: list[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """One forced run: compute and save all head outputs, but add those given."""
    weights, config = model.weights, model.config
    stream = transformer.embed(weights, tokens)
    saved: list[Tensor] = []
    for layer, pattern, given in zip(weights.layers, patterns, added, strict=True):
        read, _ = transformer.attention_read(config, layer, stream)
        mixed = transformer.mix(pattern, transformer.values(layer, read))
        saved.append(transformer.write(config, layer, mixed)[0])
        stream = stream + given
    return saved, stream


def save_patterns(model: Model, tokens: Tensor) -> list[Tensor]:
    """The first run: save every attention pattern."""
    weights, config = model.weights, model.config
    stream = transformer.embed(weights, tokens)
    patterns: list[Tensor] = []
    for layer in weights.layers:
        read, _ = transformer.attention_read(config, layer, stream)
        query, key, _, _ = transformer.queries_and_keys(config, layer, read)
        patterns.append(transformer.attend(config, layer, query, key))
        mixed = transformer.mix(patterns[-1], transformer.values(layer, read))
        stream = stream + transformer.write(config, layer, mixed)[0]
    return patterns


@torch.no_grad()
def multi_run_losses(model: Model, tokens: Tensor) -> list[float]:
    """Losses of orders ≤ 0, ≤ 1, … n_layers of an attention-only model without biases.

    Normalization, if there is any, is that of each forced run's own stream.
    """
    patterns = save_patterns(model, tokens)
    stream = transformer.embed(model.weights, tokens)
    added = [torch.zeros_like(stream) for _ in patterns]
    losses: list[float] = []
    for _ in range(model.config.n_layers + 1):
        added, last = head_outputs(model, tokens, patterns, added)
        logits = transformer.unembed(model.weights, last)[0][:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1)
        )
        losses.append(float(loss))
    return losses
