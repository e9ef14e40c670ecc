"""The mechanism of an induction head: the edge behind its stripe, and the score terms."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor

from pathsum.algebra.spectrum import positivity
from pathsum.base import Column, Record, Side, Site, text_column
from pathsum.base.estimate import ProbabilityColumn
from pathsum.circuits.composition import Composition
from pathsum.circuits.qk_ov import token_qk
from pathsum.heads.probe import induction_cells, stripe
from pathsum.model import HeadId, Model, Path, Trace
from pathsum.paths.patching import patched_pattern
from pathsum.text.token_pool import RepeatedTokens

Mechanism: TypeAlias = Literal["K-composition", "Q-composition", "none"]

# A mechanism is named if cutting one edge removes at least this share of the stripe.
LEAST_SHARE_LOST = 0.25
# In deep models, only edges suggested by weights or patterns are cut.
MOST_BY_COMPOSITION = 6
MOST_BY_PATTERN = 3


@dataclass(frozen=True)
class PartnerEdge(Record, kind="partner-edge"):
    """An edge from a lower head into an induction head's query or key.

    `stripe_left` is the head's stripe if only this edge is patched with its value on shuffled
    tokens, and `share_lost` is the share of the stripe that this removes. `score`, `z` and `p` are
    the edge's composition.
    """

    edge: Annotated[Site, text_column("edge")]
    stripe_left: Annotated[float, Column("stripe left", ".3f")]
    share_lost: Annotated[float, Column("lost", ".0%")]
    score: Annotated[float, Column("composition", ".3f")]
    z: Annotated[float, Column("z", "+.1f")]
    p: Annotated[float, ProbabilityColumn()]

    @property
    def writer(self) -> HeadId:
        """The lower head."""
        assert isinstance(self.edge.writer, HeadId)
        return self.edge.writer

    @property
    def side(self) -> Side:
        """Whether the edge leads into the query or the key."""
        assert self.edge.side is not None
        return self.edge.side


def candidate_partners(
    reader: HeadId, composed: Composition, previous_token: Mapping[HeadId, float]
) -> list[HeadId]:
    """Lower heads whose edges to cut: all in a small model, else the most likely partners."""
    lower = [head for head in previous_token if head.layer < reader.layer]
    if len(lower) <= 2 * MOST_BY_COMPOSITION + MOST_BY_PATTERN:
        return lower
    column = composed.heads.index(reader)
    candidates = sorted(lower, key=lambda head: -previous_token[head])[:MOST_BY_PATTERN]
    for side in ("k", "q"):
        z = composed.scores(side).z[:, column].nan_to_num(nan=-torch.inf)
        ranked = sorted(lower, key=lambda head: -float(z[composed.heads.index(head)]))
        candidates += ranked[:MOST_BY_COMPOSITION]
    return sorted(set(candidates))


def measure_cut_edges(
    trace: Trace,
    probe: RepeatedTokens,
    reader: HeadId,
    writers: Sequence[HeadId],
    composed: Composition,
    shuffled_run: Trace,
    step: Callable[[str], None],
) -> tuple[PartnerEdge, ...]:
    """Patch each edge from a run on shuffled tokens; largest loss of the stripe first.

    `step` is called before each writer.
    """
    before = float(stripe(trace.pattern(reader)[:, None], probe).nanmean())
    column = composed.heads.index(reader)
    edges: list[PartnerEdge] = []
    for writer in writers:
        step(f"cutting edges from {writer} to")
        row = composed.heads.index(writer)
        for kind in ("k", "q"):
            edge = composed.edge_at(kind, row, column)
            patched = patched_pattern(trace, edge.edge, shuffled_run)
            remaining = float(stripe(patched[:, None], probe).nanmean())
            lost = 1 - remaining / before if before > 0 else 0.0
            edges.append(PartnerEdge(edge.edge, remaining, lost, edge.score, edge.z, edge.p))
    return tuple(sorted(edges, key=lambda edge: -edge.share_lost))


def matching_through(
    model: Model, head: HeadId, partner: HeadId, mechanism: Mechanism
) -> float | None:
    """Σλ/Σ|λ| of the head's QK through its partner's OV.

    None for pointers to positions, which contain no tokens to match and have no eigenvalues.
    """
    through, by_key = Path("embed", [partner]), mechanism == "K-composition"
    sides = (None, through) if by_key else (through, None)
    matching = token_qk(model, head, query_through=sides[0], key_through=sides[1])
    ratio = float(positivity(matching.eigenvalues()))
    return None if math.isnan(ratio) else ratio


def score_shares(trace: Trace, probe: RepeatedTokens, head: HeadId) -> dict[str, float]:
    """The share of each group of terms in the score at the stripe: `k_share` and so on.

    Each row's mean is removed first, because softmax ignores a constant over sources.
    """
    scores = trace.scores(head)
    sequences, rows, columns = induction_cells(probe).nonzero(as_tuple=True)

    def above_row_mean(group: Tensor) -> float:
        means = group.tril().sum(-1)[sequences, rows] / (1.0 + rows).to(group)
        return float((group[sequences, rows, columns] - means).mean())

    groups = {"none": scores.none, "q": scores.q, "k": scores.k, "qk": scores.qk}
    shares = {name: above_row_mean(group) for name, group in groups.items()}
    total = sum(shares.values())
    return {f"{name}_share": share / total if total else math.nan for name, share in shares.items()}
