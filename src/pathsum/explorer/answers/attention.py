"""`attention`: where every head attends on a run, plain, by what is moved, or by its effect."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.explorer.parameters import AboutText
from pathsum.explorer.workbench import Workbench
from pathsum.model import Trace
from pathsum.paths import effects_by_layer, moved_by_layer
from pathsum.result import Record
from pathsum.shapes import Pattern


@dataclass(frozen=True, kw_only=True)
class AttentionOf(AboutText):
    """Which weighting, and one head alone if it is named (then always dense)."""

    weighting: Literal["attention", "information", "effect"] = "attention"
    head: str | None = None


@dataclass(frozen=True, eq=False)
class AttentionAnswer(Record, kind="page-attention"):
    """Patterns [head, dest, src], dense, or for long texts each row's k largest entries.

    `kept` is the least share of a row's absolute sum that its kept entries have. `does[head, pos]`
    is how much a head does at each destination, `is_read[head, pos]` how much of it came from each
    source: attention other than to the first token, or the sum of absolute weights.
    """

    weighting: Literal["attention", "information", "effect"]
    heads: tuple[str, ...]
    tokens: int
    dense: Tensor | None
    columns: Tensor | None
    values: Tensor | None
    kept: float
    extent: float
    does: Tensor
    is_read: Tensor


# More cells than this, or more tokens, and each row keeps its largest entries only.
MOST_CELLS = 8_000_000
MOST_DENSE_TOKENS = 512
# How many entries all rows keep together, and how many one row keeps at the least and at the most.
KEPT_ENTRIES = 4_000_000
LEAST_KEPT, MOST_KEPT = 8, 64


def attention(bench: Workbench, asked: AttentionOf) -> AttentionAnswer:
    """Patterns of every head, or of one, by the weighting that was asked for."""
    trace = bench.run(asked).trace
    model, tokens = trace.model, trace.tokens.shape[1]
    chosen = None if asked.head is None else model.head(asked.head).id
    heads = tuple(head.label for head in model.heads) if chosen is None else (str(chosen),)
    long = tokens > MOST_DENSE_TOKENS or len(heads) * tokens**2 > MOST_CELLS
    keep = _entries_a_row(len(heads), tokens) if long and chosen is None else None
    parts: list[_Part] = []
    for layer, weights in enumerate(_weights(trace, asked.weighting)):
        if chosen is None:
            parts.append(_part(weights[0], asked.weighting, keep))
        elif chosen.layer == layer:
            parts.append(_part(weights[0, chosen.head][None], asked.weighting, keep))
    return _joined(parts, asked.weighting, heads, tokens, keep)


@dataclass(frozen=True, eq=False)
class _Part:
    """A layer's matrices, dense or the largest entries of each row, and what is said of them."""

    dense: Float[Tensor, "head dest src"] | None
    columns: Int[Tensor, "head dest k"] | None
    values: Float[Tensor, "head dest k"] | None
    kept: float
    extent: float
    does: Float[Tensor, "head pos"]
    is_read: Float[Tensor, "head pos"]


def _weights(trace: Trace, weighting: str) -> Iterator[Pattern]:
    if weighting == "attention":
        return iter(trace.patterns)
    if weighting == "information":
        return moved_by_layer(trace)
    # The last position has no next token; there the model's own best guess stands in.
    targets = trace.tokens.roll(-1, 1)
    targets[:, -1] = trace.logits[:, -1].argmax(-1)
    return effects_by_layer(trace, targets)


def _part(
    weights: Float[Tensor, "head dest src"],
    weighting: str,
    keep: int | None,
) -> _Part:
    size = weights.abs()
    if weighting == "attention":
        does, is_read = 1 - weights[..., 0], size.amax(1)
    else:
        does, is_read = size.sum(-1), size.sum(1)
    extent = float(size.max()) if size.numel() else 0.0
    if keep is None:
        return _Part(weights, None, None, 1.0, extent, does, is_read)
    largest = size.topk(min(keep, size.shape[-1]))
    whole = size.sum(-1)
    share = torch.where(whole > 0, largest.values.sum(-1) / whole, 1.0)
    values = weights.gather(-1, largest.indices)
    return _Part(None, largest.indices, values, float(share.min()), extent, does, is_read)


def _joined(
    parts: list[_Part],
    weighting: Literal["attention", "information", "effect"],
    heads: tuple[str, ...],
    tokens: int,
    keep: int | None,
) -> AttentionAnswer:
    extent = max((part.extent for part in parts), default=0.0)
    # Sizes of what moves have no unit that a reader knows, so the largest is 1.
    scale = 1 / extent if weighting == "information" and extent else 1.0
    dense = [part.dense for part in parts if part.dense is not None]
    columns = [part.columns for part in parts if part.columns is not None]
    values = [part.values for part in parts if part.values is not None]
    nothing = torch.zeros(0, tokens)
    all_dense = torch.cat(dense) if dense else torch.zeros(0, tokens, tokens)
    return AttentionAnswer(
        weighting=weighting,
        heads=heads,
        tokens=tokens,
        dense=(all_dense * scale).half() if keep is None else None,
        columns=torch.cat(columns).to(torch.uint16) if columns else None,
        values=(torch.cat(values) * scale).half() if values else None,
        kept=min((part.kept for part in parts), default=1.0),
        extent=extent * scale,
        does=torch.cat([part.does for part in parts]) * scale if parts else nothing,
        is_read=torch.cat([part.is_read for part in parts]) * scale if parts else nothing,
    )


def _entries_a_row(heads: int, tokens: int) -> int:
    return max(LEAST_KEPT, min(MOST_KEPT, KEPT_ENTRIES // (heads * tokens)))
