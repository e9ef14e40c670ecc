"""The heads of one layer on a probe, real or random: the input of every score from data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import Trace
from pathsum.model.folding import centered_unembedding, value_reads
from pathsum.text.token_pool import RepeatedTokens


@runtime_checkable
class LayerOV(Protocol):
    """The OV circuits of some heads: those of a layer (`OwnOV`), or random ones."""

    def values(self, read: Float[Tensor, "sequence pos d"]) -> Float[Tensor, "sequence head pos k"]:
        """The value of each position, without biases."""
        ...

    def overlaps(
        self, z: Float[Tensor, "sequence head pos k"], stream: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence head pos"]:
        """⟨z W_O, stream⟩ at each position."""
        ...

    def logits(
        self, values: Float[Tensor, "sequence head n k"], tokens: Int[Tensor, "sequence m"]
    ) -> Float[Tensor, "sequence head n m"]:
        """The effect of values on the logits of some tokens, relative to the mean logit."""
        ...


@dataclass(frozen=True, eq=False)
class OwnOV:
    """The OV circuits of a layer's own heads. W_U has its mean over the vocabulary removed."""

    W_V: Float[Tensor, "head d k"]
    W_O: Float[Tensor, "head k d"]
    W_U: Float[Tensor, "d vocab"]

    def values(self, read: Float[Tensor, "sequence pos d"]) -> Float[Tensor, "sequence head pos k"]:
        """The value of each position, without biases."""
        return torch.einsum("bpd,hdk->bhpk", read, self.W_V)

    def overlaps(
        self, z: Float[Tensor, "sequence head pos k"], stream: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence head pos"]:
        """⟨z W_O, stream⟩ at each position, without computing the d-wide write itself."""
        return (z * torch.einsum("bpd,hkd->bhpk", stream, self.W_O)).sum(-1)

    def logits(
        self, values: Float[Tensor, "sequence head n k"], tokens: Int[Tensor, "sequence m"]
    ) -> Float[Tensor, "sequence head n m"]:
        """The effect of values on the logits of some tokens, relative to the mean logit."""
        return values @ torch.einsum("hkd,dbm->bhkm", self.W_O, self.W_U[:, tokens])


@dataclass(frozen=True, eq=False)
class LayerView:
    """Heads of one layer on a probe; real ones, or random ones that read the same stream.

    `read` is the input of the values: the stream times its normalization scale for real heads,
    whose reads are folded, and with the norm's gain and centering too for random heads. A score is
    a function of a view alone, so it means the same for real and for random heads.
    """

    probe: RepeatedTokens
    stream: Float[Tensor, "sequence pos d"]
    read: Float[Tensor, "sequence pos d"]
    pattern: Float[Tensor, "sequence head dest src"]
    ov: LayerOV

    def first(self, sequences: int) -> "LayerView":
        """The same heads on the first few sequences."""
        return replace(
            self,
            probe=replace(self.probe, tokens=self.probe.tokens[:sequences]),
            stream=self.stream[:sequences],
            read=self.read[:sequences],
            pattern=self.pattern[:sequences],
        )

    @cached_property
    def values(self) -> Float[Tensor, "sequence head pos k"]:
        """Each head's value at each position, without biases; several scores use it."""
        return self.ov.values(self.read)

    def written_along_stream(self) -> Float[Tensor, "sequence head dest"]:
        """Inner products of each head's output with the stream at the same position."""
        return self.ov.overlaps(self.pattern @ self.values, self.stream)

    def logits_alone(
        self, block: slice, tokens: Int[Tensor, "sequence m"]
    ) -> Float[Tensor, "sequence head n m"]:
        """The effect of each position of a block, attended alone, on the logits of some tokens."""
        return self.ov.logits(self.values[:, :, block], tokens)


def layer_views(trace: Trace, probe: RepeatedTokens) -> Iterator[LayerView]:
    """The heads of each layer in turn, on a run of the probe."""
    W_U = centered_unembedding(trace.model.weights)
    for layer in range(trace.model.config.n_layers):
        yield layer_view(trace, probe, layer, W_U)


def layer_view(
    trace: Trace, probe: RepeatedTokens, layer: int, W_U: Float[Tensor, "d vocab"]
) -> LayerView:
    """The heads of one layer, given the centered unembedding, which all layers share."""
    weights = trace.model.weights
    return LayerView(
        probe=probe,
        stream=trace.streams[layer],
        read=trace.streams[layer] * trace.scales.attention[layer][..., None],
        pattern=trace.patterns[layer],
        ov=OwnOV(value_reads(weights, layer), weights.attention[layer].W_O, W_U),
    )
