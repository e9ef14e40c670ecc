"""The forward pass: run a transformer, apply edits, and record activations.

Every way to run a model goes through `run`: calling it, tracing it, ablating, replacing, patching,
and the truncated runs of term importance. The parts are in `transformer`, the edits in `editor`.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.shapes import AtSources, Pattern, PerHead, Stream, Tokens
from pathsum.base.site import LOGITS, Side, Site
from pathsum.model import transformer
from pathsum.model.config import Config
from pathsum.model.edit import Edit
from pathsum.model.editor import Editor
from pathsum.model.recording import EVERYTHING, ONLY_LOGITS, Keep, KeyValues, Recorder, Run
from pathsum.model.weights import LayerWeights, Weights

# The input of the unembedding, and the logits before and after a soft cap.
LOGITS_READ, UNCAPPED, CAPPED = Site(None, LOGITS), Site(LOGITS, value="pre"), Site(LOGITS)

LogitPositions: TypeAlias = Int[Tensor, " sequence"] | slice | tuple[int, ...]


def run(
    weights: Weights,
    tokens: Tokens,
    edits: Sequence[Edit] = (),
    keep: Keep = EVERYTHING,
    positions: LogitPositions | None = None,
    requires_grad: bool = False,
    copies: int = 1,
    past: KeyValues | None = None,
    progress: Progress = silent,
) -> Run:
    """Run a model on token ids with `edits`, applied after the model's own edits.

    Everything after an edit is recomputed: patterns, normalization scales, MLPs, logits. Batches of
    size 1, of tokens or of edits, are repeated to the largest. With `copies` the tokens are run
    that many times in one batch, so that each copy can have its own edits (`Edit.sequence`); copies
    share all layers below the first edit in which they differ.

    `positions` computes the logits at one position per sequence only, [batch, 1, vocab], or at a
    slice of all positions. With `requires_grad` the run can be differentiated. What `keep` lists
    is recorded. With `past`, the tokens continue those that were run with it before:
    they attend to its keys and values, and theirs are added; functions and edits at positions see
    the last tokens only. `progress` is called before each layer.
    """
    every = (*(edit for edit in weights.edits if edit.value is not None), *edits)
    is_edited = bool(every) or copies > 1
    with torch.set_grad_enabled(requires_grad):
        editor: Editor | _Unedited = _Unedited(weights.config)
        if is_edited:
            editor = Editor(weights, tokens, every, copies, past)
        recorder = Recorder(keep, weights, tokens)
        if not (is_edited or requires_grad or past is not None):
            recorder.save_memory()
        last = _residual_stream(weights, tokens, editor, recorder, past, progress)
        read, logits = editor.as_read(LOGITS_READ, last), None
        if keep.logits or editor.edits_logits:
            at = recorder.logit_positions if positions is None else positions
            logits = _logits(weights, read, editor, at)
        transformer.refuse_overflow(logits if logits is not None and len(logits[0]) else last)
        recorder.widen(editor.widen)
        return recorder.run(editor.widen(tokens), last, read, logits, editor.made(edits))


def run_logits(
    weights: Weights,
    tokens: Tokens,
    edits: Sequence[Edit] = (),
    positions: LogitPositions | None = None,
    copies: int = 1,
    past: KeyValues | None = None,
) -> Float[Tensor, "sequence out vocab"]:
    """The logits of a run, without a record of it."""
    ran = run(weights, tokens, edits, ONLY_LOGITS, positions, copies=copies, past=past)
    assert ran.recorded_logits is not None
    return ran.recorded_logits


class _Unedited:
    """In place of an `Editor` where nothing is edited: each point of the run has its own value."""

    edits_logits = False

    def __init__(self, config: Config) -> None:
        self.config = config

    def widen(self, tensor: Tensor) -> Tensor:
        return tensor

    def enter(self, _layer: int, stream: Stream) -> Stream:
        return stream

    def needs_patterns(self, _layer: int) -> bool:
        return False

    def attention(
        self,
        _layer: LayerWeights,
        _stream: Stream,
        _query: PerHead,
        _key: AtSources,
        _value: AtSources,
        pattern: Pattern | None,
        z: PerHead,
    ) -> tuple[Pattern | None, PerHead]:
        return pattern, z

    def heads_written(
        self, _layer: LayerWeights, stream: Stream, _z: PerHead, added: Stream, _scale: Tensor
    ) -> Stream:
        return stream + added

    def mlp(self, layer: LayerWeights, read: Stream) -> tuple[Stream, Tensor]:
        return transformer.mlp(self.config, layer, read)

    def as_read(self, _read: Site, stream: Stream) -> Stream:
        return stream

    def replaced(self, _site: Site, tensor: Tensor) -> Tensor:
        return tensor

    def made(self, _edits: Sequence[Edit]) -> tuple[Edit, ...]:
        return ()


def _residual_stream(
    weights: Weights,
    tokens: Tokens,
    editor: "Editor | _Unedited",
    recorder: Recorder,
    past: KeyValues | None,
    progress: Progress,
) -> Float[Tensor, "copies pos d"]:
    """Everything but the unembedding: the stream after the last layer."""
    config = weights.config
    stream = transformer.embed(weights, tokens, 0 if past is None else past.length)
    if torch.is_grad_enabled():
        # The leaf of the graph: weights have no gradient.
        stream = stream.detach().requires_grad_()
    for index in range(config.n_layers):
        progress(index, config.n_layers, "running the model")
        layer = weights.layers[index]
        stream = editor.enter(index, stream)
        recorder.add(index, streams=stream)
        z = _attend(weights, layer, stream, editor, recorder, past)
        added, scale = transformer.write(config, layer, z)
        recorder.add(index, write=scale)
        attended = editor.heads_written(layer, stream, z, added, scale)
        if config.mlp == "none":
            stream = attended
            continue
        read = stream if config.block == "parallel" else attended
        output, scale = editor.mlp(layer, read)
        recorder.add(index, mlp_outputs=output, mlp=scale)
        stream = attended + output
    stream = editor.enter(config.n_layers, stream)
    recorder.add(config.n_layers, streams=stream)
    if past is not None:
        past.length += tokens.shape[1]
    return stream


def _attend(
    weights: Weights,
    layer: LayerWeights,
    stream: Stream,
    editor: "Editor | _Unedited",
    recorder: Recorder,
    past: KeyValues | None,
) -> Float[Tensor, "copies head pos k"]:
    """z of a layer's heads."""
    config, index = weights.config, layer.index
    read, scale = transformer.attention_read(config, layer, stream)
    places = None if past is None else torch.arange(past.length, past.length + read.shape[1])
    query, key, query_scale, key_scale = transformer.queries_and_keys(config, layer, read, places)
    value = transformer.values(layer, read)
    if past is not None:
        key, value = past.extended((index, Side.K), key), past.extended((index, Side.V), value)
    recorder.add(index, attention=scale, query=query_scale, key=key_scale)
    if recorder.wants_patterns(index) or editor.needs_patterns(index):
        pattern = transformer.attend(config, layer, query, key)
        z = transformer.mix(pattern, value)
    else:
        pattern, z = None, transformer.fused_attention(config, layer, query, key, value)
    plain = z
    pattern, z = editor.attention(layer, stream, query, key, value, pattern, z)
    if pattern is not None:
        recorder.add(index, patterns=pattern)
    if heads := recorder.heads(index):
        if pattern is None:
            some = transformer.attend_heads(config, layer, query, key, heads)
        else:  # a copy, so that the patterns of the other heads are freed
            some = pattern[:, heads]
        recorder.add_heads(index, heads, some)
    if z is not plain or torch.is_grad_enabled():
        recorder.add_z(index, z)
    return z


def _logits(
    weights: Weights,
    read: Stream,
    editor: "Editor | _Unedited",
    positions: LogitPositions | None,
) -> Float[Tensor, "copies out vocab"]:
    """Logits at some positions or at all of them."""

    def at(rows: Tensor) -> Tensor:
        if positions is None:
            return rows
        if not isinstance(positions, Tensor):
            return rows[:, positions if isinstance(positions, slice) else list(positions)]
        return rows[torch.arange(len(rows), device=rows.device), positions][:, None]

    # A function of the logits is called with the logits at all positions.
    logits, _ = transformer.unembed_uncapped(weights, read if editor.edits_logits else at(read))
    logits = editor.replaced(UNCAPPED, logits)
    logits = transformer.soft_cap(logits, weights.config.logit_cap)
    logits = editor.replaced(CAPPED, logits)
    return at(logits) if editor.edits_logits else logits
