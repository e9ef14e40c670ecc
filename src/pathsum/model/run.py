"""The forward pass: run a transformer, with edits, and record what is needed.

Every way to run a model goes through `run`: calling it, tracing it, ablating, replacing, patching,
and the truncated runs of term importance. The parts themselves are in `transformer`.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import transformer
from pathsum.model.edits import Edit, Plan, TableToLogits, common_batch_size
from pathsum.model.folding import fold_bias, unembed_through
from pathsum.model.node_reads import Cuts, one_head
from pathsum.model.weights import LayerWeights, Weights, layer_of_one_head
from pathsum.names import HeadId, HeadRead, LogitsRead, MlpRead, Reader, Side, Source, Writer
from pathsum.shapes import HeadPattern, Logits, Pattern, PerHead, Scale, Stream, Tokens


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


@torch.no_grad()
def run(
    weights: Weights,
    tokens: Tokens,
    edits: Sequence[Edit] = (),
    record: Recording = Recording.ALL,
    start: Run | None = None,
    positions: Int[Tensor, " sequence"] | None = None,
) -> Run:
    """Run a model on token ids, with parts exchanged by `edits`.

    Everything after an edit is recomputed: patterns, normalization scales, MLPs, logits. Batches of
    size 1, of tokens or of edits, are repeated to the largest. `start` is the unedited run of the
    same tokens: layers below the first edit are taken from it. `positions` computes the logits at
    one position per sequence only, [batch, 1, vocab].
    """
    forward = _Pass(weights, tokens, edits, record, start)
    forward.to_the_last_stream()
    return forward.finish(positions)


def run_logits(
    weights: Weights,
    tokens: Tokens,
    edits: Sequence[Edit] = (),
    start: Run | None = None,
    positions: Int[Tensor, " sequence"] | None = None,
) -> Float[Tensor, "sequence out vocab"]:
    """The logits of a run, and nothing else kept."""
    logits = run(weights, tokens, edits, Recording.LOGITS, start, positions).logits
    assert logits is not None
    return logits


class _Pass:
    """A run in progress."""

    def __init__(
        self,
        weights: Weights,
        tokens: Tokens,
        edits: Sequence[Edit],
        record: Recording,
        start: Run | None,
    ) -> None:
        self.weights, self.config = weights, weights.config
        self.edits, self.plan = tuple(edits), Plan.of(edits)
        self.watched = self.plan.watched
        self.record, self.start = record, start
        self.batch = common_batch_size(tokens, edits)
        self.tokens = tokens.expand(self.batch, -1)
        self.cuts = Cuts(weights, self.plan.cut)
        # What watched writers wrote, and what heads would have written that a table replaces.
        self.written: dict[Writer, Stream] = {}
        self.withheld: list[tuple[TableToLogits, Stream, HeadPattern]] = []
        self.patterns: list[Pattern] = []
        self.streams: list[Stream] = []
        self.edited_z: list[PerHead | None] = []
        self.mlp_outputs: list[Stream] = []
        self.attention_scales: list[Scale] = []
        self.mlp_scales: list[Scale] = []
        self.query_scales: list[Tensor] = []
        self.key_scales: list[Tensor] = []
        self.write_scales: list[Scale] = []

    def to_the_last_stream(self) -> None:
        """Everything but the unembedding."""
        if self.start is None:
            first = 0
            stream = self._embed()
        else:
            first = self.plan.first_layer(self.config.n_layers)
            stream = self._take(self.start, first)
        self._keep(self.streams, stream)
        for index in range(first, self.config.n_layers):
            stream = self._layer(index, self.weights.layers[index], stream)
            self._keep(self.streams, stream)
        for _, written, _ in self.withheld:
            stream = stream + written
        if self.withheld and self.streams:
            self.streams[-1] = stream
        self.last = stream

    def finish(self, positions: Int[Tensor, " sequence"] | None) -> Run:
        """The logits, and everything that was recorded."""
        if self.record is Recording.RESIDUAL:
            logits, final = None, transformer.normalize(self.config, self.last, None, None)[1]
        else:
            logits, final = self._logits(positions)
        transformer.refuse_overflow(self.last if logits is None else logits)
        scales = NormScales(
            attention=tuple(self.attention_scales),
            mlp=tuple(self.mlp_scales),
            final=final,
            query=tuple(self.query_scales),
            key=tuple(self.key_scales),
            write=tuple(self.write_scales),
        )
        return Run(
            weights=self.weights,
            tokens=self.tokens,
            logits=logits,
            patterns=tuple(self.patterns),
            streams=tuple(self.streams),
            scales=scales,
            mlp_outputs=tuple(self.mlp_outputs),
            edits=self.edits,
            edited_z=tuple(self.edited_z),
        )

    # ---- the parts, in the order of the forward pass

    def _embed(self) -> Stream:
        stream = transformer.embed(self.weights, self.tokens)
        given = self.plan.sources.get(Source("embed"))
        if given is not None:
            stream = stream + (given.written - self.weights.W_E[self.tokens])
        if Source("embed") in self.watched or self.cuts.any:
            embedded = self.weights.W_E[self.tokens] if given is None else given.written
            self.written[Source("embed")] = embedded
            self.cuts.source(Source("embed"), embedded)
        return stream

    def _layer(self, index: int, layer: LayerWeights, stream: Stream) -> Stream:
        config = self.config
        z = self._heads(index, layer, stream)
        added, write_scale = transformer.write(config, layer, z)
        self._keep(self.write_scales, write_scale)
        attended = stream + added
        for at, (edit, written, moved_by) in enumerate(self.withheld):
            if edit.head.layer == index:
                written = written * write_scale[..., None]
                self.withheld[at] = (edit, written, moved_by * write_scale[..., None])
                attended = attended - written
        for writer in self.watched:
            if isinstance(writer, HeadId) and writer.layer == index:
                moved = z[:, writer.head] @ layer.W_O[writer.head]
                self.written[writer] = moved * write_scale[..., None]
        self.cuts.wrote(index, z, write_scale)
        if config.mlp == "none":
            return attended
        source = stream if config.block == "parallel" else attended
        output, scale = transformer.mlp(config, layer, self._as_read(MlpRead(index), source))
        given = self.plan.sources.get(Source("mlp", index))
        output = output if given is None else given.written.expand_as(output)
        if Source("mlp", index) in self.watched:
            self.written[Source("mlp", index)] = output
        self.cuts.source(Source("mlp", index), output)
        self._keep(self.mlp_outputs, output)
        self._keep(self.mlp_scales, scale)
        return attended + output

    def _heads(self, index: int, layer: LayerWeights, stream: Stream) -> PerHead:
        """The z of a layer's heads."""
        config, frozen = self.config, self.plan.frozen
        read, scale = transformer.attention_read(config, layer, stream)
        query, key, query_scale, key_scale = transformer.queries_and_keys(config, layer, read)
        value = transformer.values(layer, read)
        for kept, tensor in (
            (self.attention_scales, scale),
            (self.query_scales, query_scale),
            (self.key_scales, key_scale),
        ):
            self._keep(kept, tensor)
        if self.record is Recording.LOGITS and not self.plan.needs_patterns(index):
            return transformer.fused_attention(config, layer, query, key, value)
        if frozen is None:
            pattern = transformer.attend(config, layer, query, key)
        else:
            pattern = _repeated(frozen.patterns[index], self.batch).clone()
        z = transformer.mix(config, pattern, value)
        edited = self.plan.heads_of(index)
        for head in edited:
            at = head.head
            found = self._head(head, layer, stream, pattern[:, at])
            where = self.plan.destinations(head)
            if where is not None:
                there = where[..., None]
                found = (
                    torch.where(there, found[0], pattern[:, at]),
                    torch.where(there, found[1], z[:, at]),
                )
            pattern[:, at], z[:, at] = found
        self.cuts.heads(layer, stream, (query, key, value), pattern, z)
        self._keep(self.patterns, pattern)
        if self.record is not Recording.LOGITS:
            self.edited_z.append(z if edited or self.cuts.any else None)
        self._withhold(index, layer, scale, pattern, z)
        return z

    def _head(
        self, head: HeadId, layer: LayerWeights, stream: Stream, pattern: HeadPattern
    ) -> tuple[HeadPattern, Tensor]:
        """One edited head: its pattern and its z."""
        config, alone = one_head(self.config), layer_of_one_head(self.config, layer, head.head)

        def read(side: Side) -> Stream:
            seen = self._as_read(HeadRead(head, side), stream)
            return transformer.attention_read(config, alone, seen)[0]

        changed = {HeadRead(head, Side.Q), HeadRead(head, Side.K)} & self.plan.messages.keys()
        given = self.plan.attend.get(head)
        if given is not None:
            pattern = given.pattern.expand_as(pattern)
        elif changed and self.plan.frozen is None:
            query, key = self._query_and_key(head, layer, alone, read(Side.Q), read(Side.K))
            pattern = transformer.attend(config, alone, query, key)[:, 0]
        output = self.plan.output.get(head)
        if output is not None:
            return pattern, output.z
        z = transformer.mix(config, pattern[:, None], transformer.values(alone, read(Side.V)))[:, 0]
        keep = self.plan.keep.get(head)
        if keep is None:
            return pattern, z
        bias = fold_bias(alone.W_V, alone.ln1_b, alone.b_V)
        bias = bias if layer.sinks is None else bias * pattern.sum(-1, keepdim=True)
        return pattern, (z - bias) @ keep.matrix + bias

    def _query_and_key(
        self,
        head: HeadId,
        layer: LayerWeights,
        alone: LayerWeights,
        query_read: Stream,
        key_read: Stream,
    ) -> tuple[PerHead, PerHead]:
        """The query and the key of one head, each from a read of its own."""
        if self.config.qk_norm != "rms_all":
            config = one_head(self.config)
            query = transformer.queries_and_keys(config, alone, query_read)[0]
            return query, transformer.queries_and_keys(config, alone, key_read)[1]
        # One norm over all heads of the layer: the others are needed for its scale.
        at, kv = head.head, head.head // self.config.heads_per_kv
        query = transformer.queries_and_keys(self.config, layer, query_read)[0]
        key = transformer.queries_and_keys(self.config, layer, key_read)[1]
        return query[:, at : at + 1], key[:, kv : kv + 1]

    def _withhold(
        self, index: int, layer: LayerWeights, scale: Scale, pattern: Pattern, z: PerHead
    ) -> None:
        """Note what heads would write that a table replaces; what their biases write stays."""
        for head, edit in self.plan.tables.items():
            if head.layer == index:
                kv = head.head // self.config.heads_per_kv
                b_V = None if layer.b_V is None else layer.b_V[kv]
                bias = fold_bias(layer.W_V[kv], layer.ln1_b, b_V)
                if layer.sinks is not None:
                    bias = bias * pattern[:, head.head].sum(-1, keepdim=True)
                written = (z[:, head.head] - bias) @ layer.W_O[head.head]
                self.withheld.append((edit, written, pattern[:, head.head] * scale[:, None]))

    def _logits(self, positions: Int[Tensor, " sequence"] | None) -> tuple[Logits, Scale]:
        """Logits, at one position per sequence or at all, and the scale of that read."""

        def at(rows: Tensor) -> Tensor:
            if positions is None:
                return rows
            return rows[torch.arange(self.batch, device=rows.device), positions][:, None]

        stream = at(self.cuts.read_by_logits(self._as_read(LogitsRead(), self.last)))
        logits, scale = transformer.unembed_uncapped(self.weights, stream)
        for edit, written, attended in self.withheld:
            # The write belongs to the stream whose size the final normalization measures, so the
            # scale is that of the whole; its direct effect is the table's instead.
            direct = unembed_through(self.weights, at(written))
            looked_up = edit.look_up(at(attended), logits.shape[-1])
            logits = logits + scale[..., None] * (looked_up - direct)
        return transformer.soft_cap(logits, self.config.logit_cap), scale

    # ---- messages, and what is taken from another run

    def _as_read(self, reader: Reader, stream: Stream) -> Stream:
        """The stream as one reader sees it: with messages in place of what was written."""
        for message in self.plan.messages.get(reader, ()):
            change = message.written - self.written[message.edge.writer]
            if message.destinations is not None:
                change = change * message.reach[..., None]
            stream = stream + change
        return stream

    def _take(self, start: Run, first: int) -> Stream:
        """Layers below the first edit, as the unedited run had them; the stream above them."""
        for mine, recorded in (
            (self.streams, start.streams[:first]),
            (self.patterns, start.patterns[:first]),
            (self.mlp_outputs, start.mlp_outputs[:first]),
            (self.attention_scales, start.scales.attention[:first]),
            (self.mlp_scales, start.scales.mlp[:first]),
            (self.query_scales, start.scales.query[:first]),
            (self.key_scales, start.scales.key[:first]),
            (self.write_scales, start.scales.write[:first]),
        ):
            if self.record is not Recording.LOGITS:
                mine.extend(_repeated(tensor, self.batch) for tensor in recorded)
        self.edited_z.extend([None] * first)
        for writer in self.watched:
            if isinstance(writer, HeadId):
                if writer.layer < first:
                    W_O = self.weights.layers[writer.layer].W_O[writer.head]
                    moved = start.z(writer.layer)[:, writer.head] @ W_O
                    self.written[writer] = moved * start.scales.write[writer.layer][..., None]
            elif writer.kind == "embed":
                self.written[writer] = self.weights.W_E[self.tokens]
            elif writer.layer < first:
                self.written[writer] = start.mlp_outputs[writer.layer]
        self.cuts.take(start, first)
        return self._embed() if first == 0 else _repeated(start.streams[first], self.batch)

    def _keep(self, kept: list[Tensor], tensor: Tensor) -> None:
        if self.record is not Recording.LOGITS:
            kept.append(tensor)


def _repeated(tensor: Tensor, batch: int) -> Tensor:
    return tensor.expand(batch, *tensor.shape[1:])
