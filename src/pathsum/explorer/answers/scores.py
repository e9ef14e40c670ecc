"""`scores`: a head's attention scores in parts, from which the table of any cell is computed."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Record
from pathsum.explorer.params import TextParams
from pathsum.explorer.workbench import Workbench
from pathsum.paths import Part, expand_scores
from pathsum.paths.score_sum import SideSum


@dataclass(frozen=True, kw_only=True)
class ScoresParams(TextParams):
    """One head's scores on a text."""

    head: str


@dataclass(frozen=True, eq=False)
class ScoreParts(Record, kind="page-scores"):
    """Query parts and key parts [part, pos, width]; a term is the dot product of one of each.

    Scale and rotation are folded in, so the terms of a cell add up to its score before softmax.
    """

    head: str
    query_parts: tuple[str, ...]
    key_parts: tuple[str, ...]
    query: Tensor
    key: Tensor
    remainder: float
    total_max: float


# Beyond this many numbers per side, the heads of a layer are combined into one part.
MAX_NUMBERS = 8_000_000


def scores(bench: Workbench, params: ScoresParams) -> ScoreParts:
    """A head's queries and keys on a run, in parts."""
    trace = bench.run(params).trace
    found = expand_scores(trace, params.head)
    config = trace.model.config
    length = trace.tokens.shape[1]
    heads = found.head.layer * config.n_heads
    coarse = heads * length * config.d_head > MAX_NUMBERS
    query_names, query = _side(found.query, coarse)
    key_names, key = _side(found.key, coarse)
    return ScoreParts(
        head=str(found.head),
        query_parts=query_names,
        key_parts=key_names,
        query=query * config.score_scale,
        key=key,
        remainder=found.remainder(),
        total_max=float(found.model_scores.abs().max()),
    )


def _side(side: SideSum, coarse: bool) -> tuple[tuple[str, ...], Float[Tensor, "part pos k"]]:
    """The parts of one side by name; the heads of a layer are combined if coarse."""
    parts: dict[str, Tensor] = {}
    for part, vectors in side.writers():
        name = _name(part, coarse)
        parts[name] = parts[name] + vectors[0] if name in parts else vectors[0]
    return tuple(parts), torch.stack(list(parts.values()))


def _name(part: Part, coarse: bool) -> str:
    if part.kind == "writer" and coarse:
        return f"heads of layer {part.heads[0].layer}"
    return str(part)
