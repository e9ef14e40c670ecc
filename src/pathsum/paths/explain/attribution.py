"""Direct logit attribution: what each head and each source wrote straight into a logit.

For the token that comes next at each destination, vocabulary mean removed. A head's share splits
further by the source position it was moved from:

    effect[d, s] = A[d, s] · (s_s x_s W_V W_O) · (s_final W_U[next] − mean)

the logit-effect matrix. What it moves is either a source itself (a single path) or what lower heads
had brought there (composed paths); the two add up. What biases write is the same wherever a head
attends and stands under the source `bias`, not under heads.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model import HeadId, HeadName, Trace
from pathsum.model.reads import fold_bias, fold_read
from pathsum.paths.explain.breakdown import Name, find_name
from pathsum.paths.frozen import Frozen
from pathsum.paths.path_sum import expand_logits
from pathsum.paths.stream_sources import all_sources
from pathsum.result import Column, Record, Table, text_column
from pathsum.shapes import HeadPattern, Tokens


@dataclass(frozen=True, eq=False)
class DirectAttribution(Record, kind="direct-attribution"):
    """Each component's share of the logit of the next token, at every destination.

    `values` is [batch, component, dest]; components add up to `total` ([batch, dest]), the model's
    logit minus the vocabulary's mean. The last destination has no next token and is NaN, unless
    targets were given. `remainder` compares with the model's own logits.
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
            note=f"remainder {self.remainder:.1e} of the model's own logits",
        )


@dataclass(frozen=True, eq=False)
class LogitEffects(Record, kind="logit-effects"):
    """One head's logit-effect matrix, [batch, dest, src], and its two halves.

    `single` is what it moved of sources themselves, `composed` what lower heads had brought to the
    source position; `total` is their sum. Rows sum to the head's direct attribution.
    """

    head: HeadId
    total: HeadPattern
    single: HeadPattern
    composed: HeadPattern

    def to_table(self) -> Table:
        """How much of the head's effect goes by single and by composed paths."""
        length = self.total.shape[-1]
        rows = [
            (what, float(part.sum(-1).nanmean()), float(part.abs().nansum(-1).mean()), length)
            for what, part in (
                ("single paths", self.single),
                ("composed paths", self.composed),
                ("all", self.total),
            )
        ]
        return Table(
            (
                text_column("paths"),
                Column("mean logit", "+.3f"),
                Column("mean |logit|, summed over sources"),
            ),
            tuple(row[:3] for row in rows),
            title=f"{self.head}: effect on the next token's logit, vocabulary mean removed",
        )


def direct_attribution(
    trace: Trace, targets: Int[Tensor, "batch pos"] | None = None
) -> DirectAttribution:
    """Shares of every source and head in the logit of the token that comes next.

    `targets` names other tokens, one for each destination (then the last one counts too).
    """
    paths = expand_logits(trace)
    frozen, weights = Frozen(trace), trace.model.weights
    direction, bias, known = target_directions(trace, targets)
    sources, heads = all_sources(weights), tuple(head.id for head in trace.model.heads)
    batch, length = trace.tokens.shape
    values = direction.new_empty(batch, len(sources) + len(heads), length)
    for place, source in enumerate(sources):
        if source.kind == "unembed_bias":
            values[:, place] = bias
        else:
            values[:, place] = (frozen.source(source) * direction).sum(-1)
    stream = frozen.start
    for index in range(frozen.n_layers):
        layer = frozen.layer(index)
        mixed = layer.mixed(stream[None])
        first = len(sources) + index * trace.model.config.n_heads
        for head, W_O in enumerate(layer.W_O):
            # One head's write at a time: [batch, pos, d] and not a head more.
            values[:, first + head] = ((mixed[0, :, head] @ W_O) * direction).sum(-1)
        stream = stream + layer.written(mixed)[0]
        added = frozen.added_after(index)
        stream = stream if added is None else stream + added
    values = values.masked_fill(~known[:, None], torch.nan)
    total = values.sum(1)
    own = _own_logits(trace, targets)
    error = float((total - own)[known].abs().max())
    size = float(trace.logits.abs().max())
    return DirectAttribution(
        components=(*paths.sources, *heads),
        values=values,
        total=total,
        remainder=error / size if size else error,
    )


def logit_effects(
    trace: Trace, head: HeadName, targets: Int[Tensor, "batch pos"] | None = None
) -> LogitEffects:
    """The logit-effect matrix of one head, split into single and composed paths."""
    expand_logits(trace)  # refuses what has no exact sum
    found = trace.model.head(head).id
    frozen = Frozen(trace)
    direction, _, known = target_directions(trace, targets)
    free, headed = frozen.up_to(found.layer)
    layer = frozen.layer(found.layer)
    # [batch, dest, k]: what a value of this head is worth at each destination.
    worth = direction @ layer.W_O[found.head].T
    W_V = layer.each_V[found.head]

    def effect(stream: Float[Tensor, "batch pos d"]) -> HeadPattern:
        value = (stream * layer.scale[..., None]) @ W_V
        matrix = layer.pattern[:, found.head] * (worth @ value.mT)
        return matrix.masked_fill(~known[:, :, None], torch.nan)

    single, composed = effect(free), effect(headed)
    return LogitEffects(found, single + composed, single, composed)


def target_directions(
    trace: Trace, targets: Tokens | None
) -> tuple[Float[Tensor, "batch pos d"], Float[Tensor, "batch pos"], Tensor]:
    """For each destination: what the stream is read with for its target, and the bias."""
    weights = trace.model.weights
    tokens, known = _targets(trace, targets)
    W_U = weights.W_U
    columns = W_U[:, tokens.flatten()] - W_U.mean(1, keepdim=True)
    folded = fold_read(weights.config.norm, columns, weights.ln_f_w)
    own = None if weights.b_U is None else weights.b_U[tokens.flatten()] - weights.b_U.mean()
    bias = fold_bias(columns, weights.ln_f_b, own).reshape(tokens.shape)
    direction = folded.T.reshape(*tokens.shape, -1) * trace.scales.final[..., None]
    return direction, bias, known


def _targets(trace: Trace, targets: Tokens | None) -> tuple[Tokens, Tensor]:
    """Target tokens and which destinations have one."""
    known = torch.ones_like(trace.tokens, dtype=torch.bool)
    if targets is not None:
        if targets.shape != trace.tokens.shape:
            raise InputError(
                f"targets have shape {list(targets.shape)}, but the trace has "
                f"{list(trace.tokens.shape)} tokens; one target for each would be right"
            )
        for token in (int(targets.min()), int(targets.max())):
            trace.model.token_id(token)
        return targets.to(trace.tokens.device), known
    if trace.tokens.shape[1] < 2:
        raise InputError(
            "a sequence of one token has no next token to attribute to; give at least two tokens, "
            "or name the targets"
        )
    known[:, -1] = False
    return trace.tokens.roll(-1, 1), known


def _own_logits(trace: Trace, targets: Tokens | None) -> Float[Tensor, "batch pos"]:
    tokens, _ = _targets(trace, targets)
    own = trace.logits.gather(-1, tokens[..., None])[..., 0]
    return own - trace.logits.mean(-1)
