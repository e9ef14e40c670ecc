"""Trace: the record of one run of a model, from which everything about the run is derived."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import HeadId, HeadName, Progress, Side, Source, parse_writer, silent
from pathsum.base.errors import InputError, NotExactError, PathError
from pathsum.base.options import checked_methods, parse_position
from pathsum.base.sentence import shorten
from pathsum.base.shapes import HeadPattern, Logits, Pattern, Stream, Tokens
from pathsum.base.site import Site, SiteName
from pathsum.model import transformer
from pathsum.model.edit import Edit
from pathsum.model.forward import run
from pathsum.model.gating import neuron_values
from pathsum.model.recording import EVERYTHING, LAYER_SCALES, Keep, NormScales, PartialLayers, Run
from pathsum.model.sites import check_neuron, check_neuron_value, named_value

if TYPE_CHECKING:
    from pathsum.model.model import Model
    from pathsum.paths import PathSum, ScoreSum
    from pathsum.paths.graph import Graph
    from pathsum.paths.lens import Lens
    from pathsum.paths.path_sum import Mlps
    from pathsum.paths.target import PositionName, TokenName, Versus

# Chunk size for logits computed a few positions at a time: 16 MB in float32.
LOGITS_AT_ONCE = 4_000_000
# A notebook shows the patterns of models with at most this many heads.
MAX_HEADS_DRAWN = 64


@checked_methods
@dataclass(frozen=True, eq=False)
class Trace(Run):
    """The record of one run, returned by `model.trace(text)`.

    `streams[l]` is the residual stream before layer l, and `streams[n_layers]` is the input of the
    unembedding. Reads, z and head outputs are computed from these on demand.

    If the run has `edits`, methods whose results would be invalid raise NotExactError. `scales`
    holds the normalization scales of unedited reads; the scale of an edited read is not recorded.

    Sequences of different lengths are padded on the right; `lengths` holds their token counts.

    Example:
        >>> import pathsum as ps
        >>> trace = ps.load("hand-built-induction").trace("a b c a")
        >>> int(trace["L1H0.pattern"][0, -1].argmax())  # the position of b, which followed a
        2
    """

    model: "Model"
    lengths: Int[Tensor, " batch"]

    @property
    def logits(self) -> Logits:
        """The logits at every position, [batch, pos, vocab].

        If the run did not record them, every call computes them again; `logits_at` and
        `logits_in_parts` are cheaper.
        """
        if self.recorded_logits is None:
            return self._capped(self._unembedded(self.unembedding_input))
        if self.logit_positions is not None:
            raise InputError(
                f"logits were kept at positions {list(self.logit_positions)} of "
                f"{self.tokens.shape[1]} only; use trace.logits_at(position), or trace with "
                "keep=ps.Keep(logits='all', …)"
            )
        return self.recorded_logits

    def logits_at(self, position: int | Int[Tensor, " batch"]) -> Float[Tensor, "batch vocab"]:
        """The logits at one position (negative: from the end) or at one position per sequence."""
        if self.recorded_logits is None:
            return self._capped(self.uncapped_logits_at(position))
        if isinstance(position, Tensor):
            return self._rows(self.logits, position)
        position = parse_position(position, self.tokens.shape[1], of="the text")
        if self.logit_positions is None:
            return self.recorded_logits[:, position]
        if position not in self.logit_positions:
            raise InputError(
                f"the logits at position {position} were not kept (kept: "
                f"{list(self.logit_positions)}); trace again with "
                f"keep=ps.Keep(logits=[{position}], …), or without keep"
            )
        return self.recorded_logits[:, self.logit_positions.index(position)]

    def logits_in_parts(self) -> Iterator[tuple[slice, Float[Tensor, "batch part vocab"]]]:
        """Iterate over chunks of positions with their logits, in bounded memory."""
        length, recorded = self.tokens.shape[1], self.recorded_logits
        whole = self.unembedding_input if recorded is None else self.logits
        step = max(1, LOGITS_AT_ONCE // (whole.shape[0] * self.weights.config.d_vocab_out or 1))
        for begin in range(0, length, step):
            at = slice(begin, min(begin + step, length))
            part = whole[:, at]
            yield at, part if recorded is not None else self._capped(self._unembedded(part))

    def prefix(self, sequence: int, length: int) -> "Trace":
        """The unedited run of one sequence's first tokens.

        If attention is causal, the run is sliced from this one. The model runs again if it attends
        to later tokens, or if edits or `keep` make slicing impossible.
        """
        rows = slice(sequence, sequence + 1)
        tokens = self.tokens[rows, :length]
        cuts_sources = not self.weights.config.causal and length < self.tokens.shape[1]
        if self.every_edit or not self.records_all or cuts_sources:
            return self.model.trace(tokens)

        logits = self.recorded_logits
        scales = {
            name: tuple(scale[rows, ..., :length] for scale in getattr(self.scales, name))
            for name in LAYER_SCALES
        }
        return replace(
            self,
            tokens=tokens,
            lengths=self.lengths[rows].clamp(max=length),
            recorded_logits=None if logits is None else logits[rows, :length],
            patterns=tuple(pattern[rows, :, :length, :length] for pattern in self.patterns),
            streams=tuple(stream[rows, :length] for stream in self.streams),
            mlp_outputs=tuple(output[rows, :length] for output in self.mlp_outputs),
            scales=NormScales(final=self.scales.final[rows, :length], **scales),
        )

    @property
    def records_all(self) -> bool:
        """Whether the record has every layer, and the logits at every position or at none."""
        parts = (self.patterns, self.streams, self.mlp_outputs)
        return self.logit_positions is None and all(isinstance(layers, tuple) for layers in parts)

    def read(self, layer: int) -> Stream:
        """The input of a layer's heads: the stream before it, normalized."""
        layer = self.weights.layers.number(layer)
        tensors = self.weights.layers[layer]
        return transformer.attention_read(self.weights.config, tensors, self.streams[layer])[0]

    @property
    def uncapped_logits(self) -> Logits:
        """The logits before any soft cap; these are exact sums over paths."""
        if self.weights.config.logit_cap is None:
            return self.logits
        return self._unembedded(self.unembedding_input)

    def uncapped_logits_at(
        self, position: int | Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch vocab"]:
        """`logits_at`, before the model's soft cap."""
        if self.weights.config.logit_cap is None and self.recorded_logits is not None:
            return self.logits_at(position)
        return self._unembedded(self._rows(self.unembedding_input, position)[:, None])[:, 0]

    def _rows(
        self, tensor: Float[Tensor, "batch pos n"], position: int | Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch n"]:
        if isinstance(position, Tensor):
            return tensor[torch.arange(len(tensor), device=tensor.device), position]
        return tensor[:, parse_position(position, tensor.shape[1], of="the text")]

    def _unembedded(self, read: Float[Tensor, "batch part d"]) -> Float[Tensor, "batch part v"]:
        logits = transformer.unembed_uncapped(self.weights, read)[0]
        transformer.check_overflow(logits)
        return logits

    def _capped(self, logits: Float[Tensor, "batch *part v"]) -> Float[Tensor, "batch *part v"]:
        return transformer.soft_cap(logits, self.weights.config.logit_cap)

    def __getitem__(self, name: "SiteName") -> Float[Tensor, "..."]:
        """An activation of the run by name, the same names that `hooks` use.

            trace["L1H4.pattern"]    [batch, dest, src]
            trace["L1H4.z"]          [batch, pos, d_head]
            trace["L1H4.k"]          the input of its keys, [batch, pos, d_model]
            trace["residual1"]       the stream before layer 1
            trace["L1H4"], trace["mlp0"], trace["embed"]    outputs, [batch, pos, d_model]
            trace["mlp0.pre"]        the neurons' inputs r W_in + b_in, [batch, pos, d_mlp]
            trace["mlp0.gate"]       the inputs of their gates, r W_gate + b_gate
            trace["mlp0.act"]        the activations that W_out reads
            trace["mlp0.n5"]         the output of one neuron, [batch, pos, d_model]
            trace["logits"]          [batch, pos, vocab]

        `"L1H4@9"` is the output at position 9, [batch, d_model].
        """
        return named_value(self, Site.parse(name))

    @property
    def token_texts(self) -> tuple[tuple[str, ...], ...]:
        """The tokens of each sequence for display, with visible spaces."""
        rows = zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)
        return tuple(tuple(map(self.model.token_text, row[:length])) for row, length in rows)

    def __repr__(self) -> str:
        batch, length = self.tokens.shape
        text = shorten("".join(self.token_texts[0]), 60) if batch else ""
        edits = f", {len(self.edits)} edits" if self.edits else ""
        return f"Trace({self.model.name!r}, {batch} × {length} tokens{edits}: {text!r})"

    def _repr_html_(self) -> str:
        """The text and, in a small model, the attention patterns of all heads, for a notebook."""
        from pathsum.base.record import as_html
        from pathsum.heads.attention import attention

        heads = self.model.config.n_layers * self.model.config.n_heads
        has_figure = len(self.tokens) == 1 and self.records_all and 0 < heads <= MAX_HEADS_DRAWN
        return as_html(repr(self)) + (attention(self).figure().to_svg() if has_figure else "")

    def pattern(
        self, head: HeadName | SupportsIndex, number: SupportsIndex | None = None
    ) -> HeadPattern:
        """One head's attention, [batch, dest, src]: `pattern("L1H4")` or `pattern(1, 4)`."""
        head_id = self.model.head(head, number).id
        if isinstance(self.patterns, PartialLayers):
            return self.patterns.find(head_id)
        return self.patterns[head_id.layer][:, head_id.head]

    def head_z(self, head: HeadName) -> Float[Tensor, "batch pos k"]:
        """One head's z: attention-weighted values, before W_O. Needs only this head's pattern."""
        head_id = self.model.head(head).id
        edited = self.edited_z[head_id.layer]
        if edited is not None:
            return edited[:, head_id.head]
        config, layer = self.weights.config, self.weights.layers[head_id.layer]
        stream = self.streams[head_id.layer]
        values = transformer.head_read(config, layer, head_id.head, Side.V, stream)
        return self.pattern(head_id) @ values

    def written(self, writer: HeadName | Source) -> Stream:
        """The output of a head (without its layer's shared b_O), of `embed` or of an MLP."""
        component = parse_writer(writer)
        if isinstance(component, Source):
            return self._source_output(component)
        head = self.model.head(component).id
        W_O = self.weights.layers[head.layer].W_O[head.head]
        return self.head_z(head) @ W_O * self.scales.write[head.layer][..., None]

    def _source_output(self, source: Source) -> Stream:
        if source.kind == "mlp" and source.layer < len(self.mlp_outputs):
            return self.mlp_outputs[source.layer]
        if source.kind == "neuron":
            return self._neuron_output(source)
        if source.kind != "embed":
            raise PathError(f"{source} is not written in a run; use a head, 'embed' or an MLP")
        if not self.edits:
            return self.weights.W_E[self.tokens]
        W_pos = self.weights.W_pos if self.weights.config.positions == "residual" else None
        return self.streams[0] if W_pos is None else self.streams[0] - W_pos[: self.tokens.shape[1]]

    def neuron_values(self, mlp: Source, value: str = "act") -> Float[Tensor, "batch pos m"]:
        """`pre`, `gate` or `act` of the neurons of an MLP; see `trace[…]`."""
        check_neuron_value(self.weights.config, mlp, value)
        for edit in self.every_edit:
            if edit.changes_neurons(mlp.layer):
                raise NotExactError(
                    f"the neurons of {mlp} were edited ({edit.site}), and a run records streams "
                    "only; use the unedited run"
                )
        return neuron_values(self, mlp.layer, value)

    def _neuron_output(self, source: Source) -> Stream:
        if self.weights.config.norm_place != "before":
            raise NotExactError(
                f"a norm follows the MLPs of this model, so {source} alone has no output in the "
                f"stream; use its activation, trace['mlp{source.layer}.act']"
            )
        check_neuron(self.weights.config, source)
        W_out, neuron = self.weights.layers[source.layer].W_out, source.neuron
        assert W_out is not None
        return self.neuron_values(source)[..., neuron : neuron + 1] * W_out[neuron]

    def attention_scores(self, layer: int) -> Pattern:
        """Scores of a layer's heads before cap, mask and softmax, recomputed from the stream."""
        layer = self.weights.layers.number(layer)
        for head in range(self.weights.config.n_heads):
            self._check_scores_follow(HeadId(layer, head))
        return self._scores(layer)

    def head_scores(self, head: HeadName) -> HeadPattern:
        """The scores of one head before cap, mask and softmax, [batch, dest, src]."""
        head_id = self.model.head(head).id
        self._check_scores_follow(head_id)
        return self._scores(head_id.layer)[:, head_id.head]

    def _scores(self, layer: int) -> Pattern:
        config, tensors = self.weights.config, self.weights.layers[layer]
        query, key, _, _ = transformer.queries_and_keys(config, tensors, self.read(layer))
        return transformer.attention_scores(config, query, key)

    def paths(self, mlps: "Mlps | str" = "held") -> "PathSum":
        """The logits as an exact sum over paths.

        With `mlps="held"` MLP outputs are sources of paths; with `mlps="linear"` the gates of MLPs
        are held instead, and paths go through MLPs down to tokens, positions and biases.
        """
        from pathsum.paths import expand_logits

        self._check_linear()
        return expand_logits(self, mlps)

    def lens(self, position: int = -1, sequence: int = 0) -> "Lens":
        """The logits of the stream before every layer: directly, and through the later layers."""
        from pathsum.paths.lens import lens

        self._check_linear()
        return lens(self, position, sequence)

    def scores(self, head: HeadName) -> "ScoreSum":
        """A head's attention scores as an exact sum over (query part, key part)."""
        from pathsum.paths import expand_scores

        self._check_linear()
        self._check_scores_follow(self.model.head(head).id)
        return expand_scores(self, head)

    def circuit(
        self,
        position: "PositionName" = -1,
        token: "TokenName | None" = None,
        versus: "Versus" = "mean",
        threshold: float = 0.02,
        rival: int | None = None,
        sequence: int = 0,
        effects: bool = True,
        other: "Trace | None" = None,
        progress: Progress = silent,
        max_nodes: int = 1000,
    ) -> "Graph":
        """The circuit behind a prediction: V, Q and K edges down to the tokens."""
        from pathsum.paths.circuit import find_circuit

        return find_circuit(
            self,
            position,
            token,
            versus,
            threshold,
            rival,
            sequence,
            effects,
            other,
            progress,
            max_nodes=max_nodes,
        )

    def patch(self, edits: Mapping[Any, Any]) -> "Trace":
        """This run with edges or nodes from another run, "zero", "mean" or tensors; see `patch`."""
        from pathsum.paths import patch

        return patch(self, edits)

    @property
    def every_edit(self) -> tuple[Edit, ...]:
        """The model's own edits, followed by the edits of this run."""
        return (*(edit for edit in self.weights.edits if edit.value is not None), *self.edits)

    def _check_linear(self) -> None:
        if not all(edit.linear for edit in self.every_edit):
            raise NotExactError(
                "the logits of this edited run are not a sum over its paths, because the output of "
                "a component, or a value that it reads, was replaced; expand the unedited run, or "
                "one in which only patterns were edited"
            )

    def _check_scores_follow(self, head: HeadId) -> None:
        if any(edit.changes_scores_of(head) for edit in self.every_edit):
            raise NotExactError(
                f"the scores of {head} do not follow from the stream of this run, because its "
                "pattern or one of its reads was edited; use the unedited run"
            )


def trace_run(
    model: "Model",
    tokens: Tokens,
    edits: Sequence[Edit] = (),
    lengths: Int[Tensor, " sequence"] | None = None,
    requires_grad: bool = False,
    keep: Keep = EVERYTHING,
    progress: Progress = silent,
) -> Trace:
    """Run a model, with any edits, and record the activations that `keep` lists.

    `lengths` holds the unpadded lengths; by default, every sequence has the length of `tokens`.
    """
    result = run(
        *(model.weights, tokens, edits, keep), requires_grad=requires_grad, progress=progress
    )
    batch, length = result.tokens.shape
    if lengths is None:
        lengths = torch.full((batch,), length, device=tokens.device)
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    return Trace(model=model, lengths=lengths.expand(batch), **values)
