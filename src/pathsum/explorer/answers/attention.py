"""`attention`: the patterns of all heads on a run, plain or weighted by what they move or do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Record
from pathsum.base.shapes import Pattern
from pathsum.explorer.params import TextParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Trace
from pathsum.paths import effects_by_layer, moved_by_layer


@dataclass(frozen=True, kw_only=True)
class AttentionParams(TextParams):
    """The weighting; `head` selects a single head, whose pattern is always dense.

    Pages draw patterns, for which half precision is enough; files of numbers ask for full.
    """

    weighting: Literal["attention", "information", "effect"] = "attention"
    head: str | None = None
    precision: Literal["half", "full"] = "half"


@dataclass(frozen=True, eq=False)
class AttentionAnswer(Record, kind="page-attention"):
    """Patterns [head, dest, src]: dense, or for long texts the k largest entries of each row.

    `kept` is the smallest share of a row's absolute sum that its kept entries have. `activity[head,
    pos]` is how much a head does at each destination, `source_activity[head, pos]` how much of that
    came from each source: attention not on the first token, or the sum of absolute weights.
    """

    weighting: Literal["attention", "information", "effect"]
    heads: tuple[str, ...]
    tokens: int
    dense: Tensor | None
    columns: Tensor | None
    values: Tensor | None
    kept: float
    extent: float
    activity: Tensor
    source_activity: Tensor


# Beyond this many cells or tokens, rows keep only their largest entries.
MAX_CELLS = 8_000_000
MAX_DENSE_TOKENS = 512
# Entries that all rows keep together, and bounds on those of one row.
KEPT_ENTRIES = 4_000_000
MIN_KEPT, MAX_KEPT = 8, 64


def attention(bench: Workbench, params: AttentionParams) -> AttentionAnswer:
    """Patterns of every head, or of one, by the given weighting."""
    trace = bench.run(params).trace
    model, tokens = trace.model, trace.tokens.shape[1]
    chosen = None if params.head is None else model.head(params.head).id
    heads = tuple(head.label for head in model.heads) if chosen is None else (str(chosen),)
    long = tokens > MAX_DENSE_TOKENS or len(heads) * tokens**2 > MAX_CELLS
    keep = _entries_per_row(len(heads), tokens) if long and chosen is None else None
    parts: list[_Part] = []
    for layer, weights in enumerate(_weights(trace, params.weighting)):
        if chosen is None:
            parts.append(_part(weights[0], params.weighting, keep))
        elif chosen.layer == layer:
            parts.append(_part(weights[0, chosen.head][None], params.weighting, keep))
    dtype = torch.float16 if params.precision == "half" else trace.weights.dtype
    return _joined(parts, params.weighting, heads, tokens, keep, dtype)


@dataclass(frozen=True, eq=False)
class _Part:
    """The patterns of one layer: dense or sparse, with their totals."""

    dense: Float[Tensor, "head dest src"] | None
    columns: Int[Tensor, "head dest k"] | None
    values: Float[Tensor, "head dest k"] | None
    kept: float
    extent: float
    activity: Float[Tensor, "head pos"]
    source_activity: Float[Tensor, "head pos"]


def _weights(trace: Trace, weighting: str) -> Iterator[Pattern]:
    if weighting == "attention":
        return iter(trace.patterns)
    if weighting == "information":
        return moved_by_layer(trace)
    # The last position has no next token; its target is the predicted one.
    targets = trace.tokens.roll(-1, 1)
    targets[:, -1] = trace.logits_at(-1).argmax(-1)
    return effects_by_layer(trace, targets)


def _part(
    weights: Float[Tensor, "head dest src"],
    weighting: str,
    keep: int | None,
) -> _Part:
    size = weights.abs()
    if weighting == "attention":
        activity, source_activity = 1 - weights[..., 0], size.amax(1)
    else:
        activity, source_activity = size.sum(-1), size.sum(1)
    extent = float(size.max()) if size.numel() else 0.0
    if keep is None:
        return _Part(weights, None, None, 1.0, extent, activity, source_activity)
    largest = size.topk(min(keep, size.shape[-1]))
    whole = size.sum(-1)
    share = torch.where(whole > 0, largest.values.sum(-1) / whole, 1.0)
    values = weights.gather(-1, largest.indices)
    return _Part(
        None, largest.indices, values, float(share.min()), extent, activity, source_activity
    )


def _joined(
    parts: list[_Part],
    weighting: Literal["attention", "information", "effect"],
    heads: tuple[str, ...],
    tokens: int,
    keep: int | None,
    dtype: torch.dtype,
) -> AttentionAnswer:
    extent = max((part.extent for part in parts), default=0.0)
    # What is moved has no natural unit, so the largest is set to 1.
    scale = 1 / extent if weighting == "information" and extent else 1.0
    dense = [part.dense for part in parts if part.dense is not None]
    columns = [part.columns for part in parts if part.columns is not None]
    values = [part.values for part in parts if part.values is not None]
    none = torch.zeros(0, tokens)
    all_dense = torch.cat(dense) if dense else torch.zeros(0, tokens, tokens)
    return AttentionAnswer(
        weighting=weighting,
        heads=heads,
        tokens=tokens,
        dense=(all_dense * scale).to(dtype) if keep is None else None,
        columns=torch.cat(columns).to(torch.uint16) if columns else None,
        values=(torch.cat(values) * scale).to(dtype) if values else None,
        kept=min((part.kept for part in parts), default=1.0),
        extent=extent * scale,
        activity=torch.cat([part.activity for part in parts]) * scale if parts else none,
        source_activity=(
            torch.cat([part.source_activity for part in parts]) * scale if parts else none
        ),
    )


def _entries_per_row(heads: int, tokens: int) -> int:
    return max(MIN_KEPT, min(MAX_KEPT, KEPT_ENTRIES // (heads * tokens)))
