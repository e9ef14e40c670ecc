"""What a run keeps: patterns, streams, normalization scales, MLP outputs and logits."""

import enum
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from pathsum.model import transformer
from pathsum.model.edits import Edit
from pathsum.model.weights import Weights
from pathsum.shapes import Pattern, PerHead, Scale, Stream, Tokens


class Recording(enum.Enum):
    """What a run keeps.

    `LOGITS`    the logits alone; attention is fused wherever no edit needs a pattern
    `RESIDUAL`  everything but the logits, without the cost of the unembedding
    `ALL`       patterns, streams, scales, MLP outputs and logits
    """

    LOGITS = "logits"
    RESIDUAL = "residual"
    ALL = "all"


@dataclass(frozen=True, eq=False)
class NormScales:
    """What normalization multiplied by, 1/σ: one number per position and read.

    `write` is the scale of the norm after the heads, which multiplies what they write. All
    ones where the model does not normalize. With these and the patterns held fixed the model
    is linear from every source to every read and to the logits.
    """

    attention: tuple[Scale, ...]
    mlp: tuple[Scale, ...]
    final: Scale
    query: tuple[Float[Tensor, "batch head pos"], ...]
    key: tuple[Float[Tensor, "batch kv pos"], ...]
    write: tuple[Scale, ...]


@dataclass(frozen=True, eq=False)
class Run:
    """What one run computed; fields that were not recorded are empty, `logits` is None.

    `streams[l]` is the residual stream before layer l, and `streams[n_layers]` what the unembedding
    reads. `edited_z[l]` is the z of a layer with edited heads; of other layers it follows from the
    stream and the pattern, and is None.
    """

    weights: Weights
    tokens: Tokens
    logits: Float[Tensor, "batch out vocab"] | None
    patterns: tuple[Pattern, ...]
    streams: tuple[Stream, ...]
    scales: NormScales
    mlp_outputs: tuple[Stream, ...]
    edits: tuple[Edit, ...]
    edited_z: tuple[PerHead | None, ...]

    def z(self, layer: int) -> PerHead:
        """What a layer's heads moved to each destination, before W_O."""
        edited = self.edited_z[layer]
        if edited is not None:
            return edited
        raw = self.weights.layers[layer]
        return transformer.z(self.weights.config, raw, self.streams[layer], self.patterns[layer])
