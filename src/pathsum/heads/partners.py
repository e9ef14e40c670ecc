"""Which lower head an induction head reads: by cutting each edge and watching the stripe."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from pathsum.circuits.composition.composition import Composition
from pathsum.heads.kinds.induction_stripe import stripe
from pathsum.model import HeadId, Trace
from pathsum.result import Record
from pathsum.shapes import Tokens
from pathsum.text.probes import RepeatedTokens

EdgeSide: TypeAlias = Literal["q", "k"]

# On deep models only the edges that weights or patterns point at are cut.
MOST_BY_COMPOSITION = 6
MOST_BY_PATTERN = 3


@dataclass(frozen=True)
class PartnerEdge(Record, kind="partner-edge"):
    """An edge from a lower head into an induction head's query or key.

    `stripe_left` is the head's stripe when the edge alone carries another sequence's message, and
    `share_lost` what that takes away of the stripe. `score`, `z` and `p` are its composition.
    """

    writer: HeadId
    reader: HeadId
    side: EdgeSide
    stripe_left: float
    share_lost: float
    score: float
    z: float
    p: float


def candidates(
    reader: HeadId, composed: Composition, previous_token: dict[HeadId, float]
) -> list[HeadId]:
    """Lower heads worth cutting: all of a small model's, else those that something points at."""
    lower = [head for head in previous_token if head.layer < reader.layer]
    if len(lower) <= 2 * MOST_BY_COMPOSITION + MOST_BY_PATTERN:
        return lower
    column = composed.heads.index(str(reader))
    chosen: list[HeadId] = []
    for side in ("k", "q"):
        z = composed.scores(side).z[:, column].nan_to_num(nan=-torch.inf)
        ranked = sorted(lower, key=lambda head: -float(z[composed.heads.index(str(head))]))
        chosen += ranked[:MOST_BY_COMPOSITION]
    chosen += sorted(lower, key=lambda head: -previous_token[head])[:MOST_BY_PATTERN]
    return sorted(set(chosen))


def _shuffled(tokens: Tokens, probe: RepeatedTokens) -> Tokens:
    """Other tokens at most places, and no copy at the old distance.

    So an edge that tells which token stood before, and one that tells where the last copy stands,
    both tell something wrong.
    """
    generator = torch.Generator().manual_seed(0)
    places = torch.arange(tokens.shape[1])
    tail = probe.first + torch.randperm(tokens.shape[1] - probe.first, generator=generator)
    places[probe.first :] = tail
    return tokens[:, places]


def cut_edges(
    trace: Trace,
    probe: RepeatedTokens,
    reader: HeadId,
    writers: Sequence[HeadId],
    composed: Composition,
) -> tuple[PartnerEdge, ...]:
    """Each edge patched from a run of the same tokens shuffled, everything after it recomputed."""
    other = trace.model.trace(_shuffled(trace.tokens, probe))
    before = float(stripe(trace.pattern(reader)[:, None], probe).mean())
    column = composed.heads.index(str(reader))
    edges: list[PartnerEdge] = []
    for writer in writers:
        row = composed.heads.index(str(writer))
        for side in ("k", "q"):
            patched = trace.patch({(str(writer), str(reader), side): other})
            left = float(stripe(patched.pattern(reader)[:, None], probe).mean())
            scores = composed.scores(side)
            edges.append(
                PartnerEdge(
                    writer=writer,
                    reader=reader,
                    side=side,
                    stripe_left=left,
                    share_lost=1 - left / before if before > 0 else 0.0,
                    score=float(scores.score[row, column]),
                    z=float(scores.z[row, column]),
                    p=float(scores.p[row, column]),
                )
            )
    return tuple(sorted(edges, key=lambda edge: -edge.share_lost))
