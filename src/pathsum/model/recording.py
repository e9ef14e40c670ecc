"""The record of a run: patterns, streams, normalization scales, MLP outputs and logits.

All of them, or for runs too long to keep everything the parts that a `Keep` lists. `KeyValues` are
the keys and values that the next tokens attend to.
"""

import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, SupportsIndex, TypeAlias, overload

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, HeadName, find_head
from pathsum.base.errors import InputError
from pathsum.base.options import checked_methods
from pathsum.base.shapes import AtDestinations, AtSources, Pattern, PerHead, Scale, Stream, Tokens
from pathsum.model import transformer
from pathsum.model.config import Config
from pathsum.model.edit import Edit, Writes, expand_batch
from pathsum.model.weights import LayerWeights, Weights

All: TypeAlias = Literal["all"]
# If the patterns of an unedited run take more memory, they are computed when they are read.
PATTERN_BYTES = 2 << 30


class KeyValues:
    """Keys and values of the tokens so far, for runs that continue them.

    `length` is their number. Heads that read an edited stream have separate keys and values.
    """

    def __init__(self) -> None:
        self.length = 0
        self._tensors: dict[Hashable, Tensor] = {}

    def append(self, name: Hashable, last: Tensor) -> Tensor:
        """Store the last tokens of a tensor; returns it for all tokens, [..., pos, k]."""
        if name in self._tensors:
            last = torch.cat((self._tensors[name], last), -2)
        self._tensors[name] = last
        return last

    def first(self, name: Hashable, length: int) -> Tensor:
        """The stored tensor for the first tokens."""
        return self._tensors[name][..., :length, :]


class Prefix(KeyValues):
    """The first positions of a run of one sequence, which runs with later edits share.

    `keys` has the keys and values of the run, and `writes` its outputs. Runs that start after them
    may have any number of copies, whose keys and values are not stored.
    """

    def __init__(self, keys: KeyValues, run: "Run", writes: Writes, length: int) -> None:
        super().__init__()
        self.keys, self.streams, self.writes, self.length = keys, run.streams, writes, length

    def append(self, name: Hashable, last: Tensor) -> Tensor:
        """The tensor for all tokens, given the last ones; nothing is stored."""
        return prepend(self.keys.first(name, self.length), last)


def prepend(first: Tensor, last: Tensor) -> Tensor:
    """Concatenate two tensors [batch, …, pos, n]; all sequences share the first."""
    return torch.cat((first.expand(len(last), *first.shape[1:]), last), -2)


@dataclass(frozen=True)
class Keep:
    """The parts of a run that `model.trace(tokens, keep=…)` records; the rest is dropped.

    `patterns`     heads (`"L18H6"`, `(18, 6)`), or the number of a layer for all of its heads
    `streams`      layers; `n_layers` (or −1) is the stream that the unembedding reads
    `mlp_outputs`  layers
    `logits`       positions, negative from the end

    Each may be "all". Normalization scales are always kept. Patterns that are not kept are not
    computed: memory then grows with the length of the text, not with its square. If all patterns of
    an unedited run take more than 2 GB, they are computed from the streams whenever they are read.
    Logits that are not kept follow from the last stream if that is kept.

    >>> from pathsum.model import construct
    >>> trace = construct.induction().trace("a b c a", keep=Keep(patterns=["L1H0"], logits=[-1]))
    >>> trace.pattern("L1H0").shape, trace.logits_at(-1).shape
    (torch.Size([1, 5, 5]), torch.Size([1, 27]))
    """

    patterns: Sequence[HeadName | SupportsIndex] | All = ()
    streams: Sequence[int] | All = ()
    mlp_outputs: Sequence[int] | All = ()
    logits: Sequence[int] | All = ()


EVERYTHING = Keep("all", "all", "all", "all")
RESIDUAL = Keep("all", "all", "all")
"""Everything but the logits, without the cost of the unembedding."""
ONLY_LOGITS = Keep(logits="all")
"""The logits alone; attention is fused wherever no edit needs a pattern."""
LAST_STREAM = Keep(streams=(-1,))
"""The stream that the unembedding reads, without the cost of the unembedding."""


