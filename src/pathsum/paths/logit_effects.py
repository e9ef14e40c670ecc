"""Direct logit attribution: the direct contribution of each head and each source to a logit.

The target is the next token at each destination, with the vocabulary mean removed. A head's share
splits further by the source position that it moves, the logit-effect matrix:

    effect[d, s] = A[d, s] · (s_s x_s W_V W_O) · (s_final W_U[next token of d] − mean)

The stream x_s is the sum of sources (a single path) and of the outputs of lower heads (composed
paths); their effects add up. The output of biases is the same wherever a head attends and is
attributed to the source `bias`, not to heads. `moved_by_layer` instead weights attention by the
size of the moved vector, `A[d, s] · ‖v_s W_O‖`; the norm of v alone would depend on the basis
inside the head.

`direct_parts` is the same for one prediction of any run, including edited runs: it uses recorded
outputs, not a frozen sum.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import LOGITS, Column, Record, Table, text_column
from pathsum.base.errors import InputError
from pathsum.base.shapes import HeadPattern, Pattern, Stream, Tokens
from pathsum.model import HeadId, HeadName, Source, Trace, transformer
from pathsum.model.weights import for_query_heads
from pathsum.paths.breakdown import Name, find_name
from pathsum.paths.flows import direct_shares
from pathsum.paths.frozen import FrozenLayer, Values, relative_error
from pathsum.paths.order_sweep import UpSweep, split_at
from pathsum.paths.path_sum import expand_logits
from pathsum.paths.target import Target


@dataclass(frozen=True, eq=False)
class DirectAttribution(Record, kind="direct-attribution"):
    """Each component's share of the logit of the next token, at every destination.

    `values` is [batch, component, dest]; components add up to `total` ([batch, dest]), the model's
    logit minus the vocabulary's mean. The last destination has no next token and is NaN unless
    targets are given. `remainder` compares with the model's own logits.
    """

    components: tuple[Name, ...]
    values: Float[Tensor, "batch component dest"]
    total: Float[Tensor, "batch dest"]
    remainder: float

    def __getitem__(self, name: "HeadName | str") -> Float[Tensor, "batch dest"]:
        return self.values[:, find_name(self.components, name)]

    def to_table(self) -> Table:
        """Mean share of each component over all predictions, largest magnitude first."""
        means = self.values.nanmean((0, 2)).tolist()
        rows = [(str(name), mean) for name, mean in zip(self.components, means, strict=True)]
        rows.sort(key=lambda row: -abs(row[1]))
        return Table(
            (text_column("component"), Column("mean logit", "+.3f")),
            (*rows, ("all", float(self.total.nanmean()))),
            title="direct attribution to the next token, vocabulary mean removed",
            note=f"reconstruction error {self.remainder:.1e} of the model's own logits",
        )


@dataclass(frozen=True, eq=False)
class LogitEffects(Record, kind="logit-effects"):
    """One head's logit-effect matrix, [batch, dest, src], and its two halves.

    `single` is the effect of moving sources, `composed` the effect of moving the outputs of lower
    heads; `total` is their sum. Rows sum to the head's direct attribution.
    """

    head: HeadId
    total: HeadPattern
    single: HeadPattern
    composed: HeadPattern

    def to_table(self) -> Table:
        """The split of the head's effect into single and composed paths."""
        rows = tuple(
            (name, float(part.sum(-1).nanmean()), float(part.abs().sum(-1).nanmean()))
            for name, part in (
                ("single paths", self.single),
                ("composed paths", self.composed),
                ("all", self.total),
            )
        )
        return Table(
            (
                text_column("paths"),
                Column("mean logit", "+.3f"),
                Column("mean |logit|, summed over sources"),
            ),
            rows,
            title=f"{self.head}: effect on the next token's logit, vocabulary mean removed",
        )


def direct_attribution(
    trace: Trace, targets: Int[Tensor, "batch pos"] | None = None
) -> DirectAttribution:
    """Shares of every source and head in the logit of the next token.

    `targets` replaces the next tokens by other tokens, one per destination, including the last.
    """
    paths = expand_logits(trace)
    target = _next_token_target(trace, targets)
    sources, heads = paths.sources, trace.model.config.every_head
    bias = target.bias if Source("unembed_bias") in sources else None
    values = direct_shares(paths.frozen, target.direction, bias)
    values = values.masked_fill(~target.exists[:, None], torch.nan)
    total = values.sum(1)
    logits = trace.uncapped_logits
    exact = logits.gather(-1, target.tokens[..., None])[..., 0] - logits.mean(-1)
    return DirectAttribution(
        components=(*sources, *heads),
        values=values,
        total=total,
        remainder=relative_error(total[target.exists], exact[target.exists], trace.logits),
    )


def logit_effects(
    trace: Trace, head: HeadName, targets: Int[Tensor, "batch pos"] | None = None
) -> LogitEffects:
    """The logit-effect matrix of one head, split into single and composed paths.

    >>> from pathsum.model import construct
    >>> effects = logit_effects(construct.induction().trace("a b c a b"), "L1H0")
    >>> effects.total.shape, int(effects.total[0, 4].abs().argmax())  # [batch, dest, src]
    (torch.Size([1, 6, 6]), 2)
    """
    frozen = expand_logits(trace).frozen
    head = trace.model.head(head).id
    target, layer = _next_token_target(trace, targets), frozen.head(head)
    effects = _effects(layer, layer.read(split_at(frozen, head.layer)), target)
    single, composed = effects[:, :, 0]
    return LogitEffects(head, single + composed, single, composed)


