"""A run with parts exchanged: the transformer's own parts, in its own order, and a list of edits.

Everything after an edit is recomputed: patterns, normalization scales, MLPs, logits. Ablation,
replacement and patching are lists of edits; this is the one place that carries them out.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model import (
    Config,
    LayerWeights,
    Model,
    NormScales,
    Trace,
    transformer,
)
from pathsum.model.reads import fold_bias, folded_unembedding
from pathsum.names import HeadId, HeadRead, LogitsRead, MlpRead, Reader, Side, Source, Writer
from pathsum.paths.intervene.edited import EditedTrace
from pathsum.paths.intervene.edits import (
    Attend,
    Edit,
    FreezePatterns,
    HeadOutput,
    KeepPart,
    Message,
    SourceOutput,
    TableToLogits,
)
from pathsum.paths.intervene.plan import Plan
from pathsum.paths.terms.truncation import ResidualTrace
from pathsum.shapes import HeadPattern, Logits, Pattern, PerHead, Scale, Stream, Tokens


@torch.no_grad()
def run_edited(
    model: Model, tokens: Tokens, edits: Sequence[Edit], start: Trace | None = None
) -> EditedTrace:
    """Run a model with parts exchanged, and record.

    Batches of size 1, of tokens or of edits, are repeated as often as the largest asks. With
    `start`, the unedited run of the same tokens, what lies below the first edit is taken from it.
    """
    run = _Run(model, tokens, edits, start)
    run.to_the_last_stream()
    return run.trace()


@torch.no_grad()
def edited_logits(
    model: Model,
    tokens: Tokens,
    edits: Sequence[Edit],
    start: Trace | None,
    positions: Int[Tensor, " batch"],
) -> Float[Tensor, "batch 1 vocab"]:
    """The logits of an edited run at one position of each sequence, [batch, 1, vocab].

    Without the cost of the unembedding at all the others.
    """
    run = _Run(model, tokens, edits, start)
    run.to_the_last_stream()
    return run.logits(positions)[0]


@torch.no_grad()
def residual_trace(model: Model, tokens: Tokens) -> ResidualTrace:
    """The unedited run, without its logits."""
    run = _Run(model, tokens, (), None)
    run.to_the_last_stream()
    return ResidualTrace(
        model=model,
        tokens=tokens,
        patterns=tuple(run.patterns),
        streams=tuple(run.streams),
        scales=run.scales(transformer.normalize(model.config, run.streams[-1], None, None)[1]),
        mlp_outputs=tuple(run.mlp_outputs),
    )


class _Run:
    """A run in progress."""

    def __init__(
        self, model: Model, tokens: Tokens, edits: Sequence[Edit], start: Trace | None
    ) -> None:
        self.model = model
        self.config: Config = model.config
        self.edits = tuple(edits)
        self.plan = Plan.of(edits)
        self.watched = self.plan.watched
        self.start = start
        self.batch = _batch_size(tokens, edits)
        self.tokens = tokens.expand(self.batch, -1)
        self.written: dict[Writer, Stream] = {}
        self.withheld: list[tuple[TableToLogits, Stream, HeadPattern]] = []
        self.patterns: list[Pattern] = []
        self.moved: list[PerHead] = []
        self.streams: list[Stream] = []
        self.mlp_outputs: list[Stream] = []
        self.attention_scales: list[Scale] = []
        self.mlp_scales: list[Scale] = []
        self.query_scales: list[Tensor] = []
        self.key_scales: list[Tensor] = []

    def to_the_last_stream(self) -> None:
        """Everything but the unembedding."""
        first = 0 if self.start is None else self.plan.first_layer(self.config.n_layers)
        if self.start is None:
            self.streams.append(self._embed())
        else:
            self._take(self.start, first)
        for index in range(first, self.config.n_layers):
            self._layer(index, self.model.weights.layers[index])

    def logits(self, positions: Int[Tensor, " batch"] | None = None) -> tuple[Logits, Scale]:
        """Logits, at one position of each sequence or at all, and the scale of that read."""
        weights = self.model.weights

        def at(rows: Tensor) -> Tensor:
            if positions is None:
                return rows
            return rows[torch.arange(self.batch, device=rows.device), positions][:, None]

        stream = at(self._as_read(LogitsRead(), self._last_stream()))
        logits, scale = transformer.unembed(weights, stream)
        for edit, written, pattern in self.withheld:
            # The write belongs to the stream whose size the final normalization measures, so the
            # scale is the one of the whole; its direct effect is the table's instead.
            direct = at(written) @ folded_unembedding(weights)[0]
            attended = at(pattern * self.attention_scales[edit.head.layer][:, None])
            logits = logits + scale[..., None] * (_look_up(edit, attended, logits) - direct)
        return logits, scale

    def trace(self) -> EditedTrace:
        """What was recorded."""
        logits, final = self.logits()
        return EditedTrace(
            model=self.model,
            tokens=self.tokens,
            logits=logits,
            patterns=tuple(self.patterns),
            streams=(*self.streams[:-1], self._last_stream()),
            scales=self.scales(final),
            mlp_outputs=tuple(self.mlp_outputs),
            edits=self.edits,
            moved=tuple(self.moved),
        )

    def scales(self, final: Scale) -> NormScales:
        """The recorded scales, with that of the final read."""
        return NormScales(
            attention=tuple(self.attention_scales),
            mlp=tuple(self.mlp_scales),
            final=final,
            query=tuple(self.query_scales),
            key=tuple(self.key_scales),
        )

    # --- the parts, in the order of the forward pass

    def _embed(self) -> Stream:
        stream = transformer.embed(self.model.weights, self.tokens)
        embedded = self.model.weights.W_E[self.tokens]
        given = self.plan.sources.get(Source("embed"))
        if given is not None:
            stream, embedded = stream + (given.written - embedded), given.written
        self._watch(Source("embed"), embedded)
        return stream

    def _layer(self, index: int, layer: LayerWeights) -> None:
        config, stream = self.config, self.streams[index]
        pattern, mixed = self._heads(index, layer, stream)
        attended = stream + transformer.write(layer, mixed)
        attended = attended - self._withhold(index, layer, pattern, mixed)
        for at in range(config.n_heads):
            if HeadId(index, at) in self.watched:
                self._watch(HeadId(index, at), mixed[:, at] @ layer.W_O[at])
        self.patterns.append(pattern)
        self.moved.append(mixed)
        if config.mlp != "none":
            source = stream if config.block == "parallel" else attended
            output, scale = transformer.mlp(config, layer, self._as_read(MlpRead(index), source))
            given = self.plan.sources.get(Source("mlp", index))
            output = output if given is None else given.written.expand_as(output)
            self._watch(Source("mlp", index), output)
            attended = attended + output
            self.mlp_outputs.append(output)
            self.mlp_scales.append(scale)
        self.streams.append(attended)

    def _heads(self, index: int, layer: LayerWeights, stream: Stream) -> tuple[Pattern, PerHead]:
        config, frozen = self.config, self.plan.frozen
        read, scale = transformer.attention_read(config, layer, stream)
        query, key, query_scale, key_scale = transformer.queries_and_keys(config, layer, read)
        if frozen is None:
            pattern = transformer.attend(config, query, key)
        else:
            pattern = _repeated(frozen.patterns[index], self.batch).clone()
        mixed = transformer.mix(config, pattern, transformer.values(layer, read))
        for head in self.plan.heads_of(index):
            at = head.head
            pattern[:, at], mixed[:, at] = self._head(head, layer, stream, pattern[:, at])
        self.attention_scales.append(scale)
        self.query_scales.append(query_scale)
        self.key_scales.append(key_scale)
        return pattern, mixed

    def _head(
        self, head: HeadId, layer: LayerWeights, stream: Stream, pattern: HeadPattern
    ) -> tuple[HeadPattern, Tensor]:
        """One edited head: its pattern, and what it moves."""
        config, alone = _alone(self.config, layer, head.head)

        def read(side: Side) -> Stream:
            seen = self._as_read(HeadRead(head, side), stream)
            return transformer.attention_read(config, alone, seen)[0]

        told = {HeadRead(head, Side.Q), HeadRead(head, Side.K)} & self.plan.messages.keys()
        given = self.plan.attend.get(head)
        if given is not None:
            pattern = given.pattern.expand_as(pattern)
        elif told and self.plan.frozen is None:
            query = transformer.queries_and_keys(config, alone, read(Side.Q))[0]
            key = transformer.queries_and_keys(config, alone, read(Side.K))[1]
            pattern = transformer.attend(config, query, key)[:, 0]
        output = self.plan.output.get(head)
        if output is not None:
            return pattern, output.mixed
        mixed = transformer.mix(config, pattern[:, None], transformer.values(alone, read(Side.V)))
        keep = self.plan.keep.get(head)
        if keep is None:
            return pattern, mixed[:, 0]
        bias = fold_bias(alone.W_V, alone.ln1_b, alone.b_V)
        return pattern, (mixed[:, 0] - bias) @ keep.matrix + bias

    def _withhold(
        self, index: int, layer: LayerWeights, pattern: Pattern, mixed: PerHead
    ) -> Stream | float:
        """What heads would write that a table replaces; what their biases write stays."""
        total: Stream | float = 0.0
        for head, edit in self.plan.tables.items():
            if head.layer != index:
                continue
            _, alone = _alone(self.config, layer, head.head)
            bias = fold_bias(alone.W_V, alone.ln1_b, alone.b_V)
            written = (mixed[:, head.head] - bias) @ layer.W_O[head.head]
            self.withheld.append((edit, written, pattern[:, head.head]))
            total = total + written
        return total

    def _last_stream(self) -> Stream:
        stream = self.streams[-1]
        for _, written, _ in self.withheld:
            stream = stream + written
        return stream

    # --- messages

    def _as_read(self, reader: Reader, stream: Stream) -> Stream:
        """The stream as one reader sees it: with messages in place of what was written."""
        for message in self.plan.messages.get(reader, ()):
            stream = stream + (message.written - self.written[message.edge.writer])
        return stream

    def _watch(self, writer: Writer, written: Stream) -> None:
        if writer in self.watched:
            self.written[writer] = written

    def _take(self, start: Trace, first: int) -> None:
        """Layers below the first edit, as the unedited run had them."""
        parts = (
            (self.streams, start.streams[: first + 1]),
            (self.patterns, start.patterns[:first]),
            (self.mlp_outputs, start.mlp_outputs[:first]),
            (self.attention_scales, start.scales.attention[:first]),
            (self.mlp_scales, start.scales.mlp[:first]),
            (self.query_scales, start.scales.query[:first]),
            (self.key_scales, start.scales.key[:first]),
        )
        for mine, recorded in parts:
            mine.extend(_repeated(tensor, self.batch) for tensor in recorded)
        self.moved.extend(_repeated(start.mixed(layer), self.batch) for layer in range(first))
        if first == 0:
            self.streams[0] = self._embed()
        for writer in self.watched:
            if isinstance(writer, HeadId):
                if writer.layer < first:
                    self.written[writer] = start.written(writer)
            elif writer.kind == "embed":
                self.written[writer] = self.model.weights.W_E[self.tokens]
            elif writer.layer < first:
                self.written[writer] = start.mlp_outputs[writer.layer]


def _alone(config: Config, layer: LayerWeights, head: int) -> tuple[Config, LayerWeights]:
    """A layer of one head, with the key/value head that it uses: it runs like any other layer."""
    kv = head // config.heads_per_kv

    def pick(tensor: Tensor | None, at: int) -> Tensor | None:
        return None if tensor is None else tensor[at : at + 1]

    single = replace(
        layer,
        W_Q=layer.W_Q[head : head + 1],
        W_K=layer.W_K[kv : kv + 1],
        W_V=layer.W_V[kv : kv + 1],
        W_O=layer.W_O[head : head + 1],
        b_Q=pick(layer.b_Q, head),
        b_K=pick(layer.b_K, kv),
        b_V=pick(layer.b_V, kv),
    )
    return config.replace(n_heads=1, n_kv_heads=1), single


def _look_up(edit: TableToLogits, attended: HeadPattern, like: Logits) -> Logits:
    """Σ_src attended[dest, src] · table[token at src], [batch, dest, vocab]."""
    count, n = edit.raised.shape
    places = torch.arange(count, device=edit.raised.device).repeat_interleave(n)
    # Transposed: a sparse matrix multiplies from the left.
    table = torch.sparse_coo_tensor(
        torch.stack((edit.raised.reshape(-1), places)),
        edit.values.reshape(-1),
        size=(like.shape[-1], count),
        check_invariants=True,
    )
    batch, dest, _ = attended.shape
    by_row = attended.new_zeros(batch, dest, count)
    rows = edit.rows[:, None, :].expand_as(attended)
    by_row.scatter_add_(-1, rows, attended)
    raised = torch.sparse.mm(table, by_row.reshape(batch * dest, count).T.contiguous())
    return raised.T.reshape(batch, dest, -1)


def _repeated(tensor: Tensor, batch: int) -> Tensor:
    return tensor.expand(batch, *tensor.shape[1:])


def _batch_size(tokens: Tokens, edits: Sequence[Edit]) -> int:
    sizes = {tokens.shape[0]}
    for edit in edits:
        match edit:
            case Attend():
                sizes.add(edit.pattern.shape[0])
            case HeadOutput():
                sizes.add(edit.mixed.shape[0])
            case FreezePatterns():
                sizes |= {pattern.shape[0] for pattern in edit.patterns}
            case SourceOutput() | Message():
                sizes.add(edit.written.shape[0])
            case KeepPart() | TableToLogits():
                pass
    several = sorted(sizes - {1})
    if len(several) > 1:
        raise InputError(
            f"runs of {several[0]} and of {several[1]} sequences do not fit together; "
            "batches of one size, or of one sequence, would be right"
        )
    return several[0] if several else 1
