"""Editor: the edits of a run, applied inside the forward pass.

The forward pass (`pathsum.model.forward.run`) calls the editor at five points, in this order:

    stream        before each layer: `embed`, `residual2`
    attention     patterns and z of a layer's heads: `L1H4.pattern`, `L1H4.z`, reads `L1H4.k`
    head_outputs  the outputs of heads into the stream: `L0H3`
    mlp           reads, neurons and output of an MLP: `mlp2`, `mlp2.act`, `mlp2.n7`
    logits        the read of the unembedding, and the logits

At each of them, a component or a named value is replaced right after it is computed (`ValueEdits`),
and a reader sees the stream with its edited edges in place (`EdgeEdits`).

A batch may hold several copies of the tokens, each with its own edits. Below the first layer in
which the copies differ, only one of them is computed.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.errors import InputError
from pathsum.base.shapes import AtSources, Logits, Pattern, PerHead, Stream, Tokens
from pathsum.base.site import HEAD_SIDES, LOGITS, MLP_SIDES, Side, Site
from pathsum.model import gating, transformer
from pathsum.model.activations import NeuronEdits
from pathsum.model.edge_edits import EdgeEdits, is_between_nodes
from pathsum.model.edit import COMPUTED, Edit, Function, Output, Writes, expand_batch, rows_of
from pathsum.model.recording import KeyValues, Prefix
from pathsum.model.weights import LayerWeights, Weights, kv_head, layer_of_one_head

# A stream whose batch may have been repeated, one copy per run.
WideStream = Float[Tensor, "copies pos d"]

LOGITS_READ, UNCAPPED, CAPPED = Site(None, LOGITS), Site(LOGITS, value="pre"), Site(LOGITS)


class ValueEdits:
    """The edits of components and named values in a run, by site without positions."""

    def __init__(self, weights: Weights, edits: Sequence[Edit]) -> None:
        self.weights = weights
        self.by_site: dict[Site, list[Edit]] = defaultdict(list)
        for edit in edits:
            self.by_site[edit.site.without_positions].append(edit)
        # The patterns of all heads in the layers whose patterns other heads take.
        sources = [edit.value.head for edit in edits if isinstance(edit.value, Site)]
        self.patterns: dict[int, list[Tensor]] = {head.layer: [] for head in sources if head}
        # Functions that returned a replacement.
        self.effective: set[Edit] = set()

    def __contains__(self, site: Site) -> bool:
        return site in self.by_site

    def takes_pattern(self, head: HeadId) -> bool:
        """Whether a head attends with the pattern of another one."""
        edits = self.by_site.get(Site(head, value="pattern"), ())
        return any(isinstance(edit.value, Site) for edit in edits)

    def apply(self, site: Site, tensor: Tensor) -> Tensor:
        """The tensor at a site after the edits there."""
        for edit in self.by_site.get(site, ()):
            at, sequence = edit.site.at, edit.sequence
            if callable(edit.value):
                tensor = self._call(edit, edit.value, tensor)
                continue
            value = self._value(edit, tensor)
            if at is None and sequence is None:
                tensor = expand_batch(value, len(tensor)).expand_as(tensor)
                continue
            tensor = tensor.clone()
            rows = rows_of(tensor, sequence)
            value = expand_batch(rows_of(value, sequence), len(rows)).expand_as(rows)
            positions = slice(None) if at is None else at
            rows[:, positions] = value[:, positions]
        return tensor

    def _value(self, edit: Edit, tensor: Tensor) -> Tensor:
        """The value that replaces a tensor, with as many dimensions."""
        value, writer = edit.value, edit.site.writer
        if isinstance(value, Site):
            assert value.head is not None
            return self.patterns[value.head.layer][value.head.head]
        if isinstance(value, Writes):
            assert isinstance(writer, HeadId | Source)
            return value.output(self.weights, writer).stream
        assert isinstance(value, Tensor)
        value = value.to(tensor)
        if edit.site.value == "pattern":
            last, length = tensor.shape[-2:]
            value = value[..., length - last : length, :length]
        return value[(None,) * (tensor.ndim - value.ndim)]

    def _call(self, edit: Edit, function: Function, tensor: Tensor) -> Tensor:
        result = function(tensor)
        if result is None:
            return tensor
        if not isinstance(result, Tensor) or result.shape != tensor.shape:
            got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InputError(
                f"the hook on {edit.site} returned {got}; return a tensor of shape "
                f"{list(tensor.shape)}, like the one it was called with, or None"
            )
        self.effective.add(edit)
        return result.to(tensor)


class Editor:
    """The edits of a run in progress, with one method for each of the five points."""

    def __init__(
        self,
        weights: Weights,
        tokens: Tokens,
        edits: Sequence[Edit],
        copies: int = 1,
        past: KeyValues | None = None,
    ) -> None:
        self.weights, self.config = weights, weights.config
        self.tokens, self.past = tokens, past
        self.batch = _batch_size(tokens, edits, copies)
        self._first_wide_layer = _first_difference(edits, len(tokens), self.config.n_layers)
        edits = sorted(edits, key=lambda edit: edit.sequence is not None)
        self.values = ValueEdits(weights, [edit for edit in edits if not edit.site.is_edge])
        prefix = past if isinstance(past, Prefix) else None
        edges = [edit for edit in edits if edit.site.is_edge]
        self.edges = EdgeEdits(weights, edges, self.batch, tokens, prefix)
        self._heads = self._edited_heads()

    def effective(self, edits: Sequence[Edit]) -> tuple[Edit, ...]:
        """The edits that changed the run: a function that returned None did not."""
        functions = self.values.effective
        return tuple(edit for edit in edits if not callable(edit.value) or edit in functions)

    def _read(self, read: Site, stream: Stream) -> WideStream:
        """The stream as one reader sees it."""
        return self.values.apply(read, self.edges.apply(read, stream))

    def _output(self, source: Source, computed: Stream) -> WideStream:
        """The output of the embedding or of an MLP."""
        output = self.values.apply(Site(source), computed)
        self.edges.record(source, Output(output), Output(computed))
        return output

    # ---- 1. the stream before a layer

    def stream(self, layer: int, stream: Stream) -> WideStream:
        """The stream before a layer, repeated for the copies that differ from here on."""
        size = self.batch if layer >= self._first_wide_layer else len(self.tokens)
        stream = expand_batch(stream, size)
        if layer == 0:
            computed = expand_batch(self.weights.W_E[self.tokens], size)
            embedding = self._output(Source("embed"), computed)
            if embedding is not computed:
                stream = stream + (embedding - computed)
        return self.values.apply(Site(Source("residual", layer)), stream)

    # ---- 2. attention

    def _edited_heads(self) -> dict[int, list[HeadId]]:
        """By layer, the heads whose reads, pattern or z are edited.

        Heads that take the pattern of another head come last.
        """
        sites = [*self.values.by_site, *self.edges.whole]
        heads = {site.head for site in sites if site.head is not None and site != Site(site.head)}
        by_layer: dict[int, list[HeadId]] = defaultdict(list)
        for head in sorted(heads, key=lambda head: (self.values.takes_pattern(head), head)):
            by_layer[head.layer].append(head)
        return by_layer

    def _edits_pattern_or_reads(self, head: HeadId) -> bool:
        reads = [Site(None, head, side) for side in HEAD_SIDES]
        return Site(head, value="pattern") in self.values or any(map(self._edits_read, reads))

    def _edits_read(self, read: Site) -> bool:
        return read in self.edges.whole or read in self.values

    def needs_patterns(self, layer: int) -> bool:
        """Whether the patterns of a layer must be computed to run it."""
        heads = self._heads.get(layer, ())
        return layer in self.values.patterns or any(map(self._edits_pattern_or_reads, heads))

    def attention(
        self,
        layer: LayerWeights,
        stream: Stream,
        query: PerHead,
        key: AtSources,
        value: AtSources,
        pattern: Pattern | None,
        z: PerHead,
    ) -> tuple[
        Float[Tensor, "copies head dest src"] | None,
        Float[Tensor, "copies head pos k"],
    ]:
        """Patterns (if they are computed) and z of a layer's heads."""
        streams: dict[Site, Stream] = {}
        patterns = [] if pattern is None else list(pattern.unbind(1))
        if layer.index in self.values.patterns:
            self.values.patterns[layer.index] = patterns
        heads = self._heads.get(layer.index, [])
        zs = list(z.unbind(1)) if heads else []
        for head in heads:
            number = head.head
            if self._edits_pattern_or_reads(head):
                reads = [Site(None, head, side) for side in HEAD_SIDES]
                streams |= {
                    read: self._read(read, stream) for read in reads if self._edits_read(read)
                }
                kv = kv_head(self.config, number)
                computed = query[:, number], key[:, kv], value[:, kv]
                patterns[number], zs[number] = self._attend(
                    layer, head, streams, computed, patterns[number]
                )
            zs[number] = self.values.apply(Site(head, value="z"), zs[number])
        if heads:
            z = torch.stack(zs, 1)
            pattern = None if pattern is None else torch.stack(patterns, 1)
        return self.edges.nodes.attend(layer, stream, streams, query, key, value, pattern, z)

    def _attend(
        self,
        layer: LayerWeights,
        head: HeadId,
        streams: dict[Site, Stream],
        computed: tuple[Tensor, Tensor, Tensor],
        pattern: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Pattern and z of one head; `computed` are its queries, keys and values without edits."""
        past = self.past

        def edited(side: Side, computed: Tensor) -> Float[Tensor, "batch pos k"]:
            stream = streams.get(Site(None, head, side))
            if stream is None:
                return computed
            first = 0 if past is None else past.length
            positions = first + torch.arange(stream.shape[1])
            x = transformer.head_read(self.config, layer, head.head, side, stream, positions)
            return x if past is None or side is Side.Q else past.append((head, side), x)

        query, key, value = map(edited, HEAD_SIDES, computed)
        if query is not computed[0] or key is not computed[1]:
            tensors = layer_of_one_head(self.config, layer, head.head)
            pattern = transformer.attend(self.config, tensors, query[:, None], key[:, None])[:, 0]
        pattern = self.values.apply(Site(head, value="pattern"), pattern)
        return pattern, pattern @ value

    # ---- 3. the outputs of heads

    def head_outputs(
        self, layer: LayerWeights, attended: WideStream, z: PerHead, scale: Tensor
    ) -> Float[Tensor, "_ pos d"]:
        """The stream after a layer's heads, given z and the scale of the norm after the heads."""
        bias = Source("bias", layer.index)
        if layer.b_O is not None and Site(bias) in self.values:
            computed = layer.b_O * scale[..., None]
            attended = attended + (self.values.apply(Site(bias), computed) - computed)
        for head in self.config.heads_of(layer.index):
            is_edited = Site(head) in self.values
            if is_edited or head in self.edges.writers:
                output = computed = Output(z[:, head.head] * scale[..., None], layer.W_O[head.head])
                if is_edited:
                    before = computed.stream
                    output = Output(self.values.apply(Site(head), before))
                    attended = attended + (output.stream - before)
                self.edges.record(head, output, computed)
        return attended

    # ---- 4. MLPs

    def mlp(self, layer: LayerWeights, stream: Stream) -> tuple[WideStream, Tensor]:
        """The output of an MLP and the scale of its read."""
        mlp = Source("mlp", layer.index)
        stream = self._read(Site(None, mlp), stream)
        reads = [Site(None, mlp, side) for side in MLP_SIDES]
        neurons = self._neuron_edits(layer)
        if any(map(self.edges.enter, reads)):
            for name in ("pre", "gate"):
                if Site(mlp, value=name) in self.values:
                    raise InputError(
                        f"{mlp}.{name} is replaced, so an edge into one side of {mlp} changes "
                        "nothing; use one of the two"
                    )
            value, gate = (self._read(read, stream) for read in reads)
            output, scale = gating.mlp_of_sides(self.weights, layer, stream, value, gate, neurons)
        else:
            output, scale = transformer.mlp(self.config, layer, stream, neurons)
        return self._output(mlp, output), scale

    def _neuron_edits(self, layer: LayerWeights) -> NeuronEdits | None:
        """The edits of an MLP's neurons; None if there are none."""
        mlp = Source("mlp", layer.index)
        writers = {site.writer for site in self.values.by_site} | self.edges.writers
        neurons = [
            writer
            for writer in writers
            if isinstance(writer, Source) and (writer.kind, writer.layer) == ("neuron", mlp.layer)
        ]
        names = [site for site in self.values.by_site if site.writer == mlp and site.value]
        if not neurons and not names:
            return None

        def edit(name: str, tensor: Tensor) -> Tensor:
            tensor = self.values.apply(Site(mlp, value=name), tensor)
            if name != "act" or not neurons:
                return tensor
            assert layer.W_out is not None
            computed, tensor = tensor, tensor.clone()
            for neuron in neurons:
                own = slice(neuron.neuron, neuron.neuron + 1)
                tensor[..., own] = self.values.apply(Site(neuron), computed[..., own])
                W_out = layer.W_out[own]
                outputs = Output(tensor[..., own], W_out), Output(computed[..., own], W_out)
                self.edges.record(neuron, *outputs)
            return tensor

        return edit

    # ---- 5. the logits

    def logits_read(self, stream: Stream) -> WideStream:
        """The stream that the unembedding reads."""
        return self._read(LOGITS_READ, stream)

    @property
    def edits_logits(self) -> bool:
        """Whether the logits themselves are edited."""
        return CAPPED in self.values or UNCAPPED in self.values

    def logits(self, read: Stream) -> Float[Tensor, "copies pos vocab"]:
        """The logits at all positions, edited before and after the soft cap."""
        logits: Logits = transformer.unembed_uncapped(self.weights, read)[0]
        logits = self.values.apply(UNCAPPED, logits)
        return self.values.apply(CAPPED, transformer.soft_cap(logits, self.config.logit_cap))


def _first_difference(edits: Sequence[Edit], sequences: int, n_layers: int) -> int:
    """The first layer in which copies of the tokens differ; the number of layers for the logits."""
    layers = [n_layers]
    for edit in edits:
        value = edit.value
        is_wide = isinstance(value, Tensor) and value.ndim == 3 and len(value) > sequences
        if edit.sequence is not None or is_wide or is_between_nodes(edit.site):
            layers.append(_layer_of(edit.site, n_layers))
            if edit.value is COMPUTED:
                layers.append(_layer_of(edit.site.start, n_layers))
    return min(layers)


def _layer_of(site: Site, n_layers: int) -> int:
    """The layer at which an edit acts; the embedding counts as 0, the logits as n_layers."""
    component = site.writer if site.reader is None else site.reader
    if component == LOGITS:
        return n_layers
    return max(0, component.layer) if isinstance(component, HeadId | Source) else 0


def _batch_size(tokens: Tokens, edits: Sequence[Edit], copies: int) -> int:
    """The batch size of tokens, their copies and edits; a batch of one is repeated to fit."""
    if copies > 1:
        return len(tokens) * copies
    values = [edit.value for edit in edits]
    sizes = {len(value) for value in values if isinstance(value, Tensor) and value.ndim == 3}
    sizes = sorted((sizes | {len(tokens)}) - {1})
    if len(sizes) > 1:
        raise InputError(
            f"the run and its edits have {sizes[0]} and {sizes[1]} sequences; use batches of "
            "the same size, or of one sequence"
        )
    return sizes[0] if sizes else 1
