"""The forward pass: run a transformer, apply edits, and record activations.

Every way to run a model goes through `run`: calling it, tracing it, ablating, replacing, patching,
and the truncated runs of term importance. The parts are in `transformer`, the edits in `editor`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Progress, Source, silent
from pathsum.base.shapes import Stream, Tokens
from pathsum.base.site import LOGITS, Side, Site
from pathsum.model import recording, transformer
from pathsum.model.edit import Edit
from pathsum.model.editor import Editor
from pathsum.model.recording import (
    EVERYTHING,
    ONLY_LOGITS,
    ComputedPatterns,
    Keep,
    KeyValues,
    Recorder,
    Run,
    SomeLayers,
)
from pathsum.model.weights import LayerWeights, Weights

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
    with torch.set_grad_enabled(requires_grad):
        editor = Editor(weights, tokens, every, copies, past) if every or copies > 1 else None
        compute = editor is None and past is None and not requires_grad
        compute = compute and _computes_patterns(weights, tokens, keep)
        kept = replace(keep, patterns=()) if compute else keep
        recorder = Recorder(kept, weights.config, tokens.shape[1])
        some = recorder.positions if 0 < len(recorder.positions) < tokens.shape[1] else None
        last = _residual_stream(weights, tokens, editor, recorder, past, progress)
        read = last if editor is None else editor.as_read(Site(None, LOGITS), last)
        final = transformer.normalize(weights.config, read, None, None)[1]
        wanted = bool(keep.logits) or (editor is not None and editor.edits_logits)
        at = some if positions is None else positions
        logits = _logits(weights, read, editor, at) if wanted else None
        transformer.refuse_overflow(logits if logits is not None and len(logits[0]) else last)
        if editor is not None:
            recorder.widen(editor.widen)
            tokens = editor.widen(tokens)
        n_layers = weights.config.n_layers
        streams = recorder.layers("streams", n_layers + 1)
        patterns = recorder.layers("patterns", n_layers)
        if compute:
            patterns = SomeLayers("patterns", n_layers, ComputedPatterns(weights, streams))
        n_mlps = n_layers if weights.config.mlp != "none" else 0
        return Run(
            weights=weights,
            tokens=tokens,
            recorded_logits=logits,
            patterns=patterns,
            streams=streams,
            scales=recorder.scales(final),
            mlp_outputs=recorder.layers("mlp_outputs", n_mlps),
            edits=() if editor is None else editor.made(edits),
            edited_z=recorder.edited_z(n_layers),
            logit_positions=some,
            logits_read=None if read is last else read,
        )


def _computes_patterns(weights: Weights, tokens: Tokens, keep: Keep) -> bool:
    """Whether the patterns of all layers are too large to be kept (`PATTERN_BYTES`)."""
    heads = weights.config.n_layers * weights.config.n_heads
    size = heads * tokens.numel() * tokens.shape[1] * weights.W_E.element_size()
    return keep.patterns == keep.streams == "all" and size > recording.PATTERN_BYTES


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
    logits = ran.logits
    assert logits is not None
    return logits


def _residual_stream(
    weights: Weights,
    tokens: Tokens,
    editor: Editor | None,
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
    if editor is not None:
        stream = editor.embedding(stream)
    for index in range(config.n_layers):
        progress(index, config.n_layers, "running the model")
        layer = weights.layers[index]
        if editor is not None:
            stream = editor.enter(index, stream)
        recorder.add(index, streams=stream)
        z = _attend(weights, layer, stream, editor, recorder, past)
        added, scale = transformer.write(config, layer, z)
        recorder.add(index, write=scale)
        if editor is None:
            attended = stream + added
        else:
            attended = editor.heads_written(layer, stream, z, added, scale)
        if config.mlp == "none":
            stream = attended
            continue
        read = stream if config.block == "parallel" else attended
        if editor is None:
            output, scale = transformer.mlp(config, layer, read)
        else:
            output, scale = editor.mlp(layer, read)
            output = editor.source(Source("mlp", index), output)
        recorder.add(index, mlp_outputs=output, mlp=scale)
        stream = attended + output
    if editor is not None:
        stream = editor.enter(config.n_layers, stream)
    recorder.add(config.n_layers, streams=stream)
    if past is not None:
        past.length += tokens.shape[1]
    return stream


def _attend(
    weights: Weights,
    layer: LayerWeights,
    stream: Stream,
    editor: Editor | None,
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
    heads = recorder.heads(index)
    if recorder.wants_patterns(index) or (editor is not None and editor.needs_patterns(index)):
        pattern = transformer.attend(config, layer, query, key)
        z = transformer.mix(pattern, value)
    else:
        pattern, z = None, transformer.fused_attention(config, layer, query, key, value)
    plain = z
    if editor is not None:
        pattern, z = editor.attention(layer, stream, query, key, value, pattern, z)
    if pattern is not None:
        recorder.add(index, patterns=pattern)
    if heads and pattern is None:
        recorder.add_heads(index, heads, transformer.attend_heads(config, layer, query, key, heads))
    elif heads and pattern is not None:
        # A copy, so that the patterns of the other heads are freed.
        recorder.add_heads(index, heads, pattern[:, heads])
    if z is not plain or torch.is_grad_enabled():
        recorder.add_z(index, z)
    return z


def _logits(
    weights: Weights,
    read: Stream,
    editor: Editor | None,
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
    edited = editor is not None and editor.edits_logits
    logits, _ = transformer.unembed_uncapped(weights, read if edited else at(read))
    if editor is not None:
        logits = editor.replaced(Site(LOGITS, value="pre"), logits)
    logits = transformer.soft_cap(logits, weights.config.logit_cap)
    if editor is not None:
        logits = editor.replaced(Site(LOGITS), logits)
    return at(logits) if edited else logits