@dataclass(frozen=True, eq=False)
class PartialLayers:
    """Tensors of some layers of a run, like a tuple; raises an error for layers without a record.

    `name` is the field's name in `Keep`. Patterns may be recorded for single heads.
    """

    name: str
    length: int
    tensors: Mapping[int | HeadId, Tensor]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.find, range(self.length))

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Tensor, ...]: ...
    def __getitem__(self, index: int | slice) -> Tensor | tuple[Tensor, ...]:
        layers = range(self.length)[index]
        if isinstance(layers, range):
            return tuple(self.find(layer) for layer in layers)
        return self.find(layers)

    def find(self, key: int | HeadId) -> Tensor:
        """The tensor of a layer, or the pattern of one head."""
        if key in self.tensors:
            return self.tensors[key]
        if isinstance(key, HeadId) and key.layer in self.tensors:
            return self.tensors[key.layer][:, key.head]
        item, description = repr(str(key)), f"the pattern of {key} was"
        if not isinstance(key, HeadId):
            item = str(key)
            description = {
                "patterns": f"the patterns of layer {key} were",
                "streams": f"the stream before layer {key} was",
                "mlp_outputs": f"the output of mlp{key} was",
            }[self.name]
        layers = [key for key in self.tensors if isinstance(key, int)]
        recorded = layers + [str(key) for key in self.tensors if isinstance(key, HeadId)]
        raise InputError(
            f"{description} not kept (kept: {recorded or 'none'}); trace again with "
            f"keep=ps.Keep({self.name}=[{item}], …), or without keep"
        )


class ComputedPatterns(Mapping[int | HeadId, Pattern]):
    """The patterns of an unedited run, computed from its streams each time they are read."""

    def __init__(self, weights: Weights, streams: tuple[Stream, ...] | PartialLayers) -> None:
        self.weights, self.streams = weights, streams

    def __getitem__(self, index: int | HeadId) -> Tensor:
        config, number = self.weights.config, index if isinstance(index, int) else index.layer
        layer = self.weights.layers[number]
        read = transformer.attention_read(config, layer, self.streams[number])[0]
        query, key, _, _ = transformer.queries_and_keys(config, layer, read)
        if isinstance(index, int):
            return transformer.attend(config, layer, query, key)
        return transformer.attend_heads(config, layer, query, key, [index.head])[:, 0]

    def __contains__(self, index: object) -> bool:
        return True

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self.weights.config.n_layers


@dataclass(frozen=True, eq=False)
class NormScales:
    """The scales of all normalizations, 1/σ: one number per position and read.

    `write` is the scale of the norm after the heads, which multiplies their output. All
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

    Asking for a layer that its `Keep` does not list raises InputError. `logit_positions` are those
    whose logits were recorded, or None for all.

    `streams[l]` is the residual stream before layer l, and `streams[n_layers]` the input of the
    unembedding. `edited_z[l]` is the z of a layer with edited heads; of other layers it follows
    from the stream and the pattern, and is None. `logits_read` is the unembedding's input if edits
    made it differ from the last stream, else None.
    """

    weights: Weights
    tokens: Tokens
    recorded_logits: Float[Tensor, "batch out vocab"] | None
    patterns: tuple[Pattern, ...] | PartialLayers
    streams: tuple[Stream, ...] | PartialLayers
    scales: NormScales
    mlp_outputs: tuple[Stream, ...] | PartialLayers
    edits: tuple[Edit, ...]
    edited_z: tuple[PerHead | None, ...]
    logit_positions: tuple[int, ...] | None
    logits_read: Stream | None

    @property
    def unembedding_input(self) -> Stream:
        """The input of the unembedding: the last stream, unless edits changed this read."""
        return self.streams[-1] if self.logits_read is None else self.logits_read

    def z(self, layer: int) -> PerHead:
        """z of a layer's heads: attention-weighted values, before W_O."""
        # There is a stream more than there are layers, so −1 is not the same place in both.
        layer = self.weights.layers.number(layer)
        edited = self.edited_z[layer]
        if edited is not None:
            return edited
        tensors = self.weights.layers[layer]
        read = transformer.attention_read(self.weights.config, tensors, self.streams[layer])[0]
        return transformer.mix(self.patterns[layer], transformer.values(tensors, read))


def _numbers(numbers: Sequence[int] | All, size: int, unit: str, name: str) -> tuple[int, ...]:
    if numbers == "all":
        return tuple(range(size))
    for number in numbers:
        if not -size <= number < size:
            raise InputError(
                f"keep {name}={list(numbers)} has {unit} {number}, which is out of range: there "
                f"are {size}, numbered from 0"
            )
    return tuple(sorted({number % size for number in numbers}))


def _pattern_names(keep: Keep, config: Config) -> set[int | HeadId]:
    """The layers whose patterns are recorded whole, and the heads of others."""
    if isinstance(keep.patterns, str) and keep.patterns != "all":
        raise InputError(f"keep patterns={keep.patterns!r} is not a list of heads or 'all'")
    items = range(config.n_layers) if keep.patterns == "all" else keep.patterns
    numbers = [operator.index(item) for item in items if isinstance(item, SupportsIndex)]
    layers = {*_numbers(numbers, config.n_layers, "layer", "patterns")}
    names = (item for item in items if not isinstance(item, SupportsIndex))
    heads = {find_head(name, config.n_layers, config.n_heads) for name in names}
    count = Counter(head.layer for head in heads)
    layers |= {layer for layer in count if count[layer] == config.n_heads}
    return layers | {head for head in heads if head.layer not in layers}


