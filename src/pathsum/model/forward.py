"""The forward pass: run a transformer, with edits, and record what is needed.

Every way to run a model goes through `run`: calling it, tracing it, ablating, replacing, patching,
and the truncated runs of term importance. The parts themselves are in `transformer`.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import HeadId, LogitsRead, MlpRead, Progress, Source, Value, silent
from pathsum.base.options import parse_option
from pathsum.base.shapes import (
    AtSources,
    HeadPattern,
    Pattern,
    PerHead,
    PerKey,
    Scale,
    Stream,
    Tokens,
)
from pathsum.model import transformer
from pathsum.model.edit_plan import EditedReads, Plan, common_batch_size
from pathsum.model.edits import Edit, Hook, TableToLogits
from pathsum.model.folding import bias_in_z, unembed_through
from pathsum.model.node_reads import Cuts, LayerReads, layer_reads
from pathsum.model.recording import LAYER_SCALES, Kept, Recorder, Recording, Run
from pathsum.model.weights import LayerWeights, Weights

LogitPositions: TypeAlias = Int[Tensor, " sequence"] | slice


def run(
    weights: Weights,
    tokens: Tokens,
    edits: Sequence[Edit] = (),
    record: Recording | str = Recording.ALL,
    start: Run | None = None,
    positions: LogitPositions | None = None,
    requires_grad: bool = False,
    from_position: int = 0,
    kept: Kept | None = None,
    progress: Progress = silent,
) -> Run:
    """Run a model on token ids with `edits`, applied after the model's own edits.

    Everything after an edit is recomputed: patterns, normalization scales, MLPs, logits. Batches of
    size 1, of tokens or of edits, are repeated to the largest. `start` is the run of the same
    tokens without `edits`: layers below the first edit are taken from it. Its batch may be smaller
    than that of the tokens, which then repeat it. `positions` computes the logits at one position
    per sequence only, [batch, 1, vocab], or at a slice of all positions. With `requires_grad` the
    run can be differentiated.

    If the edits change nothing before `from_position`, `Recording.LOGITS` takes earlier positions
    from `start` in all layers. With `kept`, only what it lists is recorded. `progress` is called
    before each layer.
    """
    record = parse_option(Recording, record, "record")
    with torch.set_grad_enabled(requires_grad):
        forward = _Pass(weights, tokens, edits, record, start, from_position, kept)
        forward.to_the_last_stream(progress)
        return forward.finish(positions)


def run_logits(
    weights: Weights,
    tokens: Tokens,
    edits: Sequence[Edit] = (),
    start: Run | None = None,
    positions: LogitPositions | None = None,
    from_position: int = 0,
) -> Float[Tensor, "sequence out vocab"]:
    """The logits of a run; nothing else is kept."""
    logits = run(
        weights, tokens, edits, Recording.LOGITS, start, positions, from_position=from_position
    ).logits
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
        from_position: int,
        kept: Kept | None,
    ) -> None:
        self.kept, self.recorded = kept, Recorder(record, kept)
        self.weights, self.config = weights, weights.config
        standing = [edit.on(tokens, weights.W_E) for edit in weights.edits if not edit.in_weights]
        self.edits, self.plan = tuple(edits), Plan.of((*standing, *edits))
        # The run to start from has already made the model's own edits.
        self.first = 0 if start is None else Plan.of(edits).first_layer(self.config.n_layers)
        self.watched, self.borrowed = self.plan.watched, self.plan.borrowed
        self.record, self.start = record, start
        self.batch = common_batch_size(tokens, edits)
        self.tokens = tokens.expand(self.batch, -1)
        self.edited = EditedReads(self.config, self.plan)
        self.cuts = Cuts(weights, self.plan.cut)
        # What heads would have written that a table replaces.
        self.withheld: list[tuple[TableToLogits, Stream, HeadPattern]] = []
        short = start is not None and record is Recording.LOGITS and not standing
        self.suffix = from_position if short and self.plan.only_in(self.first) else 0

    def to_the_last_stream(self, progress: Progress) -> None:
        """Run everything but the unembedding."""
        stream = self._embed() if self.start is None else self._take(self.start, self.first)
        if self.suffix and (self.cuts.any or not self._shares(self.first)):
            self.edited.offset, stream = self.suffix, stream[:, self.suffix :]
        for index in range(self.first, self.config.n_layers):
            progress(index, self.config.n_layers, "running the model")
            stream = self.edited.hooked(Value("residual", index), stream)
            self.recorded.stream(index, stream)
            stream = self._layer(index, self.weights.layers[index], stream)
        stream = self.edited.hooked(Value("residual", self.config.n_layers), stream)
        for _, written, _ in self.withheld:
            stream = stream + written
        self.recorded.stream(self.config.n_layers, stream)
        self.last = stream

    def finish(self, positions: LogitPositions | None) -> Run:
        """The logits, and everything that was recorded."""
        read = self.cuts.read_by_logits(self.edited.as_read(LogitsRead(), self.last))
        plain = read is self.last
        direct = not self.withheld and Value("logits") not in self.plan.hooks
        if self.record is Recording.RESIDUAL and direct:
            logits, final = None, transformer.normalize(self.config, read, None, None)[1]
        else:
            logits, final = self._logits(read, positions)
            logits = self.edited.hooked(Value("logits"), logits)
        transformer.refuse_overflow(logits if logits is not None and len(logits[0]) else self.last)
        # A hook that replaced nothing has edited nothing.
        made = [
            edit for edit in self.edits if not isinstance(edit, Hook) or edit in self.edited.used
        ]
        return Run(
            weights=self.weights,
            tokens=self.tokens,
            recorded_logits=logits,
            patterns=self.recorded.layers("patterns"),
            streams=self.recorded.layers("streams"),
            scales=self.recorded.scales(final),
            mlp_outputs=self.recorded.layers("mlp_outputs"),
            edits=tuple(made),
            edited_z=tuple(self.recorded.edited_z),
            kept=self.kept,
            logits_read=None if plain or self.record is Recording.LOGITS else read,
        )

    # ---- the parts, in the order of the forward pass

    def _embed(self) -> Stream:
        stream, own = transformer.embed(self.weights, self.tokens), self.weights.W_E[self.tokens]
        if torch.is_grad_enabled():
            # The leaf of the graph: weights have no gradient.
            stream = stream.detach().requires_grad_()
        embedded = self._source(Source("embed"), own)
        if Source("embed") in self.watched or self.cuts.any:
            self.edited.written[Source("embed")] = embedded
            self.cuts.source(Source("embed"), embedded)
        return stream if embedded is own else stream + (embedded - own)

    def _source(self, source: Source, written: Stream) -> Stream:
        """The output of a source, after edits."""
        for edit in self.plan.sources.get(source, ()):
            there = None if edit.at is None else edit.at[:, self.edited.offset :, None]
            given = edit.written[:, self.edited.offset :].expand_as(written)
            written = given if there is None else torch.where(there, given, written)
        return self.edited.hooked(Value("written", source), written)

    def _layer(
        self, index: int, layer: LayerWeights, stream: Stream
    ) -> Float[Tensor, "batch last d"]:
        config = self.config
        z = self._heads(index, layer, stream)
        if self.suffix > self.edited.offset:
            self.edited.offset = self.suffix
            stream, z = stream[:, self.edited.offset :], z[:, :, self.edited.offset :]
        added, write_scale = transformer.write(config, layer, z)
        self.recorded.scale(write=write_scale)
        attended = stream + added
        for at, (edit, written, moved_by) in enumerate(self.withheld):
            if edit.head.layer == index:
                written = written * write_scale[..., None]
                self.withheld[at] = (edit, written, moved_by * write_scale[..., None])
                attended = attended - written
        for writer in self.watched:
            if isinstance(writer, HeadId) and writer.layer == index:
                moved = z[:, writer.head] @ layer.W_O[writer.head]
                self.edited.written[writer] = moved * write_scale[..., None]
        self.cuts.wrote(index, z, write_scale)
        if config.mlp == "none":
            return attended
        source = stream if config.block == "parallel" else attended
        output, scale = transformer.mlp(config, layer, self.edited.as_read(MlpRead(index), source))
        output = self._source(Source("mlp", index), output)
        if Source("mlp", index) in self.watched:
            self.edited.written[Source("mlp", index)] = output
        self.cuts.source(Source("mlp", index), output)
        self.recorded.mlp(index, output, scale)
        return attended + output

    def _shares(self, index: int) -> bool:
        """Whether a layer's heads do what they did in the run to start from, but for edits."""
        unchanged = self.start is not None and index == self.first < self.config.n_layers
        kept = self.plan.frozen is None
        return unchanged and kept and not self.plan.changes_the_stream_of(index)

    def _heads(self, index: int, layer: LayerWeights, stream: Stream) -> PerHead:
        """The z of a layer's heads."""
        config, edited, start = self.config, self.plan.heads_of(index), self.start
        reads: LayerReads | None = None
        value = z = None
        if self._shares(index):
            assert start is not None
            there = start.patterns[index], start.z(index)
            pattern, z = (_repeated(one[:, :, self.edited.offset :], self.batch) for one in there)
            scales = start.scales.attention, start.scales.query, start.scales.key
            scale, query_scale, key_scale = (
                _repeated(one[index][..., self.edited.offset :], self.batch) for one in scales
            )
            if self.cuts.any:
                # Copies, in which nodes are replaced.
                pattern, z = pattern.clone(), z.clone()
                reads = layer_reads(config, layer, start.streams[index])
        else:
            read, scale = transformer.attention_read(config, layer, stream)
            places = torch.arange(self.edited.offset, self.tokens.shape[1])
            query, key, query_scale, key_scale = transformer.queries_and_keys(
                config, layer, read, places
            )
            key, value = self._from_the_first(index, layer, key, transformer.values(layer, read))
            reads = stream, query, key, value
            if not (self.recorded.wants_layer(index) or self.plan.needs_patterns(index)):
                self.recorded.scale(attention=scale, query=query_scale, key=key_scale)
                self.recorded.heads(
                    index, lambda heads: transformer.attend_heads(config, layer, query, key, heads)
                )
                z = transformer.fused_attention(config, layer, query, key, value)
                self.recorded.add(self.recorded.edited_z, z if torch.is_grad_enabled() else None)
                return z
            if self.plan.frozen is None:
                pattern = transformer.attend(config, layer, query, key)
            else:
                pattern = _repeated(self.plan.frozen.patterns[index], self.batch)
        self.recorded.scale(attention=scale, query=query_scale, key=key_scale)
        if edited:
            # Copies: autograd needs the originals, and `start` must not be changed.
            pattern = pattern.clone()
            for head in edited:
                pattern[:, head.head] = self.edited.pattern(head, layer, stream, pattern)
        self.edited.lent |= {
            head: pattern[:, head.head] for head in self.borrowed if head.layer == index
        }
        if z is None:
            assert value is not None
            z = transformer.mix(pattern, value)
        if edited:
            z = z.clone()
            for head in edited:
                at = head.head
                z[:, at] = self.edited.z(head, layer, stream, pattern[:, at], z[:, at])
        if self.cuts.any:
            assert reads is not None
            self.cuts.heads(layer, reads, pattern, z)
        if self.recorded.wants_layer(index):
            self.recorded.add(self.recorded.patterns, pattern)
        else:
            # Copies, so that the patterns of the other heads are freed.
            self.recorded.heads(index, lambda heads: pattern[:, list(heads)])
        known = edited or self.cuts.any or torch.is_grad_enabled()
        self.recorded.add(self.recorded.edited_z, z if known else None)
        self._withhold(index, layer, scale, pattern, z)
        return z

    def _from_the_first(
        self, index: int, layer: LayerWeights, key: PerKey, value: PerKey
    ) -> tuple[AtSources, AtSources]:
        """Keys and values from position 0 on; those before the offset are of the other run."""
        if not self.edited.offset:
            return key, value
        assert self.start is not None
        before = self.start.streams[index][:, : self.edited.offset]
        _, _, *first = layer_reads(self.config, layer, before)
        first_key, first_value = (_repeated(tensor, self.batch) for tensor in first)
        return torch.cat((first_key, key), 2), torch.cat((first_value, value), 2)

    def _withhold(
        self, index: int, layer: LayerWeights, scale: Scale, pattern: Pattern, z: PerHead
    ) -> None:
        """Note what heads would write that a table replaces; what their biases write stays."""
        for head, edit in self.plan.tables.items():
            if head.layer == index:
                bias = bias_in_z(layer, head.head, pattern[:, head.head])
                written = (z[:, head.head] - bias) @ layer.W_O[head.head]
                self.withheld.append((edit, written, pattern[:, head.head] * scale[:, None]))

    def _logits(
        self, read: Stream, positions: LogitPositions | None
    ) -> tuple[Float[Tensor, "batch out vocab"], Float[Tensor, "batch read"]]:
        """Logits at some positions or at all, and the scale of that read."""

        def at(rows: Tensor) -> Tensor:
            if self.kept is not None and not self.kept.all_logits:
                return rows[:, list(self.kept.positions)]
            if positions is None:
                return rows
            if isinstance(positions, slice):
                return rows[:, positions]
            here = positions - self.edited.offset
            return rows[torch.arange(self.batch, device=rows.device), here][:, None]

        logits, scale = transformer.unembed_uncapped(self.weights, at(read))
        for edit, written, attended in self.withheld:
            # The write belongs to the stream whose size the final normalization measures, so the
            # scale is that of the whole; its direct effect is the table's instead.
            direct = unembed_through(self.weights, at(written))
            looked_up = edit.look_up(at(attended), logits.shape[-1])
            logits = logits + scale[..., None] * (looked_up - direct)
        logits = transformer.soft_cap(logits, self.config.logit_cap)
        if positions is None and self.edited.offset:
            assert self.start is not None
            assert self.start.logits is not None
            before = _repeated(self.start.logits[:, : self.edited.offset], self.batch)
            logits = torch.cat((before, logits), 1)
        if self.kept is not None:
            # The scale is kept at every position.
            scale = transformer.normalize(self.config, read, None, None)[1]
        return logits, scale

    # ---- what is taken from another run

    def _take(self, start: Run, first: int) -> Stream:
        """Layers below the first edit, as the unedited run had them; the stream above them."""
        mine = self.recorded
        below = 0 if self.record is Recording.LOGITS else first
        for taken, recorded in (
            (mine.streams, start.streams[:below]),
            (mine.patterns, start.patterns[:below]),
            (mine.mlp_outputs, start.mlp_outputs[:below]),
            (mine.edited_z, start.edited_z[:below]),
        ):
            for tensor in recorded:
                mine.add(taken, None if tensor is None else _repeated(tensor, self.batch))
        for name in LAYER_SCALES:
            for scale in getattr(start.scales, name)[:below]:
                mine.scale(**{name: _repeated(scale, self.batch)})
        for head in self.borrowed:
            if head.layer < first:
                patterns = _repeated(start.patterns[head.layer], self.batch)
                self.edited.lent[head] = patterns[:, head.head]
        for writer in self.watched:
            if isinstance(writer, HeadId):
                if writer.layer < first:
                    W_O = self.weights.layers[writer.layer].W_O[writer.head]
                    moved = start.z(writer.layer)[:, writer.head] @ W_O
                    moved = moved * start.scales.write[writer.layer][..., None]
                    self.edited.written[writer] = _repeated(moved, self.batch)
            elif writer.kind == "embed":
                self.edited.written[writer] = self.weights.W_E[self.tokens]
            elif writer.layer < first:
                self.edited.written[writer] = _repeated(start.mlp_outputs[writer.layer], self.batch)
        self.cuts.take(start, first)
        return self._embed() if first == 0 else _repeated(start.streams[first], self.batch)


def _repeated(tensor: Tensor, batch: int) -> Tensor:
    """A batch repeated until it has this size; one sequence is not copied."""
    if tensor.shape[0] in (1, batch):
        return tensor.expand(batch, *tensor.shape[1:])
    return tensor.repeat(batch // tensor.shape[0], *[1] * (tensor.ndim - 1))