def effects_by_layer(
    trace: Trace, targets: Int[Tensor, "batch pos"] | None = None
) -> Iterator[Pattern]:
    """Logit-effect matrices of all heads, layer by layer, from one sweep.

    Rows sum to the head's direct attribution. `targets` is as in `direct_attribution`; without it
    the last destination, which has no next token, is NaN.
    """
    frozen = expand_logits(trace).frozen
    target = _next_token_target(trace, targets)
    for step in UpSweep.of(frozen):
        yield _effects(step.layer, step.values, target)[0]


def moved_by_layer(trace: Trace) -> Iterator[Pattern]:
    """Attention × the norm of each source's OV output, layer by layer."""
    for index, pattern in enumerate(trace.patterns):
        layer = trace.model.weights.layers[index]
        value = for_query_heads(transformer.values(layer, trace.read(index)), pattern.shape[1])
        # ‖v W_O‖² = v (W_O W_Oᵀ) vᵀ: never wider than a head.
        gram = layer.W_O @ layer.W_O.mT
        size = ((value @ gram) * value).sum(-1).clamp(min=0).sqrt()
        yield pattern * size[:, :, None]


def direct_parts(trace: Trace, target: Target, layers: int | None = None) -> dict[str, float]:
    """The direct contribution of each component to the target, in any run; they add up to it.

    Computed from the recorded outputs, because an edited run is not the frozen sum of its sources.
    Positions in the stream and biases are one part. With `layers`, the parts of the logit lens:
    components of the first layers only.
    """
    layers = trace.model.config.n_layers if layers is None else layers
    position, gradient = int(target.positions[0]), target.gradient(trace)[0]
    bias = target.direction(trace.weights)[1]
    outputs = {"embed": trace.written("embed")[0, position]}
    for layer in range(layers):
        # As `trace.written` of each head, but z of the layer is computed once.
        z, W_O = trace.z(layer)[0, :, position], trace.weights.layers[layer].W_O
        heads = torch.einsum("hk,hkd->hd", z, W_O) * trace.scales.write[layer][0, position]
        outputs |= {str(HeadId(layer, head)): row for head, row in enumerate(heads)}
    for layer, output in enumerate(trace.mlp_outputs[:layers]):
        outputs[f"mlp{layer}"] = output[0, position]
    rest = trace.streams[layers][0, position] - sum(outputs.values())
    for edit in trace.edits:
        site = edit.site
        if site.reader == LOGITS and {site.at, site.to} <= {None, position}:
            assert isinstance(edit.value, Tensor)
            outputs[str(site.writer)] = edit.value[0, position]
    parts = {name: float(vector @ gradient) for name, vector in outputs.items()}
    return {**parts, "positions and biases": float(rest @ gradient + bias[0])}


@dataclass(frozen=True, eq=False)
class _NextTokenTarget:
    """The explained logit at each destination, vocabulary mean removed.

    `direction` is its gradient at the final stream, `bias` its part of the logits' bias, and
    `exists` whether the destination has a next token.
    """

    tokens: Tokens
    direction: Stream
    bias: Float[Tensor, "batch pos"]
    exists: Tensor


def _effects(
    layer: FrozenLayer, values: Values, target: _NextTokenTarget
) -> Float[Tensor, "many batch head dest src"]:
    at_z = layer.write_adjoint(target.direction[None])
    matrix = layer.pattern * (at_z @ layer.per_head(values).mT)
    return matrix.masked_fill(~target.exists[:, None, :, None], torch.nan)


def _next_token_target(trace: Trace, targets: Tokens | None) -> _NextTokenTarget:
    tokens, exists = _next_tokens(trace, targets)
    target = Target(torch.zeros_like(tokens.flatten()), tokens.flatten(), "mean")
    direction, bias = target.direction(trace.model.weights)
    return _NextTokenTarget(
        tokens=tokens,
        direction=direction.reshape(*tokens.shape, -1) * trace.scales.final[..., None],
        bias=bias.reshape(tokens.shape),
        exists=exists,
    )


def _next_tokens(trace: Trace, targets: Tokens | None) -> tuple[Tokens, Tensor]:
    """The target token of each destination, and whether it has one."""
    length, lengths = trace.tokens.shape[1], trace.lengths[:, None]
    positions = torch.arange(length, device=trace.tokens.device)
    if targets is not None:
        if targets.shape != trace.tokens.shape:
            raise InputError(
                f"targets have shape {list(targets.shape)}, but the trace has "
                f"{list(trace.tokens.shape)} tokens; give one target for each token"
            )
        for token in (int(targets.min()), int(targets.max())):
            trace.model.token_id(token)
        return targets.to(trace.tokens.device), positions < lengths
    if length < 2:
        raise InputError(
            "a sequence of one token has no next token to attribute to; give at least two tokens, "
            "or pass targets"
        )
    return trace.tokens.roll(-1, 1), positions < lengths - 1
