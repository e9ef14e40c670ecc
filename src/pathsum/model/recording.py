"""The record of a run: patterns, streams, normalization scales, MLP outputs and logits.

All of them, or for runs too long to keep everything the parts that a `Keep` lists. `KeyValues` are
the keys and values that the next tokens attend to.
"""

import enum
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeAlias, overload

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, HeadName, find_head
from pathsum.base.arguments import checked_methods
from pathsum.base.errors import InputError
from pathsum.base.shapes import HeadPattern, Pattern, PerHead, Scale, Stream, Tokens
from pathsum.model import transformer
from pathsum.model.config import Config
from pathsum.model.edit import Edit
from pathsum.model.weights import Weights

All: TypeAlias = Literal["all"]
LayerField: TypeAlias = Literal["patterns", "streams", "mlp_outputs"]


class KeyValues:
    """Keys and values of the tokens that were run so far, for runs that continue them.

    `length` is their number. Heads that see an edited stream have keys and values of their own.
    """

    def __init__(self) -> None:
        self.length = 0
        self._known: dict[Hashable, Tensor] = {}

    def extended(self, name: Hashable, last: Tensor) -> Tensor:
        """What is known under a name, [..., pos, k], followed by that of the last tokens."""
        known = self._known.get(name)
        self._known[name] = last if known is None else torch.cat((known, last), -2)
        return self._known[name]


@dataclass(frozen=True)
class Keep:
    """The parts of a run that `model.trace(tokens, keep=…)` records; the rest is dropped.

    `patterns`     heads (`"L18H6"`, `(18, 6)`), or the number of a layer for all of its heads
    `streams`      layers; `n_layers` (or −1) is the stream that the unembedding reads
    `mlp_outputs`  layers
    `logits`       positions, negative from the end

    Each may be "all". Normalization scales are always kept. Patterns that are not kept are not
    computed: memory then grows with the length of the text, not with its square.

    >>> from pathsum.model import construct
    >>> trace = construct.induction().trace("a b c a", keep=Keep(patterns=["L1H0"], logits=[-1]))
    >>> trace.pattern("L1H0").shape, trace.logits_at(-1).shape
    (torch.Size([1, 5, 5]), torch.Size([1, 27]))
    """

    patterns: Sequence[HeadName | int] | All = ()
    streams: Sequence[int] | All = ()
    mlp_outputs: Sequence[int] | All = ()
    logits: Sequence[int] | All = ()

    def resolve(self, config: Config, length: int) -> "Kept":
        """`Keep` in numbers, checked against a model and the length of a text."""
        layers = range(config.n_layers)
        if isinstance(self.patterns, str) and self.patterns != "all":
            raise InputError(f"keep patterns={self.patterns!r} is not a list of heads or 'all'")
        heads: dict[int, set[int]] = {layer: set() for layer in layers}
        for name in layers if self.patterns == "all" else self.patterns:
            if isinstance(name, int):
                (layer,) = _places([name], config.n_layers, "layer", "patterns")
                heads[layer] |= set(range(config.n_heads))
            else:
                head = find_head(name, config.n_layers, config.n_heads)
                heads[head.layer].add(head.head)
        return Kept(
            heads={layer: tuple(sorted(found)) for layer, found in heads.items()},
            streams=_places(self.streams, config.n_layers + 1, "layer", "streams"),
            mlp_outputs=_places(self.mlp_outputs, config.n_layers, "layer", "mlp_outputs"),
            positions=_places(self.logits, length, "position", "logits"),
            n_heads=config.n_heads,
            length=length,
        )


def _places(given: Sequence[int] | All, size: int, unit: str, name: str) -> tuple[int, ...]:
    if given == "all":
        return tuple(range(size))
    for place in given:
        if not -size <= place < size:
            raise InputError(
                f"keep {name}={list(given)} has {unit} {place}, which is out of range: there are "
                f"{size}, numbered from 0"
            )
    return tuple(sorted({place % size for place in given}))


