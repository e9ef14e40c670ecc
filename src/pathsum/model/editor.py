"""Editor: the edits of a run, applied inside the forward pass.

The forward pass (`pathsum.model.forward.run`) calls the editor at five points:

1. the output of a component, right after it is computed: `L0H3`, `mlp2@5`, `mlp2.n7`, `embed`
2. an edge into a whole read, `L0H3→L1H4.k`: that reader sees stream + (value − written), all other
   readers see the stream
3. an edge at single positions, `L0H3@4→L1H4@9.k`: that row of the head is recomputed
   (`node_edges`)
4. a named value, `L1H4.pattern`, `mlp2.act` or `residual2`: replaced, or passed through a function
5. the logits

A batch may hold several copies of the tokens, each with its own edits. Below the first layer in
which they differ, the copies are one: row i of the batch is row i % n of a tensor with n rows.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.errors import InputError
from pathsum.base.shapes import AtSources, Pattern, PerHead, Stream, Tokens
from pathsum.base.site import HEAD_SIDES, LOGITS, MLP_SIDES, Side, Site
from pathsum.model import gating, transformer
from pathsum.model.edit import COMPUTED, Edit, Function, Writes
from pathsum.model.node_edges import NodeEdges
from pathsum.model.recording import KeyValues, Prefix
from pathsum.model.weights import LayerWeights, Weights, kv_head, layer_of_one_head

# A stream whose batch may have been repeated, one copy per run.
WideStream = Float[Tensor, "copies pos d"]
WidePerHead = Float[Tensor, "copies head pos k"]


class Editor:
    """The edits of a run in progress."""

    def __init__(
        self,
        weights: Weights,
        tokens: Tokens,
        edits: Sequence[Edit],
        copies: int = 1,
        past: KeyValues | None = None,
    ) -> None:
        self.weights, self.config, self.tokens = weights, weights.config, tokens
        self.past, self.first = past, past.length if isinstance(past, Prefix) else 0
        self.batch = _batch_size(tokens, edits, copies)
        # Edits of components, named values and reads; of edges, by the read they enter.
        self.values: dict[Site, list[Edit]] = {}
        self.edges: dict[Site, list[Edit]] = {}
        at_nodes: list[Edit] = []
        for edit in sorted(edits, key=lambda edit: edit.sequence is not None):
            site = edit.site
            if not site.is_edge:
                self.values.setdefault(site.without_positions, []).append(edit)
            elif _enters_nodes(site):
                at_nodes.append(edit)
            else:
                self.edges.setdefault(site.read, []).append(edit)
        prefix = past if isinstance(past, Prefix) else None
        self.nodes = NodeEdges(weights, at_nodes, self.batch, tokens, prefix)
        self.writers = {edit.site.writer for edit in edits if edit.site.is_edge}
        self.lenders = {edit.value.writer for edit in edits if isinstance(edit.value, Site)}
        self.used: set[Edit] = set()
        self.sources: dict[Source, Stream] = {}
        self.z: dict[int, PerHead] = {}
        self.outputs: dict[HeadId, Stream] = {}
        self.patterns: dict[HeadId, Tensor] = {}
        self._apart = self._find_apart(edits)
        self.size = len(tokens)
        self._touched, self._attending_anew = self._find_touched()

    # ---- batches

    def _find_apart(self, edits: Sequence[Edit]) -> int:
        """The first layer in which the copies differ; the number of layers for the logits."""
        n_layers, alone = self.config.n_layers, len(self.tokens)
        layers = [n_layers]
        for edit in edits:
            given = edit.value
            wide = isinstance(given, Tensor) and given.ndim == 3 and len(given) > alone
            if edit.sequence is not None or wide or _enters_nodes(edit.site):
                layers.append(_layer_of(edit.site, n_layers))
                if edit.value is COMPUTED:
                    layers.append(_layer_of(Site(edit.site.writer), n_layers))
        return min(layers)

    def widen(self, tensor: Tensor) -> Tensor:
        """A batch repeated until it holds the copies of this layer; one sequence is not copied."""
        return self.repeat(tensor, self.size)

    def repeat(self, tensor: Tensor, size: int) -> Tensor:
        """A batch repeated to a size."""
        if tensor.shape[0] in (1, size):
            return tensor.expand(size, *tensor.shape[1:])
        return tensor.repeat(size // tensor.shape[0], *[1] * (tensor.ndim - 1))

    @property
    def edits_logits(self) -> bool:
        """Whether the logits themselves are edited."""
        return Site(LOGITS) in self.values or Site(LOGITS, value="pre") in self.values

    def enter(self, layer: int, stream: Stream) -> WideStream:
        """The stream before a layer, with the embedding replaced before the first; points 1, 4."""
        self.size = self.batch if layer >= self._apart else len(self.tokens)
        stream = self.widen(stream)
        if layer == 0:
            own = self.widen(self.weights.W_E[self.tokens])
            written = self._source(Source("embed"), own)
            stream = stream if written is own else stream + (written - own)
        return self.replaced(Site(Source("residual", layer)), stream)

    # ---- values

    def replaced(self, site: Site, tensor: Tensor) -> Tensor:
        """The tensor at a site after the edits there."""
        copied = False
        for edit in self.values.get(site, ()):
            if callable(edit.value):
                tensor, copied = self._call(edit, edit.value, tensor), False
                continue
            given, at = self._given(edit, site, tensor), edit.site.at
            if edit.sequence is None:
                given = self.repeat(given, len(tensor))
            if at is None and edit.sequence is None:
                tensor, copied = given.expand_as(tensor), False
                continue
            if not copied:
                tensor, copied = tensor.clone(), True
            rows = slice(None) if edit.sequence is None else edit.sequence
            places = slice(None) if at is None else at
            tensor[rows, places] = self._part(given, edit.sequence, at)
        return tensor

    def _given(self, edit: Edit, site: Site, tensor: Tensor) -> Tensor:
        value = edit.value
        if isinstance(value, Site):
            assert isinstance(value.writer, HeadId)
            return self.patterns[value.writer]
        if isinstance(value, Writes):
            assert isinstance(site.writer, Source)
            return value.source(site.writer)
        assert isinstance(value, Tensor)
        value = value.to(tensor)
        if site.value == "pattern":
            last, length = tensor.shape[-2:]
            value = value[..., length - last : length, :length]
        return value if value.ndim == tensor.ndim else value[(None,) * (tensor.ndim - value.ndim)]

    def _call(self, edit: Edit, function: Function, tensor: Tensor) -> Tensor:
        given = function(tensor)
        if given is None:
            return tensor
        if not isinstance(given, Tensor) or given.shape != tensor.shape:
            got = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise InputError(
                f"the hook on {edit.site} returned {got}; return a tensor of shape "
                f"{list(tensor.shape)}, like the one it was called with, or None"
            )
        self.used.add(edit)
        return given.to(tensor)

    def made(self, edits: Iterable[Edit]) -> tuple[Edit, ...]:
        """The edits that changed the run: a function that returned None did not."""
        return tuple(edit for edit in edits if not callable(edit.value) or edit in self.used)

    # ---- reads, point 2

    def as_read(self, read: Site, stream: Stream) -> WideStream:
        """The stream as one reader sees it; points 2 and 4."""
        edits = self.edges.get(read, ())
        if edits:
            stream = stream.clone()
        seen: dict[tuple[object, int | None], Stream] = {}
        for edit in edits:
            writer, sequence = edit.site.writer, edit.sequence
            rows = slice(None) if sequence is None else slice(sequence, sequence + 1)
            before = seen.get((writer, sequence))
            if before is None:
                before = seen.get((writer, None))
                before = self.written(writer) if before is None else before
                before = before if sequence is None else self._part(before, sequence, None)[None]
            at = edit.site.at
            given = self._written_instead(edit, before)
            given = given if sequence is None else self._part(given, sequence, None)[None]
            change = given - before
            if at is not None:
                places = torch.arange(change.shape[1], device=change.device)
                change = change * (places + self.first == at)[:, None]
            seen[writer, sequence] = before + change
            change = change if sequence is not None else self.repeat(change, len(stream))
            stream[rows] += change
            if self.nodes.overrides(writer, read):
                whole = self.nodes.whole_edges.setdefault((writer, read), torch.zeros_like(stream))
                whole[rows] += change
        if self.nodes.reach(read):
            stream = self.nodes.as_read(read, stream)
        return self.replaced(read, stream)

    def _written_instead(self, edit: Edit, like: Stream) -> WideStream:
        """The output that an edge carries in place of its writer's, at the last positions."""
        value, writer = edit.value, edit.site.writer
        if isinstance(value, Writes):
            if isinstance(writer, HeadId):
                W_O = self.weights.layers[writer.layer].W_O[writer.head]
                return value.z[writer.layer][:, writer.head, self.first :] @ W_O
            assert isinstance(writer, Source)
            return value.source(writer)[:, self.first :]
        assert isinstance(value, Tensor)
        value = value.to(like)
        return value if value.ndim == 3 else value.expand(1, like.shape[1], -1)

    def written(self, writer: object) -> Stream:
        """The output of a writer, as the stream has it."""
        if isinstance(writer, HeadId):
            if writer in self.outputs:
                return self.outputs[writer]
            W_O = self.weights.layers[writer.layer].W_O[writer.head]
            return self.z[writer.layer][:, writer.head] @ W_O
        assert isinstance(writer, Source)
        return self.sources[writer]

    # ---- sources, point 1

    def _source(self, source: Source, own: Stream) -> WideStream:
        """The output of the embedding or of an MLP."""
        written = self.replaced(Site(source), own)
        if source in self.writers:
            self.sources[source] = written
            self.nodes.source_written(source, written, own)
        return written

    def mlp(self, layer: LayerWeights, stream: Stream) -> tuple[WideStream, Tensor]:
        """The output of an MLP and the scale of its read."""
        mlp = Source("mlp", layer.index)
        stream = self.as_read(Site(None, mlp), stream)
        sides = [Site(None, mlp, side) for side in MLP_SIDES]
        edits = self._neurons(layer)
        if any(one in self.edges or self.nodes.reach(one) for one in sides):
            for value in ("pre", "gate"):
                if Site(mlp, value=value) in self.values:
                    raise InputError(
                        f"{mlp}.{value} is replaced, so an edge into one side of {mlp} changes "
                        "nothing; use one of the two"
                    )
            value, gate = (self.as_read(one, stream) for one in sides)
            own, scale = gating.mlp_of_sides(self.weights, layer, stream, value, gate, edits)
        else:
            own, scale = transformer.mlp(self.config, layer, stream, edits)
        return self._source(mlp, own), scale

    def _neurons(self, layer: LayerWeights) -> transformer.NeuronEdits | None:
        """The edits of an MLP's neurons, points 1 and 4; None if there are none."""
        mlp = Source("mlp", layer.index)
        components = {site.writer for site in self.values} | self.writers
        single = [
            one
            for one in components
            if isinstance(one, Source) and one.kind == "neuron" and one.layer == layer.index
        ]
        if not single and not any(site.writer == mlp and site.value for site in self.values):
            return None

        def edit(value: str, tensor: Tensor) -> Tensor:
            tensor = self.replaced(Site(mlp, value=value), tensor)
            if value != "act" or not single:
                return tensor
            assert layer.W_out is not None
            own, tensor = tensor, tensor.clone()
            for one in single:
                at = slice(one.neuron, one.neuron + 1)
                tensor[..., at] = self.replaced(Site(one), own[..., at])
                if one in self.writers:
                    written = tensor[..., at] * layer.W_out[one.neuron]
                    self.sources[one] = written
                    self.nodes.source_written(one, written, own[..., at] * layer.W_out[one.neuron])
            return tensor

        return edit

    # ---- heads, points 1 to 4

    def _find_touched(self) -> tuple[dict[int, list[HeadId]], set[HeadId]]:
        """Heads computed one by one, by layer; and those whose reads or patterns are edited.

        Heads that borrow the pattern of another head come last.
        """
        touched: dict[int, set[HeadId]] = {}
        anew: set[HeadId] = set()
        for site in (*self.values, *self.edges):
            head = site.head
            if head is None or site == Site(head):
                continue
            touched.setdefault(head.layer, set()).add(head)
            if site.value != "z":
                anew.add(head)

        def order(head: HeadId) -> tuple[bool, HeadId]:
            edits = self.values.get(Site(head, value="pattern"), ())
            return any(isinstance(edit.value, Site) for edit in edits), head

        return {layer: sorted(heads, key=order) for layer, heads in touched.items()}, anew

    def needs_patterns(self, layer: int) -> bool:
        """Whether the patterns of a layer must be known to run it."""
        lent = any(isinstance(head, HeadId) and head.layer == layer for head in self.lenders)
        return lent or any(head in self._attending_anew for head in self._touched.get(layer, ()))

    def attention(
        self,
        layer: LayerWeights,
        stream: Stream,
        query: PerHead,
        key: AtSources,
        value: AtSources,
        pattern: Pattern | None,
        z: PerHead,
    ) -> tuple[Float[Tensor, "copies head dest src"] | None, WidePerHead]:
        """Patterns (where they are known) and z of a layer's heads."""
        streams: dict[tuple[int, Side], Stream] = {}
        touched = self._touched.get(layer.index, ())
        if touched:
            z, pattern = z.clone(), None if pattern is None else pattern.clone()
        for head in touched:
            if head in self._attending_anew:
                assert pattern is not None
                for side in HEAD_SIDES:
                    read = Site(None, head, side)
                    if read in self.edges or read in self.values:
                        streams[head.head, side] = self.as_read(read, stream)
                attended, moved = self._attend(layer, head, stream, streams, pattern, value)
                pattern[:, head.head], z[:, head.head] = attended, moved
            z[:, head.head] = self.replaced(Site(head, value="z"), z[:, head.head])
        for head in self.lenders:
            if isinstance(head, HeadId) and head.layer == layer.index:
                assert pattern is not None
                self.patterns[head] = pattern[:, head.head]
        if self.nodes.in_layer(layer.index):
            found = self.nodes.attend(layer, stream, streams, query, key, value)
            live = [not self._output_given(HeadId(layer.index, h)) for h in found.head.tolist()]
            if any(live):
                where = tuple(one[torch.tensor(live, device=z.device)] for one in found.where)
                z = z.clone()
                z[where] = found.z[live]
                if pattern is not None:
                    pattern = pattern.clone()
                    pattern[where] = found.pattern[live]
        return pattern, z

    def _attend(
        self,
        layer: LayerWeights,
        head: HeadId,
        stream: Stream,
        streams: dict[tuple[int, Side], Stream],
        patterns: Pattern,
        value: AtSources,
    ) -> tuple[Tensor, Tensor]:
        """Pattern and z of one head whose reads or pattern are edited."""
        number, past = head.head, self.past
        places = None if past is None else past.length + torch.arange(stream.shape[1])

        def read(side: Side) -> Float[Tensor, "batch pos k"]:
            seen = streams.get((number, side), stream)
            own = transformer.head_read(self.config, layer, number, side, seen, places)
            return own if past is None or side is Side.Q else past.extended((head, side), own)

        pattern = patterns[:, number]
        if (number, Side.Q) in streams or (number, Side.K) in streams:
            alone = layer_of_one_head(self.config, layer, number)
            query, key = read(Side.Q)[:, None], read(Side.K)[:, None]
            pattern = transformer.attend(self.config, alone, query, key)[:, 0]
        here = Site(head, value="pattern")
        for edit in self.values.get(here, ()):
            if isinstance(edit.value, Site):
                assert isinstance(edit.value.writer, HeadId)
                if edit.value.writer.layer == head.layer:
                    self.patterns[edit.value.writer] = patterns[:, edit.value.writer.head]
        pattern = self.replaced(here, pattern)
        moved = value[:, kv_head(self.config, number)]
        return pattern, pattern @ (read(Side.V) if (number, Side.V) in streams else moved)

    def _part(self, value: Tensor, sequence: int | None, at: int | None) -> Tensor:
        """The rows of a tensor [batch, pos, …] for one sequence and one position, or for all."""
        rows = value if sequence is None else value[sequence % len(value)]
        if at is None:
            return rows
        place = min(at, (rows.shape[1] if sequence is None else rows.shape[0]) - 1)
        return rows[:, place] if sequence is None else rows[place]

    def _output_given(self, head: HeadId) -> bool:
        """Whether the output of a head is replaced in all sequences and at all positions."""
        edits = self.values.get(Site(head), ())
        return any(edit.sequence is None and edit.site.at is None for edit in edits)

    def heads_written(
        self, layer: LayerWeights, stream: Stream, z: WidePerHead, added: WideStream, scale: Tensor
    ) -> Float[Tensor, "_ pos d"]:
        """The stream after a layer's heads, with outputs replaced."""
        index = layer.index
        attended = stream + added
        if layer.b_O is not None and Site(Source("bias", index)) in self.values:
            bias = layer.b_O * scale[..., None]
            attended = attended + (self.replaced(Site(Source("bias", index)), bias) - bias)
        heads = self.config.heads_of(index)
        edited = [head for head in heads if Site(head) in self.values]
        if not edited and not self.writers.intersection(heads):
            return attended
        own = z * scale[:, None, :, None]
        out = own
        for head in edited:
            W_O = layer.W_O[head.head]
            edits = self.values[Site(head)]
            if len(edits) == 1 and isinstance(edits[0].value, Writes) and edits[0].sequence is None:
                out = out.clone() if out is own else out
                given = edits[0].value.z[index][:, head.head]
                at = slice(None) if edits[0].site.at is None else edits[0].site.at
                out[:, head.head, at] = given[:, at]
            else:
                written = own[:, head.head] @ W_O
                self.outputs[head] = self.replaced(Site(head), written)
                attended = attended + (self.outputs[head] - written)
        if out is not own:
            attended = attended + torch.einsum("bhpk,hkd->bpd", out - own, layer.W_O)
        self.z[index] = out
        self.nodes.heads_written(layer, out, own, z)
        return attended


def _enters_nodes(site: Site) -> bool:
    """Whether a site is an edge into single nodes, not into a whole read."""
    return site.to is not None or (site.is_edge and site.at is not None and site.side is None)


def _layer_of(site: Site, n_layers: int) -> int:
    """The layer at which an edit acts; the embedding counts as 0, the logits as n_layers."""
    component = site.writer if site.reader is None else site.reader
    if isinstance(component, Source) and component.kind == "logits":
        return n_layers
    return max(0, component.layer) if isinstance(component, HeadId | Source) else 0


def _batch_size(tokens: Tokens, edits: Sequence[Edit], copies: int) -> int:
    """The batch size of tokens, their copies and edits; a batch of one is repeated to fit."""
    sizes = {tokens.shape[0] * copies}
    for edit in edits:
        given = edit.value
        if isinstance(given, Tensor) and given.ndim == 3:
            sizes.add(given.shape[0])
    if copies > 1:
        return tokens.shape[0] * copies
    several = sorted(sizes - {1})
    if len(several) > 1:
        raise InputError(
            f"the run and its edits have {several[0]} and {several[1]} sequences; use batches of "
            "the same size, or of one sequence"
        )
    return several[0] if several else 1
