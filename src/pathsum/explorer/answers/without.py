"""`without`: a text run again with heads and edges switched off, next to the run as it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import LogitsRead, Record
from pathsum.base.errors import HeadError, InputError
from pathsum.explorer.answers.prediction import (
    PredictionParams,
    find_versus,
    position_of,
    token_of,
)
from pathsum.explorer.answers.run import predictions
from pathsum.explorer.workbench import Workbench
from pathsum.model import HeadId, Trace
from pathsum.model.edits import Message
from pathsum.model.losses import trace_losses
from pathsum.paths.intervene.patching import without
from pathsum.paths.target import Target, find_target

# Predictions that are listed, and things that may be switched off in one link.
TOP, MAX_SWITCHES = 8, 200


@dataclass(frozen=True, kw_only=True)
class WithoutParams(PredictionParams):
    """`off` lists the names of what is off (`L0H3,L0H3→L1H0.k,L0H3@4→L1H0@9.k`).

    `head` is the one whose pattern is sent, by default the one whose attention changed most.
    """

    off: str
    head: str | None = None


@dataclass(frozen=True)
class Measured:
    """One prediction in one of the two runs."""

    total: float
    probability: float
    rank: int


@dataclass(frozen=True, eq=False)
class WithoutAnswer(Record, kind="page-without"):
    """A prediction before and after, with what each component wrote straight into its logit.

    `parts` are the embedding, every head, every MLP and what biases write; in each run they add up
    to `total`, the logit minus what it is compared with. `top_ids` are the strongest predictions of
    either run. `moved[head]` is how much of its attention a head moved elsewhere at the position;
    `pattern_before` and `pattern_after` are those of `head`, and None for a model without heads.
    `loss_before` and `loss_after` are those of the whole text.
    """

    off: tuple[str, ...]
    position: int
    token: int
    before: Measured
    after: Measured
    top_ids: tuple[int, ...]
    top_before: Tensor
    top_after: Tensor
    parts: tuple[str, ...]
    parts_before: Tensor
    parts_after: Tensor
    heads: tuple[str, ...]
    moved: Tensor
    head: str | None
    pattern_before: Tensor | None
    pattern_after: Tensor | None
    loss_before: Tensor
    loss_after: Tensor


def without_parts(bench: Workbench, params: WithoutParams) -> WithoutAnswer:
    """Run a text without some heads and edges."""
    trace = bench.run(params).trace
    position = position_of(trace, params.position)
    token = token_of(trace, position, params.token)
    target = find_target(trace, position, token, find_versus(trace.model, params.versus))
    off = tuple(dict.fromkeys(part.strip() for part in params.off.split(",") if part.strip()))
    if len(off) > MAX_SWITCHES:
        raise InputError(f"{len(off)} things are switched off; at most {MAX_SWITCHES} are allowed")
    cut = without(trace, off)
    names, before = direct_parts(trace, target)
    after = direct_parts(cut, target)[1]
    probabilities = [run.logits_at(position)[0].softmax(-1) for run in (trace, cut)]
    top = _top(probabilities)
    moved = _moved(trace, cut, position)
    heads = tuple(head.label for head in trace.model.heads)
    shown = _shown(heads, moved, params.head)
    return WithoutAnswer(
        off=off,
        position=position,
        token=token,
        before=_measured(trace, target),
        after=_measured(cut, target),
        top_ids=tuple(top),
        top_before=probabilities[0][top],
        top_after=probabilities[1][top],
        parts=names,
        parts_before=before,
        parts_after=after,
        heads=heads,
        moved=moved,
        head=shown,
        pattern_before=None if shown is None else trace.pattern(shown)[0].half(),
        pattern_after=None if shown is None else cut.pattern(shown)[0].half(),
        loss_before=-predictions(bench, params).next_log_prob,
        loss_after=_losses(cut),
    )


def direct_parts(trace: Trace, target: Target) -> tuple[tuple[str, ...], Float[Tensor, " part"]]:
    """The direct contribution of each component to the target, in any run; they add up to it.

    The last part is what no component wrote: positions in the stream, and biases.
    """
    position = int(target.positions[0])
    gradient, bias = target.direction(trace.weights)
    gradient = gradient[0] * trace.scales.final[0, position]
    config = trace.model.config
    written = {"embed": trace.written("embed")[0, position]}
    for layer in range(config.n_layers):
        # As `trace.written` of each head, with the layer's z computed once for all of them.
        moved, W_O = trace.z(layer)[0, :, position], trace.weights.layers[layer].W_O
        each = torch.einsum("hk,hkd->hd", moved, W_O) * trace.scales.write[layer][0, position]
        written |= {str(HeadId(layer, head)): row for head, row in enumerate(each)}
    if config.mlp != "none":
        written |= {
            f"mlp{layer}": output[0, position] for layer, output in enumerate(trace.mlp_outputs)
        }
    rest = trace.streams[-1][0, position] - sum(written.values())
    for edit in trace.edits:
        if not (isinstance(edit, Message) and isinstance(edit.edge.reader, LogitsRead)):
            continue
        if edit.destinations is None or bool(edit.destinations[0, position]):
            written[str(edit.edge.writer)] = edit.written[0, position]
    values = torch.stack([*written.values(), rest]) @ gradient
    values[-1] += bias[0]
    return (*written, "positions and biases"), values


def _measured(trace: Trace, target: Target) -> Measured:
    logits = trace.logits_at(target.positions)[0]
    own = logits[int(target.tokens[0])]
    return Measured(
        total=float(target.of_rows(trace.uncapped_logits_at(target.positions))[0]),
        probability=float(logits.softmax(-1)[int(target.tokens[0])]),
        rank=int((logits > own).sum()) + 1,
    )


def _top(probabilities: Sequence[Float[Tensor, " vocab"]]) -> list[int]:
    """The strongest predictions of either run, by the larger of the two."""
    either = torch.stack(list(probabilities)).amax(0)
    return either.topk(min(TOP, len(either))).indices.tolist()


def _moved(trace: Trace, cut: Trace, position: int) -> Float[Tensor, " head"]:
    """Half the absolute change of each head's row: the share of its attention that moved."""
    rows = [
        (after[0, :, position] - before[0, :, position]).abs().sum(-1) / 2
        for before, after in zip(trace.patterns, cut.patterns, strict=True)
    ]
    return torch.cat(rows) if rows else torch.zeros(0)


def _shown(heads: Sequence[str], moved: Tensor, wanted: str | None) -> str | None:
    if wanted is not None:
        if wanted not in heads:
            raise HeadError(f"there is no head {wanted!r} in this model")
        return wanted
    return heads[int(moved.argmax())] if heads else None


def _losses(trace: Trace) -> Float[Tensor, " pos"]:
    """The loss of predicting each next token; NaN at the last position."""
    return torch.nn.functional.pad(trace_losses(trace)[0], (0, 1), value=torch.nan)