@dataclass(frozen=True)
class Kept:
    """`Keep` for one model and one length; each field lists what is kept, in ascending order."""

    heads: Mapping[int, tuple[int, ...]]
    streams: tuple[int, ...]
    mlp_outputs: tuple[int, ...]
    positions: tuple[int, ...]
    n_heads: int
    length: int

    def whole(self, layer: int) -> bool:
        """Whether the patterns of all heads of a layer are kept."""
        return len(self.heads[layer]) == self.n_heads

    @property
    def all_logits(self) -> bool:
        """Whether logits are kept at every position."""
        return len(self.positions) == self.length

    def logits_row(self, position: int) -> int:
        """The index of a position among those whose logits were kept."""
        if position not in self.positions:
            raise InputError(
                f"the logits at position {position} were not kept (kept: "
                f"{list(self.positions) or 'none'}); trace again with "
                f"keep=ps.Keep(logits=[{position}], …), or without keep"
            )
        return self.positions.index(position)


@dataclass(frozen=True, eq=False)
class KeptLayers:
    """One tensor per layer, like a tuple; asking for one that was not kept is an error.

    `name` is its name in `Keep`. `heads` holds patterns of single heads.
    """

    name: LayerField
    found: tuple[Tensor | None, ...]
    heads: Mapping[HeadId, Tensor] = field(default_factory=dict[HeadId, Tensor])

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[layer] for layer in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Tensor, ...]: ...
    def __getitem__(self, index: int | slice) -> Tensor | tuple[Tensor, ...]:
        if isinstance(index, slice):
            return tuple(self[layer] for layer in range(*index.indices(len(self))))
        tensor = self.found[index]
        return self._refuse(range(len(self))[index]) if tensor is None else tensor

    def of_head(self, head: HeadId) -> Tensor:
        """The pattern of one head."""
        whole = self.found[head.layer]
        if whole is not None:
            return whole[:, head.head]
        return self.heads[head] if head in self.heads else self._refuse(head.layer, head)

    def _refuse(self, layer: int, head: HeadId | None = None) -> NoReturn:
        kept = [layer for layer, tensor in enumerate(self.found) if tensor is not None]
        names = [*kept, *map(str, self.heads)]
        wanted = repr(str(head)) if head is not None else str(layer)
        what = {
            "patterns": f"the patterns of layer {layer} were",
            "streams": f"the stream before layer {layer} was",
            "mlp_outputs": f"the output of mlp{layer} was",
        }[self.name]
        what = what if head is None else f"the pattern of {head} was"
        raise InputError(
            f"{what} not kept (kept: {names or 'none'}); trace again with "
            f"keep=ps.Keep({self.name}=[{wanted}], …), or without keep"
        )


class Recording(enum.Enum):
    """What a run keeps.

    `LOGITS`    the logits alone; attention is fused wherever no edit needs a pattern
    `RESIDUAL`  everything but the logits, without the cost of the unembedding; logits that cannot
                be computed from the unembedding's input (tables, hooks) are kept nevertheless
    `ALL`       patterns, streams, scales, MLP outputs and logits
    """

    LOGITS = "logits"
    RESIDUAL = "residual"
    ALL = "all"