class Recorder:
    """The record of a run in progress: tensors by name and layer, as far as `keep` lists them.

    `logit_positions` are those whose logits are recorded, in ascending order; None for all.
    """

    def __init__(self, keep: Keep, weights: Weights, tokens: Tokens) -> None:
        self.keep, self.weights, self.tokens = keep, weights, tokens
        config, length = weights.config, tokens.shape[1]
        positions = _numbers(keep.logits, length, "position", "logits")
        self.logit_positions = positions if 0 < len(positions) < length else None
        self._computes_patterns = False
        self._requested: dict[str, Collection[int | HeadId]] = {
            "patterns": _pattern_names(keep, config),
            "streams": _numbers(keep.streams, config.n_layers + 1, "layer", "streams"),
            "mlp_outputs": _numbers(keep.mlp_outputs, config.n_layers, "layer", "mlp_outputs"),
        }
        self._tensors: dict[str, dict[int | HeadId, Tensor]] = defaultdict(dict)

    def save_memory(self) -> None:
        """Compute all patterns from the streams when they are read, if they take much memory."""
        config, keep = self.weights.config, self.keep
        numbers = config.n_layers * config.n_heads * self.tokens.numel() * self.tokens.shape[1]
        size = numbers * self.weights.W_E.element_size()
        if keep.patterns == keep.streams == "all" and size > PATTERN_BYTES:
            self._computes_patterns, self._requested["patterns"] = True, ()

    def needs_patterns(self, layer: int) -> bool:
        """Whether the patterns of all heads of a layer are recorded."""
        return layer in self._requested["patterns"]

    def add(self, layer: int, **tensors: Tensor) -> None:
        """Record tensors of a layer, by their names in `Keep` or in `NormScales`."""
        for name, tensor in tensors.items():
            if name in LAYER_SCALES or layer in self._requested[name]:
                self._tensors[name][layer] = tensor

    def add_patterns(
        self, layer: LayerWeights, pattern: Pattern | None, query: AtDestinations, key: AtSources
    ) -> None:
        """Record the patterns of a layer or of single heads; these are computed if need be."""
        if pattern is not None:
            self.add(layer.index, patterns=pattern)
        heads = self._heads(layer.index)
        if heads and pattern is None:
            pattern = transformer.attend_heads(self.weights.config, layer, query, key, heads)
        elif heads and pattern is not None:
            # A copy, so that the patterns of the other heads are freed.
            pattern = pattern[:, heads]
        for number, head in enumerate(heads):
            assert pattern is not None
            self._tensors["patterns"][HeadId(layer.index, head)] = pattern[:, number]

    def add_z(self, layer: int, z: PerHead) -> None:
        """Record z that does not follow from the stream and the pattern."""
        if self.needs_patterns(layer) or layer in self._requested["streams"] or self._heads(layer):
            self._tensors["z"][layer] = z

    def _heads(self, layer: int) -> list[int]:
        """The heads of a layer whose patterns are recorded one by one."""
        names = (name for name in self._requested["patterns"] if isinstance(name, HeadId))
        return sorted(head.head for head in names if head.layer == layer)

    def run(
        self,
        batch: int,
        last: Stream,
        read: Stream,
        logits: Float[Tensor, "batch out vocab"] | None,
        edits: tuple[Edit, ...] = (),
    ) -> Run:
        """The finished run, given its batch size, its last stream and the unembedding's input.

        Tensors of layers that copies of the tokens share are repeated.
        """
        config = self.weights.config
        if batch > len(self.tokens):
            for tensors in self._tensors.values():
                tensors |= {key: expand_batch(tensor, batch) for key, tensor in tensors.items()}
        streams = self._layers("streams", config.n_layers + 1)
        patterns = self._layers("patterns", config.n_layers)
        if self._computes_patterns:
            computed = ComputedPatterns(self.weights, streams)
            patterns = PartialLayers("patterns", config.n_layers, computed)
        scales = {name: tuple(self._tensors[name].values()) for name in LAYER_SCALES}
        final = transformer.normalize(config, read, None, None)[1]
        return Run(
            weights=self.weights,
            tokens=expand_batch(self.tokens, batch),
            recorded_logits=logits,
            patterns=patterns,
            streams=streams,
            scales=NormScales(final=final, **scales),
            mlp_outputs=self._layers("mlp_outputs", config.n_layers if config.mlp != "none" else 0),
            edits=edits,
            edited_z=tuple(map(self._tensors["z"].get, range(config.n_layers))),
            logit_positions=self.logit_positions,
            logits_read=None if read is last else read,
        )

    def _layers(self, name: str, length: int) -> tuple[Tensor, ...] | PartialLayers:
        tensors = self._tensors[name]
        if all(layer in tensors for layer in range(length)):
            return tuple(tensors.values())
        return PartialLayers(name, length, tensors)
