"""The forward pass: run a transformer, apply edits, and record activations.

Every way to run a model goes through `run`: calling it, tracing it, ablating, replacing, patching,
and the truncated runs of term importance. The parts are in `transformer`, the edits in `editor`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.shapes import Stream, Tokens
from pathsum.base.site import Side
from pathsum.model import transformer
from pathsum.model.edit import Edit
from pathsum.model.editor import Editor
from pathsum.model.recording import EVERYTHING, ONLY_LOGITS, Keep, KeyValues, Recorder, Run
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
    slice of all positions. With `requires_grad` the run can be differentiated. `keep` selects the
    recorded activations. With `past`, the tokens continue those that were run with it before: they
    attend to its keys and values, and add their own; functions and edits at positions see the last
    tokens only. `progress` is called before each layer.
    """
    every_edit = (*(edit for edit in weights.edits if edit.value is not None), *edits)
    with torch.set_grad_enabled(requires_grad):
        editor = None
        if every_edit or copies > 1:
            editor = Editor(weights, tokens, every_edit, copies, past)
        recorder = Recorder(keep, weights, tokens)
        if editor is None and past is None and not requires_grad:
            recorder.save_memory()
        forward = _ForwardPass(weights, editor, recorder, past)
        stream = forward.blocks(tokens, progress)
        read = stream if editor is None else editor.logits_read(stream)
        logits = None
        if keep.logits or (editor is not None and editor.edits_logits):
            at = recorder.logit_positions if positions is None else positions
            logits = forward.logits(read, at)
        transformer.check_overflow(logits if logits is not None and len(logits[0]) else stream)
        if editor is None:
            return recorder.run(len(tokens), stream, read, logits)
        return recorder.run(editor.batch, stream, read, logits, editor.effective(edits))


def run_logits(
    weights: Weights,
    tokens: Tokens,
    edits: Sequence[Edit] = (),
    positions: LogitPositions | None = None,
    copies: int = 1,
    past: KeyValues | None = None,
) -> Float[Tensor, "sequence out vocab"]:
    """The logits of a run, without a record of it."""
    logits = run(
        weights, tokens, edits, ONLY_LOGITS, positions, copies=copies, past=past
    ).recorded_logits
    assert logits is not None
    return logits


@dataclass(frozen=True, eq=False)
class _ForwardPass:
    """A run in progress: the model's layers, edited by `editor` and recorded by `recorder`."""

    weights: Weights
    editor: Editor | None
    recorder: Recorder
    past: KeyValues | None

    def blocks(self, tokens: Tokens, progress: Progress) -> Float[Tensor, "copies pos d"]:
        """The embedding and all layers: the stream that the unembedding reads."""
        n_layers, past = self.weights.config.n_layers, self.past
        stream = transformer.embed(self.weights, tokens, 0 if past is None else past.length)
        if torch.is_grad_enabled():
            # The leaf of the graph: weights have no gradient.
            stream = stream.detach().requires_grad_()
        for index in range(n_layers):
            progress(index, n_layers, "running the model")
            stream = self.block(self.weights.layers[index], stream)
        if self.editor is not None:
            stream = self.editor.stream(n_layers, stream)
        self.recorder.add(n_layers, streams=stream)
        if past is not None:
            past.length += tokens.shape[1]
        return stream

    def block(self, layer: LayerWeights, stream: Stream) -> Float[Tensor, "copies pos d"]:
        """The stream after a layer: heads, then the MLP if there is one."""
        config, editor, index = self.weights.config, self.editor, layer.index
        if editor is not None:
            stream = editor.stream(index, stream)
        z = self.attention(layer, stream)
        heads, write_scale = transformer.write(config, layer, z)
        attended = stream + heads
        if editor is not None:
            attended = editor.head_outputs(layer, attended, z, write_scale)
        self.recorder.add(index, streams=stream, write=write_scale)
        if config.mlp == "none":
            return attended
        read = stream if config.block == "parallel" else attended
        if editor is None:
            output, mlp_scale = transformer.mlp(config, layer, read)
        else:
            output, mlp_scale = editor.mlp(layer, read)
        self.recorder.add(index, mlp_outputs=output, mlp=mlp_scale)
        return attended + output

    def attention(self, layer: LayerWeights, stream: Stream) -> Float[Tensor, "copies head pos k"]:
        """z of a layer's heads: values moved by the pattern, before W_O."""
        config, editor, recorder, past = self.weights.config, self.editor, self.recorder, self.past
        index, first = layer.index, 0 if past is None else past.length
        read, scale = transformer.attention_read(config, layer, stream)
        positions = torch.arange(first, first + read.shape[1])
        query, key, *qk_scales = transformer.queries_and_keys(config, layer, read, positions)
        value = transformer.values(layer, read)
        if past is not None:
            key, value = past.append((index, Side.K), key), past.append((index, Side.V), value)
        if recorder.needs_patterns(index) or (editor is not None and editor.needs_patterns(index)):
            pattern = transformer.attend(config, layer, query, key)
            z = transformer.mix(pattern, value)
        else:
            pattern, z = None, transformer.fused_attention(config, layer, query, key, value)
        computed = z
        if editor is not None:
            pattern, z = editor.attention(layer, stream, query, key, value, pattern, z)
        recorder.add(index, attention=scale, query=qk_scales[0], key=qk_scales[1])
        recorder.add_patterns(layer, pattern, query, key)
        if z is not computed or torch.is_grad_enabled():
            recorder.add_z(index, z)
        return z

    def logits(
        self, read: Stream, positions: LogitPositions | None
    ) -> Float[Tensor, "copies out vocab"]:
        """Logits at some positions or at all of them."""

        def at(rows: Tensor) -> Tensor:
            if positions is None:
                return rows
            if isinstance(positions, Tensor):
                return rows[torch.arange(len(rows), device=rows.device), positions][:, None]
            return rows[:, positions if isinstance(positions, slice) else list(positions)]

        if self.editor is None or not self.editor.edits_logits:
            return transformer.unembed(self.weights, at(read))[0]
        # Hooks on the logits are called with the logits at all positions.
        return at(self.editor.logits(read))