@dataclass(frozen=True, eq=False)
class NormScales:
    """The scales of all normalizations, 1/σ: one number per position and read.

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


LAYER_SCALES = ("attention", "mlp", "query", "key", "write")


@checked_methods
@dataclass(frozen=True, eq=False)
class Run:
    """The results of one run; fields that were not recorded are empty, `logits` is None.

    With `kept`, what it does not list was dropped, and asking for it raises InputError.

    `streams[l]` is the residual stream before layer l, and `streams[n_layers]` what the unembedding
    reads. `edited_z[l]` is the z of a layer with edited heads; of other layers it follows from the
    stream and the pattern, and is None. `logits_read` is the unembedding's input if edits made it
    differ from the last stream, else None.
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
    logits_read: Stream | None

    @property
    def logits(self) -> Float[Tensor, "batch out vocab"] | None:
        """The logits that were recorded."""
        return self.recorded_logits

    def z(self, layer: int) -> PerHead:
        """z of a layer's heads: attention-weighted values, before W_O."""
        # There is a stream more than there are layers, so −1 is not the same place in both.
        layer = self.weights.layers.number(layer)
        edited = self.edited_z[layer]
        if edited is not None:
            return edited
        raw = self.weights.layers[layer]
        return transformer.z(self.weights.config, raw, self.streams[layer], self.patterns[layer])


class Recorder:
    """The record of a run in progress; empty with `Recording.LOGITS`."""

    def __init__(self, record: Recording, kept: Kept | None) -> None:
        self.kept, self._off = kept, record is Recording.LOGITS
        self.without_logits = record is Recording.RESIDUAL
        self.patterns: list[Pattern | None] = []
        self.head_patterns: dict[HeadId, HeadPattern] = {}
        self.streams: list[Stream | None] = []
        self.edited_z: list[PerHead | None] = []
        self.mlp_outputs: list[Stream | None] = []
        self._scales: dict[str, list[Tensor]] = {name: [] for name in LAYER_SCALES}

    def add(self, recorded: list[Any], tensor: Tensor | None) -> None:
        """Append a tensor to one of the lists."""
        if not self._off:
            recorded.append(tensor)

    def scale(self, **scales: Tensor) -> None:
        """Record scales of a layer, by their names in `NormScales`."""
        for name, scale in scales.items():
            self.add(self._scales[name], scale)

    def stream(self, layer: int, stream: Stream) -> None:
        """Record the stream before a layer."""
        self.add(self.streams, stream if self.kept is None or layer in self.kept.streams else None)

    def mlp(self, layer: int, output: Stream, scale: Float[Tensor, "read pos"]) -> None:
        """Record what an MLP wrote, and the scale of its read."""
        wanted = self.kept is None or layer in self.kept.mlp_outputs
        self.add(self.mlp_outputs, output if wanted else None)
        self.scale(mlp=scale)

    def wants_layer(self, layer: int) -> bool:
        """Whether the patterns of all heads of a layer are recorded."""
        return not self._off and (self.kept is None or self.kept.whole(layer))

    def heads(self, layer: int, patterns: Callable[[Sequence[int]], Pattern]) -> None:
        """Record the patterns of single heads; `patterns` makes those of the given ones."""
        self.add(self.patterns, None)
        heads = () if self.kept is None else self.kept.heads[layer]
        for head, pattern in zip(heads, patterns(heads).unbind(1) if heads else (), strict=True):
            self.head_patterns[HeadId(layer, head)] = pattern

    def widen(self, repeat: Callable[[Tensor], Tensor]) -> None:
        """Repeat the tensors of layers that copies of the tokens share."""
        for recorded in (self.patterns, self.streams, self.edited_z, self.mlp_outputs):
            recorded[:] = [None if one is None else repeat(one) for one in recorded]
        self.head_patterns = {head: repeat(one) for head, one in self.head_patterns.items()}
        self._scales = {name: [*map(repeat, every)] for name, every in self._scales.items()}

    def scales(self, final: Scale) -> NormScales:
        """All scales, given that of the unembedding's read."""
        return NormScales(final=final, **{name: tuple(all_) for name, all_ in self._scales.items()})

    def layers(self, name: LayerField) -> tuple[Tensor, ...] | KeptLayers:
        """One of the lists, as a run holds it."""
        found: list[Tensor | None] = getattr(self, name)
        if self.kept is None:
            return tuple(tensor for tensor in found if tensor is not None)
        return KeptLayers(name, tuple(found), self.head_patterns if name == "patterns" else {})
