"""What a run keeps: patterns, streams, normalization scales, MLP outputs and logits."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from pathsum.model import transformer
from pathsum.model.edits import Edit
from pathsum.model.keep import Kept, KeptLayers, LayerField
from pathsum.model.weights import Weights
from pathsum.names import HeadId
from pathsum.shapes import HeadPattern, Pattern, PerHead, Scale, Stream, Tokens


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

    With `kept`, what it does not list was dropped, and asking for it raises InputError.

    `streams[l]` is the residual stream before layer l, and `streams[n_layers]` what the unembedding
    reads. `edited_z[l]` is the z of a layer with edited heads; of other layers it follows from the
    stream and the pattern, and is None.
    """

    weights: Weights
    tokens: Tokens
    recorded_logits: Float[Tensor, "batch out vocab"] | None
    patterns: tuple[Pattern, ...] | KeptLayers
    streams: tuple[Stream, ...] | KeptLayers
    scales: NormScales
    mlp_outputs: tuple[Stream, ...] | KeptLayers
    edits: tuple[Edit, ...]
    edited_z: tuple[PerHead | None, ...]
    kept: Kept | None

    @property
    def logits(self) -> Float[Tensor, "batch out vocab"] | None:
        """The logits that were recorded."""
        return self.recorded_logits

    def z(self, layer: int) -> PerHead:
        """What a layer's heads moved to each destination, before W_O."""
        edited = self.edited_z[layer]
        if edited is not None:
            return edited
        raw = self.weights.layers[layer]
        return transformer.z(self.weights.config, raw, self.streams[layer], self.patterns[layer])


class Recorder:
    """What a run in progress has recorded; with `Recording.LOGITS` it records nothing."""

    def __init__(self, record: Recording, kept: Kept | None) -> None:
        self.kept, self._off = kept, record is Recording.LOGITS
        self.patterns: list[Pattern | None] = []
        self.head_patterns: dict[HeadId, HeadPattern] = {}
        self.streams: list[Stream | None] = []
        self.edited_z: list[PerHead | None] = []
        self.mlp_outputs: list[Stream | None] = []
        self.attention_scales: list[Scale] = []
        self.mlp_scales: list[Scale] = []
        self.query_scales: list[Float[Tensor, "batch head pos"]] = []
        self.key_scales: list[Float[Tensor, "batch kv pos"]] = []
        self.write_scales: list[Scale] = []

    def add(self, recorded: list[Any], tensor: Tensor | None) -> None:
        """Append a tensor to one of the lists."""
        if not self._off:
            recorded.append(tensor)

    def stream(self, layer: int, stream: Stream) -> None:
        """Record the stream before a layer."""
        self.add(self.streams, stream if self.kept is None or layer in self.kept.streams else None)

    def mlp(self, layer: int, output: Stream, scale: Scale) -> None:
        """Record what an MLP wrote, and the scale of its read."""
        wanted = self.kept is None or layer in self.kept.mlp_outputs
        self.add(self.mlp_outputs, output if wanted else None)
        self.add(self.mlp_scales, scale)

    def reads(self, attention: Scale, query: Tensor, key: Tensor) -> None:
        """Record the scales of what heads read, and of their queries and keys."""
        self.add(self.attention_scales, attention)
        self.add(self.query_scales, query)
        self.add(self.key_scales, key)

    def wants_layer(self, layer: int) -> bool:
        """Whether the patterns of all heads of a layer are recorded."""
        return not self._off and (self.kept is None or self.kept.whole(layer))

    def heads(self, layer: int, patterns: Callable[[Sequence[int]], Pattern]) -> None:
        """Record the patterns of single heads; `patterns` makes those of the given ones."""
        self.add(self.patterns, None)
        heads = () if self.kept is None else self.kept.heads[layer]
        for head, pattern in zip(heads, patterns(heads).unbind(1) if heads else (), strict=True):
            self.head_patterns[HeadId(layer, head)] = pattern

    def scales(self, final: Scale) -> NormScales:
        """All scales, given that of the unembedding's read."""
        return NormScales(
            attention=tuple(self.attention_scales),
            mlp=tuple(self.mlp_scales),
            final=final,
            query=tuple(self.query_scales),
            key=tuple(self.key_scales),
            write=tuple(self.write_scales),
        )

    def layers(self, name: LayerField) -> tuple[Tensor, ...] | KeptLayers:
        """One of the lists, as a run holds it."""
        found: list[Tensor | None] = getattr(self, name)
        if self.kept is None:
            return tuple(tensor for tensor in found if tensor is not None)
        return KeptLayers(name, tuple(found), self.head_patterns if name == "patterns" else {})
