"""Removing one part of a head's scores: the drop in the sum of values that it moves.

With scores s and values v a head moves f = Σ_j A_j v_j. Without a writer's part δ of the key at j,
only s_j changes, so A_j becomes A_j′ = σ(logit A_j − δ), and

    f − f′ = (A_j − A_j′) (v_j − mean of the others)

Without a writer's part of the query all scores change, and f′ is computed again. Both are exact for
the head, with everything above it linear. A share is an edge's part of an integral over all parts
at once; it is 0 where neurons or sources cancel although removing the edge matters. Drops do not
add up. An edge belongs to a circuit if its share or its drop is large enough.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.site import Side
from pathsum.paths.attention import Inputs, NodeAttention
from pathsum.paths.score_weights import integrate_scores

Rows = Float[Tensor, "node src"]


def removal_inputs(of: NodeAttention) -> Iterator[Inputs]:
    """The drops by removing each writer from the keys and from the queries of head nodes."""
    yield _key_removals(of)
    yield _query_removals(of)


def _key_removals(of: NodeAttention) -> Inputs:
    parts = of.key_scores(of.queries, of.visible)
    cap, scores = of.config.score_cap, of.scores[:, None]
    odds, others = _odds(of)
    change = _capped(scores, cap) - _capped(scores - parts.double(), cap)
    moved = odds.sigmoid()[:, None] - (odds[:, None] - change).sigmoid()
    drops = moved * (of.values - others).where(of.visible, 0.0)[:, None]
    drops = drops.to(parts)

    def along(nodes: Tensor, by: Tensor, places: Tensor) -> Tensor:
        slopes = drops[nodes, by, places] / parts[nodes, by, places]
        return of.key.adjoint(of.queries[nodes], places) * slopes[:, None]

    return Inputs(Side.K, of.carried.writers(2 * of.head.layer), drops, drops, along)


def _odds(of: NodeAttention) -> tuple[Rows, Rows]:
    """Each source's log odds against all others, and the mean value of the others."""
    scores = _capped(of.scores, of.config.score_cap).where(of.visible, -torch.inf)
    values = of.values.where(of.visible, 0.0)
    if of.sink is not None:
        scores = torch.nn.functional.pad(scores, (0, 1), value=of.sink)
        values = torch.nn.functional.pad(values, (0, 1))
    top = scores.argmax(-1, keepdim=True)
    # Without the largest, whose complement would lose all digits as 1 − A.
    rest = scores.scatter(-1, top, -torch.inf)
    pattern, below = scores.softmax(-1), rest.softmax(-1).nan_to_num()
    left = (1 - pattern).scatter(-1, top, 1.0)
    moved = (pattern * values).sum(-1, keepdim=True) - pattern * values
    others = (moved / left).scatter(-1, top, (below * values).sum(-1, keepdim=True))
    against = scores.logsumexp(-1, keepdim=True) + left.log()
    odds = scores - against.scatter(-1, top, rest.logsumexp(-1, keepdim=True))
    length = of.scores.shape[1]
    return odds[:, :length], others[:, :length]


def _query_removals(of: NodeAttention) -> Inputs:
    places, length = of.positions, of.scores.shape[1]
    keys = of.keys.repeat(len(places), 1) * of.config.score_scale
    reads = of.query.adjoint(keys, places.repeat_interleave(length)).unflatten(0, (-1, length))
    level, cap = 2 * of.head.layer, of.config.score_cap
    parts = torch.einsum("nwd,nsd->nws", of.carried.vectors_at(level, places), reads)
    without = of.scores[:, None] - parts.double()
    drops = (_moved(of, of.scores[:, None]) - _moved(of, without)).to(parts)[..., None]

    def along(nodes: Tensor, by: Tensor, _: Tensor) -> Tensor:
        ends = (of.scores[nodes], of.values[nodes], of.visible[nodes])
        start = without[nodes, by], of.values[nodes]
        weights = integrate_scores(*ends, cap, of.sink, start).weights.to(parts)
        return of.query.adjoint(weights @ of.keys * of.config.score_scale, places[nodes])

    writers = of.carried.writers(level)
    return Inputs(Side.Q, writers, drops, drops, along, positions=tuple(places.tolist()))


def _moved(
    of: NodeAttention, scores: Float[Tensor, "node writer src"]
) -> Float[Tensor, "node writer"]:
    """Σ_j A_j v_j for scores before the cap."""
    pattern = of.attend(scores)
    return (pattern * of.values.where(of.visible, 0.0)[:, None]).sum(-1)


def _capped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if cap is None else cap * torch.tanh(scores / cap)
