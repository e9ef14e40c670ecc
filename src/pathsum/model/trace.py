"""Trace: what one run of a model did, kept so that it can be taken apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float

from pathsum.model import transformer
from pathsum.names import HeadName
from pathsum.shapes import HeadPattern, Logits, Pattern, PerHead, Scale, Stream, Tokens

if TYPE_CHECKING:
    from pathsum.model.model import Model
    from pathsum.paths import PathSum, ScoreSum


@dataclass(frozen=True, eq=False)
class NormScales:
    """The numbers that normalization divided by, inverted: one a position and a read.

    All ones where the model does not normalize. With these and the patterns held fixed the model
    is linear from every source to every read and to the logits.
    """

    attention: tuple[Scale, ...]
    mlp: tuple[Scale, ...]
    final: Scale
    query: tuple[Float[torch.Tensor, "batch head pos"], ...]
    key: tuple[Float[torch.Tensor, "batch kv pos"], ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """What one run did: `model.trace(text_or_tokens)` makes one.

    `streams[l]` is the stream before layer l, and `streams[n_layers]` what the unembedding reads.
    What follows cheaply from these (reads, values, what a head wrote) is computed when asked.
    """

    model: "Model"
    tokens: Tokens
    logits: Logits
    patterns: tuple[Pattern, ...]
    streams: tuple[Stream, ...]
    scales: NormScales
    mlp_outputs: tuple[Stream, ...]

    def read(self, layer: int) -> Stream:
        """What the heads of a layer read: the stream before it, normalized."""
        weights = self.model.weights
        return transformer.attention_read(
            self.model.config, weights.layers[layer], self.streams[layer]
        )[0]

    def mixed(self, layer: int) -> PerHead:
        """Values of a layer's heads moved to their destinations, before W_O."""
        value = transformer.values(self.model.weights.layers[layer], self.read(layer))
        return transformer.mix(self.model.config, self.patterns[layer], value)

    def pattern(self, head: HeadName) -> HeadPattern:
        """One head's attention, [batch, dest, src]."""
        found = self.model.head(head).id
        return self.patterns[found.layer][:, found.head]

    def written(self, head: HeadName) -> Stream:
        """What one head added to the stream (without the layer's shared b_O)."""
        found = self.model.head(head).id
        layer = self.model.weights.layers[found.layer]
        return self.mixed(found.layer)[:, found.head] @ layer.W_O[found.head]

    def attention_scores(self, layer: int) -> Pattern:
        """Scores of a layer's heads before mask and softmax, computed anew from the stream."""
        config, weights = self.model.config, self.model.weights
        query, key, _, _ = transformer.queries_and_keys(
            config, weights.layers[layer], self.read(layer)
        )
        return transformer.attention_scores(config, query, key)

    def paths(self) -> "PathSum":
        """The logits as an exact sum over paths."""
        from pathsum.paths import expand_logits

        return expand_logits(self)

    def scores(self, head: HeadName) -> "ScoreSum":
        """A head's attention scores as an exact sum over (query part, key part)."""
        from pathsum.paths import expand_scores

        return expand_scores(self, head)

    def patch(self, edits: Mapping[Any, "Trace"]) -> "Trace":
        """This run with edges or nodes taken from another run, everything after recomputed."""
        from pathsum.paths import patch

        return patch(self, edits)


def record(model: "Model", tokens: Tokens) -> Trace:
    """Run a model with plain attention and keep patterns, streams, scales and MLP outputs."""
    weights, config = model.weights, model.config
    stream = transformer.embed(weights, tokens)
    patterns: list[Pattern] = []
    streams = [stream]
    attention_scales: list[Scale] = []
    mlp_scales: list[Scale] = []
    query_scales: list[torch.Tensor] = []
    key_scales: list[torch.Tensor] = []
    mlp_outputs: list[Stream] = []
    for layer in weights.layers:
        read, scale = transformer.attention_read(config, layer, stream)
        query, key, query_scale, key_scale = transformer.queries_and_keys(config, layer, read)
        pattern = transformer.attend(config, query, key)
        mixed = transformer.mix(config, pattern, transformer.values(layer, read))
        attended = stream + transformer.write(layer, mixed)
        patterns.append(pattern)
        attention_scales.append(scale)
        query_scales.append(query_scale)
        key_scales.append(key_scale)
        if config.mlp != "none":
            source = stream if config.block == "parallel" else attended
            output, scale = transformer.mlp(config, layer, source)
            attended = attended + output
            mlp_outputs.append(output)
            mlp_scales.append(scale)
        stream = attended
        streams.append(stream)
    logits, final = transformer.unembed(weights, stream)
    scales = NormScales(
        attention=tuple(attention_scales),
        mlp=tuple(mlp_scales),
        final=final,
        query=tuple(query_scales),
        key=tuple(key_scales),
    )
    return Trace(model, tokens, logits, tuple(patterns), tuple(streams), scales, tuple(mlp_outputs))
